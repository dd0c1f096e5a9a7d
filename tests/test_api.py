from __future__ import annotations

from pathlib import Path

import pytest

import paperbench
from paperbench.errors import PaperbenchError
from paperbench.specs.table import Table
from tests.cli.test_compare import MATCHING, write
from tests.compare.judging import records
from tests.helpers import python


def test_a_table_is_loaded_and_compared_without_torch(tmp_path: Path) -> None:
    program = (
        "import sys, paperbench; table = paperbench.load_table('table2'); judged = table.compare(sys.argv[1]);"
        "print(len(judged.cells), len(judged.claims), 'torch' in sys.modules, 'timm' in sys.modules)"
    )
    found = python("-c", program, str(tmp_path))
    assert found.stdout == "10 14 False False\n", found.stderr


def test_cells_and_claims_are_objects_with_verdicts(tmp_path: Path, table2: Table) -> None:
    write(tmp_path, records(table2, "preact/resnet110", MATCHING))
    judged = paperbench.load_table("table2").compare(tmp_path)
    cell = judged.cell("preact/resnet110")
    assert cell.verdict == "reproduced"
    assert cell.shown is not None
    assert cell.shown.errors == list(MATCHING)
    assert {other.verdict for other in judged.cells} == {"reproduced", "not run"}
    assert {claim.standing for claim in judged.claims} == {"not run"}
    assert judged.holds()
    assert not judged.holds("reproduced")
    with pytest.raises(PaperbenchError, match="Did you mean 'preact/resnet110'"):
        judged.cell("preact/resnet11")


def test_a_notebook_shows_markdown(tmp_path: Path, table2: Table) -> None:
    write(tmp_path, records(table2, "preact/resnet110", MATCHING))
    (tmp_path / "runs" / "damaged-s0").mkdir()
    (tmp_path / "runs" / "damaged-s0" / "record.json").write_text("{")
    table = paperbench.load_table("table2")
    assert "| full pre-activation" in table._repr_markdown_()
    judged = table.compare(tmp_path)
    shown = judged._repr_markdown_()
    assert "6.38 (+0.01) | reproduced" in shown
    assert "Left out: " in shown
    assert "1 reproduced" in repr(judged)
    assert "9 not run" in repr(judged)
    assert "claims: 14 not run" in repr(judged)


def test_what_is_printed_is_the_command_lines_table(tmp_path: Path) -> None:
    table = paperbench.load_table("table2")
    assert "full pre-activation       4(e)            6.37          5.46" in str(table)
    assert repr(table) == "<table2: Test error (%) on CIFAR-10 by placement of the activations>"
    assert "No run of this table" in str(table.compare(tmp_path))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda path: paperbench.load_table("tabel2"), "Did you mean 'table2'"),
        (lambda path: paperbench.load_table("table2").compare(path / "none"), "There is no directory"),
        (lambda path: paperbench.load_table("table2").compare(path, profile="papre"), "Did you mean 'paper'"),
        (lambda path: paperbench.load_table("table2").compare(path, cells="x/y"), "No cell of table2 matches 'x/y'"),
        (lambda path: paperbench.load_table("table2").compare(path).render("latxe"), "Did you mean 'latex'"),
    ],
)
def test_mistakes_get_the_messages_of_the_command_line(tmp_path: Path, call: object, message: str) -> None:
    with pytest.raises(PaperbenchError, match=message):
        call(tmp_path)  # type: ignore[operator]
