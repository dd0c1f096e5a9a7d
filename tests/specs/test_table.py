from __future__ import annotations

import re
from pathlib import Path

import pytest

from paperbench.errors import PaperbenchError
from paperbench.specs.locate import spec_root
from paperbench.specs.table import Table, load_table, table_ids
from tests.helpers import ROOT, edit


@pytest.fixture(scope="module")
def table() -> Table:
    return load_table("table2", ROOT)


@pytest.mark.parametrize("row", ["original", "bn_after_addition", "relu_before_addition", "relu_only_preact", "preact"])
@pytest.mark.parametrize(("column", "depth", "family"), [("resnet110", 110, "basic"), ("resnet164", 164, "bottleneck")])
def test_each_cell_trains_the_net_of_its_row_and_column(
    table: Table, row: str, column: str, depth: int, family: str
) -> None:
    (cell,) = table.cells(f"{row}/{column}")
    paper = table.profiles.named("paper")
    net = cell.net_in(paper)
    assert (net.placement, net.depth, net.family, net.num_classes) == (row, depth, family, 10)
    assert cell.dataset_in(paper) == "cifar10"
    expected = f"{row}_{column}" if row in ("original", "preact") else f"{column}_{row}"
    assert str(cell.reference_in(paper)) == expected


def test_the_paper_profile_changes_nothing(table: Table) -> None:
    paper = table.profiles.named("paper")
    assert (dict(paper.depth), paper.dataset, paper.recipe, paper.seeds) == ({}, None, None, None)
    assert table.seeds_in(paper) == 5
    assert table.recipe_in(paper).iterations == 64_000


@pytest.mark.parametrize(
    ("profile", "depths", "dataset", "iterations"),
    [
        ("shallow", {"basic": 20, "bottleneck": 29}, "cifar10", 64_000),
        ("smoke", {"basic": 14, "bottleneck": 20}, "digits", 80),
    ],
)
def test_reduced_profiles_keep_family_and_placement_at_legal_depths(
    table: Table, profile: str, depths: dict[str, int], dataset: str, iterations: int
) -> None:
    reduced, paper = table.profiles.named(profile), table.profiles.named("paper")
    for cell in table.cells():
        net, full = cell.net_in(reduced), cell.net_in(paper)
        assert net.depth == depths[net.family]
        assert (net.depth - 2) % {"basic": 6, "bottleneck": 9}[net.family] == 0
        assert (net.family, net.placement, net.shortcut_option) == (full.family, full.placement, full.shortcut_option)
        assert cell.dataset_in(reduced) == dataset
        assert str(cell.reference_in(reduced)) == f"{cell.reference_in(paper)}(depth={net.depth})"
    assert table.recipe_in(reduced).iterations == iterations
    assert table.seeds_in(reduced) == 1


def test_an_unknown_profile_is_refused(table: Table) -> None:
    with pytest.raises(PaperbenchError, match=r"Unknown profile 'smok'\. Did you mean 'smoke'"):
        table.profiles.named("smok")


@pytest.mark.parametrize(
    ("pattern", "number"),
    [("*", 10), ("preact/*", 2), ("*/resnet1?0", 5), ("[bo]*/*164", 2), ("preact", 2), ("resnet164", 5)],
)
def test_cells_are_chosen_by_a_shell_pattern(table: Table, pattern: str, number: int) -> None:
    assert len(table.cells(pattern)) == number


def test_cells_come_column_by_column(table: Table) -> None:
    assert [cell.id for cell in table.cells()][:6] == [
        *(f"{row.id}/resnet110" for row in table.experiment.rows),
        "original/resnet164",
    ]


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [("preact/resnet11", "Did you mean 'preact/resnet110'?"), ("PREACT", "Did you mean 'preact'?"), ("", "Known:")],
)
def test_a_pattern_that_matches_no_cell_is_refused(table: Table, pattern: str, hint: str) -> None:
    with pytest.raises(PaperbenchError, match=re.escape(f"No cell of table2 matches {pattern!r}. {hint}")):
        table.cells(pattern)


