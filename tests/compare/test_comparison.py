from __future__ import annotations

import math
from dataclasses import replace

import pytest

from paperbench.compare.comparison import Comparison, compare
from paperbench.runs.planning import run_spec
from paperbench.runs.record import DataFacts, Record, Result, Status
from paperbench.specs.table import Table
from tests.helpers import CODE, a_record, a_session

ORIGINAL = DataFacts("CIFAR-10", "the original files, md5 as published", True, "f" * 64)
COPY = DataFacts("CIFAR-10 (some copy)", "re-encoded", False, "c" * 64)


def record(
    table: Table,
    cell: str,
    error: float | None,
    *,
    seed: int = 0,
    profile: str = "paper",
    precision: str = "fp32",
    data: DataFacts = ORIGINAL,
    status: Status = "finished",
    numerics: int = 1,
) -> Record:
    its_profile = table.profiles.named(profile)
    (its_cell,) = table.cells(cell)
    spec = run_spec(its_cell.net_in(its_profile), table.recipe_in(its_profile), data.fingerprint, profile, precision)
    return a_record(
        spec=spec,
        seed=seed,
        net="a net",
        status=status,
        iteration=table.recipe_in(its_profile).iterations if error is not None else 1_000,
        result=Result(error, 0.3, error + 1, 0.4, error - 0.1) if error is not None else None,
        seconds=60.0,
        data=data,
        code=replace(CODE, numerics=numerics),
    )


def compared(table: Table, *records: Record, profile: str = "paper") -> Comparison:
    # through JSON, as records come from a store
    return compare(table, table.cells(), profile, [Record.from_json(r.to_json()) for r in records])


def test_no_records_mean_not_run(table2: Table) -> None:
    comparison = compared(table2)
    assert len(comparison.cells) == 10
    assert {c.standing for c in comparison.cells} == {"not run"}


def test_the_median_stands_beside_the_published_number(table2: Table) -> None:
    errors = (6.2, 6.9, 6.4, 6.5, 7.5)
    runs = [record(table2, "preact/resnet110", error, seed=seed) for seed, error in enumerate(errors)]
    cell = compared(table2, *runs).in_cell("preact", "resnet110")
    assert cell
    assert cell.standing == "measured"
    assert cell.shown
    assert cell.shown.errors == list(errors)
    assert cell.shown.median == 6.5
    assert cell.difference == pytest.approx(6.5 - 6.37)


def test_a_record_counts_in_its_own_cell_only(table2: Table) -> None:
    comparison = compared(table2, record(table2, "original/resnet164", 6.0))
    assert [c.cell.id for c in comparison.cells if c.shown] == ["original/resnet164"]


def test_other_data_are_not_comparable(table2: Table) -> None:
    cell = compared(table2, record(table2, "preact/resnet110", 9.0, data=COPY)).in_cell("preact", "resnet110")
    assert cell
    assert cell.standing == "not comparable"
    assert "CIFAR-10 (some copy)" in str(cell.reason)
    assert cell.difference == pytest.approx(9.0 - 6.37)  # printed for what it is worth, with no offset applied


@pytest.mark.parametrize("profile", ["smoke", "shallow"])
def test_reduced_profiles_are_not_comparable_and_never_mixed_with_the_paper(table2: Table, profile: str) -> None:
    reduced = record(table2, "preact/resnet110", 9.0, profile=profile)
    in_profile = compared(table2, reduced, profile=profile).in_cell("preact", "resnet110")
    assert in_profile
    assert in_profile.standing == "not comparable"
    assert in_profile.difference is None
    in_paper = compared(table2, reduced).in_cell("preact", "resnet110")
    assert in_paper
    assert in_paper.standing == "not run"


