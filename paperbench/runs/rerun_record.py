"""Reruns that are kept, so that readers see what was verified on which kind of machine. One JSON file each.

results/reruns/<run>-<8 hex of the sha256 of its values>.json
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from paperbench.errors import without_paths
from paperbench.files import Writer, refuse_links
from paperbench.runs.hashed import HashedJson
from paperbench.runs.record import Code, Environment
from paperbench.specs.recipe import Evaluation
from paperbench.typed import Count, Line, Natural, typed

DIRECTORY = "reruns"

TOLERANCE = 0.02
"""Allowed relative difference of a training loss (mean over a window) on other hardware or libraries."""

IMAGES_TOLERANCE = 0.001
"""Allowed difference of the test error of the saved net on other hardware or libraries, as a share of the test images.

The net is the same, so only images whose two best classes have almost equal scores can change sides. Of 1,797 noisy
images, most of them misclassified, bfloat16 moved 8 and the number of errors by 1 against float64, and float32 none.
"""

LOSS_TOLERANCE = 0.002
"""Allowed relative difference of the test loss of the saved net on other hardware or libraries.

In the same test bfloat16 changed the loss by 0.00012 of it.
"""

MAX_DEVIATION = 1_000.0
"""Stands for all larger relative differences, and for that of a loss that is not finite."""

Deviation = Annotated[float, Field(ge=0, le=MAX_DEVIATION)]


@typed
class Rerun:
    """The outcome of retraining the first iterations of a run.

    Attributes:
        iterations: Number of retrained iterations.
        is_same_machine: Whether CPU, threads and torch are as recorded, and both engines are eager or graph, so that
            the numbers must be bit-identical.
        is_identical: Whether every loss and error is bit-identical to the record.
        deviation: Largest relative difference of a training loss.
    """

    iterations: Count
    is_same_machine: bool
    is_identical: bool
    deviation: Deviation

    @property
    def holds(self) -> bool:
        """Whether the rerun agrees with the record."""
        return self.is_identical or (not self.is_same_machine and self.deviation <= TOLERANCE)


@typed
class Retest:
    """The outcome of testing the saved net of a run again in one way.

    Attributes:
        what: The net, in words.
        evaluation: None for whole images.
        images: Size of the test set.
        is_same_machine: As for `Rerun`, with the machine of the last session.
        is_identical: Whether errors and loss are bit-identical to the record.
        changed: Differences of the numbers of misclassified images, by the name of the error.
        deviation: Relative difference of the test loss.
    """

    what: Line
    evaluation: Evaluation | None
    images: Count
    is_same_machine: bool
    is_identical: bool
    changed: Annotated[Mapping[Line, Natural], Field(min_length=1)]
    deviation: Deviation

    @property
    def allowed(self) -> int:
        """Number of images by which another machine may differ; at least one."""
        return math.ceil(self.images * IMAGES_TOLERANCE)

    @property
    def holds(self) -> bool:
        """Whether the saved net has the recorded errors and loss."""
        is_near = max(self.changed.values()) <= self.allowed and self.deviation <= LOSS_TOLERANCE
        return self.is_identical or (not self.is_same_machine and is_near)


def all_hold(rerun: Rerun | None, retests: Sequence[Retest], failures: Sequence[str]) -> bool:
    """Whether all that was found about a run agrees with its record."""
    return not failures and (rerun is None or rerun.holds) and all(one.holds for one in retests)


@typed
class RerunRecord(HashedJson):
    """What `paperbench verify --rerun` found out about one run.

    Attributes:
        history_sha256: Hash of the history that the run's record names, which ties this to that training.
        holds: Whether all of it agrees with the record.
        device: As torch names it; `environment` has its model.
        not_retrained, not_tested: Why there is no `rerun`, or are no `retests`, if nothing disproves the record.
        failures: What disproves the record, a sentence each.
    """

    REMEDY = "Restore it; or delete it and verify the run again (`paperbench verify --rerun 1 --save`)."

    kind: Literal["rerun"]
    run: Line
    history_sha256: Line
    holds: bool
    device: Line
    code: Code
    environment: Environment
    rerun: Rerun | None
    not_retrained: Line | None
    not_tested: Line | None
    retests: tuple[Retest, ...]
    failures: tuple[Line, ...]

    def __post_init__(self) -> None:
        if self.holds != all_hold(self.rerun, self.retests, self.failures):
            raise ValueError("whether it holds is not what its parts say.")

    @property
    def file_name(self) -> str:
        return f"{DIRECTORY}/{self.run}-{self.sha256[:8]}.json"


def write_rerun(root: Path, rerun: RerunRecord) -> Path:
    """Write a rerun, without paths, into a results directory, and return its file; an equal one has the same file."""
    of_root = re.compile(rf"(?<![\w./-]){re.escape(str(root))}/")
    not_tested, *failures = (without_paths(of_root.sub("", text)) for text in (rerun.not_tested or "", *rerun.failures))
    rerun = replace(rerun, not_tested=not_tested or None, failures=tuple(failures))
    path = root / rerun.file_name
    refuse_links(path.parent)
    Writer().write(path, rerun.to_json().encode())
    return path


def read_reruns(root: Path) -> tuple[list[RerunRecord], list[str]]:
    """Return the reruns kept in a results directory, and a complaint about each unreadable file."""
    return RerunRecord.read_all(root / DIRECTORY)
