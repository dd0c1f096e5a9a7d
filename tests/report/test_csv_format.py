from __future__ import annotations

import csv
import io
import math
from dataclasses import replace

import pytest

from paperbench.compare.comparison import Comparison
from paperbench.report import csv_format
from paperbench.report.csv_format import COLUMNS
from paperbench.report.json_format import document
from paperbench.specs.table import Table
from tests.compare.judging import COPY, ORIGINAL, compared, external, in_cell, record
from tests.report.conftest import SWEEP

OF_RUNS = list(COLUMNS)[list(COLUMNS).index("group") :]


def render(comparison: Comparison) -> str:
    return csv_format.render(document(comparison))


def read(comparison: Comparison) -> list[dict[str, str]]:
    lines = list(csv.DictReader(io.StringIO(render(comparison), newline=""), strict=True))
    assert all(None not in line and None not in line.values() for line in lines)  # as many fields as columns
    return lines


def of(comparison: Comparison, cell: str) -> list[dict[str, str]]:
    return [line for line in read(comparison) if line["cell"] == cell]


def test_csv_has_one_line_per_run(numbers: Comparison) -> None:
    lines = read(numbers)
    assert list(lines[0]) == list(COLUMNS)
    assert [len(of(numbers, cell.id)) for cell in numbers.cells] == [6, 5, 5, 5, 5, 5, 5, 3, 1, 10]
    text = render(numbers)
    assert "\r" not in text
    assert text.endswith("\n")
    assert len(text.splitlines()) == 1 + len(lines)


def test_line_has_the_values_of_the_run_and_its_cell(numbers: Comparison) -> None:
    lines = of(numbers, "bn_after_addition/resnet110")
    assert [float(line["error"]) for line in lines] == [9.95, 10.10, 10.02, 9.90, 10.20]
    assert [line["seed"] for line in lines] == ["0", "1", "2", "3", "4"]
    assert {(line["status"], line["iteration"], line["precision"], line["canonical"]) for line in lines} == {
        ("finished", "64000", "fp32", "true")
    }
    assert {(line["published"], line["tolerance"], line["verdict"], line["differs"]) for line in lines} == {
        ("8.17", "0.5", "worse", "true")
    }
    assert {float(line["median"]) for line in lines} == {10.02}
    assert float(lines[0]["low"]) > 0.5
    assert float(lines[0]["difference"]) == pytest.approx(10.02 - 8.17)
    alone = of(numbers, "preact/resnet110")  # worse, but not after Holm's correction
    assert {(line["verdict"], line["differs"]) for line in alone} == {("worse", "false")}


def test_noise_of_the_table_has_columns(shared: Comparison) -> None:
    for name, rests_on in (("original/resnet164", "table"), ("preact/resnet164", "ours")):
        line, judged = of(shared, name)[0], in_cell(shared, name)
        assert judged.interval
        assert judged.noise
        assert (line["noise"], line["noise_rests_on"]) == ("table", rests_on)
        assert float(line["noise_std"]) == judged.noise.std
        assert float(line["tested_difference"]) == judged.interval.difference
    line = of(shared, "preact/resnet110")[0]  # whose Hodges-Lehmann estimate is not its median
    assert float(line["difference"]) == pytest.approx(7.30 - 6.37)
    assert float(line["tested_difference"]) == pytest.approx(7.35 - 6.37)


def test_groups_are_numbered_and_have_their_medians(numbers: Comparison) -> None:
    lines = of(numbers, "original/resnet110")
    assert [(line["group"], line["precision"], line["fingerprint"]) for line in lines] == [
        *[("1", "fp32", ORIGINAL.fingerprint)] * 5,
        ("2", "bf16", ORIGINAL.fingerprint),
    ]
    assert [(line["median"], line["counted"]) for line in lines[4:]] == [("6.6", "true"), ("6.7", "false")]


def test_net_without_runs_has_a_line(table2: Table) -> None:
    lines = read(compared(table2))
    assert len(lines) == 10
    for line in lines:
        assert line["verdict"] == line["net_verdict"] == "not run"
        assert {line[column] for column in OF_RUNS} == {""}


def test_every_net_of_a_sweep_has_lines(table1: Table, failing: Comparison) -> None:
    settings = [f"gate_bias={-bias}" for bias in range(6)]
    lines = of(failing, SWEEP)
    assert [line["setting"] for line in lines[::5]] == settings
    assert len(lines) == 30
    assert [line["setting"] for line in of(compared(table1), SWEEP)] == settings
    assert {line["published"] for line in lines} == {"fail"}


def test_diverged_run_has_no_error(failing: Comparison) -> None:
    text = render(failing)
    assert not {"inf", "nan", "none"} & set(text.lower().replace('"', ",").replace("\n", ",").split(","))
    plain = of(failing, "plain/resnet110")
    assert {line["median"] for line in plain} == {""}
    assert [(line["status"], line["error"]) for line in plain][:2] == [("finished", "90.0"), ("diverged", "")]


def test_negative_numbers_are_no_formulas(numbers: Comparison) -> None:
    differences = [float(line["difference"]) for line in read(numbers) if line["difference"]]
    assert all(map(math.isfinite, differences))
    assert min(differences) < 0


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
