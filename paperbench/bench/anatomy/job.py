"""What one part is asked to do, handed to its process as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from paperbench.bench.anatomy.scale import SCALES, Scale


@dataclass(frozen=True)
class Job:
    """A part's task.

    Attributes:
        part: A name of `plan.PARTS`.
        module: Holds the part's function `measure(context)`.
        model: The net that it is about; None if it is about all.
        models: All nets.
        scale: A name of `scale.SCALES`.
        device: As torch writes it, such as "cuda:0".
        seconds: After which it begins nothing new.
        output: File to write rows to.
    """

    part: str
    module: str
    model: str | None
    models: tuple[str, ...]
    scale: str
    device: str
    seconds: float
    output: str

    @property
    def sizes(self) -> Scale:
        """The scale itself."""
        return SCALES[self.scale]

    def to_json(self) -> str:
        """As text for a command line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Job:
        """The job that `to_json` wrote."""
        values: dict[str, Any] = json.loads(text)
        return Job(**{**values, "models": tuple(values["models"])})
