"""Which runs belong to a cell, which are pooled or shown, and which are reported: tests/printed/left_out.txt."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paperbench.compare.evidence import errors_of
from paperbench.runs.record import DataFacts, Record
from paperbench.specs.facts import Facts
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
    record,
    records,
)
from tests.golden import assert_golden
from tests.helpers import a_session

TABLE1, TABLE2, TABLE3, TABLE5 = (a_table(f"table{i}") for i in (1, 2, 3, 5))
PREACT = "preact/resnet110"
SWEEP = "exclusive_gating_0_to_5/resnet110"
COMPLETE_AFTER_ALL = replace(COMPLETE, canonical=True, unverified=False)
UNVERIFIED = DataFacts("CIFAR-10 (unverified cifar10.npz)", "unknown", False, ORIGINAL.fingerprint)


def shown(*runs: Record, **how: Any) -> tuple[list[float], list[list[float]]]:
    """Errors of the group shown for the cell, and of the others."""
    cell = compare_cell(TABLE2, PREACT, *runs, **how)
    assert cell.shown
    return errors_of(cell.shown.runs), [errors_of(group.runs) for group in cell.nets[0].others]


# Groups


@given(planned=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
def test_runs_are_grouped_by_conditions_and_the_closest_to_the_paper_is_shown(planned: int, seed: int) -> None:
    """In any order. A complete group comes before a more precise one, but not before other pixels or sources."""
    rng, runs, entered = np.random.default_rng(seed), [], []
    expected: dict[tuple[Any, ...], list[tuple[int, float | None]]] = defaultdict(list)

    def seeds_and_errors() -> list[tuple[int, float | None]]:
        seeds = rng.permutation(8)[: rng.choice([0, 0, 1, planned, 8])]
        return [
            (int(s), [round(float(rng.uniform(5, 9)), 2), None, math.inf][rng.choice([0, 0, 0, 1, 2])]) for s in seeds
        ]

    for precision in ("fp32", "tf32", "bf16"):
        for data in (ORIGINAL, COMPLETE, COPY):
            for s, error in seeds_and_errors():
                numerics = int(rng.choice([2, 3]))
                how = {"precision": precision, "data": data, "numerics": numerics}
                runs.append(record(TABLE2, PREACT, error, seed=s, iteration=100 + s, **how))
                expected[None, data, precision, numerics].append((s, error))
    for source in ("a paper", "a blog"):
        for s, error in seeds_and_errors():
            diverged = error is None or error == math.inf
            entered.append(external(TABLE2, PREACT, None if diverged else error, seed=s, source=source))
            expected[source, None, None, 0].append((s, math.inf if diverged else error))
    mixed = [runs[i] for i in rng.permutation(len(runs))]
    cell = compare_cell(TABLE2, PREACT, *mixed, externals=entered, seeds=planned)
    keys, found = [], {}
    for group in cell.nets[0].groups:
        one = group.conditions
        its = [(run.seed, run.error_or_inf) for run in group.runs]
        found[one.source, one.data, one.precision, max(one.numerics, default=0)] = its
        ended = [s for s, error in its if error is not None]
        counts = len(ended) if one.source else sum(s < planned for s in ended)
        kind = one.source is not None, one.data == COPY, one.data == COMPLETE
        rank = ("fp32", "tf32", "bf16").index(one.precision) if one.precision else 3
        keys.append((kind, not ended, counts < planned, rank, -max(one.numerics, default=0)))
        assert group.farthest == (0 if one.source else max(64_000 if e and e < 99 else 100 + s for s, e in its))
    assert found == {key: sorted(its) for key, its in expected.items()}
    assert keys == sorted(keys)


def test_runs_with_other_facts_are_not_pooled() -> None:
    """Nor older ones, without any. Rounding is no difference."""

    def facts(eps: str, *values: float) -> Facts:
        return Facts((("stages.0.0-17", (f"bn1: BatchNorm2d; eps {eps}",)),), (("outputs", values),))

    kinds = [facts("1e-05", 2.0), facts("1e-05", 2.000001), facts("0.001", 2.0), facts("1e-05", 2.1), None, None]
    runs = [record(TABLE2, PREACT, 6 + seed / 10, seed=seed, facts=one) for seed, one in enumerate(kinds)]
    assert shown(*runs, seeds=2) == ([6.0, 6.1], [[6.2], [6.3], [6.4, 6.5]])
    ids = [run.run for run in runs]
    other = f"not pooled with {ids[0]}: they were trained with other facts:"
    assert compared(TABLE2, *runs).left_out == (
        f"run {ids[2]} and those like it are {other} stages.0.0.bn1: was eps 1e-05 and is eps 0.001.",
        f"run {ids[3]} and those like it are {other} outputs: was 2.0 and is 2.1.",
        f"2 runs of preact_resnet110 ({ids[4]}, {ids[5]}) cannot be pooled with {ids[0]}: an older version began the "
        "training, which recorded no facts.",
    )


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


def test_engine_machine_and_code_do_not_separate_runs() -> None:
    run, other = records(TABLE2, PREACT, [6.4, 6.5], precision="tf32", numerics=3)
    elsewhere = {"engine": "compile", "commit": "abc", "source": "1" * 16, "numerics": 3, "device": "a GPU"}
    other = replace(other, sessions=(a_session(other.iteration, **elsewhere),))
    assert shown(run, other) == ([6.4, 6.5], [])


@pytest.mark.parametrize(
    ("before", "data", "verified", "after"),
    [
        ("not comparable", UNVERIFIED, record(TABLE1, "plain/resnet110", 90.0), ORIGINAL),
        ("reproduced", COMPLETE, record(TABLE2, PREACT, 6.37, seed=5, data=COMPLETE_AFTER_ALL), COMPLETE_AFTER_ALL),
    ],
)
def test_pixels_verified_in_one_run_are_verified_in_all(before: str, data: Any, verified: Record, after: Any) -> None:
    runs = records(TABLE2, PREACT, [6.37] * 5, data=data)
    cell = compare_cell(TABLE2, PREACT, *runs)
    assert (cell.verdict, cell.reason == "") == (before, False)
    for order in ([*runs, verified], [verified, *runs]):
        cell = in_cell(compared(TABLE2, *order), PREACT)
        assert (cell.verdict, cell.reason) == ("reproduced", "")
        assert cell.shown
        assert cell.shown.conditions.data == after


def test_data_sets_with_equal_fingerprints_are_equal() -> None:
    names = [DataFacts(name, "", False, COPY.fingerprint) for name in ("one", "another")]
    runs = [record(TABLE2, PREACT, 6.4 + i, seed=i, data=facts) for i, facts in enumerate(names)]
    assert shown(*runs) == ([6.4, 7.4], [])


# External results


def test_external_results_do_not_count_in_reduced_profiles() -> None:
    comparison = compared(TABLE2, profile="shallow", externals=[external(TABLE2, PREACT, 6.0)])
    assert {c.shown for c in comparison.cells} == {None}
    assert comparison.left_out == ()


def test_external_result_has_one_setting_and_crop() -> None:
    cell = compare_cell(TABLE1, SWEEP, externals=[external(TABLE1, SWEEP, 50.0, setting="gate_bias=-2")])
    assert [bool(net.shown) for net in cell.nets] == [False, False, True, False, False, False]
    entered = [external(TABLE5, "original_resnet152/top1", 21.0)]
    assert [c.id for c in compared(TABLE5, externals=entered).cells if c.shown] == ["original_resnet152/top1"]


# Left out


TO_256 = {"batch_size": 256}
GATING, OLD_NAME = "exclusive_gating_7/resnet110", "resnet110_exclusive_gating(gate_bias=-8)"
WARM_UP, WITHOUT_WARM_UP = "cifar10_resnet164/preact", "cifar10_resnet164_no_warm_up/preact"
OLD_GATING = record(TABLE1, GATING, 9.8, recipe=TO_256)
RUN, ON_CIFAR100 = record(TABLE2, PREACT, 6.4), record(TABLE3, "cifar100_resnet164/preact", 24.3)
OLD, PLAIN = record(TABLE2, PREACT, 6.4, seed=2, recipe=TO_256), record(TABLE1, "plain/resnet110", 90.0)
OLD_SHALLOW = record(TABLE2, PREACT, 6.4, profile="shallow", recipe=TO_256)
CHANGED = replace(external(TABLE1, SWEEP, 50.0, seed=4, source="a blog", setting="gate_bias=-2"), experiment="0" * 64)


def no_tables() -> list[Table]:
    raise AssertionError("nothing here needs another table")


def mixed(**newer: Any) -> Record:
    return replace(RUN, sessions=(a_session(5), a_session(RUN.iteration, **newer)))


def old(**how: Any) -> list[Record]:
    return [record(TABLE2, PREACT, 6.4, recipe=how)]


LEFT_OUT: list[tuple[str, int, Table, list[Record], dict[str, Any]]] = [
    ("in order", 0, TABLE2, [RUN], {"other_tables": no_tables}),
    ("of two versions of numerics", 1, TABLE2, [mixed(numerics=2)], {}),
    ("of two versions of torch", 1, TABLE2, [mixed(torch="3.0.0")], {}),
    ("of two versions, of another table", 0, TABLE1, [mixed(numerics=2)], {}),
    ("of two versions, of another profile", 0, TABLE2, [mixed(numerics=2)], {"profile": "smoke"}),
    ("of another experiment", 1, TABLE2, [OLD], {}),
    ("with two changes", 1, TABLE2, old(momentum_form="pytorch", **TO_256), {}),
    ("with something absent", 1, TABLE2, old(warm_up=None, young=1), {}),
    ("with many changes", 1, TABLE2, old(**dict.fromkeys("abcdef", 1)), {}),
    # of the experiments of its model that with the fewest changes
    ("closer to another cell", 1, TABLE3, [record(TABLE3, WARM_UP, 5.5, recipe={**TO_256, "warm_up": None})], {}),
    # whatever it was called
    ("renamed", 1, TABLE1, [replace(OLD_GATING, net=OLD_NAME)], {}),
    ("renamed long ago", 1, TABLE1, [replace(OLD_GATING, net="a name of long ago")], {}),
    ("of nets of other tables", 0, TABLE2, [PLAIN, record(TABLE3, "cifar10_resnet1001/preact", 4.9)], {}),
    ("of another profile", 0, TABLE2, [OLD_SHALLOW], {"other_tables": no_tables}),
    ("of this profile", 1, TABLE2, [OLD_SHALLOW], {"profile": "shallow"}),
    # of this table's model with other outputs
    ("of another table", 0, TABLE2, [ON_CIFAR100], {"other_tables": lambda: [TABLE1, TABLE3]}),
    ("of no table", 1, TABLE2, [ON_CIFAR100], {"other_tables": lambda: [TABLE1]}),
    ("of another experiment, in no table", 1, TABLE2, [OLD], {"other_tables": lambda: [TABLE1, TABLE3]}),
    ("external, of a changed experiment", 1, TABLE1, [], {"externals": [CHANGED]}),
    ("external, of another table", 0, TABLE2, [], {"externals": [external(TABLE1, "plain/resnet110", 50.0)]}),
]


def test_what_is_left_out_is_reported() -> None:
    lines = []
    for title, number, table, runs, how in LEFT_OUT:
        comparison = compared(table, *runs, **how)
        assert len(comparison.left_out) == number, title
        if number:
            assert not any(net.shown for c in comparison.cells for net in c.nets), title
            lines.append(f"{title}: {comparison.left_out[0]}")
    assert_golden("left_out", "\n".join(lines) + "\n")
