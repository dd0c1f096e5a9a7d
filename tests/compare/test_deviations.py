"""Where runs differ from the authors', each only where it applies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paperbench.compare.deviations import Deviation
from paperbench.runs.record import DataFacts, Environment, Record
from tests.compare.judging import COPY, ORIGINAL, a_table, compared, external, mixed, record, records

TABLE2 = a_table("table2")
PREACT, ORIGINAL_110 = "preact/resnet110", "original/resnet110"
SILENT = {
    "momentum form": "caffe",
    "initialisation": "fan out",
    "batch norm, eps": "1e-05",
    "batch norm, moving average": "0.1",
    "batch norm, at test": "reestimated",
}

SHORTCUTS = "option of shortcuts that change dimensions"
OPEN = {**SILENT, SHORTCUTS: "A"}
"""What the paper leaves open about recipe and net."""


def found(*runs: Record, table: Any = TABLE2, **how: Any) -> dict[str, Deviation]:
    listed = compared(table, *runs, **how).deviations
    assert len({d.topic for d in listed}) == len(listed)
    return {d.topic: d for d in listed}


def test_without_runs_nothing_differs() -> None:
    assert compared(TABLE2).deviations == ()


def test_the_papers_recipe_in_single_precision_differs_by_framework_and_in_what_the_paper_leaves_open() -> None:
    topics = found(record(TABLE2, PREACT, 6.4))
    assert topics.pop("framework") == Deviation("framework", "Caffe", "PyTorch 2.15.0")
    assert {topic: d.ours.replace("_", " ") for topic, d in topics.items()} == OPEN
    assert {(d.paper, d.cells) for d in topics.values()} == {("", ())}


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_other_precision_is_listed(precision: str) -> None:
    topics = found(record(TABLE2, PREACT, 6.4, precision=precision))
    assert topics["precision"] == Deviation("precision", "fp32", precision)
    assert set(topics) == {"framework", "precision", *OPEN}


def test_other_pixels_are_listed_with_their_origin() -> None:
    topics = found(record(TABLE2, PREACT, 6.4, data=COPY))
    assert topics["data"] == Deviation("data", "CIFAR-10", "CIFAR-10 (some copy) (re-encoded)")
    assert set(topics) == {"framework", "data", *OPEN}


def test_pixels_that_another_run_verified_are_not_listed() -> None:
    unverified = DataFacts("CIFAR-10 (unverified cifar10.npz)", "unknown", False, ORIGINAL.fingerprint)
    assert "data" in found(record(TABLE2, PREACT, 6.4, data=unverified))
    runs = [record(TABLE2, PREACT, 6.4, data=unverified), record(TABLE2, PREACT, 6.5, seed=1)]
    assert "data" not in found(*runs)


def test_a_reduced_profile_is_listed_with_all_that_it_changes() -> None:
    digits = DataFacts("digits", "scikit-learn", False, "d" * 64)
    topics = found(record(TABLE2, PREACT, 9.0, profile="smoke", data=digits), profile="smoke")
    schedule = {"depth", "batch size", "iterations", "warm up, iterations", "drops, at", "augmentation, flip"}
    assert set(topics) == {"framework", "data", "batch-norm statistics in training", *schedule, *OPEN}
    group = topics["batch-norm statistics in training"]
    assert (group.paper, group.ours) == ("over 64 images", "over 32")
    assert {topic: (topics[topic].paper, topics[topic].ours) for topic in schedule} == {
        "depth": ("110", "14"),
        "batch size": ("128", "64"),
        "iterations": ("64000", "80"),
        "warm up, iterations": ("400", "5"),
        "drops, at": ("32000 and 48000", "50 and 65"),
        "augmentation, flip": ("yes", "no"),
    }
    shallow = found(record(TABLE2, PREACT, 9.0, profile="shallow"), profile="shallow")
    assert set(shallow) == {"framework", "depth", *OPEN}


def test_a_recipe_without_warm_up_has_none_in_a_reduced_profile_either() -> None:
    table, cell = a_table("table3"), "cifar10_resnet164_no_warm_up/preact"
    topics = found(record(table, cell, 9.0, profile="smoke"), table=table, profile="smoke", cells=cell)
    assert "iterations" in topics
    assert not any(topic.startswith("warm up") for topic in topics)
    warm = "cifar10_resnet164/preact"
    warmed = found(record(table, warm, 9.0, profile="smoke"), table=table, profile="smoke", cells=warm)
    assert "warm up, iterations" in warmed


def test_what_the_paper_leaves_open_about_a_net_is_told_of_the_nets_that_have_it() -> None:
    table = a_table("table1")
    runs = [record(table, cell.id, 9.0, setting=cell.settings[0].label) for cell in table.cells()]
    listed = [d for d in compared(table, *runs).deviations if not d.paper and d.topic not in SILENT]
    told = {d.topic: (d.ours, {cell.partition("/")[0] for cell in d.cells}) for d in listed}
    gates = {cell.row.id for cell in table.cells() if "gating" in cell.row.id}
    rows = {cell.row.id for cell in table.cells()}
    assert len(gates) == 5
    assert told == {
        SHORTCUTS: ("A", rows - {"conv_shortcut"}),
        "initial weights of gates": ("he", gates),
        "BN on convolution shortcuts": ("as projections of the placement", {"conv_shortcut"}),
        "dropout scaled in training (inverted)": ("no", {"dropout_shortcut"}),
    }


def test_each_of_two_choices_is_told_with_its_cells() -> None:
    runs = [record(TABLE2, cell, 6.4) for cell in (PREACT, "preact/resnet164")]
    listed = compared(TABLE2, *runs).deviations
    assert {d.ours: d.cells for d in listed if d.topic == SHORTCUTS} == {"A": (PREACT,), "B": ("preact/resnet164",)}
    (stride,) = [d for d in listed if d.topic.startswith("convolution with the stride")]
    assert (stride.paper, stride.ours, stride.cells) == ("", "first", ("preact/resnet164",))


def test_the_depth_is_told_of_each_cell() -> None:
    cells = (PREACT, "preact/resnet164", ORIGINAL_110)
    listed = compared(TABLE2, *(record(TABLE2, c, 9.0, profile="shallow") for c in cells), profile="shallow").deviations
    depths = {(d.paper, d.ours): set(d.cells) for d in listed if d.topic == "depth"}
    assert depths == {("110", "20"): {PREACT, ORIGINAL_110}, ("164", "29"): {"preact/resnet164"}}


def test_runs_that_other_code_continued_are_listed() -> None:
    for newer in ({"numerics": 2}, {"torch": "3.0.0"}):
        topics = found(mixed(record(TABLE2, PREACT, 6.4), **newer))
        assert topics["versions"].ours == "runs continued by other numerics or another torch"
        assert set(topics) == {"framework", "versions", *OPEN}


def test_the_dagger_recipe_has_its_own_framework_and_leaves_only_the_net_open() -> None:
    table = a_table("table4")
    topics = found(record(table, "preact_resnet1001_batch64/cifar10", 4.6), table=table)
    assert list(topics.values()) == [
        Deviation("framework", "Torch7", "PyTorch 2.15.0"),
        Deviation(SHORTCUTS, "", "B"),
        Deviation("convolution with the stride in bottleneck units", "", "first"),
    ]


def test_each_cell_differs_as_its_own_recipe_says() -> None:
    table = a_table("table4")
    dagger, other = "preact_resnet1001_batch64/cifar10", "preact_resnet1001/cifar10"
    listed = compared(table, record(table, dagger, 4.6), record(table, other, 4.9)).deviations
    frameworks = {d.paper: d.cells for d in listed if d.topic == "framework"}
    assert frameworks == {"Torch7": (dagger,), "Caffe": (other,)}
    assert {d.cells for d in listed if d.topic in SILENT} == {(other,)}


def test_cells_are_named_only_if_not_all_that_have_runs_differ() -> None:
    runs = [record(TABLE2, PREACT, 6.4, precision="tf32"), record(TABLE2, ORIGINAL_110, 6.6)]
    topics = found(*runs)
    assert topics["precision"].cells == (PREACT,)
    assert topics["framework"].cells == ()
    both = [record(TABLE2, cell, 6.4, precision="tf32") for cell in (PREACT, ORIGINAL_110)]
    assert found(*both)["precision"].cells == ()
    elsewhere = [external(TABLE2, "preact/resnet164", 5.5)]
    assert found(*both, externals=elsewhere)["precision"].cells == ()


def test_only_the_runs_shown_are_told_of() -> None:
    runs = [record(TABLE2, PREACT, 6.4), record(TABLE2, PREACT, 6.4, precision="bf16", data=COPY)]
    assert set(found(*runs)) == {"framework", *OPEN}


def test_runs_in_progress_are_told_of() -> None:
    assert "precision" in found(record(TABLE2, PREACT, None, precision="tf32"))


def test_results_from_elsewhere_are_not() -> None:
    assert found(externals=[external(TABLE2, PREACT, 6.4)]) == {}


def test_every_framework_version_is_listed_with_its_cells() -> None:
    runs = records(TABLE2, PREACT, [6.4, 6.5])
    environment: Environment = replace(runs[1].environment, torch="2.16.1")
    listed = compared(TABLE2, runs[0], replace(runs[1], environment=environment), record(TABLE2, ORIGINAL_110, 6.6))
    frameworks = {d.ours: d.cells for d in listed.deviations if d.topic == "framework"}
    assert frameworks == {"PyTorch 2.15.0": (), "PyTorch 2.16.1": (PREACT,)}


def test_every_setting_of_a_sweep_is_looked_at() -> None:
    table, cell = a_table("table1"), "exclusive_gating_0_to_5/resnet110"
    runs = [record(table, cell, 90.0, setting="gate_bias=0"), record(table, cell, 90.0, setting="gate_bias=-5")]
    odd = record(table, cell, 90.0, setting="gate_bias=-3", precision="bf16")
    assert "precision" not in found(*runs, table=table)
    assert found(*runs, odd, table=table)["precision"].ours == "bf16"
