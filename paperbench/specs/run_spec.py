"""The spec of a run: everything that defines its result, and the digest that names it."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from paperbench.typed import Line, typed

Precision = Literal["fp32", "tf32", "bf16-fp32-stream", "bf16"]
"""Training precisions, the most precise first. Only old records have `bf16-fp32-stream`."""


@typed
class RunSpec:
    """Net, recipe, data and precision of a run. Code, engine and machine are in the record instead.

    Attributes:
        net: `catalogue.Net.canonical()`.
        recipe: `Recipe.defining_values()`.
        data: Fingerprint of the data set.
        profile: Name of the profile.
        precision: Precision of the training.
    """

    net: dict[str, Any]
    recipe: dict[str, Any]
    data: Line
    profile: Line
    precision: Precision

    @property
    def digest(self) -> str:
        """sha256 of the canonical JSON, in hex."""
        return hashlib.sha256(canonical_json(vars(self)).encode()).hexdigest()

    def __repr__(self) -> str:
        return f"<spec {self.digest[:12]}: profile {self.profile[:40]}, {self.precision}>"

    def run_id(self, seed: int) -> str:
        """Return the name of the run with a seed, which is also its directory's name."""
        return f"{self.digest[:12]}-s{seed}"


def canonical_json(value: Any) -> str:
    """Return JSON with sorted keys and no spaces, so that equal values give equal text.

    Raises:
        ValueError: The value contains NaN or infinity.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
