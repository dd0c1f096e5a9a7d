from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from paperbench.errors import PaperbenchError
from paperbench.specs.locate import spec_root
from paperbench.specs.strict_yaml import SpecError
from paperbench.specs.table import Table, load_table, table_ids
from tests.helpers import ROOT, copy_of_specs, edit, line_of

PRINTED = {  # Table 2 of the paper
    "original/resnet110": 6.61,
    "original/resnet164": 5.93,
    "bn_after_addition/resnet110": 8.17,
    "bn_after_addition/resnet164": 6.50,
    "relu_before_addition/resnet110": 7.84,
    "relu_before_addition/resnet164": 6.14,
    "relu_only_preact/resnet110": 6.71,
    "relu_only_preact/resnet164": 5.91,
    "preact/resnet110": 6.37,
    "preact/resnet164": 5.46,
}


@pytest.fixture(scope="module")
def table() -> Table:
    return load_table("table2", ROOT)


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    return copy_of_specs(tmp_path)


def test_table2_has_exactly_the_numbers_that_the_paper_prints(table: Table) -> None:
    assert {cell.id: cell.expected.value for cell in table.cells()} == PRINTED


def test_a_spread_is_published_only_for_the_original_resnet110(table: Table) -> None:
    spreads = {cell.id: cell.expected.std for cell in table.cells() if cell.expected.std is not None}
    assert spreads == {"original/resnet110": 0.16}


def test_every_number_is_a_median_of_five_and_five_seeds_are_run(table: Table) -> None:
    assert table.expected.defaults.statistic == "median"
    assert {cell.published_runs for cell in table.cells()} == {5}
    assert table.experiment.seeds == 5


def test_rows_stand_in_the_papers_order_with_its_figures(table: Table) -> None:
    assert [(row.title, row.figure) for row in table.experiment.rows] == [
        ("original Residual Unit", "4(a)"),
        ("BN after addition", "4(b)"),
        ("ReLU before addition", "4(c)"),
        ("ReLU-only pre-activation", "4(d)"),
        ("full pre-activation", "4(e)"),
    ]
    assert [column.title for column in table.experiment.columns] == ["ResNet-110", "ResNet-164"]


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


def test_the_shallow_profile_trains_by_the_papers_recipe(table: Table) -> None:
    both = [table.recipe_in(table.profiles.named(name)).defining_values() for name in ("paper", "shallow")]
    assert both[0] == both[1]


def test_an_unknown_profile_is_refused(table: Table) -> None:
    with pytest.raises(PaperbenchError, match=r"Unknown profile 'smok'\. Did you mean 'smoke'"):
        table.profiles.named("smok")


