"""A number that several tables print is typed once; the others refer to it, if they print the same experiment."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from paperbench.specs.table import Table, load_table
from tests.helpers import ROOT, edit, line_of
from tests.specs.conftest import Problems

REFERENCES = {
    "table1": {"original/resnet110": "table2/original/resnet110"},
    "table2": {},
    "table3": {
        "cifar10_resnet110/original": "table2/original/resnet110",
        "cifar10_resnet110/preact": "table2/preact/resnet110",
        "cifar10_resnet164/original": "table2/original/resnet164",
        "cifar10_resnet164/preact": "table2/preact/resnet164",
        "cifar10_resnet1001/preact": "table4/preact_resnet1001/cifar10",
        "cifar100_resnet1001/preact": "table4/preact_resnet1001/cifar100",
    },
    "table4": {
        "resnet110/cifar10": "table2/original/resnet110",
        "resnet164/cifar100": "table3/cifar100_resnet164/original",
        "resnet1001/cifar100": "table3/cifar100_resnet1001/original",
        "preact_resnet164/cifar10": "table2/preact/resnet164",
        "preact_resnet164/cifar100": "table3/cifar100_resnet164/preact",
    },
    "table5": {},
}
REFERRING, HERE, HOME = "expected/table3.yaml", "experiments/table3.yaml", "experiments/table2.yaml"
FIRST = "original: {same_as: table2/original/resnet110}"
ROW = """    title: ResNet-110
    labels: {dataset: CIFAR-10}
    dataset: cifar10
    cells: {original: original_resnet110, preact: preact_resnet110}
