from __future__ import annotations

from pathlib import Path

import pytest

from paperbench.data.dataset import ImageDataset
from paperbench.runs.planning import needed_datasets, plan, run_spec
from paperbench.specs.table import Table, load_table
from tests.helpers import copy_of_specs, edit

IDS = {
    "original/resnet110": "fac5ccbeabef-s0",
    "bn_after_addition/resnet110": "9293f7024cca-s0",
    "relu_before_addition/resnet110": "7269d8eabf18-s0",
    "relu_only_preact/resnet110": "fd67d8a884e9-s0",
    "preact/resnet110": "b1d0990844eb-s0",
    "original/resnet164": "57fdf5a11a8e-s0",
    "bn_after_addition/resnet164": "2ac046a30f97-s0",
    "relu_before_addition/resnet164": "c5e7f3dbcf03-s0",
    "relu_only_preact/resnet164": "d4c31656fae2-s0",
    "preact/resnet164": "132445bad1eb-s0",
}


def planned(table: Table, dataset: ImageDataset, profile: str, seeds: int, pattern: str = "*") -> list[tuple[str, int]]:
    cells = table.cells(pattern)
    datasets = dict.fromkeys(needed_datasets(cells, table.profiles.named(profile)), dataset)
    return [(run.cells[0], run.seed) for run in plan(table, cells, profile, "fp32", seeds, datasets)]


def test_the_first_seed_of_every_cell_comes_before_the_second(table2: Table, small_dataset: ImageDataset) -> None:
    runs = planned(table2, small_dataset, "paper", 2)
    assert len(runs) == 20
    assert [seed for _, seed in runs] == [0] * 10 + [1] * 10
    assert len({cell for cell, _ in runs[:10]}) == 10


def test_cells_that_need_the_same_training_share_it(table2: Table, small_dataset: ImageDataset) -> None:
    (cell,) = table2.cells("preact/resnet110")
    runs = plan(table2, [cell, cell], "paper", "fp32", 1, {"cifar10": small_dataset})
    assert [run.cells for run in runs] == [(cell.id, cell.id)]


def test_a_shared_training_is_called_by_the_name_that_the_first_cell_gives_it(
    small_dataset: ImageDataset, tmp_path: Path
) -> None:
    specs = copy_of_specs(tmp_path)
    other = "{model: preact_resnet110, kwargs: {placement: original}}"
    edit(specs / "experiments" / "table2.yaml", "resnet110: resnet110_bn_after_addition", f"resnet110: {other}")
    table = load_table("table2", specs)
    cells = table.cells("original/resnet110") + table.cells("bn_after_addition/resnet110")
    (shared,) = plan(table, cells, "paper", "fp32", 1, {"cifar10": small_dataset})
    assert shared.cells == ("original/resnet110", "bn_after_addition/resnet110")
    assert shared.net_name == "original_resnet110"


def test_a_net_on_cifar100_has_its_classes_and_its_tag(small_dataset: ImageDataset, tmp_path: Path) -> None:
    specs = copy_of_specs(tmp_path)
    edit(
        specs / "experiments" / "table2.yaml",
        "figure: 4(e)\n    dataset: cifar10",
        "figure: 4(e)\n    dataset: cifar100",
    )
    table = load_table("table2", specs)
    runs = plan(table, table.cells("preact/*"), "paper", "fp32", 1, {"cifar100": small_dataset})
    assert [(run.net_name, run.net.num_classes) for run in runs] == [
        ("preact_resnet110.cifar100", 100),
        ("preact_resnet164.cifar100", 100),
    ]
    (small,) = plan(table, table.cells("preact/resnet110"), "shallow", "fp32", 1, {"cifar100": small_dataset})
    assert small.net_name == "preact_resnet110.cifar100(depth=20)"
    (digits,) = plan(table, table.cells("preact/resnet110"), "smoke", "fp32", 1, {"digits": small_dataset})
    assert (digits.net_name, digits.net.num_classes) == ("preact_resnet110(depth=14)", 10)


@pytest.mark.parametrize(("profile", "dataset"), [("paper", "cifar10"), ("shallow", "cifar10"), ("smoke", "digits")])
def test_data_sets_that_a_profile_needs(table2: Table, profile: str, dataset: str) -> None:
    assert needed_datasets(table2.cells(), table2.profiles.named(profile)) == [dataset]


def test_run_ids_of_the_paper_never_change(table2: Table) -> None:
    """A change here renames runs that people have trained for days. Fields added to specs must keep old digests.

    These ids are pinned, not derived: that they follow from the spec is tested with the spec.
    """
    profile = table2.profiles.named("paper")
    recipe = table2.recipe_in(profile)
    ids = {
        cell.id: run_spec(cell.net_in(profile), recipe, "0" * 64, "paper", "fp32").run_id(0) for cell in table2.cells()
    }
    assert ids == IDS