def test_unknown_tables_are_refused(specs: Path) -> None:
    assert table_ids(specs) == ["table1", "table2", "table3", "table4", "table5"]
    with pytest.raises(PaperbenchError, match=r"Unknown table 'tabel2'\. Did you mean 'table2'"):
        load_table("tabel2", specs)
    with pytest.raises(PaperbenchError, match="Unknown table 'profiles'"):
        load_table("profiles", specs)


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PaperbenchError, match="has no folders experiments/ and expected/"):
        spec_root(tmp_path)
    (tmp_path / "experiments").mkdir()
    with pytest.raises(PaperbenchError, match="has no folders experiments/ and expected/"):
        spec_root(tmp_path)
    (tmp_path / "expected").mkdir()
    assert spec_root(tmp_path) == tmp_path
    with pytest.raises(PaperbenchError, match=r"Unknown table 'table2'\. There are none\."):
        load_table("table2", tmp_path)


EXPERIMENT, EXPECTED = "experiments/table2.yaml", "expected/table2.yaml"


def test_a_cell_may_differ_from_the_defaults(specs: Path) -> None:
    edit(specs / EXPECTED, "resnet110: 8.17", "resnet110: {value: 8.17, n: 3, tolerance: 0.2}")
    (cell,) = load_table("table2", specs).cells("bn_after_addition/resnet110")
    assert (cell.published_runs, cell.tolerance) == (3, 0.2)


def test_arguments_of_a_net_show_in_its_name_and_give_way_to_the_profiles_depth(specs: Path) -> None:
    edit(
        specs / EXPERIMENT,
        "resnet110: preact_resnet110, ",
        "resnet110: {model: preact_resnet110, kwargs: {depth: 56, shortcut_option: B}}, ",
    )
    table = load_table("table2", specs)
    (cell,) = table.cells("preact/resnet110")
    named = {name: str(cell.reference_in(table.profiles.named(name))) for name in ("paper", "smoke")}
    assert named == {
        "paper": "preact_resnet110(depth=56, shortcut_option='B')",
        "smoke": "preact_resnet110(depth=14, shortcut_option='B')",
    }
    assert cell.net_in(table.profiles.named("smoke")).depth == 14


def test_a_single_run_is_one_run_whatever_the_default_says(specs: Path) -> None:
    edit(specs / EXPECTED, "resnet164: 5.93", "resnet164: {value: 5.93, statistic: single}")
    assert load_table("table2", specs).cell("original/resnet164").published_runs == 1


def test_a_sweep_is_one_cell_of_a_net_for_each_value(tables: dict[str, Table]) -> None:
    table = tables["table1"]
    cell = table.cell("exclusive_gating_0_to_5/resnet110")
    paper = table.profiles.named("paper")
    assert [setting.label for setting in cell.settings] == [f"gate_bias={b}" for b in (0, -1, -2, -3, -4, -5)]
    assert [cell.net_in(paper, setting).gate_bias for setting in cell.settings] == [0, -1, -2, -3, -4, -5]
    assert [str(cell.reference_in(paper, setting)) for setting in cell.settings][5] == (
        "resnet110_exclusive_gating(gate_bias=-5)"
    )
    assert cell.net_in(paper) == cell.net_in(paper, cell.settings[0])


def test_a_table_may_train_in_a_precision_of_its_own(tables: dict[str, Table], specs: Path) -> None:
    chosen = {name: table.experiment.precision for name, table in tables.items()}
    assert chosen == {"table1": "fp32", **dict.fromkeys(("table2", "table3", "table4", "table5"))}
    edit(specs / "experiments/table1.yaml", "precision: fp32 ", "precision: tf32 ")
    assert load_table("table1", specs).experiment.precision == "tf32"
