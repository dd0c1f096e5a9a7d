"""Random numbers that are a function of seed, purpose, epoch and position, by the counter-based generator Philox.

Philox (Salmon et al., 2011) maps a key and a counter to random words, so no state has to be kept: the words of any
image can be computed alone. The key is derived from seed, purpose and epoch; the counter is the position in the epoch.
Words become numbers by the functions below, and not by a library's, which might change.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numpy.random import Philox

from paperbench.seeds import derived_seed

Words = npt.NDArray[np.uint64]

WORDS_PER_IMAGE = 64
_WORDS_PER_COUNT = 4
"""A count of Philox-4x64 gives four words."""

NO_WORDS: Words = np.empty(0, np.uint64)
"""Those of a central crop."""


def words(seed: int, purpose: str, epoch: int, first: int, last: int) -> Words:
    """Return the words of the positions `first` to `last - 1` of an epoch, (last - first, WORDS_PER_IMAGE)."""
    key = derived_seed(seed, purpose, "augmentation", epoch)
    counter = first * (WORDS_PER_IMAGE // _WORDS_PER_COUNT)
    drawn = Philox(key=key, counter=counter).random_raw((last - first) * WORDS_PER_IMAGE)
    return drawn.reshape(last - first, WORDS_PER_IMAGE)


def permutation(seed: int, purpose: str, epoch: int, length: int) -> npt.NDArray[np.int64]:
    """Return a random order of `length` images: the order of one word each."""
    drawn = Philox(key=derived_seed(seed, purpose, "order", epoch)).random_raw(length)
    return np.argsort(drawn, kind="stable")


def uniform(word: Words) -> npt.NDArray[np.float64]:
    """Return numbers in [0, 1) on a grid of 2**-53."""
    numbers: npt.NDArray[np.float64] = (word >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers


def below(word: Words, bound: int) -> npt.NDArray[np.int64]:
    """Return whole numbers from 0 to bound - 1 < 2**32; their probabilities differ by less than bound / 2**32."""
    return (((word >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32)).astype(np.int64)


def normal(pairs: Words) -> npt.NDArray[np.float64]:
    """Return standard normal numbers, two for each two words along the last axis (Box and Muller)."""
    radius = np.sqrt(-2 * np.log1p(-uniform(pairs[..., 0::2])))
    angle = 2 * np.pi * uniform(pairs[..., 1::2])
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
