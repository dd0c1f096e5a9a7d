"""A table as a whole: what its verdicts add up to, and how often they are wrong."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from paperbench.compare.comparison import Comparison, compare
from paperbench.runs.record import Record
from tests.compare.judging import (
    a_table,
    compared,
    expectation,
    external,
    in_cell,
    record,
    records,
    result,
    with_claim,
)

TABLE1, TABLE2 = a_table("table1"), a_table("table2")
NUMBERS = {cell.id: float(cell.number or 0) for cell in TABLE2.cells()}
SPREAD = np.array([-0.20, 0.15, 0.0, -0.05, 0.10])
"""Deviations of five runs from their median."""


def table_of(shifts: dict[str, float], *, by_default: float | None = None) -> list[Record]:
    """Runs of Table 2 whose medians are as far from the published ones."""
    runs = []
    for cell, number in NUMBERS.items():
        shift = shifts.get(cell, by_default)
        if shift is not None:
            runs += records(TABLE2, cell, [float(number + shift + d) for d in SPREAD])
    return runs


def p_value(cell: str, shift: float) -> float:
    std = 0.16 if cell == "original/resnet110" else None
    return expectation([float(NUMBERS[cell] + shift + d) for d in SPREAD], NUMBERS[cell], std=std).p_value


def ids(comparison: Comparison) -> list[str]:
    return [c.cell.id for c in comparison.differing]


def test_no_records_mean_not_run() -> None:
    comparison = compared(TABLE2)
    assert len(comparison.cells) == 10
    assert {c.verdict for c in comparison.cells} == {"not run"}
    assert comparison.holds()
    assert not comparison.holds("reproduced")
    assert (comparison.expected_false_alarms, comparison.deviations, comparison.left_out) == (0, (), ())


def test_the_median_stands_beside_the_published_number() -> None:
    errors = (6.2, 6.9, 6.4, 6.5, 7.5)
    (cell,) = compared(TABLE2, *records(TABLE2, "preact/resnet110", errors), cells="preact/resnet110").cells
    (net,) = cell.nets
    assert cell.shown
    assert cell.shown.errors == net.errors == list(errors)
    assert cell.shown.median == net.median == 6.5
    assert cell.difference == pytest.approx(6.5 - 6.37)


def test_the_cells_chosen_are_compared_in_order() -> None:
    comparison = compared(TABLE2, cells="preact/*")
    assert [c.cell.id for c in comparison.cells] == ["preact/resnet110", "preact/resnet164"]


def test_the_claims_that_the_chosen_cells_leave_out_are_counted() -> None:
    claims = TABLE2.expected.claims
    assert compared(TABLE2).claims_left_out == 0
    only = compared(TABLE2, cells="*/resnet110")
    cut = [claim for claim in claims if any("resnet164" in cell for cell in claim.all_cells)]
    assert 0 < len(cut) < len(claims)
    assert (only.claims_left_out, len(only.claims)) == (len(cut), len(claims) - len(cut))
    table4 = a_table("table4")
    literature = with_claim(table4, "lower", "preact_resnet164/cifar10", "highway/cifar10")
    assert compared(literature, cells="preact_resnet164/cifar10").claims_left_out == 0
    assert compared(literature, cells="preact_resnet1001/*").claims_left_out == 1


@pytest.mark.parametrize(("profile", "seeds", "planned"), [("paper", None, 5), ("smoke", None, 1), ("paper", 7, 7)])
def test_the_number_of_runs_is_that_of_table_profile_or_user(profile: str, seeds: int | None, planned: int) -> None:
    comparison = compared(TABLE2, profile=profile, seeds=seeds)
    assert comparison.planned == planned
    assert {c.planned for c in comparison.cells} == {planned}


# Holm's correction


def test_one_cell_far_off_differs() -> None:
    comparison = compared(TABLE2, *table_of({"preact/resnet110": 3.0}, by_default=0.0))
    assert ids(comparison) == ["preact/resnet110"]
    assert not comparison.holds()
    assert not comparison.holds("reproduced")


def test_one_cell_just_worse_does_not_differ_among_ten() -> None:
    cell, shift = "preact/resnet110", 0.85
    assert 0.05 / 10 < p_value(cell, shift) < 0.05
    alone = compared(TABLE2, *table_of({cell: shift}))
    assert ids(alone) == [cell]
    assert not alone.holds()
    among_ten = compared(TABLE2, *table_of({cell: shift}, by_default=0.0))
    found = in_cell(among_ten, cell)
    assert found.verdict == "worse"
    assert found.judgement.p_value == pytest.approx(p_value(cell, shift), rel=1e-6)
    assert ids(among_ten) == []
    assert among_ten.holds()
    assert not among_ten.holds("reproduced")


def test_holm_steps_down_over_the_cells_that_were_tested() -> None:
    """By hand: the smallest p-value times the number of cells, the next times one less, until one is above 5 %."""
    shifts = {
        "preact/resnet110": 1.3,
        "preact/resnet164": -1.1,
        "original/resnet164": 0.9,
        "relu_only_preact/resnet164": 0.8,
    }
    p_values = sorted((p_value(cell, shift), cell) for cell, shift in shifts.items())
    assert [0.05 / (4 - i) > p for i, (p, _) in enumerate(p_values)] == [True, True, True, True]
    four = compared(TABLE2, *table_of(shifts))
    assert sorted(ids(four)) == sorted(shifts)
    ten = compared(TABLE2, *table_of(shifts, by_default=0.0))
    passed = [
        cell
        for i, (p, cell) in enumerate(p_values)
        if all(q * (10 - j) <= 0.05 for j, (q, _) in enumerate(p_values[: i + 1]))
    ]
    assert 0 < len(passed) < 4
    assert sorted(ids(ten)) == sorted(passed)
    assert [c.verdict for c in ten.cells if c.cell.id in shifts].count("worse") == 3


def test_underpowered_cells_count_among_the_tested_and_untested_ones_do_not() -> None:
    cell, shift = "preact/resnet110", 0.76
    assert 0.05 / 2 < p_value(cell, shift) < 0.05
    loud = records(TABLE2, "original/resnet164", [5.0, 7.0, 6.0, 5.5, 6.6])
    few = records(TABLE2, "preact/resnet164", [5.46] * 4)
    failed = records(TABLE2, "bn_after_addition/resnet110", [8.2, math.inf, 8.1, 8.3, 8.2])
    alone = compared(TABLE2, *table_of({cell: shift}), *few, *failed)
    assert ids(alone) == [cell]
    assert len(alone.tested) == 1
    two = compared(TABLE2, *table_of({cell: shift}), *few, *failed, *loud)
    assert len(two.tested) == 2
    assert ids(two) == []


def test_better_differs_as_worse_does() -> None:
    comparison = compared(TABLE2, *table_of({"preact/resnet110": -3.0}, by_default=0.0))
    assert ids(comparison) == ["preact/resnet110"]


def test_the_p_values_of_an_extension_are_brought_to_the_first_level() -> None:
    """At the second look 0.01 is what 0.05 is at the first."""
    cell = "preact/resnet110"
    wide = [-0.45, 0.2, 0.0, -0.2, 0.45]
    errors = [NUMBERS[cell] + 1.0 + d for d in (*wide, -0.04, 0.05, 0.0, -0.01, 0.02)]
    expected = expectation(errors, NUMBERS[cell], level=0.01)
    alone = compared(TABLE2, *records(TABLE2, cell, errors))
    (tested,) = alone.tested
    assert tested.judgement.p_value == pytest.approx(expected.p_value, rel=1e-6)
    assert 0.005 < expected.p_value < 0.05
    assert ids(alone) == [cell]
    assert ids(compared(TABLE2, *records(TABLE2, cell, errors), *table_of({cell: None}, by_default=0.0))) == []  # type: ignore[dict-item]


def test_an_extension_that_is_worse_only_at_the_wrong_level_does_not_differ() -> None:
    cell = "preact/resnet110"
    errors = [NUMBERS[cell] + 1.0 + d for d in (-0.45, 0.2, 0.0, -0.2, 0.45) * 2]
    comparison = compared(TABLE2, *records(TABLE2, cell, errors))
    (tested,) = comparison.tested
    assert tested.verdict == "underpowered"
    assert tested.judgement.p_value is not None
    assert tested.judgement.p_value > 0.05
    assert comparison.holds()


def test_cells_where_all_runs_failed_or_none_did_differ_without_a_test() -> None:
    failing = compared(TABLE2, *records(TABLE2, "preact/resnet110", [90.0, math.inf, 90.0, 90.0, 50.0]))
    assert ids(failing) == ["preact/resnet110"]
    assert failing.tested == []
    converging = compared(TABLE1, *records(TABLE1, "plain/resnet110", [12.0] * 5))
    assert ids(converging) == ["plain/resnet110"]
    assert not converging.holds()


def test_nets_that_fail_as_published_do_not_differ() -> None:
    comparison = compared(TABLE1, *records(TABLE1, "plain/resnet110", [90.0] * 5))
    assert [c.verdict for c in comparison.cells if c.shown] == ["reproduced"]
    assert comparison.holds()


def test_of_unstable_cells_those_differ_whose_median_fails_where_the_papers_does_not() -> None:
    failing = compared(TABLE2, *records(TABLE2, "preact/resnet110", [90.0, math.inf, 90.0, 6.4, 50.0]))
    assert [c.verdict for c in failing.cells if c.shown] == ["worse"]
    assert [c.judgement.is_sure_by_rule for c in failing.differing] == [True]
    assert not failing.holds()
    early = compared(TABLE2, *records(TABLE2, "preact/resnet110", [90.0, math.inf, 6.4, 50.0]))
    assert ids(early) == ["preact/resnet110"]
    converging = compared(TABLE1, *records(TABLE1, "plain/resnet110", [12.0, 12.0, 12.0, 90.0, 12.0]))
    assert [c.verdict for c in converging.cells if c.shown] == ["better"]
    assert (converging.differing, converging.holds()) == ((), True)


def test_a_sweep_differs_if_one_setting_never_fails() -> None:
    cell = "exclusive_gating_0_to_5/resnet110"
    stable = records(TABLE1, cell, [12.0] * 5, setting="gate_bias=-3")
    unstable = records(TABLE1, cell, [12.0, 90.0, 12.0, 12.0, 90.0], setting="gate_bias=-4")
    assert ids(compared(TABLE1, *stable)) == [cell]
    assert ids(compared(TABLE1, *unstable)) == []
    assert ids(compared(TABLE1, *unstable, *stable)) == [cell]
    first = records(TABLE1, cell, [12.0, 90.0, 12.0, 12.0, 90.0], setting="gate_bias=0")
    assert ids(compared(TABLE1, *first, *stable)) == [cell]


def test_the_correction_is_over_the_cells_compared() -> None:
    cell, shift = "preact/resnet110", 0.85
    runs = table_of({cell: shift}, by_default=0.0)
    assert ids(compared(TABLE2, *runs, cells="preact/resnet110")) == [cell]
    assert ids(compared(TABLE2, *runs)) == []


def test_results_from_elsewhere_count_for_the_exit_code() -> None:
    cell = "preact/resnet110"
    entered = [external(TABLE2, cell, float(NUMBERS[cell] + 3 + d), seed=i) for i, d in enumerate(SPREAD)]
    assert ids(compared(TABLE2, externals=entered)) == [cell]


# What is expected by chance, and required


def test_a_false_alarm_is_expected_of_each_tested_cell_in_twenty() -> None:
    comparison = compared(TABLE2, *table_of({}, by_default=0.0))
    assert len(comparison.tested) == 10
    assert comparison.expected_false_alarms == pytest.approx(0.5)
    some = compared(
        TABLE2,
        *table_of({"preact/resnet110": 0.0, "preact/resnet164": 0.5}),
        *records(TABLE2, "original/resnet110", [90.0] * 5),
        *records(TABLE2, "original/resnet164", [5.9]),
    )
    assert some.expected_false_alarms == pytest.approx(0.1)


def test_every_cell_reproduced_can_be_required() -> None:
    runs = table_of({}, by_default=0.0)
    assert compared(TABLE2, *runs).holds("reproduced")
    shifted = table_of({"preact/resnet110": 0.2}, by_default=0.0)
    assert compared(TABLE2, *shifted).holds("reproduced")
    for missing in (table_of({"preact/resnet110": 0.5}, by_default=0.0), runs[:-1], runs[:-5]):
        comparison = compared(TABLE2, *missing)
        assert comparison.holds()
        assert not comparison.holds("reproduced")
    assert compared(TABLE2, *runs[:-5], cells="*/resnet110").holds("reproduced")


def test_what_the_paper_does_not_print_need_not_be_reproduced() -> None:
    table, unprinted = a_table("table3"), "cifar10_resnet164_no_warm_up/preact"
    rows = (unprinted, "cifar10_resnet164/preact")
    runs = [run for cell in rows for run in records(table, cell, [float(5.46 + d) for d in SPREAD])]
    cells = [table.cell(cell) for cell in rows]
    for found in (runs, runs[5:]):
        comparison = compare(table, cells, "paper", found)
        assert not in_cell(comparison, unprinted).asks_for_reproduction
        assert comparison.holds("reproduced")
    assert not compare(table, cells, "paper", runs[:5]).holds("reproduced")


def test_a_row_on_request_must_be_reproduced_once_it_has_begun() -> None:
    cell = TABLE2.cell("preact/resnet110")
    asked = replace(cell, row=replace(cell.row, on_request=True))
    table = replace(TABLE2, all_cells=tuple(asked if c.id == cell.id else c for c in TABLE2.all_cells))
    rest = [run for run in table_of({}, by_default=0.0) if run.net != "preact_resnet110"]

    def holds(*runs: Record) -> bool:
        return compare(table, table.cells(on_request=True), "paper", [*rest, *runs]).holds("reproduced")

    assert len(table.cells(on_request=True)) == 10
    assert len(rest) == 45
    assert holds()
    assert not holds(record(TABLE2, cell.id, None))
    assert not holds(record(TABLE2, cell.id, 6.37))
    assert holds(*table_of({cell.id: 0.0}))
    assert not compared(TABLE2, *rest).holds("reproduced")


def test_reduced_profiles_neither_differ_nor_hold_what_is_required() -> None:
    runs = [r for cell in NUMBERS for r in records(TABLE2, cell, [60.0] * 5, profile="shallow")]
    comparison = compared(TABLE2, *runs, profile="shallow", seeds=5)
    assert {c.verdict for c in comparison.cells} == {"not comparable"}
    assert comparison.holds()
    assert not comparison.holds("reproduced")


@pytest.mark.parametrize("table", ["table1", "table2", "table3", "table4", "table5"])
@pytest.mark.parametrize("profile", ["paper", "shallow", "smoke"])
def test_every_shipped_table_can_be_compared_with_nothing(table: str, profile: str) -> None:
    comparison = compared(a_table(table), profile=profile)
    assert {c.verdict for c in comparison.cells} == {"not run"}
    for claim in comparison.claims:
        if claim.standing != "not run":  # nor could it be judged with runs
            assert (claim.standing, profile == "paper") == ("undecided", False)
            assert f"in profile {profile} " in claim.reason or claim.reason.endswith(f"with profile {profile}")


# Every table


@pytest.mark.parametrize("table", ["table1", "table2", "table3", "table4"])
@pytest.mark.parametrize("profile", ["paper", "smoke"])
@pytest.mark.parametrize("error", [6.0, math.inf, None])
def test_every_shipped_table_can_be_compared_with_runs(table: str, profile: str, error: float | None) -> None:
    its = a_table(table)
    runs = {
        run.run: run
        for cell in its.cells()
        for setting in cell.settings
        for run in records(its, cell.id, [error] * 2, setting=setting.label, profile=profile)
    }
    for seeds in (None, 1, 2):
        comparison = compare(its, its.cells(), profile, runs.values(), seeds=seeds)
        assert len(comparison.cells) == len(its.cells())
        assert comparison.left_out == ()
        assert {len(net.shown.runs) for c in comparison.cells for net in c.nets if net.shown} == {2}


# Error rates


def drawn(rng: np.random.Generator, number: float, shift: float, std: float) -> list[float]:
    """Errors of five runs whose true median is so far from that of the runs behind a published number.

    The published number is the median of five runs itself, and as noisy.
    """
    true_median = number - std * float(np.median(rng.standard_normal(5))) + shift
    return [true_median + std * float(z) for z in rng.standard_normal(5)]


def of_share(share: float, number: int) -> float:
    """Three standard errors."""
    return 3 * math.sqrt(share * (1 - share) / number)


def test_true_matches_are_reproduced_and_one_point_shifts_are_worse(full: bool) -> None:
    """Table 2 as a whole at a noise of 0.16 with five runs a cell; every other cell is one point off."""
    rng = np.random.default_rng(20160316)
    template = [run for cell in NUMBERS for run in records(TABLE2, cell, [6.0] * 5)]
    shifts = dict(zip(NUMBERS, [0.0, 1.0] * 5, strict=True))
    tables = 3_000 if full else 120
    number = 5 * tables
    matches: Counter[str] = Counter()
    shifted: Counter[str] = Counter()
    for _ in range(tables):
        errors = [round(e, 2) for cell, shift in shifts.items() for e in drawn(rng, NUMBERS[cell], shift, 0.16)]
        runs = [replace(run, result=result(error)) for run, error in zip(template, errors, strict=True)]
        for compared_cell in compare(TABLE2, TABLE2.cells(), "paper", runs).cells:
            (shifted if shifts[compared_cell.cell.id] else matches)[compared_cell.verdict] += 1
    assert matches.total() == shifted.total() == number
    assert matches["reproduced"] / number >= 0.85 - of_share(0.85, number)
    assert (matches["worse"] + matches["better"]) / number <= 0.05 + of_share(0.05, number)
    assert shifted["worse"] / number >= 0.95 - of_share(0.95, number)
    assert shifted["reproduced"] / number <= 0.05 + of_share(0.05, number)
    assert shifted["better"] == 0


def test_tables_at_the_edge_of_their_tolerance_seldom_differ(full: bool) -> None:
    """Holm's correction: any cell of a table, in one table of twenty. The noise is ours alone to tell."""
    for std in (0.16, 1.0) if full else (0.16,):
        check_the_edge(std, 1_000 if full else 80)


def check_the_edge(std: float, tables: int) -> None:
    rng = np.random.default_rng(20161010)
    cells = [TABLE2.cell(cell) for cell in NUMBERS if cell != "original/resnet110"]
    template = [run for cell in cells for run in records(TABLE2, cell.id, [6.0] * 5)]
    differing = called = 0
    for _ in range(tables):
        errors = [
            max(0.0, e) for i, cell in enumerate(cells) for e in drawn(rng, NUMBERS[cell.id], (-0.5, 0.5)[i % 2], std)
        ]
        runs = [replace(run, result=result(error)) for run, error in zip(template, errors, strict=True)]
        comparison = compare(TABLE2, cells, "paper", runs)
        differing += not comparison.holds()
        called += sum(c.verdict in ("worse", "better") for c in comparison.cells)
    assert differing / tables <= 0.05 + of_share(0.05, tables)
    assert 0.5 * 0.05 <= called / (9 * tables) <= 0.05 + of_share(0.05, 9 * tables)  # without Holm, in each cell
