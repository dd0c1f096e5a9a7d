from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paperbench.data.dataset import ImageDataset
from paperbench.runs.planning import needed_datasets, net_and_recipe, planned_runs, run_spec
from paperbench.specs.table import Table, read_table
from tests.helpers import change_yaml, copy_of_specs

IDS = {
    "table1": {
        "plain/resnet110": "9546098323cd-s0",
        "constant_scaling_unscaled/resnet110": "6fce7725df90-s0",
        "constant_scaling/resnet110": "d15ef2d61db1-s0",
        "exclusive_gating_0_to_5/resnet110 gate_bias=-5": "7ebeaa68cf12-s0",
        "shortcut_only_gating_6/resnet110": "3c34d43bce3d-s0",
        "conv_shortcut/resnet110": "a375324b52b6-s0",
        "dropout_shortcut/resnet110": "6af0d2ad1793-s0",
    },
    "table2": {
        "original/resnet110": "a75397525ca2-s0",
        "bn_after_addition/resnet110": "5a16cc45059c-s0",
        "relu_before_addition/resnet110": "2e12a20cbedd-s0",
        "relu_only_preact/resnet110": "b68540420ec4-s0",
        "preact/resnet110": "7bcccfe52ccd-s0",
        "preact/resnet164": "191c1e13c107-s0",
    },
    "table3": {
        "cifar10_resnet110_1layer/preact": "63a30cf5bf8d-s0",
        "cifar10_resnet110/preact": "7bcccfe52ccd-s0",
        "cifar10_resnet1001/original": "97719a6a41b5-s0",
        "cifar100_resnet164/preact": "52bad693da1c-s0",
        "cifar10_resnet164_no_warm_up/preact": "5639df061f30-s0",
    },
    "table4": {
        "preact_resnet164/cifar10": "191c1e13c107-s0",
        "resnet1202/cifar10": "5a8763907fdb-s0",
        "preact_resnet1001_batch64/cifar10": "936f6be3ba5d-s0",
    },
}

EXPERIMENTS = {
    ("table1", "original/resnet110"): "70f9ff5f96bc",
    ("table2", "preact/resnet164"): "cc81942aa4c1",
    ("table3", "cifar100_resnet1001/preact"): "fcc9f046dd02",
    ("table4", "preact_resnet1001_batch64/cifar10"): "ea894f86be37",
    ("table5", "original_resnet152_224/top1"): "9b91a43417e6",
    ("table5", "preact_resnet152/top5"): "edc25ceb8822",
    ("table5", "preact_resnet200_aspect/top5"): "943470824d64",
}


def ids_of(table: Table, profile: str = "paper") -> dict[str, str]:
    """Return the run id of every net of every cell, for a data set whose fingerprint is all zeros."""
    chosen = table.profiles.named(profile)
    return {
        f"{cell.id} {setting.label}".strip(): run_spec(
            cell.net_in(chosen, setting), table.recipe_in(chosen, cell.recipe), "0" * 64, profile, "fp32"
        ).run_id(0)
        for cell in table.all_cells
        for setting in cell.settings
    }


def test_first_seed_of_every_cell_comes_first(table2: Table, small_dataset: ImageDataset) -> None:
    runs = planned_runs(table2, table2.cells("*"), "paper", "fp32", 2, {"cifar10": small_dataset})
    assert [run.seed for run in runs] == [0] * 10 + [1] * 10
    assert len({run.cells[0] for run in runs[:10]}) == 10


def test_shared_run_has_the_name_of_its_first_cell(small_dataset: ImageDataset, tmp_path: Path) -> None:
    specs = copy_of_specs(tmp_path)
    other = {"model": "preact_resnet110", "kwargs": {"placement": "original"}}
    change_yaml(specs / "experiments" / "table2.yaml", (("rows", 1, "cells", "resnet110"), other))
    table = read_table("table2", specs)
    cells = table.cells("original/resnet110") + table.cells("bn_after_addition/resnet110")
    (shared,) = planned_runs(table, cells, "paper", "fp32", 1, {"cifar10": small_dataset})
    assert shared.cells == ("original/resnet110", "bn_after_addition/resnet110")
    assert shared.net_name == "original_resnet110"


@pytest.mark.parametrize("table", IDS)
def test_run_ids_never_change(tables: dict[str, Table], table: str) -> None:
    """A changed id orphans runs that took days to train. New spec fields must keep the old digests."""
    found = ids_of(tables[table])
    assert {name: found[name] for name in IDS[table]} == IDS[table]


def test_cells_share_a_run_if_they_print_the_same_number(tables: dict[str, Table]) -> None:
    homes: dict[str, set[str]] = {}
    for name in ("table1", "table2", "table3", "table4"):
        ids = ids_of(tables[name])
        for cell in tables[name].all_cells:
            if len(cell.settings) == 1:
                homes.setdefault(ids[cell.id], set()).add(cell.home)
    assert all(len(cells) == 1 for cells in homes.values())
    assert len({home for cells in homes.values() for home in cells}) == len(homes) == 30


def test_sweep_has_one_run_per_value_and_seed(tables: dict[str, Table], small_dataset: ImageDataset) -> None:
    table = tables["table1"]
    cells = table.cells("exclusive_gating*")
    runs = planned_runs(table, cells, "paper", "fp32", 2, {"cifar10": small_dataset})
    assert [(run.seed, run.net.gate_bias) for run in runs] == [
        (seed, bias) for seed in (0, 1) for bias in (0, -1, -2, -3, -4, -5, -6, -7)
    ]
    assert runs[5].net_name == "resnet110_exclusive_gating(gate_bias=-5)"
    assert len({run.id for run in runs}) == 16


