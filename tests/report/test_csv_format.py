from __future__ import annotations

import csv
import io
import math
from dataclasses import replace

import pytest

from paperbench.compare.comparison import Comparison
from paperbench.compare.evidence import errors_of
from paperbench.report import csv_format
from paperbench.report.csv_format import COLUMNS
from paperbench.report.json_format import document
from paperbench.specs.table import Table
from tests.compare.judging import COPY, compared, external, record
from tests.golden import assert_golden

OF_RUNS = list(COLUMNS)[list(COLUMNS).index("group") :]


def render(comparison: Comparison) -> str:
    return csv_format.render(document(comparison))


def read(comparison: Comparison) -> list[dict[str, str]]:
    lines = list(csv.DictReader(io.StringIO(render(comparison), newline=""), strict=True))
    assert all(None not in line and None not in line.values() for line in lines)  # as many fields as columns
    return lines


def of(comparison: Comparison, cell: str) -> list[dict[str, str]]:
    return [line for line in read(comparison) if line["cell"] == cell]


@pytest.mark.parametrize("name", ["numbers", "shared", "failing"])
def test_csv_has_a_line_for_each_run_with_its_cell(name: str, request: pytest.FixtureRequest) -> None:
    comparison: Comparison = request.getfixturevalue(name)
    assert_golden(f"csv_of_{name}", render(comparison))
    lines, shown = read(comparison), [net.shown for cell in comparison.cells for net in cell.nets if net.shown]
    assert list(lines[0]) == list(COLUMNS)
    errors = [error for group in shown for error in errors_of(group.runs) if math.isfinite(error)]
    assert [float(line["error"]) for line in lines if line["group"] == "1" and line["error"]] == errors


def test_net_without_runs_has_a_line(table2: Table) -> None:
    lines = read(compared(table2))
    assert len(lines) == 10
    for line in lines:
        assert line["verdict"] == line["net_verdict"] == "not run"
        assert {line[column] for column in OF_RUNS} == {""}


@pytest.mark.parametrize("start", ["=", "+", "-", "@", " =", "\uff1d"])
def test_formulas_are_escaped(table2: Table, start: str) -> None:
    source = f'{start}HYPERLINK("http://x", "y")'
    run = record(table2, "preact/resnet110", 6.0, data=replace(COPY, name=source))
    result = external(table2, "preact/resnet164", 5.5, source=source.strip())
    comparison = compared(table2, run, externals=[result])
    assert of(comparison, "preact/resnet110")[0]["data"] == f"'{source}"
    assert of(comparison, "preact/resnet164")[0]["source"] == f"'{source.strip()}"


@pytest.mark.parametrize(
    ("source", "guarded"),
    [
        ("A; =HYPERLINK(A1); x", "A;' =HYPERLINK(A1); x"),
        ('A;"=1+1;b', "A;'\"=1+1;b"),
        ("A;+1;-1;@x;1", "A;'+1;'-1;'@x;1"),
    ],
)
def test_formulas_after_a_semicolon_are_escaped(table2: Table, source: str, guarded: str) -> None:
    """Where the decimal separator is a comma, spreadsheets split lines at semicolons, even between quotes."""
    comparison = compared(table2, externals=[external(table2, "preact/resnet164", 5.5, source=source)])
    assert of(comparison, "preact/resnet164")[0]["source"] == guarded
    fields = render(comparison).replace("\n", ";").split(";")
    assert not any(field.strip(' "').startswith(("=", "+", "-", "@")) for field in fields)


@pytest.mark.parametrize("source", ['a "quoted", name', "'=1", "Müller † 中; 2nd = last"])
def test_other_text_is_unchanged(table2: Table, source: str) -> None:
    result = external(table2, "preact/resnet164", 5.5, source=source)
    (line,) = of(compared(table2, externals=[result]), "preact/resnet164")
    assert line["source"] == source
