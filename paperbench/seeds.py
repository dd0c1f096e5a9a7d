"""Seeds of the random generators, derived from the seed of a run.

Initialisation, order of images, augmentation and noise each have a separate generator, so that changing one does not
change the others. Each epoch has a separate generator too: the random numbers of an iteration depend only on the seed
of the run and the iteration, so a resumed run draws the same numbers without stored generator states.
"""

from __future__ import annotations

import hashlib

MAX_SEEDS = 1_000
"""Upper bound of the number of seeds per cell, to catch typing errors."""


def derived_seed(seed: int, *purpose: str | int) -> int:
    """Return the seed in [0, 2**63) for a purpose, such as `("order", epoch)`."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
