"""When a net has failed: the paper prints "fail" for a test error above 20 % (caption of Table 1).

That bound is for CIFAR-10. On any data a run has failed that ended in NaN or infinity.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from paperbench.catalogue import DATASETS

MIN_RUNS = 3
"""Runs that it takes to say that a net fails, or does not."""


@dataclass(frozen=True)
class Failing:
    """How many of some runs failed."""

    failed: int
    runs: int

    @property
    def is_unanimous(self) -> bool:
        """Whether all failed or none did."""
        return self.failed in (0, self.runs)

    def __str__(self) -> str:
        return f"{self.failed} of {self.runs} failed"


def fails(error: float, dataset: str) -> bool:
    """Whether a test error in percent, or the infinite one of a diverged run, counts as failed on a data set."""
    bound = DATASETS[dataset].fail_above
    return math.isinf(error) or (bound is not None and error > bound)


def failing(errors: Sequence[float], dataset: str) -> Failing:
    """Count the runs that failed."""
    return Failing(sum(fails(error, dataset) for error in errors), len(errors))


def median_fails(errors: Sequence[float], planned: int, dataset: str) -> bool | None:
    """Whether the median of the planned runs fails.

    Args:
        errors: Of those of them that have ended, `planned` at most.

    Returns:
        None as long as the runs to come could change the answer, or if there are too few to give one.
    """
    if len(errors) < MIN_RUNS:
        return None
    if len(errors) == planned:
        return fails(statistics.median(errors), dataset)
    counted = failing(errors, dataset)
    if 2 * counted.failed > planned:
        return True
    return False if 2 * (counted.runs - counted.failed) > planned else None
