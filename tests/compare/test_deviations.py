"""Deviations of our runs from the authors' experiment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paperbench.compare.deviations import Deviation
from paperbench.runs.record import DataFacts, Record
from paperbench.specs.experiment import CellNets
from paperbench.specs.table import Table
from tests.compare.judging import COMPLETE, COPY, ORIGINAL, a_table, compared, external, record, records
from tests.helpers import a_session

TABLE1, TABLE2, TABLE4, TABLE5 = (a_table(f"table{i}") for i in (1, 2, 4, 5))
PREACT, ORIGINAL_110, PREACT_164 = "preact/resnet110", "original/resnet110", "preact/resnet164"
UNVERIFIED = DataFacts("unverified", "unknown", False, ORIGINAL.fingerprint)
SILENT = {
    "momentum form": "caffe",
    "initialisation": "fan out",
    "batch norm, eps": "1e-05",
    "batch norm, moving average": "0.1",
    "batch norm, at test": "reestimated",
}
SHORTCUTS = "shortcut option where dimensions change"
OPEN = {**SILENT, SHORTCUTS: "A"}
"""Our choices that the paper does not specify."""


def found(*runs: Record, table: Table = TABLE2, **how: Any) -> dict[str, Deviation]:
    listed = compared(table, *runs, **how).deviations
    assert len({d.topic for d in listed}) == len(listed)
    return {d.topic: d for d in listed}


def test_no_deviations_without_our_own_runs() -> None:
    assert compared(TABLE2).deviations == compared(TABLE2, externals=[external(TABLE2, PREACT, 6.4)]).deviations == ()


def test_paper_profile_deviates_by_framework_and_unspecified_choices() -> None:
    topics = found(record(TABLE2, PREACT, 6.4))
    assert topics.pop("framework") == Deviation("framework", "Caffe", "PyTorch 2.15.0", (PREACT,))
    assert {topic: d.ours.replace("_", " ") for topic, d in topics.items()} == OPEN
    assert {(d.paper, d.cells) for d in topics.values()} == {("", (PREACT,))}


@pytest.mark.parametrize(
    ("runs", "further"),
    [
        ([record(TABLE2, PREACT, 6.4, precision="tf32")], [("precision", "fp32", "tf32")]),
        ([record(TABLE2, PREACT, 6.4, data=COPY)], [("data", "CIFAR-10", "CIFAR-10 (some copy) (re-encoded)")]),
        ([record(TABLE2, PREACT, 6.4, data=COMPLETE)], [("data", "CIFAR-10", "CIFAR-10 (images unverified)")]),
        # pixels that another run verified, and runs that are not shown
        ([record(TABLE2, PREACT, 6.4, data=UNVERIFIED), record(TABLE2, PREACT, 6.5, seed=1)], []),
        ([record(TABLE2, PREACT, 6.4), record(TABLE2, PREACT, 6.4, precision="bf16", data=COPY)], []),
    ],
)
def test_further_deviations_of_the_shown_runs(runs: list[Record], further: list[tuple[str, str, str]]) -> None:
    topics = found(*runs)
    assert set(topics) == {"framework", *OPEN, *(topic for topic, *_ in further)}
    assert [topics[topic] for topic, *_ in further] == [Deviation(*one, (PREACT,)) for one in further]


def test_weight_decay_of_the_imagenet_recipe_deviates() -> None:
    scale, dagger = (record(TABLE5, f"{row}/top1", 21.0) for row in ("preact_resnet200", "preact_resnet200_aspect"))
    deviation = found(scale, table=TABLE5)["weight decay on"]
    assert (deviation.paper, deviation.ours) == ("convolutions", "all")
    assert "weight decay on" not in found(dagger, table=TABLE5)


def test_changes_of_a_reduced_profile() -> None:
    digits = DataFacts("digits", "scikit-learn", False, "d" * 64)
    topics = found(record(TABLE2, PREACT, 9.0, profile="smoke", data=digits), profile="smoke")
    assert {t: (d.paper, d.ours) for t, d in topics.items() if t not in OPEN} == {
        "framework": ("Caffe", "PyTorch 2.15.0"),
        "data": ("CIFAR-10", "digits (scikit-learn)"),
        "batch-norm statistics in training": ("over 64 images", "over 32"),
        "depth": ("110", "14"),
        "batch size": ("128", "64"),
        "iterations": ("64000", "80"),
        "warm up, iterations": ("400", "5"),
        "drops, at": ("32000 and 48000", "50 and 65"),
        "augmentation, flip": ("yes", "no"),
    }


def test_other_crops_of_a_reduced_profile_deviate() -> None:
    rows = ("original_resnet152_224", "preact_resnet152")
    runs = [record(TABLE5, f"{row}/top1", 80.0, profile="smoke") for row in rows]
    listed = [d for d in compared(TABLE5, *runs, profile="smoke").deviations if d.topic == "tested on"]
    crop = "{0}x{0} crop of a shorter side of {1}".format
    rows_of = {d.paper: {cell.partition("/")[0] for cell in d.cells} for d in listed}
    assert {d.paper: d.ours for d in listed} == {crop(224, 256): crop(64, 73), crop(320, 320): crop(92, 92)}
    assert {"original_resnet152_224", "original_resnet101"} <= rows_of[crop(224, 256)]
    assert "preact_resnet152" in rows_of[crop(320, 320)]
    assert "tested on" not in found(record(TABLE5, "preact_resnet152/top1", 21.0), table=TABLE5)


def test_unspecified_choices_about_nets() -> None:
    runs = [record(TABLE1, cell.id, 9.0, setting=cell.settings[0].label) for cell in TABLE1.cells()]
    listed = [d for d in compared(TABLE1, *runs).deviations if not d.paper and d.topic not in SILENT]
    rows = {cell.row.id for cell in TABLE1.cells()}
    gates = {row for row in rows if "gating" in row}
    assert len(gates) == 5
    assert {d.topic: (d.ours, {cell.partition("/")[0] for cell in d.cells}) for d in listed} == {
        SHORTCUTS: ("A", rows - {"conv_shortcut"}),
        "gate weight initialisation": ("he", gates),
        "BN on convolution shortcuts": ("same as the placement's projections", {"conv_shortcut"}),
        "inverted dropout (scaled in training)": ("no", {"dropout_shortcut"}),
    }


def test_dropout_in_residual_branches_deviates() -> None:
    cell = TABLE2.cell(PREACT)
    dropping = CellNets("preact_resnet110", {"residual_dropout": 0.3})
    row = replace(cell.row, cells={**cell.row.cells, "resnet110": dropping})
    cells = tuple(replace(c, row=row) if c.id == PREACT else c for c in TABLE2.all_cells)
    table = replace(TABLE2, all_cells=cells)
    run = record(TABLE2, PREACT, 6.4, net={"residual_dropout": 0.3})
    expected = Deviation("dropout in residual branches", "none", "0.3", (PREACT,))
    assert found(run, table=table)["dropout in residual branches"] == expected


DAGGER, NO_DAGGER = "preact_resnet1001_batch64/cifar10", "preact_resnet1001/cifar10"
TF32, SHALLOW = {"precision": "tf32"}, {"profile": "shallow"}


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


def test_framework_versions_are_listed_with_their_cells() -> None:
    runs = [record(TABLE4, DAGGER, 4.6), *records(TABLE4, NO_DAGGER, [4.9, 4.8])]
    newer = replace(runs[2], sessions=(a_session(runs[2].iteration, torch="2.16.1"),))
    listed = [d for d in compared(TABLE4, *runs[:2], newer).deviations if d.topic == "framework"]
    assert {(d.paper, d.ours[-6:]): d.cells for d in listed} == {
        ("Torch7", "2.15.0"): (DAGGER,),
        ("Caffe", "2.15.0"): (NO_DAGGER,),
        ("Caffe", "2.16.1"): (NO_DAGGER,),
    }


def test_deviations_cover_every_setting_of_a_sweep() -> None:
    cell = "exclusive_gating_0_to_5/resnet110"
    runs = [record(TABLE1, cell, 90.0, setting=setting) for setting in ("gate_bias=0", "gate_bias=-5")]
    odd = record(TABLE1, cell, 90.0, setting="gate_bias=-3", precision="bf16")
    assert "precision" not in found(*runs, table=TABLE1)
    assert found(*runs, odd, table=TABLE1)["precision"].ours == "bf16"
