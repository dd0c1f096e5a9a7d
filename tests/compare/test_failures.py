"""When a run or a net has failed, and when the remaining runs cannot change that."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest

from paperbench.compare.failures import FailureCount, count_failures, is_failure, median_fails
from tests.compare.judging import a_table, compared, in_cell, records

ERRORS = (6.0, 20.0, 20.01, 36.0, math.inf)


@pytest.mark.parametrize(
    ("error", "dataset", "does_fail"),
    [(20.0, "cifar10", False), (20.01, "cifar10", True), (99.0, "cifar100", False), (math.inf, "digits", True)],
)
def test_run_fails_above_20_percent_on_cifar10_or_if_diverged(error: float, dataset: str, does_fail: bool) -> None:
    assert is_failure(error, dataset) is does_fail
    assert count_failures([error, 6.0, error], dataset) == FailureCount(2 * does_fail, 3)
    assert count_failures([error, 6.0], dataset).is_unanimous is not does_fail
    assert count_failures([error], dataset).is_unanimous


@pytest.mark.parametrize("planned", [1, 2, 3, 4, 5, 6, 7])
def test_answer_holds_however_the_remaining_runs_end(planned: int) -> None:
    """With fewer than three runs there is none; with an even number the middle two can decide."""
    for runs in range(planned + 1):
        for errors in itertools.combinations_with_replacement(ERRORS, runs):
            answer = median_fails(errors, planned, "cifar10")
            ends = itertools.combinations_with_replacement((0.0, math.inf), planned - runs)
            possible = {statistics.median([*errors, *end]) > 20 for end in ends}
            if answer is not None:
                assert (possible, runs >= 3) == ({answer}, True), errors
            elif runs >= 3 and (planned % 2 or runs == planned):
                assert possible == {True, False}, errors


def test_failing_depends_on_the_data_set_of_the_profile() -> None:
    assert median_fails([25.0, 26.0, 27.0], 5, "cifar100") is False
    runs = records(a_table("table1"), "original/resnet110", [45.0] * 3, profile="smoke")
    comparison = compared(a_table("table1"), *runs, profile="smoke", seeds=3)
    assert in_cell(comparison, "original/resnet110").failures == FailureCount(0, 3)
