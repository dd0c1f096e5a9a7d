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
    [
        (20.0, "cifar10", False),
        (20.01, "cifar10", True),
        (99.0, "cifar100", False),
        (math.inf, "digits", True),
    ],
)
def test_run_fails_above_20_percent_on_cifar10_or_if_diverged(error: float, dataset: str, does_fail: bool) -> None:
    assert is_failure(error, dataset) is does_fail


def test_failed_runs_are_counted() -> None:
    errors = [6.0, 20.0, 25.0, math.inf]
    assert (str(count_failures(errors, "cifar10")), str(count_failures(errors, "cifar100"))) == (
        "2 of 4 failed",
        "1 of 4 failed",
    )
    assert [FailureCount(failed, 5).is_unanimous for failed in (0, 1, 4, 5)] == [True, False, False, True]


@pytest.mark.parametrize("planned", [3, 4, 5, 6, 7])
def test_answer_holds_however_the_remaining_runs_end(planned: int) -> None:
    for runs in range(3, planned + 1):
        for errors in itertools.combinations_with_replacement(ERRORS, runs):
            answer = median_fails(errors, planned, "cifar10")
            ends = itertools.combinations_with_replacement((0.0, math.inf), planned - runs)
            possible = {statistics.median([*errors, *end]) > 20 for end in ends}
            if answer is not None:
                assert possible == {answer}, errors
            elif planned % 2:  # with an even number the middle two can decide
                assert possible == {True, False}, errors


@pytest.mark.parametrize(
    ("errors", "planned", "dataset", "answer"),
    [
        ([90.0, 90.0], 2, "cifar10", None),  # too few
        ([6.0, 6.0, 40.0, 40.0], 4, "cifar10", True),  # median 23
        ([6.0, 6.0, 34.0, 34.0], 4, "cifar10", False),  # median 20, which is not above 20
        ([25.0, 26.0, 27.0], 5, "cifar100", False),
    ],
)
def test_median_fails(errors: list[float], planned: int, dataset: str, answer: bool | None) -> None:
    assert median_fails(errors, planned, dataset) is answer


def test_failing_depends_on_the_data_set_of_the_profile() -> None:
    runs = records(a_table("table1"), "original/resnet110", [45.0] * 3, profile="smoke")
    comparison = compared(a_table("table1"), *runs, profile="smoke", seeds=3)
    assert str(in_cell(comparison, "original/resnet110").failures) == "0 of 3 failed"
