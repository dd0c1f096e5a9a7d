"""Rows that are run only if they are named in full, and profiles in which only some cells are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paperbench.errors import PaperbenchError
from paperbench.specs.table import Table, load_table
from tests.helpers import edit

ON_REQUEST = {
    "table1": set(),
    "table2": set(),
    "table3": {"cifar10_resnet164_no_warm_up/preact"},
    "table4": {"resnet1202/cifar10"},
    "table5": {
        "resnet101_constant_scaling/top1",
        "resnet101_exclusive_gating/top1",
        "resnet101_shortcut_only_gating/top1",
        "resnet101_conv_shortcut/top1",
        "resnet101_dropout_shortcut/top1",
    },
}


def ids(table: Table, *patterns: str, **how: bool) -> set[str]:
    return {cell.id for pattern in patterns for cell in table.cells(pattern, **how)}


@pytest.mark.parametrize("name", ON_REQUEST)
def test_what_is_costly_or_not_printed_is_left_out_unless_it_is_named(tables: dict[str, Table], name: str) -> None:
    table = tables[name]
    everything = {cell.id for cell in table.all_cells}
    assert everything - ids(table, "*") == ON_REQUEST[name]
    assert everything - ids(table, "*/*") == ON_REQUEST[name]
    assert ids(table, "*", on_request=True) == everything


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("resnet1202", True),
        ("resnet1202/cifar*", True),
        ("cifar10", False),
        ("resnet1*", False),
        ("resnet1*/cifar10", False),
    ],
)
def test_a_row_on_request_is_named_by_its_id_in_full(tables: dict[str, Table], pattern: str, found: bool) -> None:
    table = tables["table4"]
    assert ("resnet1202/cifar10" in ids(table, pattern)) == found
    assert "resnet1202/cifar10" in ids(table, pattern, on_request=True)


@pytest.mark.parametrize(
    ("table", "pattern", "rows"),
    [
        ("table4", "resnet120*", "resnet1202"),
        ("table4", "*1202/cifar10", "resnet1202"),
        ("table5", "resnet101_*_gating", "resnet101_exclusive_gating or resnet101_shortcut_only_gating"),
    ],
)
def test_a_pattern_that_only_such_rows_match_is_refused_with_their_names(
    tables: dict[str, Table], table: str, pattern: str, rows: str
) -> None:
    told = f"{pattern!r} matches cells that are run only if their row is named in full: {rows}."
    with pytest.raises(PaperbenchError, match=re.escape(told)):
        tables[table].cells(pattern)


def test_a_cell_can_be_asked_for_by_its_id_whether_or_not_it_is_on_request(tables: dict[str, Table]) -> None:
    assert tables["table4"].cell("resnet1202/cifar10").row.on_request
    assert not tables["table4"].cell("resnet110/cifar10").row.on_request
    with pytest.raises(PaperbenchError, match=r"table4 has no cell 'resnet110/cifar100'\. Did you mean 'resnet1"):
        tables["table4"].cell("resnet110/cifar100")


@pytest.mark.parametrize("name", ["table1", "table2", "table3", "table4"])
@pytest.mark.parametrize("profile", ["paper", "shallow", "smoke"])
def test_every_cell_on_cifar_can_be_run_in_every_profile(tables: dict[str, Table], name: str, profile: str) -> None:
    table = tables[name]
    chosen = table.profiles.named(profile)
    for cell in table.all_cells:
        assert cell.is_in(chosen)
        recipe = table.recipe_in(chosen, cell.recipe)
        assert recipe.iterations == (80 if profile == "smoke" else 156_250 if cell.recipe == "cifar_torch" else 64_000)
        for setting in cell.settings:
            net, full = cell.net_in(chosen, setting), cell.net_in(table.profiles.named("paper"), setting)
            depths = {"paper": full.depth, "shallow": 29 if full.family == "bottleneck" else 20}
            assert net.depth == depths.get(profile, 20 if full.family == "bottleneck" else 14)
            for what in ("family", "placement", "shortcut", "shortcut_scale", "residual_scale", "gate_bias"):
                assert getattr(net, what) == getattr(full, what)
            assert cell.dataset_in(chosen) == ("digits" if profile == "smoke" else cell.dataset)
            assert net.num_classes == (10 if profile == "smoke" else full.num_classes)


def test_no_cell_on_imagenet_is_in_the_smoke_profile_and_all_else_is(tables: dict[str, Table]) -> None:
    table = tables["table5"]
    smoke = table.profiles.named("smoke")
    for cell in table.all_cells:
        assert not cell.is_in(smoke)
        told = f"Cell {cell.id} is not for a profile that trains on digits: "
        for ask in (cell.dataset_in, cell.net_in, cell.reference_in):
            with pytest.raises(PaperbenchError, match=re.escape(told)):
                ask(smoke)
        for name in ("paper", "shallow"):
            assert cell.is_in(table.profiles.named(name))
            assert cell.dataset_in(table.profiles.named(name)) == "imagenet"
    assert table.recipe_in(table.profiles.named("paper")).iterations == 600_000
    assert table.recipe_in(table.profiles.named("shallow"), "imagenet_torch").iterations == 450_410
    assert [table.seeds_in(table.profiles.named(name)) for name in ("paper", "shallow", "smoke")] == [3, 1, 1]


def test_a_profile_that_spoils_the_recipe_of_a_cell_on_cifar_is_refused_and_of_one_on_imagenet_is_not(
    specs: Path,
) -> None:
    """The first drop of cifar_torch comes after 62,500 iterations, those of imagenet after 150,137."""
    edit(specs / "experiments/profiles.yaml", "      drops: {at: [50, 65]}\n", "")
    edit(specs / "experiments/profiles.yaml", "      iterations: 80\n", "      iterations: 70000\n")
    load_table("table5", specs)
    load_table("table2", specs)
    with pytest.raises(PaperbenchError, match="the drop at 94531 comes after the last of 70000 iterations"):
        load_table("table4", specs)
