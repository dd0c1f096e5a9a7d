"""Loading tables, choosing cells, and cells in profiles."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paperbench.errors import PaperbenchError
from paperbench.specs.expected import ExpectedCell
from paperbench.specs.profile import changed_profile
from paperbench.specs.table import Table, find_spec_root, read_table
from tests.fuzz.strategies import is_refused
from tests.helpers import ROOT
from tests.specs.small_specs import ONE, ONE_EXPECTED, PROFILES, REMOVED, SMALL, SmallSpecs

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


ROWS = ["original", "bn_after_addition", "relu_before_addition", "relu_only_preact", "preact"]


def ids(table: Table, pattern: str, **options: bool) -> set[str]:
    return {cell.id for cell in table.cells(pattern, **options)}


# Loading


@pytest.mark.parametrize("name", ["tabel2", 2])
def test_unknown_table_gets_a_suggestion(name: Any) -> None:
    with pytest.raises(PaperbenchError, match=re.escape(f"Unknown table {name!r}. Did you mean 'table2'?")):
        read_table(name, ROOT)


def test_directory_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PaperbenchError, match="has no directory experiments/"):
        find_spec_root(tmp_path)
    (tmp_path / "experiments").mkdir()
    assert find_spec_root(tmp_path) == tmp_path
    with pytest.raises(PaperbenchError, match=r"Unknown table 'table2'\. There are none\."):
        read_table("table2", tmp_path)


def test_a_table_needs_no_other_file_and_a_recipe_of_its_own_wins(specs: SmallSpecs, table2: Table) -> None:
    for name in (ONE_EXPECTED, PROFILES):
        (specs.root / name).unlink()
    for own in ("small", "cifar"):
        specs.set(ONE, ("recipe",), own)
        table = specs.load()
        assert (table.name, table.has_numbers, table.profiles) == ("one", False, table2.profiles)
        assert {cell.expected for cell in table.all_cells} == {ExpectedCell("unprinted")}
    recipes = [one.recipe_in(one.profiles.named("smoke")) for one in (table, table2)]
    assert recipes[0] == recipes[1]
    text = (specs.root / SMALL).read_text().replace("recipe: small", "recipe: cifar").replace("64000", "64001")
    (specs.root / "experiments/recipes/cifar.yaml").write_text(text)
    assert {recipe.iterations for recipe in specs.load().recipes.values()} == {64001, 80}


def test_where_a_recipe_is_from_does_not_change_its_runs(specs: SmallSpecs) -> None:
    before = specs.load().recipes
    for key in ("source", "authors", "silent"):
        specs.set(SMALL, (key,), REMOVED)
    for key, recipe in specs.load().recipes.items():
        assert recipe.defining_values() == before[key].defining_values()


def test_cell_can_override_the_defaults(specs: SmallSpecs) -> None:
    specs.set(ONE_EXPECTED, ("cells", "preact", "basic"), {"value": 6.37, "n": 3, "tolerance": 0.2})
    specs.set(ONE_EXPECTED, ("cells", "preact", "deep"), {"value": 5.46, "statistic": "single"})
    specs.set(ONE, ("precision",), "tf32")
    table = specs.load()
    found = [(cell.published_runs, cell.tolerance) for cell in (table.cell("preact/basic"), table.cell("preact/deep"))]
    assert found == [(3, 0.2), (1, 0.5)]
    assert table.experiment.precision == "tf32"


# Choosing cells


def test_unknown_cell_and_profile_get_a_suggestion(table2: Table) -> None:
    with pytest.raises(
        PaperbenchError, match=r"table2 has no cell 'preact/resnet11'\. Did you mean 'preact/resnet110'"
    ):
        table2.cell("preact/resnet11")
    with pytest.raises(PaperbenchError, match=r"Unknown profile 'smok'\. Did you mean 'smoke'"):
        table2.profiles.named("smok")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (["preact", "original"], ["original/110", "preact/110", "original/164", "preact/164"]),
        (("preact/*110", "preact", "preact"), ["preact/110", "preact/164"]),
        ("[bo]*/*164", ["original/164", "bn_after_addition/164"]),
        ("resnet164", [f"{row}/164" for row in ROWS]),
        ("*", [f"{row}/{depth}" for depth in (110, 164) for row in ROWS]),
    ],
)
def test_patterns_choose_cells_column_by_column(
    table2: Table, pattern: str | Sequence[str], expected: list[str]
) -> None:
    assert [cell.id.replace("resnet", "") for cell in table2.cells(pattern)] == expected


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["original", "preakt"], "No cell of table2 matches 'preakt'. Did you mean 'preact'?"),
        ("preakt/*", "Did you mean 'preact/*'?"),
        ("*/resnet101", "Did you mean '*/resnet110'?"),
        ("preakt/resnet100", "Did you mean 'preact/resnet110'?"),
        ("original,preact", "Give several patterns one by one, without commas: original preact."),
        ("xyz", "Known: bn_after_addition, original, preact,"),
        ([], "Give at least one"),
    ],
)
def test_pattern_without_a_cell_is_refused_with_a_suggestion(
    table2: Table, patterns: str | Sequence[str], message: str
) -> None:
    with pytest.raises(PaperbenchError, match=re.escape(message)):
        table2.cells(patterns)


def test_row_on_request_must_be_named_in_full(tables: dict[str, Table]) -> None:
    table = tables["table4"]
    assert "resnet1202/cifar10" in ids(table, "resnet1202/cifar*")
    assert "resnet1202/cifar10" not in ids(table, "resnet1*/cifar10")
    with pytest.raises(PaperbenchError, match=r"only if their row is named in full: resnet1202\."):
        table.cells(["resnet110", "resnet120*"])
    assert len(table.cells(["*", "resnet1202"])) == len(table.all_cells)


@pytest.mark.parametrize("name", ON_REQUEST)
def test_patterns_omit_rows_on_request(tables: dict[str, Table], name: str) -> None:
    everything = {cell.id for cell in tables[name].all_cells}
    assert everything - ids(tables[name], "*") == everything - ids(tables[name], "*/*") == ON_REQUEST[name]
    assert ids(tables[name], "*", on_request=True) == everything
    assert {cell.id for cell in tables[name].all_cells if cell.row.on_request} == ON_REQUEST[name]


# Cells in profiles


@pytest.mark.parametrize("name", ["table1", "table2", "table3", "table4"])
@pytest.mark.parametrize("profile", ["paper", "shallow", "smoke"])
def test_profiles_change_only_depth_and_data_of_cifar_nets(tables: dict[str, Table], name: str, profile: str) -> None:
    table = tables[name]
    chosen, paper = table.profiles.named(profile), table.profiles.named("paper")
    assert table.seeds_in(chosen) == (5 if profile == "paper" else 1)
    for cell in table.all_cells:
        recipe = table.recipe_in(chosen, cell.recipe)
        assert recipe.iterations == (80 if profile == "smoke" else 156_250 if cell.recipe == "cifar_torch" else 64_000)
        assert cell.dataset_in(chosen) == ("digits" if profile == "smoke" else cell.dataset)
        for setting in cell.settings:
            net, full = cell.net_in(chosen, setting), cell.net_in(paper, setting)
            depths = {"paper": full.depth, "shallow": 29 if full.family == "bottleneck" else 20}
            assert net.depth == depths.get(profile, 20 if full.family == "bottleneck" else 14)
            for key in ("family", "placement", "shortcut", "shortcut_scale", "residual_scale", "gate_bias"):
                assert getattr(net, key) == getattr(full, key)
            assert net.shortcut_option == full.shortcut_option
            assert net.num_classes == (10 if profile == "smoke" else full.num_classes)


@pytest.mark.parametrize("profile", ["paper", "shallow", "smoke"])
def test_profiles_change_only_depth_and_data_of_imagenet_nets(tables: dict[str, Table], profile: str) -> None:
    table = tables["table5"]
    chosen, paper = table.profiles.named(profile), table.profiles.named("paper")
    crops = {"crop224": (64, 73), "crop320": (92, 92)} if profile == "smoke" else {"crop224": (224, 256)}
    iterations = {"imagenet": 600_000, "imagenet_torch": 450_450}
    for cell in table.all_cells:
        recipe, evaluation = table.recipe_in(chosen, cell.recipe), table.evaluation_in(chosen, cell)
        assert recipe.iterations == (20 if profile == "smoke" else iterations[cell.recipe])
        assert evaluation
        assert (evaluation.crop, evaluation.scale) == crops.get(cell.row.evaluation or "", (320, 320))
        assert cell.dataset_in(chosen) == ("photos" if profile == "smoke" else "imagenet")
        net, full = cell.net_in(chosen), cell.net_in(paper)
        assert net.depth == (full.depth if profile == "paper" else 50)
        classes = 6 if profile == "smoke" else 1000
        assert net == replace(full, depth=net.depth, num_classes=classes, shortcut_option=net.shortcut_option)


def test_arguments_of_a_net_are_in_its_name_except_an_overridden_depth(specs: SmallSpecs) -> None:
    kwargs = {"depth": 56, "shortcut_option": "B"}
    specs.set(ONE, ("rows", 1, "cells", "basic"), {"model": "preact_resnet110", "kwargs": kwargs})
    table = specs.load()
    names = [str(table.cell("preact/basic").reference_in(table.profiles.named(name))) for name in ("paper", "quick")]
    assert names == [f"preact_resnet110(depth={depth}, shortcut_option='B')" for depth in (56, 14)]


def test_sweep_is_one_cell_with_a_net_per_value(tables: dict[str, Table]) -> None:
    cell, paper = tables["table1"].cell("exclusive_gating_0_to_5/resnet110"), tables["table1"].profiles.named("paper")
    biases = [0, -1, -2, -3, -4, -5]
    assert [setting.label for setting in cell.settings] == [f"gate_bias={bias}" for bias in biases]
    assert [cell.net_in(paper, setting).gate_bias for setting in cell.settings] == biases
    assert str(cell.reference_in(paper, cell.settings[5])) == "resnet110_exclusive_gating(gate_bias=-5)"
    assert cell.net_in(paper) == cell.net_in(paper, cell.settings[0])


def test_only_table1_fixes_its_precision(tables: dict[str, Table]) -> None:
    precisions = {name: table.experiment.precision for name, table in tables.items()}
    assert precisions == {"table1": "fp32", **dict.fromkeys(("table2", "table3", "table4", "table5"))}


# Profiles with values set

EVERY = ("log", "test", "checkpoint")
KEYS = ["iterations", "batch_size", "drops.at", "learning_rate", "schedule", "momentum_form", "a.b", "paper", ""]
VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists)


@given(iterations=st.integers(200, 10**9))
def test_what_is_counted_in_iterations_keeps_its_share(table2: Table, iterations: int) -> None:
    recipe, paper = (table2.recipe_in(table2.profile(name)) for name in (f"paper+iterations={iterations}", "shallow"))
    counted = [
        (one.warm_up.iterations, *one.drops.at, *(getattr(one.monitoring, f"{key}_every") for key in EVERY))
        for one in (recipe, paper)
        if one.warm_up and one.drops
    ]
    assert counted[0] == tuple(max(1, number * iterations // 64_000) for number in counted[1])
    others = [{**one.defining_values(), "iterations": 0, "warm_up": 0, "drops": 0} for one in (recipe, paper)]
    assert others[0] == others[1]


def test_values_that_are_set_are_taken_as_they_are(table2: Table) -> None:
    name, _ = changed_profile("paper+drops.at=[3,5]", ["iterations=9", "warm_up.iterations=2", "momentum_form=pytorch"])
    assert name == "paper+drops.at=[3,5],iterations=9,momentum_form=pytorch,warm_up.iterations=2"
    values = table2.recipe_in(table2.profile(name)).values_by_name()
    expected = {"drops.at": [3, 5], "iterations": 9, "momentum_form": "pytorch", "warm_up.iterations": 2}
    assert {key: values[key] for key in expected} == expected


def test_equal_values_have_one_name() -> None:
    texts = (["batch_size=64", "learning_rate=1"], ["learning_rate=1.0", "batch_size=6.4e1"])
    assert {changed_profile("smoke", one)[0] for one in texts} == {"smoke+batch_size=64,learning_rate=1"}


@given(st.lists(st.tuples(st.sampled_from(KEYS), VALUES | st.text().map(lambda text: f"[{text}"))), st.text())
def test_any_name_is_a_profile_or_refused(table2: Table, values: list[tuple[str, Any]], end: str) -> None:
    """Records of strangers have any."""
    name = "paper+" + ",".join(f"{key}={value}" for key, value in values) + end
    assert is_refused(PaperbenchError, table2.profile, name) != (table2.profiles_among([name]) == [name])
