"""When a net has failed, and from which run on that cannot change any more."""

from __future__ import annotations

import itertools
import math
import statistics
from pathlib import Path

import pytest

from paperbench.catalogue import DATASETS
from paperbench.compare.failing import Failing, failing, fails, median_fails
from paperbench.specs.table import load_table
from paperbench.specs.yaml_file import SpecError
from tests.compare.judging import a_table, compared, in_cell, records
from tests.helpers import copy_of_specs, edit

ERRORS = (6.0, 20.0, 20.01, 36.0, math.inf)


@pytest.mark.parametrize(
    ("error", "dataset", "does_fail"),
    [
        (20.0, "cifar10", False),
        (20.01, "cifar10", True),
        (99.0, "cifar100", False),
        (99.0, "imagenet", False),
        (99.0, "digits", False),
        (math.inf, "digits", True),
    ],
)
def test_a_run_fails_above_20_percent_on_cifar10_and_elsewhere_if_it_diverged(
    error: float, dataset: str, does_fail: bool
) -> None:
    assert fails(error, dataset) is does_fail


def test_the_paper_says_of_cifar10_only_above_which_error_a_run_has_failed() -> None:
    assert {name: info.fail_above for name, info in DATASETS.items() if info.fail_above is not None} == {"cifar10": 20}


NOT_SAID = "above which error a net has failed is not said for CIFAR-100; print its error."
OF_ONE_RUN = "a standard deviation is of two runs or more, and n is 1."


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("table3", "cifar100_resnet164: {original: 25.16,", "cifar100_resnet164: {original: fail,", NOT_SAID),
        ("table2", "resnet164: 5.93", "resnet164: {value: 5.93, n: 1, std: 0.2, std_source: Sec. 4}", OF_ONE_RUN),
    ],
)
def test_a_published_result_that_no_run_can_be_held_against_is_refused(
    tmp_path: Path, name: str, old: str, new: str, message: str
) -> None:
    specs = copy_of_specs(tmp_path)
    expected = specs / "expected" / f"{name}.yaml"
    edit(expected, old, new)
    with pytest.raises(SpecError) as caught:
        load_table(name, specs)
    assert str(caught.value).startswith(f"{expected}:")
    assert str(caught.value).endswith(message)


def test_failed_runs_are_counted() -> None:
    errors = [6.0, 20.0, 25.0, math.inf]
    assert (str(failing(errors, "cifar10")), str(failing(errors, "cifar100"))) == ("2 of 4 failed", "1 of 4 failed")
    assert [Failing(failed, 5).is_unanimous for failed in (0, 1, 4, 5)] == [True, False, False, True]


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
    ("errors", "planned", "dataset", "answer"),
    [
        ([6.0, 6.0, 30.0, 30.0], 4, "cifar10", False),  # median 18
        ([6.0, 6.0, 40.0, 40.0], 4, "cifar10", True),  # median 23
        ([6.0, 6.0, 34.0, 34.0], 4, "cifar10", False),  # median 20, which is not above 20
        ([25.0, 26.0, 27.0], 5, "cifar100", False),
        ([25.0, math.inf, math.inf, math.inf], 5, "cifar100", True),
    ],
)
def test_whether_the_median_fails(errors: list[float], planned: int, dataset: str, answer: bool | None) -> None:
    assert median_fails(errors, planned, dataset) is answer


def test_what_fails_is_said_for_the_data_that_the_profile_trains_on() -> None:
    runs = records(a_table("table1"), "original/resnet110", [45.0] * 3, profile="smoke")
    comparison = compared(a_table("table1"), *runs, profile="smoke", seeds=3)
    assert str(in_cell(comparison, "original/resnet110").failing) == "0 of 3 failed"
