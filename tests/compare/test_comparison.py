"""Comparisons of whole tables: the overall result, and error rates by simulation."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from paperbench.compare.comparison import Comparison, compare
from paperbench.runs.record import Record
from paperbench.specs.table import Table
from tests.compare.judging import a_table, compared, expectation, in_cell, prior_by_definition, record, records, result

TABLE1, TABLE2, TABLE3 = (a_table(f"table{i}") for i in (1, 2, 3))
NUMBERS = {cell.id: float(cell.number or 0) for cell in TABLE2.cells()}
PREACT, PLAIN, SWEEP = "preact/resnet110", "plain/resnet110", "exclusive_gating_0_to_5/resnet110"
SPREAD = np.array([-0.20, 0.15, 0.0, -0.05, 0.10])
"""Deviations of five runs from their median."""


def table_of(shifts: dict[str, float], *, by_default: float | None = None) -> list[Record]:
    """Runs of Table 2 with medians shifted from the published ones."""
    runs = []
    for cell, number in NUMBERS.items():
        shift = shifts.get(cell, by_default)
        if shift is not None:
            runs += records(TABLE2, cell, [float(number + shift + d) for d in SPREAD])
    return runs


def p_value(cell: str, shift: float, prior: tuple[float, float] = (0.0, 0.0)) -> float:
    return expectation([float(NUMBERS[cell] + shift + d) for d in SPREAD], NUMBERS[cell], prior=prior).p_value


PRIOR = prior_by_definition([float(SPREAD.var(ddof=1))] * 10, [4.0] * 10, 0)
"""Of each cell, if all ten have runs."""


def ids(comparison: Comparison) -> list[str]:
    return [c.id for c in comparison.differing]


@pytest.mark.parametrize(("profile", "seeds", "planned"), [("paper", None, 5), ("smoke", None, 1), ("paper", 7, 7)])
def test_planned_runs_come_from_table_profile_or_user(profile: str, seeds: int | None, planned: int) -> None:
    comparison = compared(TABLE2, profile=profile, seeds=seeds)
    assert comparison.planned == planned


def test_selected_cells_and_their_claims_are_compared() -> None:
    claims = TABLE2.expected.claims
    whole, part = compared(TABLE2), compared(TABLE2, cells="*/resnet110")
    assert [c.id for c in part.cells] == [cell for cell in NUMBERS if cell.endswith("resnet110")]
    cut = [claim for claim in claims if any("resnet164" in cell for cell in claim.all_cells)]
    assert 0 < len(cut) < len(claims)
    assert ([v.claim for v in whole.claims], whole.claims_left_out) == (list(claims), 0)
    assert ([v.claim for v in part.claims], part.claims_left_out) == ([c for c in claims if c not in cut], len(cut))


# Holm's correction


def test_one_barely_worse_cell_among_ten_does_not_differ() -> None:
    shift = 0.76
    assert 0.05 / 10 < p_value(PREACT, shift, PRIOR) < p_value(PREACT, shift) < 0.05
    runs = table_of({PREACT: shift}, by_default=0.0)
    for alone in (compared(TABLE2, *table_of({PREACT: shift})), compared(TABLE2, *runs, cells=PREACT)):
        assert ids(alone) == [PREACT]
        assert not alone.holds()
    among_ten = compared(TABLE2, *runs)
    found = in_cell(among_ten, PREACT)
    assert found.verdict == "worse"
    assert found.p_value == pytest.approx(p_value(PREACT, shift, PRIOR), rel=1e-6)
    assert ids(among_ten) == []
    assert among_ten.holds()
    assert not among_ten.holds("reproduced")


def test_underpowered_cells_count_as_tested() -> None:
    shift = 0.76
    assert 0.05 / 2 < p_value(PREACT, shift) < 0.05
    loud = records(TABLE2, "original/resnet164", [5.0, 7.0, 6.0, 5.5, 6.6])
    few = records(TABLE2, "preact/resnet164", [5.46] * 4)
    failed = records(TABLE2, "bn_after_addition/resnet110", [8.2, math.inf, 8.1, 8.3, 8.2])
    alone = compared(TABLE2, *table_of({PREACT: shift}), *few, *failed)
    assert (ids(alone), len(alone.tested)) == ([PREACT], 1)
    two = compared(TABLE2, *table_of({PREACT: shift}), *few, *failed, *loud)
    assert (ids(two), len(two.tested)) == ([], 2)


# Without a test


@pytest.mark.parametrize(
    ("table", "cell", "errors", "verdict", "differs"),
    [
        (TABLE2, PREACT, [90.0, math.inf, 90.0, 90.0, 50.0], "worse", True),
        (TABLE1, SWEEP, [12.0] * 5, "better", True),
        (TABLE1, PLAIN, [12.0] * 5, "better", True),
        (TABLE1, PLAIN, [12.0, 12.0, 12.0, 90.0, 12.0], "better", False),
        (TABLE1, PLAIN, [90.0] * 5, "reproduced", False),
    ],
)
def test_failures_make_a_difference_without_a_test(
    table: Table, cell: str, errors: list[float], verdict: str, differs: bool
) -> None:
    comparison = compared(table, *records(table, cell, errors, setting=None if cell != SWEEP else "gate_bias=-3"))
    assert in_cell(comparison, cell).verdict == verdict
    assert (ids(comparison), comparison.holds(), comparison.tested) == ([cell] * differs, not differs, [])


# What is expected by chance, and required


def test_expected_false_alarms() -> None:
    comparison = compared(TABLE2, *table_of({}, by_default=0.0))
    assert (len(comparison.tested), comparison.expected_false_alarms) == (10, pytest.approx(0.5))


def test_requiring_every_cell_to_be_reproduced() -> None:
    runs = table_of({}, by_default=0.0)
    assert compared(TABLE2, *runs).holds("reproduced")
    assert compared(TABLE2, *table_of({PREACT: 0.2}, by_default=0.0)).holds("reproduced")
    for missing in ([], table_of({PREACT: 0.5}, by_default=0.0), runs[:-1], runs[:-5]):
        comparison = compared(TABLE2, *missing)
        assert comparison.holds()
        assert not comparison.holds("reproduced")
    assert compared(TABLE2, *runs[:-5], cells="*/resnet110").holds("reproduced")


def test_unprinted_results_need_not_be_reproduced() -> None:
    unprinted, printed = "cifar10_resnet164_no_warm_up/preact", "cifar10_resnet164/preact"
    runs = [run for cell in (unprinted, printed) for run in records(TABLE3, cell, [float(5.46 + d) for d in SPREAD])]
    cells = [TABLE3.cell(cell) for cell in (unprinted, printed)]
    for found in (runs, runs[5:]):
        assert compare(TABLE3, cells, "paper", found).holds("reproduced")
    assert not compare(TABLE3, cells, "paper", runs[:5]).holds("reproduced")


def test_row_on_request_must_be_reproduced_once_it_has_runs() -> None:
    cell = TABLE2.cell(PREACT)
    asked = replace(cell, row=replace(cell.row, on_request=True))
    table = replace(TABLE2, all_cells=tuple(asked if c.id == cell.id else c for c in TABLE2.all_cells))
    rest = [run for run in table_of({}, by_default=0.0) if run.net != "preact_resnet110"]

    def holds(*runs: Record) -> bool:
        return compare(table, table.cells(on_request=True), "paper", [*rest, *runs]).holds("reproduced")

    assert len(rest) == 45
    assert holds()
    assert not holds(record(TABLE2, PREACT, None))
    assert not holds(record(TABLE2, PREACT, 6.37))
    assert holds(*table_of({PREACT: 0.0}))
    assert not compared(TABLE2, *rest).holds("reproduced")


# Every table


@pytest.mark.parametrize("table", ["table1", "table2", "table3", "table4", "table5"])
@pytest.mark.parametrize("profile", ["paper", "shallow", "smoke"])
def test_shipped_table_without_runs(table: str, profile: str) -> None:
    comparison = compared(a_table(table), profile=profile)
    assert {c.verdict for c in comparison.cells} == {"not run"}
    assert (comparison.expected_false_alarms, comparison.deviations, comparison.left_out) == (0, (), ())
    for claim in comparison.claims:
        if claim.standing != "not run":  # no runs could decide it
            assert (claim.standing, profile == "paper") == ("undecided", False)
            assert f"in profile {profile}, " in claim.reason or claim.reason.endswith(f"with profile {profile}")


# Error rates


def drawn(rng: np.random.Generator, number: float, shift: float, std: float) -> list[float]:
    """Draw errors of five runs whose true median differs from the published runs' by `shift`.

    The published number is itself the median of five equally noisy runs.
    """
    true_median = number - std * float(np.median(rng.standard_normal(5))) + shift
    return [max(0.0, true_median + std * float(z)) for z in rng.standard_normal(5)]


def simulated(cells: list[str], shifts: list[float], std: float, tables: int, seed: int) -> list[Comparison]:
    """Simulate comparisons of tables with a shift per cell."""
    rng = np.random.default_rng(seed)
    template = [run for cell in cells for run in records(TABLE2, cell, [6.0] * 5)]
    chosen = [TABLE2.cell(cell) for cell in cells]
    found = []
    for _ in range(tables):
        errors = [e for cell, shift in zip(cells, shifts, strict=True) for e in drawn(rng, NUMBERS[cell], shift, std)]
        runs = [replace(run, result=result(round(error, 2))) for run, error in zip(template, errors, strict=True)]
        found.append(compare(TABLE2, chosen, "paper", runs))
    return found


def chance(share: float, number: int) -> float:
    """Three standard errors."""
    return 3 * math.sqrt(share * (1 - share) / number)


def test_error_rates_of_table2(full: bool) -> None:
    """Table 2 as a whole at a noise of 0.16 with five runs per cell; every other cell is one point off."""
    tables = 3_000 if full else 120
    matches: Counter[str] = Counter()
    shifted: Counter[str] = Counter()
    for comparison in simulated(list(NUMBERS), [0.0, 1.0] * 5, 0.16, tables, seed=20160316):
        matches.update(c.verdict for c in comparison.cells[::2])
        shifted.update(c.verdict for c in comparison.cells[1::2])
    number = 5 * tables
    assert matches.total() == shifted.total() == number
    assert matches["reproduced"] / number >= 0.97 - chance(0.97, number)
    assert (matches["worse"] + matches["better"]) / number <= 0.05 + chance(0.05, number)
    assert shifted["worse"] / number >= 0.98 - chance(0.98, number)
    assert shifted["reproduced"] / number <= 0.05 + chance(0.05, number)
    assert shifted["better"] == 0


@pytest.mark.parametrize("std", [0.16, pytest.param(1.0, marks=pytest.mark.full)])
def test_family_wise_error_rate_at_the_tolerance(std: float, full: bool) -> None:
    """Holm's correction: at most 5 % of tables have a differing cell. No standard deviation is published."""
    tables = 1_000 if full else 80
    cells = [cell for cell in NUMBERS if cell != "original/resnet110"]
    found = simulated(cells, [(-0.5, 0.5)[i % 2] for i in range(9)], std, tables, seed=20161010)
    called = sum(c.verdict in ("worse", "better") for comparison in found for c in comparison.cells)
    assert sum(not comparison.holds() for comparison in found) / tables <= 0.05 + chance(0.05, tables)
    assert 0.5 * 0.05 <= called / (9 * tables) <= 0.05 + chance(0.05, 9 * tables)  # without Holm, in each cell
