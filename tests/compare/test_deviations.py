"""Deviations of our runs from the authors' experiment. Whole lists are in tests/printed/deviations.txt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from paperbench.compare.deviations import Deviation
from paperbench.runs.record import DataFacts, Record
from paperbench.specs.experiment import CellNets
from paperbench.specs.table import Table
from tests.compare.judging import COMPLETE, COPY, ORIGINAL, a_table, compared, external, record, records
from tests.golden import assert_golden
from tests.helpers import a_session

TABLE1, TABLE2, TABLE4, TABLE5 = (a_table(f"table{i}") for i in (1, 2, 4, 5))
PREACT, ORIGINAL_110, PREACT_164 = "preact/resnet110", "original/resnet110", "preact/resnet164"
DAGGER, NO_DAGGER = "preact_resnet1001_batch64/cifar10", "preact_resnet1001/cifar10"
SHORTCUTS = "shortcut option where dimensions change"
UNVERIFIED = DataFacts("unverified", "unknown", False, ORIGINAL.fingerprint)
DIGITS = DataFacts("digits", "scikit-learn", False, "d" * 64)
TF32, SHALLOW = {"precision": "tf32"}, {"profile": "shallow"}


def found(*runs: Record, table: Table = TABLE2, **how: Any) -> dict[str, Deviation]:
    listed = compared(table, *runs, **how).deviations
    assert len({d.topic for d in listed}) == len(listed)
    return {d.topic: d for d in listed}


def test_no_deviations_without_our_own_runs() -> None:
    assert compared(TABLE2).deviations == compared(TABLE2, externals=[external(TABLE2, PREACT, 6.4)]).deviations == ()


@pytest.mark.parametrize(
    ("runs", "further"),
    [
        ([record(TABLE2, PREACT, 6.4, **TF32)], [("precision", "fp32", "tf32")]),
        ([record(TABLE2, PREACT, 6.4, data=COPY)], [("data", "CIFAR-10", "CIFAR-10 (some copy) (re-encoded)")]),
        ([record(TABLE2, PREACT, 6.4, data=COMPLETE)], [("data", "CIFAR-10", "CIFAR-10 (images unverified)")]),
        # pixels that another run verified, and runs that are not shown
        ([record(TABLE2, PREACT, 6.4, data=UNVERIFIED), record(TABLE2, PREACT, 6.5, seed=1)], []),
        ([record(TABLE2, PREACT, 6.4), record(TABLE2, PREACT, 6.4, precision="bf16", data=COPY)], []),
    ],
)
def test_further_deviations_of_the_shown_runs(runs: list[Record], further: list[tuple[str, str, str]]) -> None:
    usual, topics = found(record(TABLE2, PREACT, 6.4)), found(*runs)
    assert {topic: topics.pop(topic) for topic, *_ in further} == {
        one[0]: Deviation(*one, (PREACT,)) for one in further
    }
    assert topics == usual


def test_dropout_in_residual_branches_deviates() -> None:
    cell = TABLE2.cell(PREACT)
    dropping = CellNets("preact_resnet110", {"residual_dropout": 0.3})
    row = replace(cell.row, cells={**cell.row.cells, "resnet110": dropping})
    table = replace(TABLE2, all_cells=tuple(replace(c, row=row) if c.id == PREACT else c for c in TABLE2.all_cells))
    run = record(TABLE2, PREACT, 6.4, net={"residual_dropout": 0.3})
    expected = Deviation("dropout in residual branches", "none", "0.3", (PREACT,))
    assert found(run, table=table)["dropout in residual branches"] == expected


def test_nested_values_have_their_whole_name() -> None:
    recipe = TABLE5.recipes["paper", "imagenet"]
    values = recipe.values_by_name()
    assert values["photographs.lighting.std"] == recipe.defining_values()["photographs"]["lighting"]["std"]
    assert values["photographs"] == recipe.defining_values()["photographs"]


@pytest.mark.parametrize(
    ("table", "topic", "runs", "cells"),
    [
        (TABLE2, SHORTCUTS, {PREACT: {}, PREACT_164: {}}, {"A": (PREACT,), "B": (PREACT_164,)}),
        (TABLE2, "depth", {PREACT: SHALLOW, PREACT_164: SHALLOW}, {"20": (PREACT,), "29": (PREACT_164,)}),
        (TABLE2, "precision", {PREACT: TF32, ORIGINAL_110: {}}, {"tf32": (PREACT,)}),
        (TABLE2, "precision", {PREACT: TF32, ORIGINAL_110: TF32}, {"tf32": (ORIGINAL_110, PREACT)}),
        (TABLE4, "momentum form", {DAGGER: {}, NO_DAGGER: {}}, {"caffe": (NO_DAGGER,)}),
    ],
)
def test_deviation_lists_its_cells(
    table: Table, topic: str, runs: dict[str, dict[str, Any]], cells: dict[str, tuple[str, ...]]
) -> None:
    found = [record(table, cell, 6.4, **how) for cell, how in runs.items()]
    elsewhere = [external(table, table.all_cells[-1].id, 5.5)]  # a cell without runs of our own is none that differs
    listed = compared(table, *found, profile=found[0].spec.profile, externals=elsewhere).deviations
    assert {d.ours: d.cells for d in listed if d.topic == topic} == cells


def test_deviations_cover_every_setting_of_a_sweep() -> None:
    cell = "exclusive_gating_0_to_5/resnet110"
    runs = [record(TABLE1, cell, 90.0, setting=setting) for setting in ("gate_bias=0", "gate_bias=-5")]
    odd = record(TABLE1, cell, 90.0, setting="gate_bias=-3", precision="bf16")
    assert "precision" not in found(*runs, table=TABLE1)
    assert found(*runs, odd, table=TABLE1)["precision"].ours == "bf16"


def lists() -> Iterator[tuple[str, Table, list[Record]]]:
    """Each with a title, and the runs of one profile."""
    first, second, third = record(TABLE4, DAGGER, 4.6), *records(TABLE4, NO_DAGGER, [4.9, 4.8])
    newer = replace(third, sessions=(a_session(third.iteration, torch="2.16.1"),))
    rows = ("preact_resnet200", "preact_resnet200_aspect", "preact_resnet152")
    crops = ("original_resnet152_224", "preact_resnet152")
    yield "Table 2", TABLE2, [record(TABLE2, PREACT, 6.4)]
    yield "reduced", TABLE2, [record(TABLE2, PREACT, 9.0, profile="smoke", data=DIGITS)]
    yield (
        "all nets of Table 1",
        TABLE1,
        [record(TABLE1, c.id, 9.0, setting=c.settings[0].label) for c in TABLE1.cells()],
    )
    yield "Table 4, of two versions of torch", TABLE4, [first, second, newer]
    yield "Table 5", TABLE5, [record(TABLE5, f"{row}/top1", 21.0) for row in rows]
    yield "reduced crops", TABLE5, [record(TABLE5, f"{row}/top1", 80.0, profile="smoke") for row in crops]


def test_lists_of_deviations() -> None:
    lines = []
    for title, table, runs in lists():
        lines.append(f"# {title}")
        comparison = compared(table, *runs, profile=runs[0].spec.profile)
        ours = tuple(c.id for c in comparison.cells if c.shown)
        for one in comparison.deviations:
            rows = (
                "all" if one.cells == ours else ", ".join(dict.fromkeys(cell.partition("/")[0] for cell in one.cells))
            )
            lines.append(f"{one.topic}: {one.paper or 'not said'} -> {one.ours} ({rows})")
    assert_golden("deviations", "\n".join(lines) + "\n")
