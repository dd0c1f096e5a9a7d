"""The verdict on a cell, with the numbers it rests on computed anew by scipy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paperbench.compare.verdicts import CellComparison, in_words
from tests.compare.judging import (
    COPY,
    SECOND,
    Expectation,
    a_table,
    compared,
    expectation,
    external,
    judge,
    judged,
    mixed,
    record,
    records,
    with_expected,
)

TABLE1, TABLE2 = a_table("table1"), a_table("table2")
PREACT, PREACT_NUMBER = "preact/resnet110", 6.37  # without a published spread
BASELINE, BASELINE_NUMBER, BASELINE_STD = "original/resnet110", 6.61, 0.16
FAILS = "plain/resnet110"
SWEEP = "exclusive_gating_0_to_5/resnet110"
SETTINGS = [f"gate_bias={bias}" for bias in (0, -1, -2, -3, -4, -5)]

QUIET = np.array([-0.04, 0.05, 0.0, -0.01, 0.02])
"""Deviations of five runs from their median."""

WIDE = np.array([-0.45, 0.2, 0.0, -0.2, 0.45])
"""Five runs of these are always underpowered at a tolerance of 0.5."""

LOUD = np.array([-0.9, 1.1, 0.0, -0.5, 0.7])


def around(median: float, deviations: Sequence[float] = tuple(QUIET)) -> list[float]:
    return [float(median + d) for d in deviations]


def check_numbers(cell: CellComparison, expected: Expectation) -> None:
    interval = cell.judgement.interval
    assert interval
    assert interval.difference == pytest.approx(expected.difference, abs=1e-8)
    assert interval.low == pytest.approx(expected.low, abs=1e-8)
    assert interval.high == pytest.approx(expected.high, abs=1e-8)
    assert cell.judgement.p_value == pytest.approx(expected.p_value, rel=1e-6, abs=1e-12)


# Numbers


def test_an_interval_inside_the_tolerance_is_reproduced() -> None:
    errors = around(PREACT_NUMBER + 0.01)
    cell = judge(TABLE2, PREACT, errors)
    expected = expectation(errors, PREACT_NUMBER)
    assert -0.5 < expected.low < 0 < expected.high < 0.5
    assert (cell.verdict, cell.reason, cell.judgement.shift) == ("reproduced", "", None)
    assert cell.difference == pytest.approx(0.01)
    check_numbers(cell, expected)


@pytest.mark.parametrize("shift", [0.3, -0.3])
def test_a_significant_difference_within_the_tolerance_is_reproduced_but_shifted(shift: float) -> None:
    errors = around(PREACT_NUMBER + shift)
    expected = expectation(errors, PREACT_NUMBER)
    assert 0 < min(abs(expected.low), abs(expected.high)) < max(abs(expected.low), abs(expected.high)) < 0.5
    cell = judge(TABLE2, PREACT, errors)
    assert cell.verdict == "reproduced"
    assert cell.judgement.shift == pytest.approx(shift)


@pytest.mark.parametrize(("shift", "verdict"), [(0.9, "worse"), (-0.9, "better")])
def test_an_interval_beyond_the_tolerance_is_worse_or_better(shift: float, verdict: str) -> None:
    errors = around(PREACT_NUMBER + shift)
    expected = expectation(errors, PREACT_NUMBER)
    assert min(abs(expected.low), abs(expected.high)) > 0.5
    cell = judge(TABLE2, PREACT, errors)
    assert (cell.verdict, cell.reason, cell.judgement.shift) == (verdict, "", None)
    assert not cell.judgement.rests_on_rule
    check_numbers(cell, expected)


@pytest.mark.parametrize("shift", [0.5, -0.5])
def test_an_interval_across_the_tolerance_is_underpowered(shift: float) -> None:
    errors = around(PREACT_NUMBER + shift)
    expected = expectation(errors, PREACT_NUMBER)
    cell = judge(TABLE2, PREACT, errors)
    assert cell.verdict == "underpowered"
    assert f"[{expected.low:+.2f}, {expected.high:+.2f}] reaches across the tolerance of 0.5" in cell.reason
    assert cell.reason.endswith("extend it to 10 runs")
    assert cell.judgement.shift is None
    check_numbers(cell, expected)


def test_noisy_runs_of_the_same_median_are_underpowered() -> None:
    cell = judge(TABLE2, PREACT, around(PREACT_NUMBER, LOUD))
    assert cell.verdict == "underpowered"
    check_numbers(cell, expectation(around(PREACT_NUMBER, LOUD), PREACT_NUMBER))


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (6.86, "reproduced"),
        (5.88, "reproduced"),
        (6.87, "underpowered"),
        (5.87, "underpowered"),
        (6.88, "worse"),
        (5.86, "better"),
    ],
)
def test_identical_runs_are_as_noisy_as_rounding_is(error: float, verdict: str) -> None:
    cell = judge(TABLE2, PREACT, [error] * 5)
    assert cell.verdict == verdict
    check_numbers(cell, expectation([error] * 5, PREACT_NUMBER, resolution=0.01))
    assert cell.judgement.noise
    assert cell.judgement.noise.std == pytest.approx(0.01 / math.sqrt(12))


def test_rounding_is_that_of_the_tables_decimals() -> None:
    cells = tuple(replace(c, defaults=replace(c.defaults, decimals=1)) for c in TABLE2.all_cells)
    quiet, loud = [6.36, 6.37, 6.38, 6.37, 6.37], around(PREACT_NUMBER)
    for errors, resolution in ((quiet, 0.1), (loud, 0.0)):
        cell = judge(replace(TABLE2, all_cells=cells), PREACT, errors)
        check_numbers(cell, expectation(errors, PREACT_NUMBER, resolution=resolution))


def test_the_tolerance_is_the_cells_own() -> None:
    errors = around(12.35 + 0.7)
    assert judge(TABLE1, "constant_scaling/resnet110", errors).verdict == "reproduced"  # 1.0 here
    table = with_expected(TABLE1, "constant_scaling/resnet110", tolerance=0.5)
    assert judge(table, "constant_scaling/resnet110", errors).verdict == "worse"


def test_the_error_compared_is_the_last_iterations_and_no_better_one() -> None:
    """`record` puts the moving-average error 1 higher and the best epoch 2 lower."""
    cell = judge(TABLE2, PREACT, [PREACT_NUMBER] * 5)
    assert cell.difference == pytest.approx(0)


def test_the_interval_counts_the_published_runs() -> None:
    table = with_expected(TABLE2, PREACT, n=1, statistic="single")
    errors = around(PREACT_NUMBER + 0.2)
    check_numbers(judge(table, PREACT, errors), expectation(errors, PREACT_NUMBER, published_runs=1))


# Noise


def test_a_published_spread_is_pooled_with_ours_and_its_weight_stated() -> None:
    errors = around(BASELINE_NUMBER + 0.1)
    cell = judge(TABLE2, BASELINE, errors)
    check_numbers(cell, expectation(errors, BASELINE_NUMBER, std=BASELINE_STD))
    assert cell.judgement.noise
    assert cell.judgement.noise.rests_on == "both"
    assert cell.judgement.noise.published_weight == pytest.approx(2 / 6)
    assert cell.judgement.noise.degrees == 6


@pytest.mark.parametrize("cell_id", ["original/resnet164", "bn_after_addition/resnet110", "preact/resnet164"])
def test_no_cell_borrows_the_spread_of_another(cell_id: str) -> None:
    published = {"original/resnet164": 5.93, "bn_after_addition/resnet110": 8.17, "preact/resnet164": 5.46}[cell_id]
    errors = around(published + 0.1)
    cell = judge(TABLE2, cell_id, errors)
    check_numbers(cell, expectation(errors, published))
    assert cell.judgement.noise
    assert cell.judgement.noise.rests_on == "ours"
    assert cell.judgement.noise.published_weight == 0
    assert cell.judgement.noise.degrees == 4


def test_the_published_spreads_are_those_of_the_paper() -> None:
    """0.16 of v1, and 0.14, 0.22 and 0.20 of Table 4."""
    table = a_table("table4")
    spreads = {c.id: c.expected.std for c in table.cells(on_request=True) if c.expected.std}
    assert spreads == {
        "resnet110/cifar10": 0.16,
        "preact_resnet1001/cifar10": 0.14,
        "preact_resnet1001/cifar100": 0.22,
        "preact_resnet1001_batch64/cifar10": 0.20,
    }


# How many seeds


@pytest.mark.parametrize("ended", [0, 1, 2, 3, 4])
def test_before_all_planned_runs_have_ended_a_number_is_not_judged(ended: int) -> None:
    cell = judge(TABLE2, PREACT, [PREACT_NUMBER + 3] * ended)
    expected = ("underpowered", f"{ended} of 5 runs") if ended else ("not run", "")
    assert (cell.verdict, cell.reason) == expected
    assert cell.judgement.interval is None


@pytest.mark.parametrize("fifth", [None, "partial"])
def test_a_run_of_a_later_seed_replaces_no_planned_one(fifth: str | None) -> None:
    runs = [record(TABLE2, PREACT, 6.37, seed=seed) for seed in (0, 1, 2, 3, 7)]
    if fifth:
        runs.append(record(TABLE2, PREACT, None, seed=4))
    cell = judged(TABLE2, PREACT, *runs)
    assert cell.verdict == "underpowered"
    assert cell.reason == "4 of 5 runs (seeds 0 to 4 count, and that of seed 4 is missing)"


def test_the_first_missing_seed_is_named_if_a_later_run_has_ended() -> None:
    runs = [record(TABLE2, PREACT, 6.37, seed=seed) for seed in (0, 2, 5, 6, 7)]
    expected = "2 of 5 runs (seeds 0 to 4 count, and that of seed 1 is missing)"
    assert judged(TABLE2, PREACT, *runs).reason == expected
    assert judged(TABLE2, PREACT, *runs[:2]).reason == expected
    assert judged(TABLE2, PREACT, runs[0], record(TABLE2, PREACT, 6.37, seed=1)).reason == "2 of 5 runs"


# Which runs are shown


def test_of_twenty_runs_the_median_shown_is_that_of_the_five_that_count() -> None:
    errors = around(PREACT_NUMBER + 0.1)
    cell = judge(TABLE2, PREACT, [*errors, *[PREACT_NUMBER + 3] * 14, 90.0])
    (net,) = cell.nets
    assert cell.verdict == "reproduced"
    assert cell.shown
    assert len(cell.shown.runs) == 20
    assert [run.seed for run in net.counted] == [0, 1, 2, 3, 4]
    assert net.errors == errors
    assert net.median == pytest.approx(PREACT_NUMBER + 0.1)
    assert cell.difference == pytest.approx(0.1)
    assert cell.shown.median == pytest.approx(PREACT_NUMBER + 3)
    assert (net.planned, str(cell.failing)) == (5, "0 of 5 failed")


def test_after_an_extension_ten_count() -> None:
    errors = [*around(PREACT_NUMBER, WIDE), *around(PREACT_NUMBER)]
    (net,) = judge(TABLE2, PREACT, [*errors, *[90.0] * 10]).nets
    assert net.errors == errors
    (net,) = judge(TABLE2, PREACT, errors[:9]).nets
    assert net.errors == errors[:5]


def test_before_a_look_those_of_the_planned_that_have_ended_count() -> None:
    runs = [record(TABLE2, PREACT, error, seed=seed) for seed, error in ((0, 6.4), (1, None), (3, 6.6), (7, 9.9))]
    cell = judged(TABLE2, PREACT, *runs)
    (net,) = cell.nets
    assert [run.seed for run in net.counted] == [0, 3]
    assert (net.median, cell.difference) == (pytest.approx(6.5), pytest.approx(6.5 - PREACT_NUMBER))
    later = judged(TABLE2, PREACT, *runs[1:2], runs[3])
    assert [run.seed for run in later.nets[0].counted] == [7]
    assert later.difference == pytest.approx(9.9 - PREACT_NUMBER)
    assert later.reason == "0 of 5 runs (seeds 0 to 4 count, and that of seed 0 is missing)"


def test_of_what_is_not_comparable_the_planned_runs_count() -> None:
    errors = [*around(PREACT_NUMBER + 1), *[90.0] * 5]
    cell = judged(TABLE2, PREACT, *records(TABLE2, PREACT, errors, data=COPY))
    assert cell.verdict == "not comparable"
    assert cell.nets[0].errors == errors[:5]
    assert cell.difference == pytest.approx(1)
    entered = [external(TABLE2, PREACT, e, seed=i + 3) for i, e in enumerate(errors)]
    assert judged(TABLE2, PREACT, externals=entered).nets[0].errors == errors[:5]


def test_nothing_counts_where_nothing_has_ended() -> None:
    for runs in ((), (record(TABLE2, PREACT, None),)):
        (net,) = judged(TABLE2, PREACT, *runs).nets
        assert (net.counted, net.errors, net.median) == ((), [], None)


@pytest.mark.parametrize("runs", [6, 7, 8, 9])
def test_runs_between_the_looks_change_nothing(runs: int) -> None:
    first = around(PREACT_NUMBER + 0.5)
    further = [PREACT_NUMBER] * (runs - 5)
    cell = judge(TABLE2, PREACT, [*first, *further])
    assert cell.verdict == "underpowered"
    assert cell.reason.endswith(f"extend it to 10 runs: {runs} have ended, which change nothing yet")
    check_numbers(cell, expectation(first, PREACT_NUMBER))
    assert cell.judgement.look
    assert cell.judgement.look.errors == pytest.approx(first)


@pytest.mark.parametrize(
    ("shift", "then", "verdict"),
    [
        (0.0, QUIET, "reproduced"),
        (1.0, QUIET, "worse"),
        (-1.0, QUIET, "better"),
        (0.0, WIDE, "underpowered"),
        (1.0, WIDE, "underpowered"),
        (0.5, QUIET, "underpowered"),
    ],
)
def test_ten_runs_decide_if_five_did_not(shift: float, then: np.ndarray, verdict: str) -> None:
    errors = [*around(PREACT_NUMBER + shift, WIDE), *around(PREACT_NUMBER + shift, then)]
    assert judge(TABLE2, PREACT, errors[:5]).verdict == "underpowered"
    cell = judge(TABLE2, PREACT, errors)
    assert cell.verdict == verdict
    check_numbers(cell, expectation(errors, PREACT_NUMBER, level=SECOND))
    assert "extend" not in cell.reason
    assert cell.judgement.look
    assert (cell.judgement.look.number, len(cell.judgement.look.runs)) == (2, 10)
    assert cell.judgement.interval
    assert cell.judgement.interval.level == 0.01


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_what_ten_runs_say_at_five_percent_is_not_enough(shift: float) -> None:
    errors = around(PREACT_NUMBER + shift, [*WIDE, *WIDE])
    at_five = expectation(errors, PREACT_NUMBER, level=0.05)
    assert at_five.high < 0.5 if not shift else at_five.low > 0.5
    assert judge(TABLE2, PREACT, errors).verdict == "underpowered"


def test_an_extension_weighs_the_published_spread_by_two_of_eleven() -> None:
    errors = around(BASELINE_NUMBER, [*LOUD, *LOUD])
    cell = judge(TABLE2, BASELINE, errors)
    check_numbers(cell, expectation(errors, BASELINE_NUMBER, std=BASELINE_STD, level=SECOND))
    assert cell.judgement.noise
    assert cell.judgement.noise.published_weight == pytest.approx(2 / 11)


@pytest.mark.parametrize(("shift", "verdict"), [(0.0, "reproduced"), (1.0, "worse")])
def test_ten_runs_do_not_change_what_five_decided(shift: float, verdict: str) -> None:
    first = around(PREACT_NUMBER + shift)
    for further in (PREACT_NUMBER + 3, PREACT_NUMBER - 3, PREACT_NUMBER + 1 - shift):
        cell = judge(TABLE2, PREACT, [*first, *[further] * 5])
        assert (cell.verdict, cell.reason) == (verdict, "")
        check_numbers(cell, expectation(first, PREACT_NUMBER))
        assert cell.judgement.look
        assert cell.judgement.look.number == 1


def test_runs_beyond_the_extension_change_nothing() -> None:
    errors = around(PREACT_NUMBER, [*WIDE, *WIDE])
    ten = judge(TABLE2, PREACT, errors)
    for further in ([PREACT_NUMBER] * 1, [PREACT_NUMBER] * 10, [90.0] * 15):
        more = judge(TABLE2, PREACT, [*errors, *further])
        assert more.verdict == "underpowered"
        assert more.reason == ten.reason
        check_numbers(more, expectation(errors, PREACT_NUMBER, level=SECOND))


def test_an_extension_with_a_missing_seed_is_none() -> None:
    errors = [*around(PREACT_NUMBER, WIDE), *around(PREACT_NUMBER)]
    runs = records(TABLE2, PREACT, errors)
    runs[7] = record(TABLE2, PREACT, None, seed=7)
    runs.append(record(TABLE2, PREACT, PREACT_NUMBER, seed=10))
    cell = judged(TABLE2, PREACT, *runs)
    assert cell.verdict == "underpowered"
    assert cell.judgement.look
    assert cell.judgement.look.number == 1


# Another number of seeds than the table's


def test_three_seeds_fixed_beforehand_suffice() -> None:
    errors = around(PREACT_NUMBER, [-0.02, 0.0, 0.03])
    assert judge(TABLE2, PREACT, errors).verdict == "underpowered"
    cell = judge(TABLE2, PREACT, errors, seeds=3)
    assert (cell.verdict, cell.planned) == ("reproduced", 3)
    check_numbers(cell, expectation(errors, PREACT_NUMBER))
    assert judge(TABLE2, PREACT, errors[:2], seeds=3).reason == "2 of 3 runs"


def test_more_seeds_than_the_table_says_are_waited_for() -> None:
    errors = around(PREACT_NUMBER)
    assert judge(TABLE2, PREACT, errors, seeds=10).reason == "5 of 10 runs"
    cell = judge(TABLE2, PREACT, errors * 2, seeds=10)
    assert cell.verdict == "reproduced"
    check_numbers(cell, expectation(errors * 2, PREACT_NUMBER))  # at 5 %: it is the first look


@pytest.mark.parametrize(
    ("shift", "verdict"), [(0.0, "reproduced"), (1.5, "worse"), (-1.5, "better"), (0.5, "underpowered")]
)
def test_one_seed_rests_on_the_published_spread_and_says_so(shift: float, verdict: str) -> None:
    cell = judge(TABLE2, BASELINE, [BASELINE_NUMBER + shift], seeds=1)
    assert cell.verdict == verdict
    assert "rests on the published standard deviation" in cell.reason
    check_numbers(cell, expectation([BASELINE_NUMBER + shift], BASELINE_NUMBER, std=BASELINE_STD))
    assert cell.judgement.noise
    assert cell.judgement.noise.rests_on == "published"
    assert cell.judgement.noise.published_weight == 1


@pytest.mark.parametrize("seeds", [1, 2])
def test_less_than_three_seeds_need_a_published_spread(seeds: int) -> None:
    cell = judge(TABLE2, PREACT, [PREACT_NUMBER] * seeds, seeds=seeds)
    assert cell.verdict == "underpowered"
    assert "no spread is published, and it takes three runs to estimate ours" in cell.reason
    assert cell.judgement.interval is None
    assert ("extend it to 4 runs" in cell.reason) == (seeds == 2)  # two runs would not do either


def test_one_seed_can_be_extended_where_a_spread_is_published() -> None:
    cell = judge(TABLE2, BASELINE, [BASELINE_NUMBER + 0.5], seeds=1)
    assert cell.reason.endswith("; extend it to 2 runs")
    assert "extend" not in judge(TABLE1, FAILS, [90.0], seeds=1).reason


def test_two_seeds_with_a_published_spread_are_pooled_with_it() -> None:
    errors = [BASELINE_NUMBER, BASELINE_NUMBER + 0.1]
    cell = judge(TABLE2, BASELINE, errors, seeds=2)
    check_numbers(cell, expectation(errors, BASELINE_NUMBER, std=BASELINE_STD))
    assert "rests on" not in cell.reason


def test_one_run_of_five_planned_rests_on_nothing() -> None:
    cell = judge(TABLE2, BASELINE, [BASELINE_NUMBER])
    assert (cell.verdict, cell.reason) == ("underpowered", "1 of 5 runs")


def test_of_an_even_number_of_runs_the_middle_two_make_the_median() -> None:
    errors = [6.30, 6.50, 6.36, 6.40]
    cell = judge(TABLE2, PREACT, errors, seeds=4)
    assert cell.difference == pytest.approx((6.36 + 6.40) / 2 - PREACT_NUMBER)
    check_numbers(cell, expectation(errors, PREACT_NUMBER))
    errors += [6.31, 6.48, 6.33, 6.44]
    extended = judge(TABLE2, PREACT, [e if e != 6.50 else 7.5 for e in errors], seeds=4)
    check_numbers(extended, expectation([e if e != 6.50 else 7.5 for e in errors], PREACT_NUMBER, level=SECOND))


# One result in several tables


@pytest.mark.parametrize(
    ("table", "cell_id"),
    [
        ("table1", "original/resnet110"),
        ("table3", "cifar10_resnet110/original"),
        ("table4", "resnet110/cifar10"),
    ],
)
@pytest.mark.parametrize("shift", [0.1, 0.9])
def test_a_result_referred_to_from_another_table_has_the_same_verdict_there(
    table: str, cell_id: str, shift: float
) -> None:
    runs = records(TABLE2, BASELINE, around(BASELINE_NUMBER + shift))
    there = judged(a_table(table), cell_id, *runs)
    assert there.verdict == ("reproduced" if shift == 0.1 else "worse")
    assert there.judgement == judged(TABLE2, BASELINE, *runs).judgement


def test_a_spread_published_in_another_table_counts_in_all() -> None:
    errors = around(4.92)
    table4 = a_table("table4")
    runs = records(table4, "preact_resnet1001/cifar10", errors)
    for table, cell_id in ((table4, "preact_resnet1001/cifar10"), (a_table("table3"), "cifar10_resnet1001/preact")):
        check_numbers(judged(table, cell_id, *runs), expectation(errors, 4.92, std=0.14))


# Failing


@pytest.mark.parametrize("how", [30.0, 20.01, math.inf])
def test_three_of_five_failing_settle_that_a_net_fails(how: float) -> None:
    two = judge(TABLE1, FAILS, [how] * 2)
    assert (two.verdict, two.reason) == ("underpowered", "2 of 5 runs")
    three = judge(TABLE1, FAILS, [how] * 3)
    assert three.verdict == "reproduced"
    assert three.reason == "3 of 3 failed; the runs to come cannot change that"
    assert three.judgement.rests_on_rule
    assert three.judgement.p_value is None
    all_five = judge(TABLE1, FAILS, [how] * 5)
    assert (all_five.verdict, all_five.reason) == ("reproduced", "5 of 5 failed")
    assert all_five.difference is None


def test_two_of_five_failing_do_not_make_a_net_fail() -> None:
    cell = judge(TABLE1, FAILS, [30.0, 12.0, math.inf, 12.5, 13.0])
    assert (cell.verdict, cell.reason) == ("better", "2 of 5 failed: unstable")


def test_three_of_five_failing_make_a_net_fail_and_call_it_unstable() -> None:
    cell = judge(TABLE1, FAILS, [30.0, 12.0, math.inf, 12.5, 30.0])
    assert (cell.verdict, cell.reason) == ("reproduced", "3 of 5 failed: unstable")
    early = judge(TABLE1, FAILS, [30.0, 12.0, math.inf, 30.0])
    assert early.verdict == "reproduced"
    assert early.reason == "3 of 4 failed: unstable; the runs to come cannot change that"


@pytest.mark.parametrize("errors", [[30.0, 12.0, 30.0], [12.0, 12.0, 30.0], [30.0, 12.0, 30.0, 12.0]])
def test_what_the_missing_runs_can_change_is_not_settled(errors: list[float]) -> None:
    cell = judge(TABLE1, FAILS, errors)
    assert (cell.verdict, cell.reason) == ("underpowered", f"{len(errors)} of 5 runs")


def test_three_of_five_that_do_not_fail_settle_it_too() -> None:
    cell = judge(TABLE1, FAILS, [12.0, 13.0, 12.5])
    assert cell.verdict == "better"
    assert cell.reason == "0 of 3 failed; the runs to come cannot change that"


def test_exactly_20_percent_does_not_fail() -> None:
    cell = judge(TABLE1, FAILS, [20.0] * 5)
    assert (cell.verdict, cell.reason) == ("better", "0 of 5 failed")


def test_a_run_of_a_later_seed_fails_for_no_planned_one() -> None:
    runs = [record(TABLE1, FAILS, 90.0, seed=seed) for seed in (0, 1, 5, 6)]
    cell = judged(TABLE1, FAILS, *runs)
    assert cell.verdict == "underpowered"
    assert cell.reason == "2 of 5 runs (seeds 0 to 4 count, and that of seed 2 is missing)"


@pytest.mark.parametrize("seeds", [1, 2])
def test_less_than_three_runs_do_not_show_that_a_net_fails(seeds: int) -> None:
    for error in (90.0, math.inf, 6.0):
        cell = judge(TABLE1, FAILS, [error] * seeds, seeds=seeds)
        assert cell.verdict == "underpowered"
        assert "it takes 3 runs to say that a net fails, or does not" in cell.reason
    number = judge(TABLE2, PREACT, [90.0] * seeds, seeds=seeds)
    assert number.verdict == "underpowered"
    assert "to say that a net fails" in number.reason


def test_two_planned_seeds_are_extended_to_four_to_show_that_a_net_fails() -> None:
    cell = judge(TABLE1, FAILS, [90.0] * 4, seeds=2)
    assert (cell.verdict, cell.reason) == ("reproduced", "4 of 4 failed")


@pytest.mark.parametrize(
    ("errors", "verdict", "reason"),
    [
        ([6.0, 6.0, 30.0, 30.0], "better", "2 of 4 failed: unstable"),  # median 18
        ([6.0, 6.0, 40.0, 40.0], "reproduced", "2 of 4 failed: unstable"),  # median 23
        ([6.0, 30.0, 30.0], "underpowered", "3 of 4 runs"),
        ([30.0, 30.0, 30.0], "reproduced", "3 of 3 failed; the runs to come cannot change that"),
        ([6.0, 6.0, 6.0], "better", "0 of 3 failed; the runs to come cannot change that"),
    ],
)
def test_an_even_number_of_runs_fails_by_its_median(errors: list[float], verdict: str, reason: str) -> None:
    cell = judge(TABLE1, FAILS, errors, seeds=4)
    assert (cell.verdict, cell.reason) == (verdict, reason)


def test_failing_where_the_paper_did_not_is_worse() -> None:
    cell = judge(TABLE2, BASELINE, [90.0, math.inf, 21.0, 90.0, 88.0])
    assert (cell.verdict, cell.reason) == ("worse", "5 of 5 failed")
    assert cell.judgement.rests_on_rule
    assert cell.judgement.interval is None
    early = judge(TABLE2, BASELINE, [90.0, math.inf, 21.0])
    assert (early.verdict, early.reason) == ("worse", "3 of 3 failed; the runs to come cannot change that")
    assert judge(TABLE2, BASELINE, [90.0, math.inf]).verdict == "underpowered"


@pytest.mark.parametrize(
    ("cell_id", "errors", "verdict", "is_sure"),
    [
        (BASELINE, [90.0] * 5, "worse", True),
        (BASELINE, [90.0, 6.6, 90.0, 6.6, 90.0], "worse", True),
        (BASELINE, [90.0, 6.6, 90.0, 90.0], "worse", True),
        (BASELINE, around(BASELINE_NUMBER + 3), "worse", False),
        (BASELINE, around(BASELINE_NUMBER - 3), "better", False),
        (FAILS, [12.0] * 5, "better", True),
        (FAILS, [12.0, 12.0, 90.0, 12.0, 12.0], "better", False),
    ],
)
def test_what_is_sure_by_rule(cell_id: str, errors: list[float], verdict: str, is_sure: bool) -> None:
    cell = judge(TABLE2 if cell_id == BASELINE else TABLE1, cell_id, errors)
    assert (cell.verdict, cell.judgement.is_sure_by_rule) == (verdict, is_sure)


def test_three_runs_that_do_not_fail_are_no_verdict_on_a_number() -> None:
    cell = judge(TABLE2, BASELINE, [BASELINE_NUMBER] * 3)
    assert (cell.verdict, cell.reason) == ("underpowered", "3 of 5 runs")


def test_a_few_diverged_runs_make_a_number_unstable() -> None:
    cell = judge(TABLE2, BASELINE, [6.6, math.inf, 6.5, 6.7, math.inf])
    assert cell.verdict == "underpowered"
    assert cell.reason == "unstable: 2 of 5 failed; extend it to 10 runs"
    assert str(cell.judgement.failing) == "2 of 5 failed"
    assert cell.judgement.interval is None
    assert judge(TABLE2, BASELINE, [6.6, math.inf, math.inf, 6.7, math.inf]).verdict == "worse"


def test_how_many_failed_is_said_beside_an_interval_too() -> None:
    errors = [6.6, 25.0, 6.5, 6.7, 6.6]
    cell = judge(TABLE2, BASELINE, errors)
    assert cell.verdict == "underpowered"
    assert cell.reason.startswith("unstable: 1 of 5 failed; the interval")
    check_numbers(cell, expectation(errors, BASELINE_NUMBER, std=BASELINE_STD))


def test_cifar100_errors_above_20_percent_do_not_fail() -> None:
    table, cell_id, published = a_table("table3"), "cifar100_resnet164/original", 25.16
    errors = around(published + 0.1)
    cell = judge(table, cell_id, errors)
    assert (cell.verdict, cell.reason) == ("reproduced", "")
    assert str(cell.judgement.failing) == "0 of 5 failed"
    check_numbers(cell, expectation(errors, published))
    far = judge(table, cell_id, around(80.0))
    assert far.verdict == "worse"
    assert not far.judgement.rests_on_rule
    diverged = judge(table, cell_id, [math.inf] * 3)
    assert (diverged.verdict, diverged.judgement.rests_on_rule) == ("worse", True)


# Sweeps


def sweep(errors: dict[str, list[float | None]], **how: Any) -> CellComparison:
    runs = [r for label, found in errors.items() for r in records(TABLE1, SWEEP, found, setting=label)]
    return judged(TABLE1, SWEEP, *runs, **how)


def test_a_sweep_is_reproduced_when_every_setting_fails() -> None:
    cell = sweep({label: [90.0, math.inf, 50.0, 90.0, 30.0] for label in SETTINGS})
    assert [net.setting.label for net in cell.nets] == SETTINGS
    assert (cell.verdict, cell.reason) == ("reproduced", "30 of 30 failed, in 6 settings")
    assert cell.difference is None
    unstable = sweep({label: [90.0, math.inf, 50.0, 12.0, 12.0] for label in SETTINGS})
    assert (unstable.verdict, unstable.reason) == ("reproduced", "18 of 30 failed, in 6 settings")


def test_failed_runs_are_counted_over_all_settings_that_count() -> None:
    errors: dict[str, list[float | None]] = {label: [90.0, 12.0] for label in SETTINGS}
    errors[SETTINGS[1]] = [90.0] * 5 + [12.0] * 2
    errors[SETTINGS[2]] = [None]
    assert str(sweep(errors).failing) == "9 of 13 failed"


def test_one_setting_that_does_not_fail_is_enough_against_a_sweep() -> None:
    errors: dict[str, list[float | None]] = {label: [90.0] * 5 for label in SETTINGS}
    errors["gate_bias=-3"] = [12.0] * 5
    cell = sweep(errors)
    assert (cell.verdict, cell.reason) == ("better", "gate_bias=-3: 0 of 5 failed")
    assert [net.judgement.verdict for net in cell.nets] == [*["reproduced"] * 3, "better", *["reproduced"] * 2]
    alone = sweep({"gate_bias=-3": [12.0] * 3})
    assert alone.verdict == "better"


@pytest.mark.parametrize("last", [[], [None], [90.0] * 2, [90.0, 12.0, 90.0]])
def test_a_sweep_with_a_setting_that_lacks_runs_is_underpowered(last: list[float | None]) -> None:
    errors: dict[str, list[float | None]] = {label: [90.0] * 5 for label in SETTINGS[:-1]}
    cell = sweep({**errors, SETTINGS[-1]: last})
    told = {0: "not run", 1: "the farthest run is at iteration 1,000", 2: "2 of 5 runs", 3: "3 of 5 runs"}[len(last)]
    assert (cell.verdict, cell.reason) == ("underpowered", f"gate_bias=-5: {told}")


def test_a_sweep_without_an_ended_run_is_not_run() -> None:
    assert (sweep({}).verdict, sweep({}).reason) == ("not run", "")
    cell = sweep({SETTINGS[2]: [None]})
    assert (cell.verdict, cell.reason) == ("not run", "the farthest run is at iteration 1,000")


def test_a_sweep_on_other_pixels_is_not_comparable() -> None:
    errors: dict[str, list[float | None]] = {label: [90.0] * 5 for label in SETTINGS[:-1]}
    runs = [r for label, found in errors.items() for r in records(TABLE1, SWEEP, found, setting=label)]
    elsewhere = records(TABLE1, SWEEP, [90.0] * 5, setting=SETTINGS[-1], data=COPY)
    cell = judged(TABLE1, SWEEP, *runs, *elsewhere)
    assert cell.verdict == "not comparable"
    assert COPY.name in cell.reason


# What is not comparable, and not run


@pytest.mark.parametrize("profile", ["smoke", "shallow"])
def test_reduced_profiles_are_never_reproduced(profile: str) -> None:
    runs = records(TABLE2, PREACT, [PREACT_NUMBER] * 5, profile=profile)
    for seeds in (None, 5):
        cell = judged(TABLE2, PREACT, *runs, profile=profile, seeds=seeds)
        assert (cell.verdict, cell.reason) == ("not comparable", f"profile {profile} is not the paper's experiment")
        assert cell.difference is None
        assert cell.judgement.interval is None
    assert judged(TABLE2, PREACT, *runs).verdict == "not run"
    failing = records(TABLE1, FAILS, [math.inf] * 5, profile=profile)
    assert judged(TABLE1, FAILS, *failing, profile=profile, seeds=5).verdict == "not comparable"


def test_the_papers_runs_say_nothing_in_a_reduced_profile() -> None:
    runs = records(TABLE2, PREACT, [PREACT_NUMBER] * 5)
    assert judged(TABLE2, PREACT, *runs, profile="shallow").verdict == "not run"


@pytest.mark.parametrize("error", [PREACT_NUMBER, 9.0])
def test_other_pixels_are_not_comparable_and_the_difference_is_there_all_the_same(error: float) -> None:
    cell = judged(TABLE2, PREACT, *records(TABLE2, PREACT, [error] * 5, data=COPY))
    assert cell.verdict == "not comparable"
    assert cell.reason == "CIFAR-10 (some copy) does not have the pixels of the paper's data"
    assert cell.difference == pytest.approx(error - PREACT_NUMBER)  # with no offset applied
    assert cell.judgement.interval is None


def test_failing_on_other_pixels_is_not_comparable_either() -> None:
    cell = judged(TABLE1, FAILS, *records(TABLE1, FAILS, [math.inf] * 5, data=COPY))
    assert cell.verdict == "not comparable"


def test_a_run_that_other_code_continued_is_not_comparable() -> None:
    for newer in ({"numerics": 2}, {"torch": "3.0.0"}):
        runs = [mixed(r, **newer) for r in records(TABLE2, PREACT, [PREACT_NUMBER] * 5)]
        cell = judged(TABLE2, PREACT, *runs)
        assert cell.verdict == "not comparable"
        assert cell.reason == "its runs were continued by other numerics or another torch"


def test_a_minor_version_of_torch_mixes_nothing() -> None:
    runs = [mixed(r, torch="2.16.0") for r in records(TABLE2, PREACT, [PREACT_NUMBER] * 5)]
    assert judged(TABLE2, PREACT, *runs).verdict == "reproduced"


def test_a_net_without_a_printed_number_is_not_comparable() -> None:
    table, cell_id = a_table("table3"), "cifar10_resnet164_no_warm_up/preact"
    cell = judge(table, cell_id, [5.46] * 5)
    assert (cell.verdict, cell.reason) == ("not comparable", "the paper prints no number for it")
    assert cell.difference is None


def test_without_an_ended_run_a_cell_is_not_run() -> None:
    cell = judged(TABLE2, PREACT)
    assert (cell.verdict, cell.reason, cell.shown) == ("not run", "", None)
    runs = [record(TABLE2, PREACT, None, seed=seed, iteration=i) for seed, i in enumerate((8_000, 31_999, 400))]
    cell = judged(TABLE2, PREACT, *runs)
    assert (cell.verdict, cell.reason) == ("not run", "the farthest run is at iteration 31,999")
    assert cell.shown
    assert cell.shown.median is None
    assert cell.difference is None


@pytest.mark.parametrize("how", [{"data": COPY}, {"profile": "smoke"}, {"profile": "shallow"}])
def test_what_has_not_ended_is_not_run_and_not_incomparable(how: dict[str, Any]) -> None:
    profile = how.get("profile", "paper")
    cell = judged(TABLE2, PREACT, record(TABLE2, PREACT, None, iteration=60, **how), profile=profile)
    assert (cell.verdict, cell.reason) == ("not run", "the farthest run is at iteration 60")
    done = judged(TABLE2, PREACT, record(TABLE2, PREACT, 9.0, **how), profile=profile)
    assert done.verdict == "not comparable"


def test_a_run_that_other_code_continued_and_that_has_not_ended_is_not_run() -> None:
    cell = judged(TABLE2, PREACT, mixed(record(TABLE2, PREACT, None, iteration=60)))
    assert (cell.verdict, cell.reason) == ("not run", "the farthest run is at iteration 60")


@pytest.mark.parametrize("column", ["top1", "top5"])
def test_a_diverged_run_has_failed_by_every_crop_and_metric(column: str) -> None:
    table, cell_id = a_table("table5"), f"original_resnet152/{column}"
    cell = judge(table, cell_id, [math.inf] * 3, seeds=3)
    assert (cell.verdict, cell.reason) == ("worse", "3 of 3 failed")
    assert cell.nets[0].errors == [math.inf] * 3
    one = judge(table, cell_id, [21.3, math.inf, 21.4], seeds=3)
    assert one.verdict == "underpowered"
    assert one.nets[0].errors == [math.inf]


@pytest.mark.parametrize("column", ["top1", "top5"])
def test_a_run_has_no_error_of_another_crop_or_metric(column: str) -> None:
    table, cell_id = a_table("table5"), f"original_resnet152/{column}"
    cell = judge(table, cell_id, [21.3] * 3)
    assert (cell.verdict, cell.reason) == ("not run", "its runs hold no error of this kind")


def test_a_top_5_error_on_whole_images_is_none_that_a_run_holds() -> None:
    cells = tuple(replace(c, column=replace(c.column, metric="top5")) for c in TABLE2.all_cells)
    cell = judge(replace(TABLE2, all_cells=cells), PREACT, [PREACT_NUMBER] * 5)
    assert (cell.verdict, cell.reason) == ("not run", "its runs hold no error of this kind")


# Results from elsewhere


def test_results_from_elsewhere_are_judged() -> None:
    errors = around(PREACT_NUMBER + 0.9)
    entered = [external(TABLE2, PREACT, e, seed=10 + i) for i, e in enumerate(errors)]
    cell = judged(TABLE2, PREACT, externals=entered)
    assert cell.verdict == "worse"
    check_numbers(cell, expectation(errors, PREACT_NUMBER))
    assert cell.shown
    assert str(cell.shown.conditions) == "external: a paper"


def test_of_results_from_elsewhere_the_lowest_seeds_are_looked_at_whichever_they_are() -> None:
    errors = around(PREACT_NUMBER)
    seeds = (3, 11, 20, 31, 44)
    entered = [external(TABLE2, PREACT, e, seed=s) for s, e in zip(seeds, errors, strict=True)]
    later = [external(TABLE2, PREACT, 90.0, seed=s) for s in (50, 51, 52)]
    cell = judged(TABLE2, PREACT, externals=[*later, *reversed(entered)])
    assert cell.verdict == "reproduced"
    check_numbers(cell, expectation(errors, PREACT_NUMBER))
    four = judged(TABLE2, PREACT, externals=entered[:4])
    assert (four.verdict, four.reason) == ("underpowered", "4 of 5 runs")


def test_a_diverged_result_from_elsewhere_counts_as_failed() -> None:
    entered = [external(TABLE1, FAILS, None, seed=seed) for seed in range(3)]
    assert judged(TABLE1, FAILS, externals=entered).verdict == "reproduced"
    entered = [external(TABLE2, BASELINE, None, seed=seed) for seed in range(3)]
    assert judged(TABLE2, BASELINE, externals=entered).verdict == "worse"


def test_a_result_of_another_crop_can_come_from_elsewhere() -> None:
    table = a_table("table5")
    for column, published in (("top1", 21.3), ("top5", 5.5)):
        cell_id = f"original_resnet152/{column}"
        errors = [published + d for d in (-0.02, 0.0, 0.03)]
        entered = [external(table, cell_id, e, seed=i) for i, e in enumerate(errors)]
        cell = judged(table, cell_id, externals=entered)
        assert cell.verdict == "reproduced"
        tolerance = 0.5 if column == "top1" else 0.3
        check_numbers(cell, expectation(errors, published, published_runs=1, tolerance=tolerance, resolution=0.1))


def test_intervals_in_words_have_signs() -> None:
    interval = judge(TABLE2, PREACT, around(PREACT_NUMBER)).judgement.interval
    expected = expectation(around(PREACT_NUMBER), PREACT_NUMBER)
    assert interval
    assert in_words(interval) == f"[{expected.low:+.2f}, {expected.high:+.2f}]"


def test_no_seed_is_called_missing_when_all_planned_runs_are_there() -> None:
    table1 = a_table("table1")
    runs = [record(table1, "plain/resnet110", 12.0, seed=seed) for seed in (0, 1, 5)]
    claims = compared(table1, *runs, seeds=2).claims
    (plain,) = [claim for claim in claims if claim.claim.id == "plain_fails"]
    assert plain.reason == "plain/resnet110: 2 of 2 runs; it takes 3 to say that a net fails"
