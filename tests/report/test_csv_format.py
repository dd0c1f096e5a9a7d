from __future__ import annotations

import csv
import io
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paperbench.compare.comparison import Comparison
from paperbench.compare.evidence import errors_of
from paperbench.report import csv_format
from paperbench.report.csv_format import COLUMNS, as_csv
from paperbench.report.json_format import document
from paperbench.specs.table import Table
from tests.compare.judging import compared, external
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


@pytest.mark.parametrize("name", ["numbers", "shared", "failing", "sweep"])
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


def test_versions_of_numerics_are_separated_by_spaces(numbers: Comparison) -> None:
    facts = document(numbers)
    (net,) = facts.cells[0].nets
    assert net.shown
    group = replace(net.shown, conditions=replace(net.shown.conditions, numerics=(1, 2)))
    cell = replace(facts.cells[0], nets=(replace(net, shown=group),))
    first = csv_format.render(replace(facts, cells=(cell,))).splitlines()[1]
    assert ",fp32,1 2," in first


def spreadsheet_fields(text: str) -> list[str]:
    """Split lines as spreadsheets do where the decimal separator is a comma: at semicolons, even between quotes."""
    return [field.strip(' "') for field in text.replace("\n", ";").split(";")]


@given(st.text(st.sampled_from("=+-@\uff1d;\"' a1(),"), max_size=20))
def test_no_text_becomes_a_formula_or_another_text(text: str) -> None:
    written = as_csv(["text"], [{"text": text}])
    ((found,),) = list(csv.reader(io.StringIO(written, newline="")))[1:] or [[""]]
    formulas = tuple("=+-@\uff1d")
    assert not any(field.startswith(formulas) for field in spreadsheet_fields(written))
    assert found == text or (found.replace("'", "") == text.replace("'", "") and len(found) > len(text))
    if not any(field.startswith(formulas) for field in spreadsheet_fields(text)):
        assert found == text


@pytest.mark.parametrize("source", ['a "quoted", name', "'=1", "Müller † 中; 2nd = last"])
def test_other_text_is_unchanged(table2: Table, source: str) -> None:
    result = external(table2, "preact/resnet164", 5.5, source=source)
    (line,) = of(compared(table2, externals=[result]), "preact/resnet164")
    assert line["source"] == source
