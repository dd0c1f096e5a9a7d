"""Failed runs and nets. The paper prints "fail" for a test error above 20 % (caption of Table 1).

That bound is for CIFAR-10. A run that ended in NaN or infinity has failed on any data set.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from paperbench.catalogue import DATASETS

MIN_RUNS_TO_JUDGE = 3
"""Minimum number of runs for a verdict on whether a net fails."""


@dataclass(frozen=True)
class FailureCount:
    """Number of failed runs among some runs."""

    failed: int
    runs: int

    @classmethod
    def total(cls, counts: Sequence[FailureCount]) -> FailureCount:
        return cls(sum(one.failed for one in counts), sum(one.runs for one in counts))

    @property
    def is_unanimous(self) -> bool:
        """Whether all failed or none did."""
        return self.failed in (0, self.runs)

    def __str__(self) -> str:
        return f"{self.failed} of {self.runs} failed"


def is_failure(error: float, dataset: str) -> bool:
    """Whether a test error in percent counts as failed on a data set; a diverged run has an infinite error."""
    bound = DATASETS[dataset].fail_above
    return math.isinf(error) or (bound is not None and error > bound)


def count_failures(errors: Sequence[float], dataset: str) -> FailureCount:
    """Count the failed runs."""
    return FailureCount(sum(is_failure(error, dataset) for error in errors), len(errors))


def median_fails(errors: Sequence[float], planned: int, dataset: str) -> bool | None:
    """Return whether the median of the planned runs fails.

    Args:
        errors: Test errors of the planned runs that have ended.

    Returns:
        None while the remaining runs could change the answer, or if fewer than `MIN_RUNS_TO_JUDGE` have ended.
    """
    if len(errors) < MIN_RUNS_TO_JUDGE:
        return None
    if len(errors) == planned:
        return is_failure(statistics.median(errors), dataset)
    count = count_failures(errors, dataset)
    if 2 * count.failed > planned:
        return True
    return False if 2 * (count.runs - count.failed) > planned else None
