from __future__ import annotations

import csv
import io
import math
from dataclasses import replace

import pytest

from paperbench.compare.comparison import Comparison
from paperbench.report import csv_format
from paperbench.report.csv_format import COLUMNS, render
from paperbench.specs.table import Table, load_table
from tests.helpers import ROOT
from tests.report.comparing import (
    COPY,
    ORIGINAL,
    compared,
    every_verdict_of_failing,
    every_verdict_of_numbers,
    external,
    more_than_looked_at,
    record,
)

OF_RUNS = (
    *("group", "data", "fingerprint", "canonical", "precision", "numerics", "mixed", "source", "median"),
    *("seed", "run", "status", "iteration", "error", "looked_at"),
)


@pytest.fixture(scope="module")
def numbers(table2: Table) -> Comparison:
    return every_verdict_of_numbers(table2)


def read(text: str) -> list[dict[str, str]]:
    lines = list(csv.DictReader(io.StringIO(text, newline=""), strict=True))
    assert all(None not in line and None not in line.values() for line in lines)  # as many fields as columns
    return lines


def of(lines: list[dict[str, str]], cell: str) -> list[dict[str, str]]:
    return [line for line in lines if line["cell"] == cell]


def test_each_column_is_documented_and_none_else() -> None:
    documented = []
    for line in (csv_format.__doc__ or "").splitlines():
        names, gap, _ = line.partition("  ")
        if gap and names and all(name.isidentifier() for name in names.split(", ")):
            documented += names.split(", ")
    assert documented == list(COLUMNS)


def test_there_is_one_line_a_run(numbers: Comparison) -> None:
    lines = read(render(numbers))
    assert list(lines[0]) == list(COLUMNS)
    assert {cell: len(of(lines, cell)) for cell in dict.fromkeys(line["cell"] for line in lines)} == {
        "original/resnet110": 6,
        "bn_after_addition/resnet110": 5,
        "relu_before_addition/resnet110": 5,
        "relu_only_preact/resnet110": 5,
        "preact/resnet110": 5,
        "original/resnet164": 5,
        "bn_after_addition/resnet164": 5,
        "relu_before_addition/resnet164": 3,
        "relu_only_preact/resnet164": 1,
        "preact/resnet164": 10,
    }


def test_a_run_has_what_was_put_into_it(numbers: Comparison) -> None:
    lines = of(read(render(numbers)), "bn_after_addition/resnet110")
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


def test_what_is_worse_by_itself_only_does_not_differ(numbers: Comparison) -> None:
    assert {(line["verdict"], line["differs"]) for line in of(read(render(numbers)), "preact/resnet110")} == {
        ("worse", "false")
    }


def test_groups_that_are_not_pooled_are_numbered(numbers: Comparison) -> None:
    lines = of(read(render(numbers)), "original/resnet110")
    assert [(line["group"], line["precision"]) for line in lines] == [("1", "fp32")] * 5 + [("2", "bf16")]


def test_runs_that_were_not_looked_at_are_there_and_count_for_nothing(table2: Table) -> None:
    sweep, numbers = (read(render(c)) for c in more_than_looked_at(load_table("table1", ROOT), table2))
    lines = of(numbers, "original/resnet110")
    assert [line["looked_at"] for line in lines] == ["true"] * 5 + ["false"] * 15
    assert {line["median"] for line in lines} == {"6.6"}
    assert {round(float(line["difference"]), 6) for line in lines} == {-0.01}
    gating = of(sweep, "exclusive_gating_0_to_5/resnet110")
    assert {line["median"] for line in gating} == {"92.0"}
    assert [line["looked_at"] for line in gating] == (["true"] * 5 + ["false"] * 5) * 6


def test_groups_that_are_listed_beside_have_a_median_of_their_own(numbers: Comparison) -> None:
    lines = of(read(render(numbers)), "original/resnet110")
    assert [(line["median"], line["looked_at"]) for line in lines[4:]] == [("6.6", "true"), ("6.7", "false")]