def test_precisions_data_and_numerics_are_never_pooled(table2: Table) -> None:
    runs = [
        record(table2, "preact/resnet110", 6.4, precision="tf32"),
        record(table2, "preact/resnet110", 6.5, precision="fp32"),
        record(table2, "preact/resnet110", 8.0, precision="fp32", data=COPY),
        record(table2, "preact/resnet110", 6.6, precision="bf16"),
    ]
    cell = compared(table2, *runs).in_cell("preact", "resnet110")
    assert cell
    assert cell.shown
    assert cell.shown.errors == [6.5]
    assert [group.errors for group in cell.others] == [[6.4], [6.6], [8.0]]
    newer = record(table2, "preact/resnet110", 6.7, seed=1, numerics=2)
    cell = compared(table2, runs[1], newer).in_cell("preact", "resnet110")
    assert cell
    assert cell.shown
    assert cell.shown.errors == [6.7]
    assert [group.errors for group in cell.others] == [[6.5]]


def test_pixels_verified_in_one_run_are_verified_in_all_with_the_same_fingerprint(table2: Table) -> None:
    unverified = DataFacts("CIFAR-10 (unverified cifar10.npz)", "unknown", False, ORIGINAL.fingerprint)
    runs = [record(table2, "preact/resnet110", 6.4, data=unverified), record(table2, "preact/resnet110", 6.6, seed=1)]
    comparison = compared(table2, *runs, record(table2, "preact/resnet164", 5.5, data=unverified))
    cell, other = comparison.in_cell("preact", "resnet110"), comparison.in_cell("preact", "resnet164")
    assert cell
    assert cell.shown
    assert cell.standing == "measured"
    assert cell.shown.errors == [6.4, 6.6]
    assert cell.shown.data == ORIGINAL
    assert other
    assert other.standing == "measured"


def test_canonical_pixels_come_first_even_if_no_run_on_them_has_ended(table2: Table) -> None:
    copy = record(table2, "preact/resnet110", 8.0, data=COPY)
    cell = compared(table2, copy, record(table2, "preact/resnet110", None, status="partial")).in_cell(
        "preact", "resnet110"
    )
    assert cell
    assert cell.standing == "in progress"
    assert [group.errors for group in cell.others] == [[8.0]]


def test_a_prefix_has_no_error(table2: Table) -> None:
    prefix = record(table2, "preact/resnet110", None, status="partial")
    cell = compared(table2, prefix).in_cell("preact", "resnet110")
    assert cell
    assert cell.standing == "in progress"
    assert cell.shown
    assert cell.shown.median is None


def test_a_diverged_run_counts_as_failed(table2: Table) -> None:
    diverged = record(table2, "preact/resnet110", None, status="diverged")
    runs = [record(table2, "preact/resnet110", 6.4, seed=1), record(table2, "preact/resnet110", 6.6, seed=2)]
    cell = compared(table2, diverged, *runs).in_cell("preact", "resnet110")
    assert cell
    assert cell.shown
    assert cell.shown.errors == [math.inf, 6.4, 6.6]
    assert cell.shown.median == 6.6
    assert cell.shown.diverged == 1


def test_records_of_another_recipe_are_passed_over(table2: Table) -> None:
    run = record(table2, "preact/resnet110", 6.4)
    spec = replace(run.spec, recipe={**run.spec.recipe, "batch_size": 256})
    other = replace(run, spec=spec, run=spec.run_id(0))
    assert {c.standing for c in compared(table2, other).cells} == {"not run"}


def test_a_run_that_mixes_versions_is_never_pooled_and_comes_last(table2: Table) -> None:
    pure = record(table2, "preact/resnet110", 6.5, data=COPY)
    newer = a_session(5, 64_000, numerics=2)
    mixed = replace(record(table2, "preact/resnet110", 6.0, seed=1), sessions=(a_session(0, 5), newer))
    cell = compared(table2, pure, mixed).in_cell("preact", "resnet110")
    assert cell
    assert cell.shown
    assert cell.shown.records == (pure,)
    assert [group.conditions for group in cell.others] == ["CIFAR-10, fp32, numerics 1 and 2 (mixed)"]
    alone = compared(table2, mixed).in_cell("preact", "resnet110")
    assert alone
    assert (alone.standing, alone.reason) == (
        "not comparable",
        "its runs were continued by other numerics or another torch",
    )
