"""When a net has failed, and from which run on that cannot change any more."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest

from paperbench.compare.failing import Failing, failing, fails, median_fails

ERRORS = (6.0, 20.0, 20.01, 36.0, math.inf)


@pytest.mark.parametrize(("error", "does_fail"), [(6.0, False), (20.0, False), (20.01, True), (90.0, True)])
def test_a_run_fails_above_20_percent_on_cifar10(error: float, does_fail: bool) -> None:
    assert fails(error, "cifar10") is does_fail


@pytest.mark.parametrize("dataset", ["cifar100", "imagenet", "digits"])
def test_on_other_data_only_a_diverged_run_fails(dataset: str) -> None:
    assert not fails(99.0, dataset)
    assert fails(math.inf, dataset)


def test_failed_runs_are_counted() -> None:
    assert str(failing([6.0, 20.0, 25.0, math.inf], "cifar10")) == "2 of 4 failed"
    assert str(failing([6.0, 20.0, 25.0, math.inf], "cifar100")) == "1 of 4 failed"


@pytest.mark.parametrize(("failed", "is_unanimous"), [(0, True), (1, False), (4, False), (5, True)])
def test_runs_are_unanimous_if_all_failed_or_none(failed: int, is_unanimous: bool) -> None:
    assert Failing(failed, 5).is_unanimous is is_unanimous


def test_less_than_three_runs_say_nothing() -> None:
    for planned in (1, 2, 3, 5):
        for runs in range(min(planned, 2) + 1):
            assert median_fails([90.0] * runs, planned, "cifar10") is None
            assert median_fails([6.0] * runs, planned, "cifar10") is None


@pytest.mark.parametrize("planned", [3, 4, 5, 6, 7])
def test_the_answer_is_that_of_every_way_in_which_the_missing_runs_can_end(planned: int) -> None:
    for runs in range(3, planned + 1):
        for errors in itertools.combinations_with_replacement(ERRORS, runs):
            answer = median_fails(errors, planned, "cifar10")
            ends = itertools.combinations_with_replacement((0.0, math.inf), planned - runs)
            possible = {statistics.median([*errors, *end]) > 20 for end in ends}
            if answer is not None:
                assert possible == {answer}, errors
            elif planned % 2:  # with an even number the middle two may settle it on their own
                assert possible == {True, False}, errors


@pytest.mark.parametrize(
    ("errors", "planned", "answer"),
    [
        ([6.0, 6.0, 30.0, 30.0], 4, False),  # median 18
        ([6.0, 6.0, 40.0, 40.0], 4, True),  # median 23
        ([6.0, 6.0, 34.0, 34.0], 4, False),  # median 20, which is not above 20
        ([6.0, 6.0, math.inf, math.inf], 4, True),
        ([6.0, 30.0, 30.0], 4, None),
        ([6.0, 6.0, 30.0], 4, None),
        ([30.0, 30.0, 30.0], 4, True),
        ([6.0, 6.0, 6.0], 4, False),
        ([6.0, 30.0, 30.0], 5, None),
        ([30.0, 30.0, 30.0], 5, True),
        ([6.0, 6.0, 6.0], 5, False),
        ([6.0, 6.0, 30.0, 30.0], 5, None),
        ([6.0, 6.0, 30.0, 30.0, 30.0], 5, True),
        ([6.0, 6.0, 6.0, 30.0, 30.0], 5, False),
        ([6.0, 30.0, 30.0], 3, True),
    ],
)
def test_whether_the_median_fails(errors: list[float], planned: int, answer: bool | None) -> None:
    assert median_fails(errors, planned, "cifar10") is answer


def test_the_median_of_cifar100_runs_fails_only_if_most_diverged() -> None:
    assert median_fails([25.0, 26.0, 27.0], 5, "cifar100") is False
    assert median_fails([25.0, math.inf, math.inf, math.inf], 5, "cifar100") is True
