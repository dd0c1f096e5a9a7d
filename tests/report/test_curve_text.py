"""Sparklines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import paperbench
from paperbench.report.curve_text import render
from paperbench.specs.table import Table
from tests.compare.judging import record
from tests.report.stores import make_store


@pytest.fixture(autouse=True)
def _width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")


def _lines(text: str, name: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"    {name}")]


@pytest.mark.parametrize(("error", "level"), [(19.0, "█"), (10.0, "▅"), (1.0, "▁"), (30.0, "▇")])
def test_levels_are_eighths_of_the_axis_without_gaps(table2: Table, tmp_path: Path, error: float, level: str) -> None:
    make_store(tmp_path, [record(table2, "original/resnet110", 6.5)])
    (panel,) = paperbench.load_table("table2").compare(tmp_path).panels()
    (run,) = panel.curves[0].runs
    lines = tuple(replace(line, test_error=line.test_error and error) for line in run.lines)
    panel = replace(panel, curves=(replace(panel.curves[0], runs=(replace(run, lines=lines),)),))
    (shown,) = _lines(render([panel], [], "iterations"), "error")
    _, first, *marks, last = shown.replace("│", "").split()
    assert (float(first), float(last), [set(one) for one in marks]) == (error, error, [{level}])


def test_drops_after_the_end_of_a_prefix_are_not_marked(table2: Table, tmp_path: Path) -> None:
    make_store(tmp_path, [record(table2, "original/resnet110", None, iteration=33_000)])
    text = render(paperbench.load_table("table2").compare(tmp_path).panels(), [], "iterations")
    assert "0 to 33,000 iterations" in text
    assert [line.count("│") for line in (*_lines(text, "loss"), *_lines(text, "error"))] == [1, 1]  # at 32,000


def test_lines_of_shorter_epochs_are_as_long_as_their_epochs(tables: dict[str, Table], tmp_path: Path) -> None:
    rows = ("preact_resnet1001", "preact_resnet1001_batch64")
    make_store(tmp_path, [record(tables["table4"], f"{row}/cifar10", 4.8) for row in rows])
    text = render(paperbench.load_table("table4").compare(tmp_path).panels(), [], "epochs")
    assert "0 to 199.9 epochs" in text
    large, small = (sum(mark in "▁▂▃▄▅▆▇█" for mark in line) for line in _lines(text, "loss"))
    assert large / small == pytest.approx(163.84 / 199.88, abs=0.02)