def test_data_are_told_by_their_fingerprint(numbers: Comparison) -> None:
    lines = read(render(numbers))
    assert {line["fingerprint"] for line in of(lines, "relu_only_preact/resnet110")} == {COPY.fingerprint}
    assert {line["fingerprint"] for line in of(lines, "original/resnet110")} == {ORIGINAL.fingerprint}
    assert {line["fingerprint"] for line in of(lines, "preact/resnet164")} == {""}


def test_a_net_without_runs_has_a_line_whose_columns_of_runs_are_empty(table2: Table) -> None:
    lines = read(render(compared(table2)))
    assert len(lines) == 10
    for line in lines:
        assert line["verdict"] == line["net_verdict"] == "not run"
        assert {line[column] for column in OF_RUNS} == {""}


def test_every_net_of_a_sweep_has_its_lines() -> None:
    table1 = load_table("table1", ROOT)
    lines = of(read(render(every_verdict_of_failing(table1))), "exclusive_gating_0_to_5/resnet110")
    assert [line["setting"] for line in lines[::5]] == [f"gate_bias={-bias}" for bias in range(6)]
    assert len(lines) == 30
    none_run = of(read(render(compared(table1))), "exclusive_gating_0_to_5/resnet110")
    assert [line["setting"] for line in none_run] == [f"gate_bias={-bias}" for bias in range(6)]
    assert {line["published"] for line in lines} == {"fail"}


def test_a_diverged_run_has_a_status_and_no_error() -> None:
    table1 = load_table("table1", ROOT)
    text = render(every_verdict_of_failing(table1))
    assert not {"inf", "nan", "none"} & set(text.lower().replace('"', ",").replace("\n", ",").split(","))
    (plain,) = {(line["median"]) for line in of(read(text), "plain/resnet110")}
    assert plain == ""
    assert [(line["status"], line["error"]) for line in of(read(text), "plain/resnet110")][:2] == [
        ("finished", "90.0"),
        ("diverged", ""),
    ]


def test_numbers_stay_numbers(numbers: Comparison) -> None:
    lines = read(render(numbers))
    for column in ("difference", "low", "high", "p_value", "median", "error", "published_std"):
        values = [float(line[column]) for line in lines if line[column]]
        assert values, column
        assert all(map(math.isfinite, values))
    assert any(float(line["difference"]) < 0 for line in lines if line["difference"])


@pytest.mark.parametrize("start", ["=", "+", "-", "@", " =", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
def test_text_that_a_spreadsheet_would_compute_is_kept_from_it(table2: Table, start: str) -> None:
    source = f'{start}HYPERLINK("http://x", "y")'
    run = record(table2, "preact/resnet110", 6.0, data=replace(COPY, name=source))
    result = external(table2, "preact/resnet164", 5.5, source=source.strip())
    lines = read(render(compared(table2, [run], [result])))
    assert of(lines, "preact/resnet110")[0]["data"] == f"'{source}"
    assert of(lines, "preact/resnet164")[0]["source"] == f"'{source.strip()}"


def test_no_text_begins_a_formula(numbers: Comparison) -> None:
    for line in read(render(numbers)):
        for value in line.values():
            if value.startswith(("=", "+", "-", "@", "\t", "\r")):
                float(value)  # a negative number, which is one


@pytest.mark.parametrize("source", ['a "quoted" name', "a, b; c", "it's", "'=1", "Müller † 中"])
def test_any_other_text_comes_back_as_it_was(table2: Table, source: str) -> None:
    result = external(table2, "preact/resnet164", 5.5, source=source)
    (line,) = of(read(render(compared(table2, [], [result]))), "preact/resnet164")
    assert line["source"] == source


def test_lines_end_in_plain_newlines(numbers: Comparison) -> None:
    text = render(numbers)
    assert "\r" not in text
    assert text.endswith("\n")
    assert len(text.splitlines()) == 1 + len(read(text))
