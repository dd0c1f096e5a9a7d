"""Which runs belong to a cell, which are pooled or shown, and which are reported as left out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from paperbench.compare.evidence import errors_of
from paperbench.runs.external import ExternalResult
from paperbench.runs.record import DataFacts, Record
from paperbench.specs.table import Table
from tests.compare.judging import (
    COMPLETE,
    COPY,
    ORIGINAL,
    a_table,
    compare_cell,
    compared,
    external,
    in_cell,
    others,
    record,
    records,
    result,
)
from tests.helpers import a_session

TABLE1, TABLE2, TABLE3, TABLE5 = (a_table(f"table{i}") for i in (1, 2, 3, 5))
PREACT = "preact/resnet110"
SWEEP = "exclusive_gating_0_to_5/resnet110"
UNVERIFIED = DataFacts("CIFAR-10 (unverified cifar10.npz)", "unknown", False, ORIGINAL.fingerprint)


def shown(*runs: Record, **how: Any) -> tuple[list[float], list[list[float]]]:
    """Errors of the group shown for the cell, and of the others."""
    cell = compare_cell(TABLE2, PREACT, *runs, **how)
    assert cell.shown
    return errors_of(cell.shown.runs), [errors_of(group.runs) for group in others(cell)]


def left_out(*runs: Record, table: Table = TABLE2, **how: Any) -> tuple[str, ...]:
    return compared(table, *runs, **how).left_out


# Runs of a cell


def test_runs_are_in_order_of_seeds() -> None:
    errors = {3: 9.0, 0: 6.0, 2: math.inf, 1: None}
    runs = [record(TABLE2, PREACT, error, seed=seed, iteration=5_000) for seed, error in errors.items()]
    group = compare_cell(TABLE2, PREACT, *runs).shown
    assert group
    assert [(run.seed, run.error_or_inf) for run in group.runs] == [(0, 6.0), (1, None), (2, math.inf), (3, 9.0)]
    assert [run.seed for run in group.ended] == [0, 2, 3]
    assert (group.median, group.farthest) == (9.0, 64_000)


def test_profiles_are_never_mixed() -> None:
    reduced, whole = record(TABLE2, PREACT, 9.0, profile="shallow"), record(TABLE2, PREACT, 6.4)
    assert shown(reduced, whole) == ([6.4], [])
    assert shown(reduced, whole, profile="shallow") == ([9.0], [])


@pytest.mark.parametrize(
    ("table", "cell", "there", "cells"),
    [
        ("table2", "original/resnet110", "table1", ["original/resnet110"]),
        ("table2", "original/resnet110", "table4", ["resnet110/cifar10"]),
        ("table3", "cifar10_resnet164/preact", "table3", ["cifar10_resnet164/preact"]),  # by the recipe with a warm-up
    ],
)
@pytest.mark.parametrize("is_ours", [True, False])
def test_result_belongs_to_every_cell_with_its_number(
    table: str, cell: str, there: str, cells: list[str], is_ours: bool
) -> None:
    runs = [record(a_table(table), cell, 6.6)] if is_ours else []
    entered = [] if is_ours else [external(a_table(table), cell, 6.6)]
    comparison = compared(a_table(there), *runs, externals=entered)
    found = [c.id for c in comparison.cells if c.shown]
    assert (found, comparison.left_out) == (cells, ())


# Pooling


def test_engine_machine_and_code_do_not_separate_runs() -> None:
    run, other = records(TABLE2, PREACT, [6.4, 6.5], precision="tf32", numerics=3)
    elsewhere = {"engine": "compile", "commit": "abc", "source": "1" * 16, "numerics": 3, "device": "a GPU"}
    other = replace(other, sessions=(a_session(other.iteration, **elsewhere),))
    assert shown(run, other) == ([6.4, 6.5], [])


def test_pixels_verified_in_one_run_are_verified_in_all() -> None:
    runs = records(TABLE2, PREACT, [6.37] * 5, data=UNVERIFIED)
    assert compare_cell(TABLE2, PREACT, *runs).verdict == "not comparable"
    elsewhere = record(TABLE1, "plain/resnet110", 90.0)
    for order in ([*runs, elsewhere], [elsewhere, *runs]):
        cell = in_cell(compared(TABLE2, *order), PREACT)
        assert cell.verdict == "reproduced"
        assert cell.shown
        assert cell.shown.conditions.data == ORIGINAL


def test_unverified_images_are_judged_with_a_remark() -> None:
    runs = records(TABLE2, PREACT, [6.37] * 5, data=COMPLETE)
    cell = compare_cell(TABLE2, PREACT, *runs)
    assert (cell.verdict, cell.reason) == ("reproduced", "images unverified")
    verified = record(TABLE2, PREACT, 6.37, seed=5, data=replace(COMPLETE, canonical=True, unverified=False))
    assert compare_cell(TABLE2, PREACT, *runs, verified).reason == ""


def test_data_sets_with_equal_fingerprints_are_equal() -> None:
    names = [DataFacts(name, "", False, COPY.fingerprint) for name in ("one", "another")]
    runs = [record(TABLE2, PREACT, 6.4 + i, seed=i, data=facts) for i, facts in enumerate(names)]
    assert shown(*runs) == ([6.4, 7.4], [])


def test_groups_are_ordered_by_distance_to_the_paper() -> None:
    nearest_first: dict[str, Record | ExternalResult] = {
        "CIFAR-10, fp32, numerics 3": record(TABLE2, PREACT, 6.1, seed=0, numerics=3),
        "CIFAR-10, fp32, numerics 2": record(TABLE2, PREACT, 6.2, seed=1, numerics=2),
        "CIFAR-10, tf32, numerics 3": record(TABLE2, PREACT, 6.3, seed=2, numerics=3, precision="tf32"),
        "CIFAR-10, bf16, numerics 3": record(TABLE2, PREACT, 6.4, seed=3, numerics=3, precision="bf16"),
        "CIFAR-10, fp32, numerics 4": record(TABLE2, PREACT, None, seed=4, numerics=4),
        "CIFAR-10 (images unverified), fp32, numerics 3": record(TABLE2, PREACT, 6.4, numerics=3, data=COMPLETE),
        f"{COPY.name}, fp32, numerics 3": record(TABLE2, PREACT, 6.5, seed=5, numerics=3, data=COPY),
        "external: a paper": external(TABLE2, PREACT, 6.7),
    }
    runs = [run for run in reversed(nearest_first.values()) if isinstance(run, Record)]
    entered = [run for run in nearest_first.values() if isinstance(run, ExternalResult)]
    cell = compare_cell(TABLE2, PREACT, *runs, externals=entered)
    assert [str(group.conditions) for group in (cell.shown, *others(cell)) if group] == list(nearest_first)


# Shown


FEW, ENOUGH = [6.4, 6.5], [6.6, 6.7, 6.8, 6.9, 7.0]


@pytest.mark.parametrize(
    ("near", "first_seed", "planned", "is_shown"),
    [
        (FEW, 0, None, False),
        ([*FEW, 6.1, 6.2, 6.3], 5, None, False),  # none of them with a planned seed
        (ENOUGH[::-1], 0, None, True),
        (FEW, 0, 2, True),
    ],
)
def test_complete_runs_come_before_fewer_in_higher_precision(
    near: list[float], first_seed: int, planned: int | None, is_shown: bool
) -> None:
    runs = [record(TABLE2, PREACT, e, seed=first_seed + i, precision="fp32") for i, e in enumerate(near)]
    runs += [record(TABLE2, PREACT, e, seed=i, precision="tf32") for i, e in enumerate(ENOUGH)]
    assert shown(*runs, seeds=planned) == ((near, [ENOUGH]) if is_shown else (ENOUGH, [near]))


def test_complete_runs_do_not_come_before_fewer_closer_ones() -> None:
    few = records(TABLE2, PREACT, FEW)
    entered = [external(TABLE2, PREACT, error, seed=seed) for seed, error in enumerate(ENOUGH)]
    assert shown(*few, *records(TABLE2, PREACT, ENOUGH, data=COPY)) == (FEW, [ENOUGH])
    assert shown(*few, externals=entered) == (FEW, [ENOUGH])
    assert shown(*records(TABLE2, PREACT, FEW, data=COPY), externals=entered) == (FEW, [ENOUGH])


@pytest.mark.parametrize("newer", [{"numerics": 2}, {"torch": "3.0.0"}])
def test_runs_that_mix_versions_are_left_out_and_named(newer: dict[str, Any]) -> None:
    run = record(TABLE2, PREACT, 6.37)
    mixed = replace(run, sessions=(a_session(5), a_session(run.iteration, **newer)))
    comparison = compared(TABLE2, mixed, cells=PREACT)
    assert comparison.cells[0].shown is None
    (complaint,) = comparison.left_out
    assert complaint.startswith(f"run {run.run} (seed 0 of preact_resnet110) mixes versions of the")
    assert f"`paperbench run table2 --cells {PREACT} --incompatible restart`" in complaint
    assert compared(TABLE1, mixed).left_out == compared(TABLE2, mixed, profile="smoke").left_out == ()


# External results


def test_external_results_are_one_group_per_source() -> None:
    entered = [
        external(TABLE2, PREACT, 6.0),
        external(TABLE2, PREACT, None, seed=1),
        external(TABLE2, PREACT, 7.0, source="a blog"),
    ]
    assert shown(record(TABLE2, PREACT, 6.4), externals=entered) == ([6.4], [[6.0, math.inf], [7.0]])
    cell = compare_cell(TABLE2, PREACT, externals=entered[:1])
    assert cell.difference == pytest.approx(6.0 - 6.37)


def test_external_results_do_not_count_in_reduced_profiles() -> None:
    comparison = compared(TABLE2, profile="shallow", externals=[external(TABLE2, PREACT, 6.0)])
    assert {c.shown for c in comparison.cells} == {None}
    assert comparison.left_out == ()


def test_external_result_has_one_setting_and_crop() -> None:
    cell = compare_cell(TABLE1, SWEEP, externals=[external(TABLE1, SWEEP, 50.0, setting="gate_bias=-2")])
    assert [bool(net.shown) for net in cell.nets] == [False, False, True, False, False, False]
    entered = [external(TABLE5, "original_resnet152/top1", 21.0)]
    assert [c.id for c in compared(TABLE5, externals=entered).cells if c.shown] == ["original_resnet152/top1"]


def test_external_result_of_a_changed_experiment_is_reported() -> None:
    result = external(TABLE1, SWEEP, 50.0, seed=4, source="a blog", setting="gate_bias=-2")
    comparison = compared(TABLE1, externals=[replace(result, experiment="0" * 64)])
    assert not any(net.shown for c in comparison.cells for net in c.nets)
    assert comparison.left_out == (
        f"the external result of seed 4 from 'a blog' was recorded for {SWEEP} (gate_bias=-2), whose experiment has "
        "changed since. Record it again (`paperbench record`) if it is still valid.",
    )
    assert compared(TABLE2, externals=[external(TABLE1, "plain/resnet110", 50.0)]).left_out == ()


# Left out


def test_duplicate_record_counts_once() -> None:
    run = record(TABLE2, PREACT, 6.4)
    assert shown(run, run, run) == ([6.4], [])
    assert left_out(run, run) == ()


def test_conflicting_records_are_reported_and_not_used() -> None:
    runs = records(TABLE2, PREACT, [6.4, 6.5, 6.6])
    other, third = replace(runs[1], result=result(7.0)), replace(runs[1], test_every=41)
    assert shown(*runs, other) == ([6.4, 6.6], [])
    assert left_out(*runs, other) == (
        f"run {runs[1].run} (seed 1 of preact_resnet110) was found 2 times with different contents. Delete the wrong "
        "ones.",
    )
    assert "was found 3 times" in left_out(*runs, other, third, other)[0]


TO_256 = {"batch_size": 256}
FROM_256 = "recipe.batch_size was 256 and is 128"
NOW_WARMED_UP = 'recipe.warm_up was absent and is {"iterations":400,"learning_rate":0.01}'


@pytest.mark.parametrize(
    ("recipe", "changes"),
    [
        ({**TO_256, "momentum_form": "pytorch"}, f'{FROM_256}; recipe.momentum_form was "pytorch" and is "caffe"'),
        ({"warm_up": None, "young": 1}, f"recipe.young was 1 and is absent; {NOW_WARMED_UP}"),
        (dict.fromkeys("abcdef", 1), "; ".join(f"recipe.{key} was 1 and is absent" for key in "abcd") + "; ..."),
    ],
)
def test_run_of_an_outdated_experiment_is_reported_with_changes(recipe: dict[str, Any], changes: str) -> None:
    run = record(TABLE2, PREACT, 6.4, seed=2, recipe=recipe)
    comparison = compared(TABLE2, run)
    assert {c.verdict for c in comparison.cells} == {"not run"}
    assert comparison.left_out == (
        f"run {run.run} (seed 2 of {run.net}) matches no current experiment; the closest is {PREACT}, but {changes}.",
    )


GATING = "exclusive_gating_7/resnet110"
WARM_UP, WITHOUT_WARM_UP = "cifar10_resnet164/preact", "cifar10_resnet164_no_warm_up/preact"
OLD_GATING = record(TABLE1, GATING, 9.8, recipe=TO_256)


@pytest.mark.parametrize(
    ("run", "nearest", "changes"),
    [
        # of the experiments of its model that with the fewest changes
        (record(TABLE3, WARM_UP, 5.5, recipe={**TO_256, "warm_up": None}), WITHOUT_WARM_UP, FROM_256),
        # whatever it was called
        (replace(OLD_GATING, net="resnet110_exclusive_gating(gate_bias=-8)"), GATING, FROM_256),
        (replace(OLD_GATING, net="a name of long ago"), GATING, FROM_256),
    ],
)
def test_closest_experiment_of_the_same_net_is_reported(run: Record, nearest: str, changes: str) -> None:
    (message,) = left_out(run, table=TABLE3 if nearest == WITHOUT_WARM_UP else TABLE1)
    assert message.endswith(f"; the closest is {nearest}, but {changes}.")


def no_tables() -> list[Table]:
    raise AssertionError("nothing here needs another table")


@pytest.mark.parametrize(
    ("runs", "profile", "other_tables", "number"),
    [
        ([record(TABLE2, PREACT, 6.4)], "paper", no_tables, 0),
        # of nets that the table does not have
        ([record(TABLE1, "plain/resnet110", 90.0), record(TABLE3, "cifar10_resnet1001/preact", 4.9)], "paper", list, 0),
        ([record(TABLE2, PREACT, 6.4, profile="shallow", recipe=TO_256)], "paper", no_tables, 0),
        ([record(TABLE2, PREACT, 6.4, profile="shallow", recipe=TO_256)], "shallow", list, 1),
        # of this table's model with other outputs
        ([record(TABLE3, "cifar100_resnet164/preact", 24.3)], "paper", lambda: [TABLE1, TABLE3], 0),
        ([record(TABLE3, "cifar100_resnet164/preact", 24.3)], "paper", lambda: [TABLE1], 1),
        ([record(TABLE2, PREACT, 6.4, recipe=TO_256)], "paper", lambda: [TABLE1, TABLE3], 1),
    ],
)
def test_runs_of_other_tables_and_profiles_are_not_reported(
    runs: list[Record], profile: str, other_tables: Callable[[], list[Table]], number: int
) -> None:
    assert len(left_out(*runs, profile=profile, other_tables=other_tables)) == number
