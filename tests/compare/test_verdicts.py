"""Verdicts on cells, with their numbers recomputed by scipy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paperbench.compare.verdicts import CellFacts
from paperbench.runs.record import DataFacts
from paperbench.specs.table import Table
from tests.compare.judging import (
    COPY,
    ORIGINAL,
    SECOND,
    Expectation,
    a_table,
    compare_cell,
    compare_errors,
    compared,
    expectation,
    external,
    in_cell,
    photo_result,
    record,
    records,
    with_expected,
)
from tests.helpers import CROP224, CROP320

TABLE1, TABLE2, TABLE3, TABLE5 = (a_table(f"table{i}") for i in (1, 2, 3, 5))
PREACT, PREACT_NUMBER = "preact/resnet110", 6.37  # without a published spread
BASELINE, BASELINE_NUMBER, BASELINE_STD = "original/resnet110", 6.61, 0.16
FAILS = "plain/resnet110"
SWEEP = "exclusive_gating_0_to_5/resnet110"
SETTINGS = [f"gate_bias={bias}" for bias in (0, -1, -2, -3, -4, -5)]

QUIET = np.array([-0.04, 0.05, 0.0, -0.01, 0.02])
"""Deviations of five runs from their median."""

WIDE = np.array([-0.45, 0.2, 0.0, -0.2, 0.45])
"""Five runs of these are always underpowered at a tolerance of 0.5."""

UNCHANGEABLE = "; the remaining runs cannot change it"


def around(median: float, deviations: Sequence[float] = tuple(QUIET)) -> list[float]:
    return [float(median + d) for d in deviations]


def check_numbers(cell: CellFacts, expected: Expectation) -> None:
    interval = cell.interval
    assert interval
    assert interval.difference == pytest.approx(expected.difference, abs=1e-8)
    assert interval.low == pytest.approx(expected.low, abs=1e-8)
    assert interval.high == pytest.approx(expected.high, abs=1e-8)
    assert cell.p_value == pytest.approx(expected.p_value, rel=1e-6, abs=1e-12)


# Numbers


@pytest.mark.parametrize(
    ("shift", "verdict", "is_shifted"),
    [
        (0.01, "reproduced", False),
        (-0.3, "reproduced", True),  # significant, but within the tolerance
        (0.9, "worse", False),
        (-0.9, "better", False),
        (0.5, "underpowered", False),
    ],
)
def test_the_interval_decides(shift: float, verdict: str, is_shifted: bool) -> None:
    errors = around(PREACT_NUMBER + shift)
    cell, expected = compare_errors(TABLE2, PREACT, errors), expectation(errors, PREACT_NUMBER)
    check_numbers(cell, expected)
    assert cell.difference == pytest.approx(shift)
    assert cell.shift == (pytest.approx(shift) if is_shifted else None)
    assert not cell.is_by_failures
    assert (cell.verdict, cell.reason) == (
        verdict,
        "too much noise; extend to 10 runs" if verdict == "underpowered" else "",
    )


def test_rounding_follows_the_decimals_of_the_table() -> None:
    cells = tuple(replace(c, defaults=replace(c.defaults, decimals=1)) for c in TABLE2.all_cells)
    quiet, loud = [6.36, 6.37, 6.38, 6.37, 6.37], around(PREACT_NUMBER)
    for errors, resolution in ((quiet, 0.1), (loud, 0.0)):
        cell = compare_errors(replace(TABLE2, all_cells=cells), PREACT, errors)
        check_numbers(cell, expectation(errors, PREACT_NUMBER, resolution=resolution))


def test_tolerance_of_the_cell_is_used() -> None:
    errors = around(12.35 + 0.7)
    assert compare_errors(TABLE1, "constant_scaling/resnet110", errors).verdict == "reproduced"  # 1.0 here
    table = with_expected(TABLE1, "constant_scaling/resnet110", tolerance=0.5)
    assert compare_errors(table, "constant_scaling/resnet110", errors).verdict == "worse"


def test_the_interval_counts_the_published_runs() -> None:
    table = with_expected(TABLE2, PREACT, n=1, statistic="single")
    errors = around(PREACT_NUMBER + 0.2)
    check_numbers(compare_errors(table, PREACT, errors), expectation(errors, PREACT_NUMBER, published_runs=1))


# Noise


@pytest.mark.parametrize(
    ("cell_id", "std", "expected"),
    [
        (BASELINE, BASELINE_STD, ("both", 2 / 6, 6)),
        ("original/resnet164", None, ("ours", 0, 4)),  # which borrows no spread from another cell
    ],
)
def test_published_std_is_pooled_with_ours(cell_id: str, std: float | None, expected: tuple[str, float, int]) -> None:
    published = float(TABLE2.cell(cell_id).number or 0)
    cell = compare_errors(TABLE2, cell_id, around(published + 0.1))
    check_numbers(cell, expectation(around(published + 0.1), published, std=std))
    noise = cell.noise
    assert noise
    assert (noise.rests_on, pytest.approx(noise.published_weight), noise.degrees) == expected


# Number of runs


MISSING = "(seeds 0-4 count; seed {} is missing)"


@pytest.mark.parametrize(
    ("ended", "under_way", "reason"),
    [
        ([0, 1, 2, 3], [], "4 of 5"),
        ([0, 1, 2, 3, 7], [4], f"4 of 5 {MISSING.format(4)}"),
        ([7], [0], f"0 of 5 {MISSING.format(0)}"),
    ],
)
def test_incomplete_runs_are_underpowered(ended: list[int], under_way: list[int], reason: str) -> None:
    runs = [record(TABLE2, PREACT, 9.5, seed=seed) for seed in ended]
    found = compare_cell(TABLE2, PREACT, *runs, *(record(TABLE2, PREACT, None, seed=seed) for seed in under_way))
    assert (found.verdict, found.reason, found.interval) == ("underpowered", f"too few runs: {reason}", None)


def test_no_seed_is_missing_if_all_planned_runs_ended() -> None:
    runs = [record(TABLE1, FAILS, 12.0, seed=seed) for seed in (0, 1, 5)]
    (plain,) = [claim for claim in compared(TABLE1, *runs, seeds=2).claims if claim.claim.id == "plain_fails"]
    assert plain.reason == "plain/resnet110: too few runs: 2 of 2, minimum 3"


def test_runs_between_the_analyses_change_nothing() -> None:
    first = around(PREACT_NUMBER + 0.5)
    alone = compare_errors(TABLE2, PREACT, first)
    cell = compare_errors(TABLE2, PREACT, [*first, *[PREACT_NUMBER] * 4])
    assert cell.reason == f"{alone.reason} (9 have ended)"
    assert (cell.verdict, cell.interval, cell.p_value) == (alone.verdict, alone.interval, alone.p_value)


@pytest.mark.parametrize(
    ("shift", "then", "verdict"),
    [
        (0.0, QUIET, "reproduced"),
        (1.0, QUIET, "worse"),
        (0.0, WIDE, "underpowered"),  # but reproduced at 5 %
        (1.0, WIDE, "underpowered"),  # but worse at 5 %
    ],
)
def test_second_analysis_uses_the_stricter_level(shift: float, then: np.ndarray, verdict: str) -> None:
    errors = [*around(PREACT_NUMBER + shift, WIDE), *around(PREACT_NUMBER + shift, then)]
    assert compare_errors(TABLE2, PREACT, errors[:5]).verdict == "underpowered"
    cell = compare_errors(TABLE2, PREACT, errors)
    assert cell.verdict == verdict
    assert "extend" not in cell.reason
    check_numbers(cell, expectation(errors, PREACT_NUMBER, level=SECOND))
    at_five = expectation(errors, PREACT_NUMBER, level=0.05)
    assert at_five.high < 0.5 or at_five.low > 0.5
    assert (cell.analysis, len(cell.nets[0].counted)) == (2, 10)


ON_PUBLISHED = "noise is the published standard deviation"
NO_STD = "too few runs: 3 are needed without a published std"


@pytest.mark.parametrize(
    ("cell_id", "errors", "seeds", "verdict", "reason"),
    [
        (PREACT, around(6.37) * 2, 10, "reproduced", ""),
        (PREACT, [6.37], 1, "underpowered", NO_STD),
        (PREACT, [6.37] * 2, 2, "underpowered", f"{NO_STD}; extend to 4 runs"),
        (BASELINE, [7.11], 1, "underpowered", ON_PUBLISHED + "; too much noise; extend to 2 runs"),
    ],
)
def test_another_number_of_runs_can_be_planned(
    cell_id: str, errors: list[float], seeds: int, verdict: str, reason: str
) -> None:
    cell = compare_errors(TABLE2, cell_id, errors, seeds=seeds)
    assert (cell.verdict, cell.reason) == (verdict, reason)
    if cell.interval:  # at 5 %, as in the first analysis
        std = BASELINE_STD if cell_id == BASELINE else None
        check_numbers(cell, expectation(errors, float(TABLE2.cell(cell_id).number or 0), std=std))


# Which runs count


TEN = [*around(PREACT_NUMBER, WIDE), *around(PREACT_NUMBER)]


@pytest.mark.parametrize(
    ("errors", "data", "counted"),
    [
        (dict(enumerate([*around(PREACT_NUMBER + 0.1), *[90.0] * 15])), ORIGINAL, range(5)),
        (dict(enumerate([*TEN, *[90.0] * 10])), ORIGINAL, range(10)),
        (dict(enumerate(TEN[:9])), ORIGINAL, range(5)),
        # before an analysis the planned runs that have ended, or else any
        ({0: 6.4, 1: None, 3: 6.6, 7: 9.9}, ORIGINAL, [0, 3]),
        ({1: None, 7: 9.9}, ORIGINAL, [7]),
        # if the runs cannot be compared
        (dict(enumerate(TEN)), COPY, range(5)),
    ],
)
def test_median_is_of_the_runs_that_count(
    errors: dict[int, float | None], data: DataFacts, counted: Sequence[int]
) -> None:
    cell = compare_cell(
        TABLE2, PREACT, *(record(TABLE2, PREACT, e, seed=seed, data=data) for seed, e in errors.items())
    )
    (net,) = cell.nets
    assert cell.shown
    assert len(cell.shown.runs) == len(errors)
    assert [run.seed for run in net.counted] == list(counted)
    assert net.errors == [errors[seed] for seed in counted]
    assert net.median_or_inf == (np.median(net.errors) if counted else None)
    assert cell.difference == (pytest.approx(np.median(net.errors) - PREACT_NUMBER) if counted else None)
    assert (cell.failures.runs if cell.failures else 0) == len(counted)


# Failing


@pytest.mark.parametrize(
    ("errors", "seeds", "verdict", "reason", "is_certain"),
    [
        ([30.0] * 3, 5, "reproduced", f"3 of 3 failed{UNCHANGEABLE}", True),
        ([30.0, 12.0, math.inf, 12.5, 30.0], 5, "reproduced", "3 of 5 failed: unstable", False),
        ([30.0, 12.0, 30.0], 5, "underpowered", "too few runs: 3 of 5", False),
        ([20.0] * 5, 5, "better", "0 of 5 failed", True),
        ([90.0] * 4, 2, "reproduced", "4 of 4 failed", True),
    ],
)
def test_net_that_failed_in_the_paper(
    errors: list[float], seeds: int, verdict: str, reason: str, is_certain: bool
) -> None:
    cell = compare_errors(TABLE1, FAILS, errors, seeds=seeds)
    assert (cell.verdict, cell.reason, cell.is_certain_by_failures) == (verdict, reason, is_certain)
    assert cell.is_by_failures == (verdict != "underpowered")
    assert (cell.p_value, cell.interval, cell.difference) == (None, None, None)


@pytest.mark.parametrize(
    ("errors", "seeds", "verdict", "reason"),
    [
        ([6.6, math.inf, math.inf, 6.7, math.inf], 5, "worse", "3 of 5 failed: unstable"),
        ([90.0, 6.6, 90.0, 90.0], 5, "worse", f"3 of 4 failed: unstable{UNCHANGEABLE}"),
        ([6.61] * 3, 5, "underpowered", "too few runs: 3 of 5"),  # that they do not fail says nothing about the number
        ([6.6, math.inf, 6.5, 6.7, math.inf], 5, "underpowered", "unstable: 2 of 5 failed; extend to 10 runs"),
        ([90.0] * 2, 2, "underpowered", "too few runs: 2 of 2 failed, minimum 3; extend to 4 runs"),
    ],
)
def test_failing_where_the_paper_did_not_is_worse(errors: list[float], seeds: int, verdict: str, reason: str) -> None:
    cell = compare_errors(TABLE2, BASELINE, errors, seeds=seeds)
    assert (cell.verdict, cell.reason, cell.interval) == (verdict, reason, None)
    assert cell.is_by_failures == cell.is_certain_by_failures == (verdict == "worse")


def test_failed_runs_are_mentioned_beside_an_interval() -> None:
    errors = [6.6, 25.0, 6.5, 6.7, 6.6]
    cell = compare_errors(TABLE2, BASELINE, errors)
    assert cell.verdict == "underpowered"
    assert cell.reason.startswith("unstable: 1 of 5 failed; too much noise")
    assert str(cell.failures) == "1 of 5 failed"
    check_numbers(cell, expectation(errors, BASELINE_NUMBER, std=BASELINE_STD))


# Sweeps


def sweep(errors: dict[str, list[float | None]]) -> CellFacts:
    runs = [r for label, found in errors.items() for r in records(TABLE1, SWEEP, found, setting=label)]
    return compare_cell(TABLE1, SWEEP, *runs)


def settings(errors: list[float | None], **others: list[float | None]) -> dict[str, list[float | None]]:
    """The same errors in every setting but those named by their bias: `b3` is gate_bias=-3."""
    named = {f"gate_bias=-{bias[1]}": found for bias, found in others.items()}
    return {label: named.get(label, errors) for label in SETTINGS}


@pytest.mark.parametrize(
    ("errors", "verdict", "reason"),
    [
        (settings([90.0, math.inf, 50.0, 12.0, 12.0]), "reproduced", "18 of 30 failed, in 6 settings"),
        (settings([90.0] * 5, b3=[12.0] * 5), "better", "gate_bias=-3: 0 of 5 failed"),
        (settings([90.0] * 5, b5=[]), "underpowered", "gate_bias=-5: not run"),
        (
            settings([90.0] * 5, b5=[None]),
            "underpowered",
            "gate_bias=-5: unfinished; the farthest run is at iteration 1,000",
        ),
        (settings([]), "not run", ""),
    ],
)
def test_sweep_is_reproduced_if_every_setting_fails(
    errors: dict[str, list[float | None]], verdict: str, reason: str
) -> None:
    cell = sweep(errors)
    assert [net.setting for net in cell.nets] == SETTINGS
    assert (cell.verdict, cell.reason, cell.difference) == (verdict, reason, None)


def test_failed_runs_are_counted_over_all_settings() -> None:
    cell = sweep(settings([90.0, 12.0], b1=[90.0] * 5 + [12.0] * 2, b2=[None]))
    assert str(cell.failures) == "9 of 13 failed"


def test_sweep_on_other_pixels_is_not_comparable() -> None:
    runs = [r for label in SETTINGS[:-1] for r in records(TABLE1, SWEEP, [90.0] * 5, setting=label)]
    elsewhere = records(TABLE1, SWEEP, [90.0] * 5, setting=SETTINGS[-1], data=COPY)
    cell = compare_cell(TABLE1, SWEEP, *runs, *elsewhere)
    assert cell.verdict == "not comparable"
    assert COPY.name in cell.reason


# Not comparable, and not run


def test_reduced_profiles_are_never_reproduced() -> None:
    runs = records(TABLE1, FAILS, [math.inf] * 5, profile="shallow")
    cell = compare_cell(TABLE1, FAILS, *runs, profile="shallow", seeds=5)
    assert (cell.verdict, cell.reason) == ("not comparable", "profile shallow is not the paper's experiment")
    assert (cell.difference, cell.interval) == (None, None)


@pytest.mark.parametrize(
    ("table", "cell_id", "error", "how", "reason"),
    [
        (TABLE2, PREACT, 6.37, {"data": COPY}, f"{COPY.name} does not have the paper's pixels"),
        (TABLE3, "cifar10_resnet164_no_warm_up/preact", 5.46, {}, "no number is published"),
    ],
)
def test_not_comparable(table: Table, cell_id: str, error: float, how: dict[str, Any], reason: str) -> None:
    cell = compare_cell(table, cell_id, *records(table, cell_id, [error] * 5, **how))
    assert (cell.verdict, cell.reason, cell.interval) == ("not comparable", reason, None)
    published = table.cell(cell_id).number  # a difference is given all the same, with no offset
    assert cell.difference == (None if published is None else pytest.approx(error - published))


def test_cell_without_an_ended_run_is_not_run() -> None:
    cell = compare_cell(TABLE2, PREACT)
    assert (cell.verdict, cell.reason, cell.shown) == ("not run", "", None)
    runs = [record(TABLE2, PREACT, None, seed=seed, iteration=i) for seed, i in enumerate((8_000, 31_999, 400))]
    begun = compare_cell(TABLE2, PREACT, *runs)
    assert (begun.verdict, begun.reason) == ("not run", "unfinished; the farthest run is at iteration 31,999")
    for one in (cell, begun):
        (net,) = one.nets
        assert (net.counted, net.errors, net.median_or_inf, one.difference) == ((), [], None, None)


def test_unfinished_runs_are_not_run_rather_than_not_comparable() -> None:
    cell = compare_cell(TABLE2, PREACT, record(TABLE2, PREACT, None, iteration=60, data=COPY))
    assert (cell.verdict, cell.reason) == ("not run", "unfinished; the farthest run is at iteration 60")


@pytest.mark.parametrize(
    ("errors", "verdict", "reason", "counted"),
    [
        ([21.3] * 3, "not run", "its runs did not measure this error", []),
        ([math.inf] * 3, "worse", "3 of 3 failed", [math.inf] * 3),  # which it has by every crop and metric
        ([math.inf, 21.3, 21.4], "underpowered", "too few runs: 1 of 3", [math.inf]),
    ],
)
def test_run_has_no_error_of_another_crop_or_metric(
    errors: list[float], verdict: str, reason: str, counted: list[float]
) -> None:
    runs = records(TABLE5, "original_resnet152/top1", errors)
    tested_at_224 = {"evaluations": (CROP224,), "result": photo_result({CROP224: (21.3, 5.5)})}
    runs = [replace(run, **tested_at_224) if run.result else run for run in runs]
    cell = compare_cell(TABLE5, "original_resnet152/top1", *runs, seeds=3)
    assert (cell.verdict, cell.reason, cell.nets[0].errors) == (verdict, reason, counted)


def test_each_error_of_a_run_is_judged_by_itself() -> None:
    """Three runs of ResNet-152, whose errors are in four cells: one of them is worse than published."""
    errors = {
        "original_resnet152_224/top1": [23.0, 23.1, 22.95],
        "original_resnet152_224/top5": [6.7, 6.65, 6.72],
        "original_resnet152/top1": [21.3, 21.28, 21.33],
        "original_resnet152/top5": [6.5, 6.55, 6.45],
    }
    runs = []
    for seed, (top1, top5, other_top1, other_top5) in enumerate(zip(*errors.values(), strict=True)):
        result = photo_result({CROP224: (top1, top5), CROP320: (other_top1, other_top5)})
        runs.append(record(TABLE5, "original_resnet152/top1", 1.0, seed=seed, result=result))
    comparison = compared(TABLE5, *runs)
    for cell_id, its_errors in errors.items():
        cell = in_cell(comparison, cell_id)
        assert cell.nets[0].errors == its_errors
        assert cell.verdict == ("worse" if cell_id == "original_resnet152/top5" else "reproduced")
        tolerance = 0.3 if "top5" in cell_id else 0.5
        published = float(cell.published.value or 0)
        check_numbers(cell, expectation(its_errors, published, published_runs=1, resolution=0.1, tolerance=tolerance))
    assert [c.id for c in comparison.differing] == ["original_resnet152/top5"]


# External results


def test_external_results_count_from_the_lowest_seed() -> None:
    errors, seeds = around(PREACT_NUMBER + 0.9), (3, 11, 20, 31, 44)
    entered = [external(TABLE2, PREACT, e, seed=s) for s, e in zip(seeds, errors, strict=True)]
    later = [external(TABLE2, PREACT, 90.0, seed=s) for s in (50, 51, 52)]
    cell = compare_cell(TABLE2, PREACT, externals=[*later, *reversed(entered)])
    assert cell.verdict == "worse"
    check_numbers(cell, expectation(errors, PREACT_NUMBER))
    assert cell.shown
    assert str(cell.shown.conditions) == "external: a paper"
    four = compare_cell(TABLE2, PREACT, externals=entered[:4])
    assert (four.verdict, four.reason) == ("underpowered", "too few runs: 4 of 5")


def test_external_result_can_have_another_crop() -> None:
    """Errors above 20 % are failures only on CIFAR-10."""
    errors = [21.28, 21.3, 21.33]
    entered = [external(TABLE5, "original_resnet152/top1", e, seed=i) for i, e in enumerate(errors)]
    cell = compare_cell(TABLE5, "original_resnet152/top1", externals=entered)
    assert (cell.verdict, cell.is_by_failures) == ("reproduced", False)
    check_numbers(cell, expectation(errors, 21.3, published_runs=1, resolution=0.1))
