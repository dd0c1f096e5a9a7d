"""One seed for every purpose of a run, derived from the run's own.

Initialisation, order of images, augmentation and noise each draw from a generator of their own, so that changing one
leaves the others as they were. Epochs have generators of their own too: the random numbers of an iteration depend on
the run's seed and the iteration alone, and a continued run needs no stored generator to draw the same.
"""

from __future__ import annotations

import hashlib

MAX_SEEDS = 1_000
"""Far more runs a cell than anybody will train."""


def derived_seed(seed: int, *purpose: str | int) -> int:
    """A seed in [0, 2**63) for the given purpose, such as `("order", epoch)`."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