@pytest.mark.parametrize(
    ("pattern", "number"),
    [
        ("*", 10),
        ("preact/*", 2),
        ("*/resnet164", 5),
        ("*preact/resnet110", 2),
        ("*/resnet1?0", 5),
        ("[bo]*/*164", 2),
        ("preact", 2),
        ("resnet164", 5),
    ],
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
    [("preact/resnet11", "Did you mean 'preact/resnet110'?"), ("PREACT", "Known: bn_after"), ("", "Known:")],
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


EXPERIMENT, EXPECTED, PROFILES, RECIPE = (
    "experiments/table2.yaml",
    "expected/table2.yaml",
    "experiments/profiles.yaml",
    "experiments/recipes/cifar.yaml",
)

BROKEN = {
    "unknown net": (
        EXPERIMENT,
        "resnet110: preact_resnet110, ",
        "resnet110: preact_resnet11, ",
        "Unknown net 'preact_resnet11'. Did you mean 'preact_resnet1",
    ),
    "net without a name": (EXPERIMENT, "resnet110: preact_resnet110, ", "resnet110: , ", "must be the name of a net"),
    "unknown argument of a net": (
        EXPERIMENT,
        "resnet110: preact_resnet110, ",
        "resnet110: {model: preact_resnet110, kwargs: {dept: 20}}, ",
        "preact_resnet110 has no argument 'dept'. Did you mean 'depth'?",
    ),
    "argument that `resolve` has for itself": (
        EXPERIMENT,
        "resnet110: preact_resnet110, ",
        "resnet110: {model: preact_resnet110, kwargs: {name: original_resnet110}}, ",
        "preact_resnet110 has no argument 'name'.",
    ),
    "argument that the data set decides": (
        EXPERIMENT,
        "resnet110: preact_resnet110, ",
        "resnet110: {model: preact_resnet110, kwargs: {num_classes: 5}}, ",
        "num_classes follows from the data set; leave it out.",
    ),
    "argument that the net would ignore": (
        EXPERIMENT,
        "resnet110: preact_resnet110, ",
        "resnet110: {model: preact_resnet110, kwargs: {gate_bias: -6}}, ",
        "preact_resnet110 would ignore gate_bias: its shortcut is identity",
    ),
    "argument with a wrong value": (
        EXPERIMENT,
        "resnet110: preact_resnet110, ",
        "resnet110: {model: preact_resnet110, kwargs: {shortcut: constant_scaling, shortcut_scale: '0,5'}}, ",
        "shortcut_scale of preact_resnet110 must be a number, not '0,5'.",
    ),
    "unknown tag": (
        EXPERIMENT,
        "resnet110: preact_resnet110, ",
        "resnet110: preact_resnet110.cifar1, ",
        "preact_resnet110 has no tag 'cifar1'. Did you mean 'cifar10'?",
    ),
    "tag of another data set": (
        EXPERIMENT,
        "cells: {resnet110: preact_resnet110, ",
        "cells: {resnet110: preact_resnet110.cifar100, ",
        "resnet110: preact_resnet110.cifar100 is tagged for cifar100, and the data set is cifar10. Drop the tag.",
    ),
    "net for large images on small ones": (
        EXPERIMENT,
        "cells: {resnet110: preact_resnet110, ",
        "cells: {resnet110: preact_resnet101, ",
        "preact_resnet101 is a net for images of 224x224 pixels, and CIFAR-10 has 32x32.",
    ),
    "net for small images on large ones": (
        EXPERIMENT,
        "dataset: cifar10\n    cells: {resnet110: preact_resnet110, ",
        "dataset: imagenet\n    cells: {resnet110: preact_resnet110, ",
        "preact_resnet110 is a net for images of 32x32 pixels, and ImageNet (ILSVRC 2012) has 224x224.",
    ),
    "key of a net misspelt": (
        EXPERIMENT,
        "resnet110: preact_resnet110, ",
        "resnet110: {modle: preact_resnet110}, ",
        "unknown key 'modle'. Did you mean 'model'?",
    ),
    "unknown column": (
        EXPERIMENT,
        "- id: preact\n    title: full pre-activation\n    figure: 4(e)\n    dataset: cifar10\n    cells: {resnet110:",
        "- id: preact\n    title: full pre-activation\n    figure: 4(e)\n    dataset: cifar10\n    cells: {resnet11:",
        "row 'preact': unknown column 'resnet11'. Did you mean 'resnet110'?",
    ),
    "column twice": (EXPERIMENT, "- {id: resnet164,", "- {id: resnet110,", "the id 'resnet110' stands twice in"),
    "row twice": (EXPERIMENT, "- id: preact\n", "- id: original\n", "the id 'original' stands twice in rows."),
    "slash in an id": (EXPERIMENT, "- id: preact\n", "- id: pre/act\n", "the id 'pre/act' must be made of small"),
    "no seeds": (EXPERIMENT, "seeds: 5", "seeds: 0", "seeds must be from 1 to 1000, not 0."),
    "unknown data set": (
        EXPERIMENT,
        "figure: 4(e)\n    dataset: cifar10",
        "figure: 4(e)\n    dataset: cifra10",
        "unknown data set 'cifra10'. Did you mean 'cifar10'?",
    ),
    "other table's experiment": (
        EXPERIMENT,
        "table: table2",
        "table: table3",
        "says `table: table3`, but the file is named table2.yaml.",
    ),
    "unknown recipe": (EXPERIMENT, "recipe: cifar", "recipe: cifra", "has no recipe 'cifra'. Did you mean 'cifar'?"),
    "schema of the future": (EXPERIMENT, "schema: 1", "schema: 2", "2 is not allowed here. Known: 1."),
    "other table's numbers": (
        EXPECTED,
        "table: table2\nsource:",
        "table: table3\nsource:",
        "says `table: table3`, but the file is named table2.yaml.",
    ),
    "missing number": (
        EXPECTED,
        "bn_after_addition: {resnet110: 8.17, resnet164: 6.50}",
        "bn_after_addition: {resnet110: 8.17}",
        "the cell 'bn_after_addition/resnet164' of the experiment has no published number here.",
    ),
    "number without a cell": (
        EXPECTED,
        "preact: {resnet110: 6.37, resnet164: 5.46}",
        "preact: {resnet110: 6.37, resnet164: 5.46, resnet1001: 4.92}",
        "the experiment has no cell 'preact/resnet1001'. Did you mean 'preact/resnet110'?",
    ),
    "number that is none": (EXPECTED, "resnet110: 8.17", "resnet110: failed", "'failed' is neither a test error in"),
    "number written with a comma": (EXPECTED, "resnet110: 8.17", "resnet110: '8,17'", "'8,17' is neither a test error"),
    "number above 100": (EXPECTED, "resnet110: 8.17", "resnet110: 817", "lies between 0 and 100 percent, 817.0"),
    "number that is not finite": (EXPECTED, "resnet110: 8.17", "resnet110: .nan", "lies between 0 and 100 percent"),
    "std without a source": (
        EXPECTED,
        "std: 0.16\n      std_source: arXiv:1512.03385, Table 6 (6.43 best, 6.61 mean, 0.16 std of 5 runs)\n",
        "std: 0.16\n",
        "std and std_source need each other.",
    ),
    "negative std": (EXPECTED, "std: 0.16", "std: -0.16", "a standard deviation is positive, -0.16 is not."),
    "no run behind the numbers": (EXPECTED, "n: 5,", "n: 0,", "n must be at least 1, not 0."),
    "negative tolerance": (EXPECTED, "tolerance: 0.5", "tolerance: -0.5", "tolerance must be positive, not -0.5."),
    "remark about an unknown cell": (
        EXPECTED,
        "- cell: relu_only_preact/resnet164",
        "- cell: relu_only_preact/resnet146",
        "unknown cell 'relu_only_preact/resnet146'. Did you mean 'relu_only_preact/resnet164'?",
    ),
    "peer of an unknown cell": (
        EXPECTED,
        "- cell: bn_after_addition/resnet110\n    value: 13.56",
        "- cell: bn_after_addition/resnet11\n    value: 13.56",
        "unknown cell 'bn_after_addition/resnet11'. Did you mean 'bn_after_addition/resnet110'?",
    ),
    "illegal depth in a profile": (
        PROFILES,
        "depth: {basic: 14, bottleneck: 20, one_layer: 14}",
        "depth: {basic: 15, bottleneck: 20, one_layer: 14}",
        "A basic net has no depth 15: depths are 6n+2. Nearest: 14 or 20.",
    ),
    "unknown family in a profile": (
        PROFILES,
        "depth: {basic: 14, bottleneck: 20, one_layer: 14}",
        "depth: {basci: 14, bottleneck: 20, one_layer: 14}",
        "unknown family 'basci'. Did you mean 'basic'?",
    ),
    "unknown data set in a profile": (PROFILES, "dataset: digits", "dataset: digit", "Did you mean 'digits'?"),
    "misspelt key in a profile's recipe": (
        PROFILES,
        "drops: {at: [50, 65]}",
        "dorps: {at: [50, 65]}",
        "unknown key 'dorps'. Did you mean 'drops'?",
    ),
    "misspelt key further down": (PROFILES, "{group: 32}", "{gruop: 32}", "unknown key 'gruop'. Did you mean 'group'?"),
    "wrong value in a profile's recipe": (PROFILES, "{group: 32}", "{group: 48}", "divide batch_size 64, not 48"),
    "a paper profile that changes something": (
        PROFILES,
        "title: the paper's nets, data and schedule, exactly",
        "title: the paper's nets, data and schedule, exactly\n    seeds: 3",
        "there must be a profile `paper`, and it must change nothing.",
    ),
    "misspelt key in the recipe": (RECIPE, "momentum: 0.9", "momentun: 0.9", "Did you mean 'momentum'?"),
    "other recipe's name": (
        RECIPE,
        "recipe: cifar",
        "recipe: mine",
        "`recipe: mine`, but the file is named cifar.yaml",
    ),
    "number without a point": (RECIPE, "decay: 0.0001", "decay: 1e-4", "YAML reads 1e-4 as text; write 1.0e-4."),
}
BLAMES_THE_KEY_ABOVE = {
    "column twice",
    "row twice",
    "slash in an id",
    "missing number",
    "a paper profile that changes something",
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_wrong_with_a_file_is_one_error_with_file_and_line(specs: Path, case: str) -> None:
    name, old, new, message = BROKEN[case]
    first = edit(specs / name, old, new)
    with pytest.raises(SpecError) as caught:
        load_table("table2", specs)
    found = re.match(rf"{re.escape(str(specs / name))}:(\d+): ", str(caught.value))
    assert found, caught.value
    assert message in str(caught.value)
    if case not in BLAMES_THE_KEY_ABOVE:
        assert first <= int(found[1]) <= first + new.strip().count("\n")


def test_a_missing_number_is_missed_at_its_row(specs: Path) -> None:
    file = specs / EXPECTED
    edit(file, "{resnet110: 8.17, resnet164: 6.50}", "{resnet110: 8.17}")
    with pytest.raises(SpecError, match=f":{line_of(file, 'resnet110: 8.17')}: "):
        load_table("table2", specs)


def test_a_missing_row_is_missed_at_the_cells(specs: Path) -> None:
    file = specs / EXPECTED
    edit(file, "  bn_after_addition: {resnet110: 8.17, resnet164: 6.50}\n", "")
    line = file.read_text(encoding="utf-8").splitlines().index("cells:") + 1
    with pytest.raises(SpecError, match=f":{line}: the cell 'bn_after_addition/resnet110' "):
        load_table("table2", specs)


@pytest.mark.parametrize("part", ["rows", "columns"])
def test_a_table_without_rows_or_columns_is_refused(specs: Path, part: str) -> None:
    file = specs / EXPERIMENT
    text = file.read_text(encoding="utf-8")
    head, tail = text.split("columns:\n"), text.split("rows:\n")
    kept = head[0] + (
        "columns: []\nrows:\n" + tail[1]
        if part == "columns"
        else "columns:\n" + head[1].split("rows:")[0] + "rows: []\n"
    )
    file.write_text(kept, encoding="utf-8")
    with pytest.raises(SpecError, match=rf":{line_of(file, part + ': []')}: a table needs {part}."):
        load_table("table2", specs)


def test_a_profile_that_makes_the_recipe_inconsistent_is_named(specs: Path) -> None:
    edit(specs / PROFILES, "      batch_norm: {group: 32}\n", "")
    edit(specs / PROFILES, "batch_size: 64", "batch_size: 96")
    with pytest.raises(SpecError) as caught:
        load_table("table2", specs)
    line = line_of(specs / PROFILES, "nets of 14 and 20 layers")
    assert "divide batch_size 96, not 64" in str(caught.value)
    assert f"(With the changes of the profile at {specs / PROFILES}:{line}.)" in str(caught.value)


@pytest.mark.parametrize("name", [EXPECTED, PROFILES, RECIPE])
def test_a_missing_file_is_named(specs: Path, name: str) -> None:
    (specs / name).unlink()
    with pytest.raises(SpecError, match=r"cannot be read: No such file|has no recipe 'cifar'\."):
        load_table("table2", specs)


def test_fail_is_a_published_number(specs: Path) -> None:
    edit(specs / EXPECTED, "resnet110: 8.17", "resnet110: fail")
    (cell,) = load_table("table2", specs).cells("bn_after_addition/resnet110")
    assert cell.expected.value == "fail"


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


def test_recipes_are_those_of_the_profile_asked_for_however_many_there_were(table: Table) -> None:
    """A cache by the identity of an object must not outlive the object."""

    def iterations(number: int) -> int:
        changes = yaml.compose(f"iterations: {number}\ndrops: {{at: [1]}}\nwarm_up: null")
        return table.recipe_in(replace(table.profiles.named("paper"), recipe=changes)).iterations

    assert [iterations(number) for number in range(500, 540)] == list(range(500, 540))
