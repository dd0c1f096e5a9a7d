"""Which runs count for a cell, which of them are pooled, which are shown, and what is named as left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from paperbench.compare.comparison import compare
from paperbench.runs.external import ExternalResult
from paperbench.runs.record import DataFacts, Record
from paperbench.specs.table import Table
from tests.compare.judging import (
    COPY,
    ORIGINAL,
    a_table,
    compared,
    external,
    in_cell,
    judged,
    mixed,
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
    cell = judged(TABLE2, PREACT, *runs, **how)
    assert cell.shown
    return cell.shown.errors, [group.errors for group in others(cell)]


def left_out(*runs: Record, table: Table = TABLE2, **how: Any) -> tuple[str, ...]:
    return compared(table, *runs, **how).left_out


# Which runs


def test_runs_are_in_order_of_their_seeds_and_those_in_progress_have_no_error() -> None:
    errors = {3: 9.0, 0: 6.0, 2: math.inf, 1: None}
    runs = [record(TABLE2, PREACT, error, seed=seed, iteration=5_000) for seed, error in errors.items()]
    group = judged(TABLE2, PREACT, *runs).shown
    assert group
    assert [(run.seed, run.error) for run in group.runs] == [(0, 6.0), (1, None), (2, math.inf), (3, 9.0)]
    assert [run.seed for run in group.ended] == [0, 2, 3]
    assert (group.errors, group.median, group.farthest) == ([6.0, math.inf, 9.0], 9.0, 64_000)


@pytest.mark.parametrize("profile", ["smoke", "shallow"])
def test_profiles_are_never_mixed(profile: str) -> None:
    reduced, whole = record(TABLE2, PREACT, 9.0, profile=profile), record(TABLE2, PREACT, 6.4)
    assert shown(reduced, whole) == ([6.4], [])
    assert shown(reduced, whole, profile=profile) == ([9.0], [])


def test_cells_of_a_sweep_have_the_runs_of_each_setting() -> None:
    labels = [f"gate_bias={bias}" for bias in (0, -1, -2, -3, -4, -5)]
    runs = [record(TABLE1, SWEEP, 50.0 + i, setting=label) for i, label in enumerate(labels)]
    cell = judged(TABLE1, SWEEP, *runs, record(TABLE1, "exclusive_gating_6/resnet110", 8.7))
    assert [net.shown.errors for net in cell.nets if net.shown] == [[50.0 + i] for i in range(6)]


@pytest.mark.parametrize(
    ("table", "cell", "there", "cells"),
    [
        ("table2", "original/resnet164", "table2", ["original/resnet164"]),
        ("table2", "original/resnet110", "table1", ["original/resnet110"]),
        ("table2", "original/resnet110", "table4", ["resnet110/cifar10"]),
        ("table3", "cifar10_resnet164/preact", "table3", ["cifar10_resnet164/preact"]),  # by the recipe with a warm-up
    ],
)
@pytest.mark.parametrize("is_ours", [True, False])
def test_a_result_serves_every_cell_that_prints_its_number_and_no_other(
    table: str, cell: str, there: str, cells: list[str], is_ours: bool
) -> None:
    runs = [record(a_table(table), cell, 6.6)] if is_ours else []
    entered = [] if is_ours else [external(a_table(table), cell, 6.6)]
    comparison = compared(a_table(there), *runs, externals=entered)
    found = [c.cell.id for c in comparison.cells if c.shown]
    assert (found, comparison.left_out) == (cells, ())


# What is pooled


@pytest.mark.parametrize("newer", [{"numerics": 2}, {"torch": "3.0.0"}])
def test_runs_that_other_code_continued_are_not_pooled_with_any(newer: dict[str, Any]) -> None:
    continued = mixed(record(TABLE2, PREACT, 6.0, seed=1), **newer)
    assert shown(record(TABLE2, PREACT, 6.5), continued) == ([6.5], [[6.0]])


def test_precisions_data_and_numerics_are_never_pooled() -> None:
    runs = [
        record(TABLE2, PREACT, 6.4, precision="tf32"),
        record(TABLE2, PREACT, 6.5, precision="fp32"),
        record(TABLE2, PREACT, 8.0, precision="fp32", data=COPY),
        record(TABLE2, PREACT, 6.6, precision="bf16"),
    ]
    assert shown(*runs) == ([6.5], [[6.4], [6.6], [8.0]])
    newer = record(TABLE2, PREACT, 6.7, seed=1, numerics=2)
    assert shown(runs[1], newer) == ([6.7], [[6.5]])


def test_other_batch_norm_groups_are_never_pooled() -> None:
    group = {"group": 128, "eps": 1e-5, "moving_average": 0.1, "at_test": "reestimated"}
    odd = record(TABLE2, PREACT, 6.0, seed=1, recipe={"batch_norm": group})
    assert shown(record(TABLE2, PREACT, 6.4), odd) == ([6.4], [])


def test_engine_machine_and_code_are_no_reason_to_keep_runs_apart() -> None:
    run, other = records(TABLE2, PREACT, [6.4, 6.5], precision="tf32", numerics=3)
    elsewhere = {"engine": "compile", "commit": "abc", "source": "1" * 16, "numerics": 3, "device": "a GPU"}
    other = replace(other, sessions=(a_session(other.iteration, **elsewhere),))
    assert shown(run, other) == ([6.4, 6.5], [])


def test_pixels_verified_in_one_run_are_verified_in_all_with_the_same_fingerprint() -> None:
    runs = records(TABLE2, PREACT, [6.37] * 5, data=UNVERIFIED)
    assert judged(TABLE2, PREACT, *runs).verdict == "not comparable"
    elsewhere = record(TABLE1, "plain/resnet110", 90.0)
    for order in ([*runs, elsewhere], [elsewhere, *runs]):
        cell = in_cell(compared(TABLE2, *order), PREACT)
        assert cell.verdict == "reproduced"
        assert cell.shown
        assert cell.shown.conditions.data == ORIGINAL


def test_one_fingerprint_under_two_names_is_one_data_set() -> None:
    names = [DataFacts(name, "", False, COPY.fingerprint) for name in ("one", "another")]
    runs = [record(TABLE2, PREACT, 6.4 + i, seed=i, data=facts) for i, facts in enumerate(names)]
    assert shown(*runs) == ([6.4, 7.4], [])


# What is shown


@pytest.mark.parametrize(
    ("nearer", "farther"),
    [
        ({"precision": "fp32"}, {"precision": "tf32"}),
        ({"precision": "tf32"}, {"precision": "bf16"}),
        ({"numerics": 3}, {"numerics": 2}),
        ({"precision": "fp32", "numerics": 1}, {"precision": "tf32", "numerics": 2}),
        ({"precision": "bf16"}, {"precision": "fp32", "data": COPY}),
    ],
)
def test_the_group_nearest_to_the_paper_is_shown(nearer: dict[str, Any], farther: dict[str, Any]) -> None:
    one, other = record(TABLE2, PREACT, 6.4, **nearer), record(TABLE2, PREACT, 7.0, seed=1, **farther)
    assert shown(one, other) == shown(other, one) == ([6.4], [[7.0]])


@pytest.mark.parametrize(
    ("nearer", "farther", "conditions"),
    [
        # canonical pixels come first even if no run on them has ended
        (record(TABLE2, PREACT, None), record(TABLE2, PREACT, 8.0, data=COPY), f"{COPY.name}, fp32, numerics 1"),
        # in the paper's own conditions those that have ended
        (record(TABLE2, PREACT, 6.6, precision="bf16"), record(TABLE2, PREACT, None), "CIFAR-10, fp32, numerics 1"),
        (
            record(TABLE2, PREACT, 6.5, data=COPY, precision="bf16"),
            mixed(record(TABLE2, PREACT, 6.0)),
            "CIFAR-10, fp32, numerics 1 and 2 (mixed)",
        ),
        (record(TABLE2, PREACT, 8.0, data=COPY), external(TABLE2, PREACT, 6.0), "external: a paper"),
        (record(TABLE2, PREACT, None), external(TABLE2, PREACT, 6.0), "external: a paper"),
        (
            external(TABLE2, PREACT, 6.0),
            mixed(record(TABLE2, PREACT, 6.4)),
            "CIFAR-10, fp32, numerics 1 and 2 (mixed)",
        ),
    ],
)
def test_which_of_two_runs_is_shown_and_what_the_other_is_called(
    nearer: Record | ExternalResult, farther: Record | ExternalResult, conditions: str
) -> None:
    runs = [run for run in (farther, nearer) if isinstance(run, Record)]
    entered = [run for run in (farther, nearer) if isinstance(run, ExternalResult)]
    cell = judged(TABLE2, PREACT, *runs, externals=entered)
    assert cell.shown
    assert cell.shown.records == ([nearer] if isinstance(nearer, Record) else [])
    assert [str(group.conditions) for group in others(cell)] == [conditions]


FEW, ENOUGH = [6.4, 6.5], [6.6, 6.7, 6.8, 6.9, 7.0]


def later_records(errors: Sequence[float | None], **how: Any) -> list[Record]:
    """Runs with the seeds from 5: a run of the same seed by other code would be the same run."""
    return [record(TABLE2, PREACT, error, seed=5 + i, **how) for i, error in enumerate(errors)]


@pytest.mark.parametrize(
    ("nearer", "farther"),
    [
        ({"precision": "fp32"}, {"precision": "tf32"}),
        ({"numerics": 3}, {"numerics": 2}),
        ({"precision": "fp32", "numerics": 2}, {"precision": "bf16", "numerics": 1}),
    ],
)
@pytest.mark.parametrize("few", [FEW, [*FEW, 6.6, 6.7, None], [6.4] * 5])  # none of them with a planned seed
def test_all_planned_runs_come_before_fewer_of_nearer_precision_or_newer_numerics(
    nearer: dict[str, Any], farther: dict[str, Any], few: list[float | None]
) -> None:
    ended = [error for error in few if error is not None]
    runs = [*later_records(few, **nearer), *records(TABLE2, PREACT, ENOUGH, **farther)]
    assert shown(*runs) == shown(*reversed(runs)) == (ENOUGH, [ended])
    assert shown(*runs[:-1]) == (ended, [ENOUGH[:4]])


@pytest.mark.parametrize(
    ("near", "seeds", "expected"),
    [
        (ENOUGH[::-1], None, (ENOUGH[::-1], [ENOUGH])),
        (FEW, 2, (FEW, [ENOUGH])),
        (FEW, 3, (ENOUGH, [FEW])),
    ],
)
def test_of_two_groups_with_all_planned_runs_the_nearer_is_shown(
    near: list[float], seeds: int | None, expected: tuple[list[float], list[list[float]]]
) -> None:
    far = records(TABLE2, PREACT, ENOUGH, precision="tf32")
    assert shown(*far, *records(TABLE2, PREACT, near), seeds=seeds) == expected


def test_all_planned_runs_do_not_come_before_fewer_of_what_the_paper_did() -> None:
    few = records(TABLE2, PREACT, FEW)
    entered = [external(TABLE2, PREACT, error, seed=seed) for seed, error in enumerate(ENOUGH)]
    assert shown(*few, *records(TABLE2, PREACT, ENOUGH, data=COPY)) == (FEW, [ENOUGH])
    assert shown(*few, *(mixed(run) for run in later_records(ENOUGH))) == (FEW, [ENOUGH])
    assert shown(*few, externals=entered) == (FEW, [ENOUGH])
    assert shown(*records(TABLE2, PREACT, FEW, data=COPY), externals=entered) == (FEW, [ENOUGH])


def test_the_verdict_is_on_the_group_shown() -> None:
    near = records(TABLE2, PREACT, [8.0, 8.01, 8.02, 8.03, 8.04])
    far = records(TABLE2, PREACT, [6.37] * 5, precision="tf32")
    assert judged(TABLE2, PREACT, *near, *far).verdict == "worse"
    assert judged(TABLE2, PREACT, *far).verdict == "reproduced"


# Results from elsewhere


def test_results_from_elsewhere_are_a_group_of_their_own_for_each_source() -> None:
    entered = [
        external(TABLE2, PREACT, 6.0),
        external(TABLE2, PREACT, None, seed=1),
        external(TABLE2, PREACT, 7.0, source="a blog"),
    ]
    assert shown(record(TABLE2, PREACT, 6.4), externals=entered) == ([6.4], [[6.0, math.inf], [7.0]])
    cell = judged(TABLE2, PREACT, externals=entered[:1])
    assert cell.difference == pytest.approx(6.0 - 6.37)


def test_results_from_elsewhere_say_nothing_in_a_reduced_profile() -> None:
    comparison = compared(TABLE2, profile="shallow", externals=[external(TABLE2, PREACT, 6.0)])
    assert {c.shown for c in comparison.cells} == {None}
    assert comparison.left_out == ()


def test_a_result_from_elsewhere_is_of_one_setting_and_one_crop() -> None:
    cell = judged(TABLE1, SWEEP, externals=[external(TABLE1, SWEEP, 50.0, setting="gate_bias=-2")])
    assert [bool(net.shown) for net in cell.nets] == [False, False, True, False, False, False]
    entered = [external(TABLE5, "original_resnet152/top1", 21.0)]
    assert [c.cell.id for c in compared(TABLE5, externals=entered).cells if c.shown] == ["original_resnet152/top1"]


CHANGED = {"experiment": "0" * 64}


@pytest.mark.parametrize(
    ("table", "result", "cell"),
    [
        (TABLE2, replace(external(TABLE2, PREACT, 6.0, seed=4, source="a blog"), **CHANGED), PREACT),
        (TABLE2, replace(external(TABLE2, PREACT, 6.0, seed=4, source="a blog"), **CHANGED, cell="gone/x"), "gone/x"),
        (
            TABLE1,
            replace(external(TABLE1, SWEEP, 50.0, seed=4, source="a blog", setting="gate_bias=-2"), **CHANGED),
            f"{SWEEP} (gate_bias=-2)",
        ),
        (TABLE2, external(TABLE1, "plain/resnet110", 50.0), ""),  # of another table
        (TABLE2, replace(external(TABLE1, "plain/resnet110", 50.0), **CHANGED), ""),
    ],
)
def test_a_result_entered_for_an_experiment_that_changed_since_is_named_and_not_used(
    table: Table, result: ExternalResult, cell: str
) -> None:
    comparison = compared(table, externals=[result])
    assert not any(net.shown for c in comparison.cells for net in c.nets)
    message = (
        f"the result of seed 4 from 'a blog' was entered for {cell}, whose experiment has changed since. Enter it "
        "again (`paperbench record`) if it still holds."
    )
    assert comparison.left_out == ((message,) if cell else ())


# What is left out


def test_a_run_that_is_there_twice_counts_once() -> None:
    run = record(TABLE2, PREACT, 6.4)
    assert shown(run, run, run) == ([6.4], [])
    assert left_out(run, run) == ()


def test_a_run_that_is_there_with_different_contents_is_named_and_not_averaged_in() -> None:
    runs = records(TABLE2, PREACT, [6.4, 6.5, 6.6])
    other, third = replace(runs[1], result=result(7.0)), replace(runs[1], test_every=41)
    assert shown(*runs, other) == ([6.4, 6.6], [])
    assert left_out(*runs, other) == (
        f"run {runs[1].run} (seed 1 of preact_resnet110) was found 2 times with different contents. Delete the wrong "
        "ones.",
    )
    assert "was found 3 times" in left_out(*runs, other, third, other)[0]
    older = record(TABLE2, PREACT, None, seed=1)
    assert len(left_out(runs[1], older)) == 1
    assert judged(TABLE2, PREACT, runs[1], older).shown is None


TO_256 = {"batch_size": 256}
FROM_256 = "recipe.batch_size was 256 and is 128"


@pytest.mark.parametrize(
    ("table", "cell", "changes", "nearest", "told"),
    [
        (
            TABLE2,
            PREACT,
            {"recipe": {"batch_size": 256, "momentum_form": "pytorch"}},
            PREACT,
            f'{FROM_256}; recipe.momentum_form was "pytorch" and is "caffe"',
        ),
        (
            TABLE2,
            PREACT,
            {"recipe": {"drops": {"at": [32_000, 50_000], "factor": 0.1}, "warm_up": None, "young": 1}},
            PREACT,
            "recipe.drops.at was [32000,50000] and is [32000,48000]; recipe.young was 1 and is absent; "
            'recipe.warm_up was absent and is {"iterations":400,"learning_rate":0.01}',
        ),
        (TABLE2, PREACT, {"recipe": {"batch_size": 128.0}}, PREACT, "recipe.batch_size was 128.0 and is 128"),
        (
            TABLE2,
            PREACT,
            {"recipe": {f"value{i}": i for i in range(6)}},
            PREACT,
            "; ".join(f"recipe.value{i} was {i} and is absent" for i in range(4)) + "; ...",
        ),
        (TABLE2, PREACT, {"net": {"shortcut_option": "B"}}, PREACT, 'net.shortcut_option was "B" and is "A"'),
        # the nearest is that of the model with the fewest changes
        (
            TABLE1,
            "exclusive_gating_7/resnet110",
            {"net": {"young": 1}},
            "exclusive_gating_7/resnet110",
            "net.young was 1 and is absent",
        ),
        (TABLE3, "cifar10_resnet164/preact", {"recipe": TO_256}, "cifar10_resnet164/preact", FROM_256),
        (
            TABLE3,
            "cifar10_resnet164/preact",
            {"recipe": {**TO_256, "warm_up": None}},
            "cifar10_resnet164_no_warm_up/preact",
            FROM_256,
        ),
    ],
)
def test_a_run_of_no_experiment_is_named_with_what_changed(
    table: Table, cell: str, changes: dict[str, Any], nearest: str, told: str
) -> None:
    run = record(table, cell, 6.4, seed=2, **changes)
    comparison = compared(table, run)
    assert {c.verdict for c in comparison.cells} == {"not run"}
    assert comparison.left_out == (
        f"run {run.run} (seed 2 of {run.net}) belongs to no current experiment; the nearest is {nearest}, but {told}.",
    )


@pytest.mark.parametrize("name", ["resnet110_exclusive_gating(gate_bias=-8)", "a name of long ago"])
def test_what_a_run_is_counts_and_not_what_it_was_called(name: str) -> None:
    run = record(TABLE1, "exclusive_gating_7/resnet110", 9.8, recipe=TO_256)
    (told,) = left_out(replace(run, net=name), table=TABLE1)
    assert told.endswith(f"; the nearest is exclusive_gating_7/resnet110, but {FROM_256}.")


def test_each_run_of_no_experiment_is_named() -> None:
    runs = records(TABLE2, PREACT, [6.4, 6.5], recipe=TO_256)
    assert [told.split()[1] for told in left_out(*runs)] == [run.run for run in runs]


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
        # of this table's net by another recipe, and of its model with other outputs
        ([record(TABLE3, "cifar10_resnet164_no_warm_up/preact", 5.5)], "paper", lambda: [TABLE3], 0),
        ([record(TABLE3, "cifar10_resnet164_no_warm_up/preact", 5.5)], "paper", list, 1),
        ([record(TABLE3, "cifar100_resnet164/preact", 24.3)], "paper", lambda: [TABLE1, TABLE3], 0),
        ([record(TABLE3, "cifar100_resnet164/preact", 24.3)], "paper", lambda: [TABLE1], 1),
        ([record(TABLE2, PREACT, 6.4, recipe=TO_256)], "paper", lambda: [TABLE1, TABLE3], 1),
    ],
)
def test_runs_of_other_tables_and_profiles_are_not_named(
    runs: list[Record], profile: str, other_tables: Callable[[], list[Table]], number: int
) -> None:
    assert len(left_out(*runs, profile=profile, other_tables=other_tables)) == number


def test_records_may_come_from_an_iterator() -> None:
    found = compare(TABLE2, TABLE2.cells(), "paper", iter(records(TABLE2, PREACT, [6.37] * 5)))
    assert [c.verdict for c in found.cells].count("reproduced") == 1
