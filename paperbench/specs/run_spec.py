"""The spec of a run: what defines the number that it estimates, and the digest that names it."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from paperbench.typed import Text, typed

Precision = Literal["fp32", "tf32", "bf16-fp32-stream", "bf16"]
"""Arithmetics, the most precise first."""


@typed
class RunSpec:
    """What is trained, on which pixels, in which arithmetic. Code, engine and machine stand in the record instead.

    Attributes:
        net: `catalogue.Net.canonical()`.
        recipe: `Recipe.defining_values()`.
        data: Fingerprint of the data set.
        profile: Name of the profile.
        precision: Arithmetic of the training.
    """

    net: dict[str, Any]
    recipe: dict[str, Any]
    data: Text
    profile: Text
    precision: Precision

    @property
    def digest(self) -> str:
        """sha256 of the canonical JSON, in hex."""
        return hashlib.sha256(canonical_json(vars(self)).encode()).hexdigest()

    def run_id(self, seed: int) -> str:
        """Name of one training by this spec, and of its directory."""
        return f"{self.digest[:12]}-s{seed}"


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text.

    Raises:
        ValueError: The value holds NaN or infinity.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
