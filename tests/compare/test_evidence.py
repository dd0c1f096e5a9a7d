"""Which runs count for a cell, which of them are pooled, which are shown, and what is named as left out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from paperbench.compare.comparison import compare
from paperbench.compare.evidence import chance_error
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

TABLE2 = a_table("table2")
PREACT = "preact/resnet110"
UNVERIFIED = DataFacts("CIFAR-10 (unverified cifar10.npz)", "unknown", False, ORIGINAL.fingerprint)


def shown(*runs: Record, **how: Any) -> tuple[list[float], list[list[float]]]:
    """Errors of the group shown for the cell, and of the others."""
    cell = judged(TABLE2, PREACT, *runs, **how)
    assert cell.shown
    return cell.shown.errors, [group.errors for group in others(cell)]


def left_out(*runs: Record, table: Table = TABLE2, **how: Any) -> tuple[str, ...]:
    return compared(table, *runs, **how).left_out


# Which runs


def test_a_record_counts_in_its_own_cell_only() -> None:
    comparison = compared(TABLE2, record(TABLE2, "original/resnet164", 6.0))
    assert [c.cell.id for c in comparison.cells if c.shown] == ["original/resnet164"]


def test_runs_are_in_order_of_their_seeds() -> None:
    runs = [record(TABLE2, PREACT, 6.0 + seed, seed=seed) for seed in (3, 0, 2)]
    cell = judged(TABLE2, PREACT, *runs)
    assert cell.shown
    assert [run.seed for run in cell.shown.runs] == [0, 2, 3]
    assert cell.shown.errors == [6.0, 8.0, 9.0]
    assert cell.shown.median == 8.0


def test_a_diverged_run_is_kept_as_failed() -> None:
    errors = [math.inf, 6.4, 6.6]
    cell = judged(TABLE2, PREACT, *records(TABLE2, PREACT, errors))
    assert cell.shown
    assert cell.shown.errors == errors
    assert cell.shown.median == 6.6
    assert cell.shown.diverged == 1


def test_a_prefix_has_no_error() -> None:
    cell = judged(TABLE2, PREACT, record(TABLE2, PREACT, None, iteration=5_000), record(TABLE2, PREACT, 6.4, seed=1))
    assert cell.shown
    assert [(run.seed, run.error) for run in cell.shown.runs] == [(0, None), (1, 6.4)]
    assert [run.seed for run in cell.shown.ended] == [1]
    assert cell.shown.median == 6.4
    assert cell.shown.farthest == 64_000


@pytest.mark.parametrize("profile", ["smoke", "shallow"])
def test_profiles_are_never_mixed(profile: str) -> None:
    reduced, whole = record(TABLE2, PREACT, 9.0, profile=profile), record(TABLE2, PREACT, 6.4)
    assert shown(reduced, whole) == ([6.4], [])
    assert shown(reduced, whole, profile=profile) == ([9.0], [])


def test_cells_of_a_sweep_have_the_runs_of_each_setting() -> None:
    table, cell_id = a_table("table1"), "exclusive_gating_0_to_5/resnet110"
    labels = [f"gate_bias={bias}" for bias in (0, -1, -2, -3, -4, -5)]
    runs = [record(table, cell_id, 50.0 + i, setting=label) for i, label in enumerate(labels)]
    cell = judged(table, cell_id, *runs, record(table, "exclusive_gating_6/resnet110", 8.7))
    assert [net.shown.errors for net in cell.nets if net.shown] == [[50.0 + i] for i in range(6)]


def test_a_run_serves_every_table_that_prints_its_number() -> None:
    run = record(TABLE2, "original/resnet110", 6.6)
    for name, cell_id in (("table1", "original/resnet110"), ("table4", "resnet110/cifar10")):
        cell = judged(a_table(name), cell_id, run)
        assert cell.shown
        assert cell.shown.errors == [6.6]


def test_cells_of_one_net_on_other_images_or_by_another_recipe_do_not_share_runs() -> None:
    table = a_table("table3")
    comparison = compared(table, record(table, "cifar10_resnet164/preact", 5.5))
    assert [c.cell.id for c in comparison.cells if c.shown] == ["cifar10_resnet164/preact"]
    assert (
        judged(table, "cifar10_resnet164_no_warm_up/preact", record(table, "cifar10_resnet164/preact", 5.5)).shown
        is None
    )


# What is pooled


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


def test_runs_of_equal_conditions_are_pooled() -> None:
    assert shown(*records(TABLE2, PREACT, [6.4, 6.5, 6.6], precision="tf32", numerics=3)) == ([6.4, 6.5, 6.6], [])


def test_other_batch_norm_groups_are_never_pooled() -> None:
    group = {"group": 128, "eps": 1e-5, "moving_average": 0.1, "at_test": "reestimated"}
    odd = record(TABLE2, PREACT, 6.0, seed=1, recipe={"batch_norm": group})
    assert shown(record(TABLE2, PREACT, 6.4), odd) == ([6.4], [])


def test_engine_machine_and_code_are_no_reason_to_keep_runs_apart() -> None:
    run, other = records(TABLE2, PREACT, [6.4, 6.5])
    other = replace(
        other,
        code=replace(other.code, engine="compiled", commit="abc", source="1" * 16),
        environment=replace(other.environment, device="a GPU"),
    )
    assert shown(run, other) == ([6.4, 6.5], [])


def test_pixels_verified_in_one_run_are_verified_in_all_with_the_same_fingerprint() -> None:
    runs = [record(TABLE2, PREACT, 6.4, data=UNVERIFIED), record(TABLE2, PREACT, 6.6, seed=1)]
    other = record(TABLE2, "preact/resnet164", 5.5, data=UNVERIFIED)
    for order in ([*runs, other], [other, *reversed(runs)]):
        comparison = compared(TABLE2, *order)
        cell, elsewhere = in_cell(comparison, PREACT), in_cell(comparison, "preact/resnet164")
        assert cell.shown
        assert cell.shown.errors == [6.4, 6.6]
        assert cell.shown.conditions.data == ORIGINAL
        assert elsewhere.verdict == "underpowered"


def test_a_record_of_another_experiment_verifies_pixels_too() -> None:
    table = a_table("table1")
    runs = records(TABLE2, PREACT, [6.37] * 5, data=UNVERIFIED)
    assert judged(TABLE2, PREACT, *runs).verdict == "not comparable"
    assert judged(TABLE2, PREACT, *runs, record(table, "plain/resnet110", 90.0)).verdict == "reproduced"


def test_one_fingerprint_under_two_names_is_one_data_set() -> None:
    names = [DataFacts(name, "", False, COPY.fingerprint) for name in ("one", "another")]
    runs = [record(TABLE2, PREACT, 6.4 + i, seed=i, data=facts) for i, facts in enumerate(names)]
    assert shown(*runs) == ([6.4, 7.4], [])


def test_runs_that_other_code_continued_are_not_pooled_with_any() -> None:
    pure = record(TABLE2, PREACT, 6.5)
    one = mixed(record(TABLE2, PREACT, 6.0, seed=1))
    other = mixed(record(TABLE2, PREACT, 6.1, seed=2), torch="3.0.0")
    assert shown(pure, one, other) == ([6.5], [[6.0], [6.1]])


# What is shown


def test_a_mixed_run_comes_last() -> None:
    pure = record(TABLE2, PREACT, 6.5, data=COPY, precision="bf16")
    cell = judged(TABLE2, PREACT, pure, mixed(record(TABLE2, PREACT, 6.0, seed=1)))
    assert cell.shown
    assert cell.shown.records == [pure]
    assert [str(group.conditions) for group in others(cell)] == ["CIFAR-10, fp32, numerics 1 and 2 (mixed)"]


def test_canonical_pixels_come_first_even_if_no_run_on_them_has_ended() -> None:
    copy = record(TABLE2, PREACT, 8.0, data=COPY)
    cell = judged(TABLE2, PREACT, copy, record(TABLE2, PREACT, None))
    assert cell.verdict == "not run"
    assert [group.errors for group in others(cell)] == [[8.0]]


def test_ended_runs_come_before_those_of_nearer_precision_in_progress() -> None:
    runs = [record(TABLE2, PREACT, None), record(TABLE2, PREACT, 6.6, precision="bf16")]
    assert shown(*runs) == ([6.6], [[]])


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


FEW, ENOUGH = [6.4, 6.5], [6.6, 6.7, 6.8, 6.9, 7.0]


@pytest.mark.parametrize(
    ("nearer", "farther"),
    [
        ({"precision": "fp32"}, {"precision": "tf32"}),
        ({"precision": "tf32"}, {"precision": "bf16"}),
        ({"numerics": 3}, {"numerics": 2}),
        ({"precision": "fp32", "numerics": 2}, {"precision": "bf16", "numerics": 1}),
    ],
)
def test_all_planned_runs_come_before_fewer_of_nearer_precision_or_newer_numerics(
    nearer: dict[str, Any], farther: dict[str, Any]
) -> None:
    enough = records(TABLE2, PREACT, ENOUGH, **farther)
    for few in (FEW, [*FEW, 6.6, 6.7, None]):
        ended = [error for error in few if error is not None]
        runs = [*later_records(few, **nearer), *enough]
        assert shown(*runs) == shown(*reversed(runs)) == (ENOUGH, [ended])
    assert shown(*later_records(FEW, **nearer), *enough[:4]) == (FEW, [ENOUGH[:4]])


def test_of_two_groups_with_all_planned_runs_the_nearer_is_shown() -> None:
    far = records(TABLE2, PREACT, ENOUGH, precision="tf32")
    assert shown(*far, *records(TABLE2, PREACT, ENOUGH[::-1])) == (ENOUGH[::-1], [ENOUGH])
    assert shown(*far, *records(TABLE2, PREACT, FEW), seeds=2) == (FEW, [ENOUGH])
    assert shown(*far, *records(TABLE2, PREACT, FEW), seeds=3) == (ENOUGH, [FEW])


def later_records(errors: list[float], **how: Any) -> list[Record]:
    """Runs with the seeds from 5: a run of the same seed by other code would be the same run."""
    return [record(TABLE2, PREACT, error, seed=5 + i, **how) for i, error in enumerate(errors)]


def test_all_planned_runs_do_not_come_before_fewer_of_what_the_paper_did() -> None:
    few = records(TABLE2, PREACT, FEW)
    assert shown(*few, *records(TABLE2, PREACT, ENOUGH, data=COPY)) == (FEW, [ENOUGH])
    assert shown(*few, *(mixed(run) for run in later_records(ENOUGH))) == (FEW, [ENOUGH])
    entered = [external(TABLE2, PREACT, error, seed=seed) for seed, error in enumerate(ENOUGH)]
    assert shown(*few, externals=entered) == (FEW, [ENOUGH])
    assert shown(*records(TABLE2, PREACT, FEW, data=COPY), externals=entered) == (FEW, [ENOUGH])


def test_the_verdict_is_on_the_group_shown() -> None:
    near = records(TABLE2, PREACT, [8.0, 8.01, 8.02, 8.03, 8.04])
    far = records(TABLE2, PREACT, [6.37] * 5, precision="tf32")
    assert judged(TABLE2, PREACT, *near, *far).verdict == "worse"
    assert judged(TABLE2, PREACT, *far).verdict == "reproduced"


def test_conditions_are_told_in_words() -> None:
    cell = judged(TABLE2, PREACT, record(TABLE2, PREACT, 6.4, data=COPY, precision="tf32", numerics=2))
    assert cell.shown
    assert str(cell.shown.conditions) == "CIFAR-10 (some copy), tf32, numerics 2"


# Results from elsewhere


def test_results_from_elsewhere_are_a_group_of_their_own_for_each_source() -> None:
    entered = [
        external(TABLE2, PREACT, 6.0),
        external(TABLE2, PREACT, 6.1, seed=1),
        external(TABLE2, PREACT, 7.0, source="a blog"),
    ]
    assert shown(record(TABLE2, PREACT, 6.4), externals=entered) == ([6.4], [[6.0, 6.1], [7.0]])


def test_results_from_elsewhere_are_shown_if_there_are_no_runs() -> None:
    cell = judged(TABLE2, PREACT, externals=[external(TABLE2, PREACT, 6.0)])
    assert cell.shown
    assert cell.shown.conditions.source == "a paper"
    assert cell.shown.records == []
    assert cell.difference == pytest.approx(6.0 - 6.37)


@pytest.mark.parametrize(
    "run",
    [
        record(TABLE2, PREACT, 6.4, precision="bf16"),
        record(TABLE2, PREACT, None),
        record(TABLE2, PREACT, 8.0, data=COPY),
    ],
)
def test_our_runs_come_before_results_from_elsewhere(run: Record) -> None:
    cell = judged(TABLE2, PREACT, run, externals=[external(TABLE2, PREACT, 6.0)])
    assert cell.shown
    assert cell.shown.records == [run]
    assert [group.conditions.source for group in others(cell)] == ["a paper"]


def test_results_from_elsewhere_come_before_runs_that_other_code_continued() -> None:
    run = mixed(record(TABLE2, PREACT, 6.4))
    assert shown(run, externals=[external(TABLE2, PREACT, 6.0)]) == ([6.0], [[6.4]])


def test_results_from_elsewhere_say_nothing_in_a_reduced_profile() -> None:
    entered = [external(TABLE2, PREACT, 6.0)]
    comparison = compared(TABLE2, profile="shallow", externals=entered)
    assert {c.shown for c in comparison.cells} == {None}
    assert comparison.left_out == ()


def test_a_result_from_elsewhere_serves_every_table_that_prints_its_number() -> None:
    entered = [external(TABLE2, "original/resnet110", 6.6)]
    for name, cell_id in (("table1", "original/resnet110"), ("table4", "resnet110/cifar10")):
        comparison = compared(a_table(name), externals=entered)
        assert [c.cell.id for c in comparison.cells if c.shown] == [cell_id]
        assert comparison.left_out == ()


def test_a_result_from_elsewhere_is_of_one_setting_and_one_crop() -> None:
    table, cell_id = a_table("table1"), "exclusive_gating_0_to_5/resnet110"
    cell = judged(table, cell_id, externals=[external(table, cell_id, 50.0, setting="gate_bias=-2")])
    assert [bool(net.shown) for net in cell.nets] == [False, False, True, False, False, False]
    table = a_table("table5")
    entered = [external(table, "original_resnet152/top1", 21.0)]
    assert [c.cell.id for c in compared(table, externals=entered).cells if c.shown] == ["original_resnet152/top1"]


def changed(result: ExternalResult) -> ExternalResult:
    return replace(result, experiment="0" * 64)


def test_a_result_entered_for_an_experiment_that_changed_since_is_named_and_not_used() -> None:
    comparison = compared(TABLE2, externals=[changed(external(TABLE2, PREACT, 6.0, seed=4, source="a blog"))])
    assert all(c.shown is None for c in comparison.cells)
    assert comparison.left_out == (
        "the result of seed 4 from 'a blog' was entered for preact/resnet110, whose experiment has changed since. "
        "Enter it again (`paperbench record`) if it still holds.",
    )
    table, cell_id = a_table("table1"), "exclusive_gating_0_to_5/resnet110"
    (told,) = left_out(table=table, externals=[changed(external(table, cell_id, 50.0, setting="gate_bias=-2"))])
    assert "exclusive_gating_0_to_5/resnet110 (gate_bias=-2), whose experiment has changed since" in told


def test_a_diverged_result_from_elsewhere_has_no_error() -> None:
    cell = judged(TABLE2, PREACT, externals=[external(TABLE2, PREACT, None), external(TABLE2, PREACT, 6.4, seed=1)])
    assert cell.shown
    assert cell.shown.errors == [math.inf, 6.4]
    assert cell.shown.diverged == 1


def test_a_result_of_a_cell_that_is_no_more_is_named_and_those_of_other_tables_are_not() -> None:
    gone = replace(external(TABLE2, PREACT, 6.0), cell="gone/resnet110")
    assert len(left_out(externals=[changed(gone)])) == 1
    elsewhere = external(a_table("table1"), "plain/resnet110", 50.0)
    assert left_out(externals=[elsewhere]) == ()
    assert left_out(externals=[changed(elsewhere)]) == ()


# What is left out


def test_a_run_that_is_there_twice_counts_once() -> None:
    run = record(TABLE2, PREACT, 6.4)
    assert shown(run, run, run) == ([6.4], [])
    assert left_out(run, run) == ()


def test_a_run_that_is_there_with_different_contents_is_named_and_not_averaged_in() -> None:
    runs = records(TABLE2, PREACT, [6.4, 6.5, 6.6])
    other = replace(runs[1], result=result(7.0))
    third = replace(runs[1], seconds=61.0)
    assert shown(*runs, other) == ([6.4, 6.6], [])
    assert left_out(*runs, other) == (
        f"run {runs[1].run} (seed 1 of preact_resnet110) is there 2 times with different contents. Delete the wrong "
        "ones.",
    )
    assert "is there 3 times" in left_out(*runs, other, third, other)[0]
    assert judged(TABLE2, PREACT, runs[1], other).verdict == "not run"


def test_an_older_copy_of_a_run_that_went_on_is_named_too() -> None:
    run, older = record(TABLE2, PREACT, 6.4), record(TABLE2, PREACT, None)
    assert len(left_out(run, older)) == 1
    assert judged(TABLE2, PREACT, run, older).shown is None


def test_a_run_by_another_recipe_is_named_with_what_changed() -> None:
    run = record(TABLE2, PREACT, 6.4, seed=2, recipe={"batch_size": 256, "momentum_form": "pytorch"})
    comparison = compared(TABLE2, run)
    assert {c.verdict for c in comparison.cells} == {"not run"}
    (told,) = comparison.left_out
    assert told == (
        f"run {run.run} (seed 2 of preact_resnet110) is of no experiment that there is; the nearest is "
        'preact/resnet110, but recipe.batch_size was 256 and is 128; recipe.momentum_form was "pytorch" and is "caffe".'
    )


def test_values_within_a_group_of_the_recipe_are_named_one_by_one() -> None:
    drops, warm_up = {"at": [32_000, 50_000], "factor": 0.1}, None
    (told,) = left_out(record(TABLE2, PREACT, 6.4, recipe={"drops": drops, "warm_up": warm_up, "young": 1}))
    assert "recipe.drops.at was [32000,50000] and is [32000,48000]" in told
    assert 'recipe.warm_up was null and is {"iterations":400,"learning_rate":0.01}' in told
    assert "recipe.young was 1 and is absent" in told
    assert "factor" not in told


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("batch_size", 128.0, "128.0 and is 128"),
        ("batch_size", None, "null and is 128"),
        ("new", None, "null and is absent"),
    ],
)
def test_what_only_the_digest_tells_apart_is_named_too(key: str, value: object, told: str) -> None:
    assert f"recipe.{key} was {told}." in left_out(record(TABLE2, PREACT, 6.4, recipe={key: value}))[0]


def test_many_changes_are_not_all_told() -> None:
    values = {f"value{i}": i for i in range(6)}
    (told,) = left_out(record(TABLE2, PREACT, 6.4, recipe=values))
    assert "recipe.value3 was 3 and is absent; ...." in told
    assert "value4" not in told


def test_a_net_that_changed_is_named_with_what_changed() -> None:
    run = record(TABLE2, PREACT, 6.4, net={"shortcut_option": "B"})
    (told,) = left_out(run)
    assert "the nearest is preact/resnet110, but net.shortcut_option was " in told
    assert '"B"' in told


def test_the_nearest_experiment_is_that_of_the_model_with_the_fewest_changes() -> None:
    table = a_table("table1")
    run = record(table, "exclusive_gating_7/resnet110", 9.8, net={"young": 1})
    told = "the nearest is exclusive_gating_7/resnet110, but net.young was 1 and is absent."
    assert told in left_out(run, table=table)[0]
    run = replace(run, net="resnet110_exclusive_gating(gate_bias=-8)")  # what it is counts, not what it was called
    assert told in left_out(run, table=table)[0]
    run = record(table, "exclusive_gating_7/resnet110", 9.8, net={"gate_bias": -8.0})
    assert ", but net.gate_bias was -8.0 and is " in left_out(run, table=table)[0]


def test_the_nearest_experiment_can_be_the_one_by_another_recipe() -> None:
    table, net = a_table("table3"), "cifar10_resnet164/preact"
    near = record(table, net, 5.5, recipe={"batch_size": 256})
    assert f"the nearest is {net}, but recipe.batch_size was 256 and is 128." in left_out(near, table=table)[0]
    far = record(table, "cifar10_resnet164_no_warm_up/preact", 5.5, recipe={"batch_size": 256})
    assert (
        "the nearest is cifar10_resnet164_no_warm_up/preact, but recipe.batch_size was 256 and is 128."
        in left_out(far, table=table)[0]
    )


def test_each_run_of_no_experiment_is_named_once() -> None:
    runs = records(TABLE2, PREACT, [6.4, 6.5], recipe={"batch_size": 256})
    told = left_out(*runs)
    assert len(told) == 2
    assert [run.run in line for run, line in zip(runs, told, strict=True)] == [True, True]


def test_runs_of_no_net_of_the_table_are_passed_over_in_silence() -> None:
    table1, table3 = a_table("table1"), a_table("table3")
    runs = [record(table1, "plain/resnet110", 90.0), record(table3, "cifar10_resnet1001/preact", 4.9)]
    assert left_out(*runs) == ()


def test_runs_of_another_profile_are_passed_over_in_silence() -> None:
    assert left_out(record(TABLE2, PREACT, 6.4, profile="shallow", recipe={"batch_size": 256})) == ()
    assert len(left_out(record(TABLE2, PREACT, 6.4, profile="shallow", recipe={"batch_size": 256}), profile="shallow"))


def test_runs_of_this_tables_nets_for_another_table_are_not_named() -> None:
    table3 = a_table("table3")
    runs = [
        record(table3, "cifar10_resnet164_no_warm_up/preact", 5.5),  # the same net by another recipe
        record(table3, "cifar100_resnet164/preact", 24.3),  # the same model with other outputs
    ]
    asked = []

    def tables() -> list[Table]:
        asked.append(1)
        return [table3]

    assert left_out(*runs, other_tables=tables) == ()
    assert asked == [1]
    assert len(left_out(*runs)) == 2


def test_other_tables_are_not_read_in_vain() -> None:
    def tables() -> list[Table]:
        raise AssertionError("nothing here is in need of another table")

    assert left_out(record(TABLE2, PREACT, 6.4), other_tables=tables) == ()


def test_a_run_that_no_other_table_knows_either_is_named() -> None:
    run = record(TABLE2, PREACT, 6.4, recipe={"batch_size": 256})
    assert len(left_out(run, other_tables=lambda: [a_table("table1"), a_table("table3")])) == 1


def test_records_may_come_from_an_iterator() -> None:
    found = compare(TABLE2, TABLE2.cells(), "paper", iter(records(TABLE2, PREACT, [6.37] * 5)))
    assert [c.verdict for c in found.cells].count("reproduced") == 1


@pytest.mark.parametrize(("dataset", "error"), [("cifar10", 90.0), ("cifar100", 99.0), ("imagenet", 99.9)])
def test_guessing_is_wrong_in_all_classes_but_one(dataset: str, error: float) -> None:
    assert chance_error(dataset) == pytest.approx(error)


def test_runs_of_later_seeds_make_no_group_complete() -> None:
    later = [record(TABLE2, PREACT, 6.4, seed=seed, precision="tf32") for seed in (3, 5, 6, 7, 8)]
    first = [record(TABLE2, PREACT, 6.5, seed=seed) for seed in range(4)]
    assert shown(*later, *first) == ([6.5] * 4, [[6.4] * 5])


def test_a_record_under_a_name_of_long_ago_is_known_by_its_net() -> None:
    (told,) = left_out(replace(record(TABLE2, PREACT, 6.4, recipe={"batch_size": 256}), net="a name of long ago"))
    assert f"the nearest is {PREACT}, but recipe.batch_size was 256 and is 128." in told
