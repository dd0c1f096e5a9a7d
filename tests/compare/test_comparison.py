"""Comparisons of whole tables: the overall result, and error rates by simulation."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from paperbench.compare.comparison import compare
from paperbench.runs.record import Record
from paperbench.specs.table import Table
from tests.compare.judging import COPY, a_table, compared, in_cell, record, records, result, runs_of, with_claim
from tests.fuzz.strategies import share_of_examples

TABLE1, TABLE2, TABLE3, TABLE4 = (a_table(f"table{i}") for i in (1, 2, 3, 4))
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
    across = compared(with_claim(TABLE2, "lower", PREACT, "preact/resnet164"), cells="*/resnet110")
    assert (across.claims, across.claims_left_out) == ((), 1)
    with_literature = with_claim(TABLE4, "lower", "preact_resnet164/cifar10", "highway/cifar10")
    for pattern, left_out in (("preact_resnet164", 0), ("preact_resnet1001/*", 1)):
        assert compared(with_literature, cells=pattern).claims_left_out == left_out


def test_records_are_compared_as_they_are_read() -> None:
    runs = [*table_of({PREACT: 0.76}, by_default=0.0), record(TABLE2, PREACT, None, seed=7, data=COPY)]
    assert compared(TABLE2, *(Record.from_json(run.to_json()) for run in runs)) == compared(TABLE2, *runs)


# Holm's correction


@share_of_examples(2)
@given(seed=st.integers(0, 2**32 - 1), cells=st.integers(2, 10))
def test_cells_differ_if_holms_adjusted_p_value_is_at_most_five_percent(seed: int, cells: int) -> None:
    """Of all cells with a p-value, the underpowered included. A cell can be worse and, among ten, not differ."""
    rng = np.random.default_rng(seed)
    errors = {
        str(cell): NUMBERS[cell]
        + rng.choice([0, 0.7, 0.76, -0.8, 0.9])
        + rng.choice([1, 1, 4]) * rng.permutation(SPREAD)
        for cell in rng.permutation(list(NUMBERS))[:cells]
    }
    failed, few, *_ = errors
    errors[failed] = np.array([math.inf, *errors[failed][1:]])
    errors[few] = errors[few][:4]
    comparison = compared(TABLE2, *runs_of(TABLE2, errors))
    p_values = {c.id: c.p_value for c in comparison.cells if c.p_value is not None}
    assert {c.id for c in comparison.tested} == p_values.keys() == set(errors) - {failed, few}
    assert comparison.expected_false_alarms == pytest.approx(0.05 * len(p_values))
    ordered, expected, adjusted = sorted(p_values, key=lambda cell: p_values[cell] or 0), set(), 0.0
    for i, cell in enumerate(ordered):
        adjusted = max(adjusted, (len(ordered) - i) * (p_values[cell] or 0.0))
        if adjusted <= 0.05 and in_cell(comparison, cell).verdict in ("worse", "better"):
            expected.add(cell)
    assert {c.id for c in comparison.differing} == expected
    assert comparison.holds() == (not expected)


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
    assert [c.id for c in comparison.differing] == [cell] * differs
    assert (comparison.holds(), comparison.tested) == (not differs, [])


# What is required


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


@pytest.mark.full
@pytest.mark.parametrize("std", [0.16, 1.0])
def test_family_wise_error_rate_at_the_tolerance(std: float) -> None:
    """Holm's correction: at most 5 % of tables have a differing cell. No standard deviation is published.

    The published numbers are medians of five equally noisy runs. See test_power.py for the rates of single cells.
    """
    tables, rng = 1_000, np.random.default_rng(20161010)
    cells = [cell for cell in TABLE2.cells() if cell.id != "original/resnet110"]
    template = [run for cell in cells for run in records(TABLE2, cell.id, [6.0] * 5)]
    shifts, numbers = np.array([-0.5, 0.5] * 5)[:9], np.array([NUMBERS[cell.id] for cell in cells])
    differing, called = 0, 0
    for _ in range(tables):
        medians = numbers + shifts - std * np.median(rng.standard_normal((9, 5)), axis=1)
        errors = (medians[:, None] + std * rng.standard_normal((9, 5))).clip(0).round(2).ravel()
        runs = [replace(run, result=result(float(e))) for run, e in zip(template, errors, strict=True)]
        comparison = compare(TABLE2, cells, "paper", runs)
        differing += not comparison.holds()
        called += sum(c.verdict in ("worse", "better") for c in comparison.cells)
    assert differing <= stats.binom.isf(1e-3, tables, 0.05)
    assert 0.5 * 0.05 * 9 * tables <= called <= stats.binom.isf(1e-3, 9 * tables, 0.05)  # without Holm, in each cell