def test_each_cell_uses_its_own_recipe_and_data_set(tables: dict[str, Table], small_dataset: ImageDataset) -> None:
    table = tables["table4"]
    cells = table.cells("preact_*")
    paper = table.profiles.named("paper")
    assert needed_datasets(cells, paper) == ["cifar10", "cifar100"]
    other = replace(small_dataset, key="cifar100", x_train=small_dataset.x_train[::-1].copy())
    runs = planned_runs(table, cells, "paper", "fp32", 1, {"cifar10": small_dataset, "cifar100": other})
    assert {run.cells[0]: (run.net_name, run.recipe.recipe, run.spec.data) for run in runs} == {
        "preact_resnet164/cifar10": ("preact_resnet164", "cifar", small_dataset.fingerprint),
        "preact_resnet1001/cifar10": ("preact_resnet1001", "cifar", small_dataset.fingerprint),
        "preact_resnet1001_batch64/cifar10": ("preact_resnet1001", "cifar_torch", small_dataset.fingerprint),
        "preact_resnet164/cifar100": ("preact_resnet164.cifar100", "cifar", other.fingerprint),
        "preact_resnet1001/cifar100": ("preact_resnet1001.cifar100", "cifar", other.fingerprint),
    }
    assert small_dataset.fingerprint != other.fingerprint
    for run in runs:
        assert run.spec.recipe == run.recipe.defining_values()


def test_net_and_recipe_can_be_rebuilt_from_spec(tables: dict[str, Table]) -> None:
    for table in tables.values():
        paper = table.profiles.named("paper")
        for cell in table.all_cells:
            for setting in cell.settings:
                net, recipe = cell.net_in(paper, setting), table.recipe_in(paper, cell.recipe)
                spec = run_spec(net, recipe, "0" * 64, "paper", "fp32")
                read = replace(spec, net=json.loads(json.dumps(spec.net)), recipe=json.loads(json.dumps(spec.recipe)))
                again = net_and_recipe(read, list(recipe.evaluations.values()))
                assert again[0] == net
                assert again[1].defining_values() == recipe.defining_values()
                assert [*again[1].evaluations.values()] == [*recipe.evaluations.values()]
                assert run_spec(*again, "0" * 64, "paper", "fp32").digest == spec.digest


def digests(table: Table) -> dict[str, str]:
    return {
        f"{cell.id} {setting.label}".strip(): table.experiment_digest(cell, setting)
        for cell in table.all_cells
        for setting in cell.settings
    }


def test_experiment_digests_match_cells_that_print_the_same_number(tables: dict[str, Table]) -> None:
    pairs = {
        (f"{cell.home} {setting.label}", table.experiment_digest(cell, setting))
        for table in tables.values()
        for cell in table.all_cells
        for setting in cell.settings
    }
    assert len({home for home, _ in pairs}) == len({digest for _, digest in pairs}) == len(pairs)


def test_experiment_digests_never_change(tables: dict[str, Table]) -> None:
    """External results are stored under these digests."""
    found = {(table, cell): digests(tables[table])[cell][:12] for table, cell in EXPERIMENTS}
    assert found == EXPERIMENTS


TABLE, RECIPE = "experiments/table4.yaml", "experiments/recipes/cifar.yaml"
ROW = ("rows", 1)
NET = (*ROW, "cells", "cifar10")


@pytest.mark.parametrize(
    ("file", "path", "value"),
    [
        (TABLE, NET, "preact_resnet1202"),
        (TABLE, NET, {"model": "original_resnet1202", "kwargs": {"shortcut_option": "B"}}),
        (TABLE, (*ROW, "recipe"), "cifar_torch"),
        (RECIPE, ("weight_decay",), 0.0002),
    ],
)
def test_other_net_or_recipe_is_another_experiment(
    tables: dict[str, Table], tmp_path: Path, file: str, path: tuple[str | int, ...], value: Any
) -> None:
    specs = copy_of_specs(tmp_path)
    change_yaml(specs / file, (path, value))
    name = "resnet1202/cifar10"
    assert digests(read_table("table4", specs))[name] != digests(tables["table4"])[name]


def test_descriptive_values_do_not_change_the_experiment(tables: dict[str, Table], tmp_path: Path) -> None:
    specs = copy_of_specs(tmp_path)
    net = {"model": "original_resnet110", "kwargs": {"depth": 1202}}
    change_yaml(specs / TABLE, ((*ROW, "title"), "another title"), (("seeds",), 7), (NET, net))
    change_yaml(specs / "expected/table4.yaml", (("cells", "resnet1202", "cifar10", "value"), 7.94))
    change_yaml(specs / RECIPE, (("monitoring", "test_every"), 10), (("authors", "framework"), "Caffe2"))
    change_yaml(specs / "experiments/profiles.yaml", (("profiles", "smoke", "depth", "basic"), 20))
    assert digests(read_table("table4", specs)) == digests(tables["table4"])


def test_other_data_set_metric_or_crop_is_another_experiment(tables: dict[str, Table]) -> None:
    """The net stays the same."""
    of5 = digests(tables["table5"])
    names = [f"original_resnet152{crop}/{error}" for crop in ("_224", "") for error in ("top1", "top5")]
    assert len({of5[name] for name in names}) == 4
    table = tables["table4"]
    cell = table.cell("preact_resnet164/cifar10")
    (setting,) = cell.settings
    for other in (
        replace(cell, dataset="digits"),
        replace(cell, column=replace(cell.column, metric="top5")),
        replace(cell, recipe="cifar_torch"),
    ):
        assert table.experiment_digest(other, setting) != table.experiment_digest(cell, setting)