"""


def typed_cells(table: str) -> dict[str, Any]:
    """What stands in the file for each cell: a number, a word, or a mapping."""
    text = (ROOT / "expected" / f"{table}.yaml").read_text(encoding="utf-8")
    rows = yaml.safe_load(text)["cells"]
    return {f"{row}/{column}": cell for row, columns in rows.items() for column, cell in columns.items()}


@pytest.mark.parametrize("table", REFERENCES)
def test_cells_that_print_a_number_of_another_table_refer_to_it(tables: dict[str, Table], table: str) -> None:
    mappings = {cell: said for cell, said in typed_cells(table).items() if isinstance(said, dict)}
    found = {cell: said["same_as"] for cell, said in mappings.items() if "same_as" in said}
    assert found == REFERENCES[table]
    homes = {cell.id: cell.home for cell in tables[table].all_cells}
    assert homes == {cell: REFERENCES[table].get(cell, f"{table}/{cell}") for cell in homes}


def test_every_number_is_typed_in_one_place(tables: dict[str, Table]) -> None:
    """Whatever experiment two cells have in common, only one of them may have its result in the file."""
    typed = Counter(
        table.experiment_digest(cell, setting)
        for name, table in tables.items()
        for cell in table.all_cells
        for setting in cell.settings
        if cell.id not in REFERENCES[name]
    )
    assert set(typed.values()) == {1}
    said = [cell for name in tables for cell in typed_cells(name).values() if isinstance(cell, dict)]
    assert all(("same_as" in cell) != ("value" in cell) for cell in said)


def test_no_result_of_others_is_typed_twice(tables: dict[str, Table]) -> None:
    peers = Counter(
        (f"{name}/{peer.cell}", peer.source, peer.value)
        for name, table in tables.items()
        for peer in table.expected.peers
    )
    assert set(peers.values()) == {1}
    referring = {f"{name}/{cell}" for name, cells in REFERENCES.items() for cell in cells}
    assert not referring & {cell for cell, _, _ in peers}, "a peer stands with the number that it is a peer of"


def test_a_reference_brings_the_number_and_what_is_known_of_it(tables: dict[str, Table]) -> None:
    for name, cells in REFERENCES.items():
        for cell_id, home in cells.items():
            there, row, column = home.split("/")
            cell, other = tables[name].cell(cell_id), tables[there].cell(f"{row}/{column}")
            for what in ("number", "tolerance", "published_runs", "defaults", "home"):
                assert getattr(cell, what) == getattr(other, what), (cell_id, what)
            for what in ("mean", "std", "std_source", "statistic", "source", "note"):
                assert getattr(cell.expected, what) == getattr(other.expected, what), (cell_id, what)
            assert cell.number is not None


def test_what_holds_for_all_numbers_of_a_table_holds_where_they_are_referred_to(specs: Path) -> None:
    old = "{statistic: median, n: 5, tolerance: 0.5}"
    edit(specs / "expected/table2.yaml", old, "{statistic: median, n: 7, tolerance: 0.4}")
    table = load_table("table3", specs)
    found = {name: table.cell(f"{name}/original") for name in ("cifar10_resnet110", "cifar10_resnet1001")}
    assert {name: (cell.published_runs, cell.tolerance) for name, cell in found.items()} == {
        "cifar10_resnet110": (7, 0.4),
        "cifar10_resnet1001": (5, 0.5),
    }


def test_marks_and_parameters_stay_with_the_table_that_prints_them(specs: Path) -> None:
    note = "6.61 stands here"
    home = specs / "expected/table2.yaml"
    edit(home, "resnet164: 5.93", "resnet164: {value: 5.93, mark: x, params: 1M, note: there}")
    edit(home, "claims:\n", "footnotes: {x: a mark}\nclaims:\n")
    edit(specs / REFERRING, FIRST, f"{FIRST[:-1]}, note: {note}}}")
    table = load_table("table3", specs)
    other = table.cell("cifar10_resnet164/original").expected
    assert (other.value, other.mark, other.params, other.note) == (5.93, None, None, "there")
    assert table.cell("cifar10_resnet110/original").expected.note == note


@pytest.mark.parametrize(
    ("file", "old", "new", "differs"),
    [
        (HERE, "original: original_resnet110,", "original: original_resnet56,", "net is original_resnet110, and here"),
        (
            HERE,
            "\n    dataset: cifar10\n",
            "\n    dataset: cifar100\n",
            "data set is cifar10, and here it is cifar100.",
        ),
        (HERE, "", "    recipe: cifar_torch\n", "recipe is cifar, and here it is cifar_torch."),
        (
            HERE,
            "",
            "    evaluation: {crop: 28, scale: 32}\n",
            "whole images, and here it is 28x28 crop of a shorter side",
        ),
        (
            HOME,
            "resnet110: original_",
            "resnet110: preact_",
            "net is preact_resnet110, and here it is original_resnet1",
        ),
        (HOME, "recipe: cifar\n", "recipe: cifar_torch\n", "recipe is cifar_torch, and here it is cifar."),
        (HOME, "title: ResNet-110}", "title: ResNet-110, metric: top5}", "metric is top5, and here it is top1."),
    ],
)
def test_a_reference_to_another_experiment_is_refused_with_what_differs(
    problems: Problems, specs: Path, file: str, old: str, new: str, differs: str
) -> None:
    if file == HERE:
        old, new = ROW, ROW.replace(old, new) if old else ROW + new
    edit(specs / file, old, new)
    line, message = problems("table3", REFERRING)[0]
    assert line == line_of(specs / REFERRING, FIRST)
    assert ": table2/original/resnet110 is of another experiment: its " in message
    assert differs in message


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("same_as: table9/original/resnet110", "same_as must name a cell of another table. Did you mean 'table"),
        ("same_as: table3/cifar10_resnet164/original", "same_as must name a cell of another table."),
        ("same_as: table2/orignal/resnet110", "table2 has no cell 'orignal/resnet110'. Did you mean 'original/resn"),
        ("same_as: table4/nin/cifar10", "table4 has no cell 'nin/cifar10'."),
        ("same_as: table1/original/resnet110", "table1/original/resnet110 refers on to table2/original/resnet110; "),
        ("same_as: original/resnet110", "must be table/row/column, such as table2/original/resnet110."),
        ("same_as: table2/original/", "must be table/row/column"),
        ("same_as: table2/original/resnet110/", "must be table/row/column"),
        ("same_as: table2/original/resnet110, value: 6.61", "a cell needs a value, or same_as with the cell"),
        ("note: nothing", "a cell needs a value, or same_as with the cell that has it; not both."),
        ("same_as: table2/original/resnet110, n: 5", "n: stands with the number, in table2/original/resnet110."),
        ("same_as: table2/original/resnet110, tolerance: 1.0", "tolerance: is for cells with a number."),
    ],
)
def test_a_reference_that_is_none_is_refused_at_its_line(
    problems: Problems, specs: Path, said: str, message: str
) -> None:
    found = problems("table3", REFERRING, (FIRST, f"original: {{{said}}}"))
    assert {line for line, _ in found} == {line_of(specs / REFERRING, f"{{{said}}}")}
    assert any(message in told for _, told in found)


def test_a_tag_that_says_what_the_data_set_says_makes_no_other_experiment(specs: Path) -> None:
    old = "{cifar10: preact_resnet164, cifar100: preact_resnet164}"
    tagged = "{cifar10: preact_resnet164.cifar10, cifar100: preact_resnet164.cifar100}"
    edit(specs / "experiments/table4.yaml", old, tagged)
    assert load_table("table4", specs).cell("preact_resnet164/cifar100").number == 24.33


def test_another_way_to_write_the_same_net_makes_no_other_experiment(specs: Path) -> None:
    same = "{model: preact_resnet110, kwargs: {placement: original}}"
    edit(specs / "experiments/table3.yaml", ROW, ROW.replace("original: original_resnet110", f"original: {same}"))
    assert load_table("table3", specs).cell("cifar10_resnet110/original").number == 6.61


@pytest.mark.parametrize("remarks", ["peers", "disputed"])
def test_what_is_said_of_a_number_at_home_shows_wherever_it_is_printed(tables: dict[str, Table], remarks: str) -> None:
    for name, cells in REFERENCES.items():
        here = getattr(tables[name], remarks)
        for cell, home in cells.items():
            there, home_cell = home.split("/", 1)
            own = [r for r in getattr(tables[name].expected, remarks) if r.cell == cell]
            at_home = [replace(r, cell=cell) for r in getattr(tables[there].expected, remarks) if r.cell == home_cell]
            assert [remark for remark in here if remark.cell == cell] == own + at_home, (cell, remarks)


def test_the_original_resnet110_has_its_seven_peers_in_all_four_tables(tables: dict[str, Table]) -> None:
    cells = {
        "table1": "original/resnet110",
        "table2": "original/resnet110",
        "table3": "cifar10_resnet110/original",
        "table4": "resnet110/cifar10",
    }
    found = {name: [peer.value for peer in tables[name].peers if peer.cell == cell] for name, cell in cells.items()}
    assert found == {name: [6.52, 6.32, 6.60, 6.44, 6.73, 6.97, 3.69] for name in cells}


@pytest.mark.parametrize("remarks", ["peers", "disputed"])
def test_remarks_about_other_cells_of_the_table_referred_to_stay_there(tables: dict[str, Table], remarks: str) -> None:
    for name, table in tables.items():
        own = list(getattr(table.expected, remarks))
        shown = list(getattr(table, remarks))
        assert shown[: len(own)] == own
        assert {remark.cell for remark in shown[len(own) :]} <= set(REFERENCES[name])
        assert None not in {remark.cell for remark in shown[len(own) :]}
