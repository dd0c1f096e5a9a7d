from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from paperbench.compare.comparison import Comparison
from paperbench.report.published import published_table
from paperbench.report.report import Report
from paperbench.report.text import render, summary
from paperbench.runs.history import HistoryLine, history_bytes
from paperbench.runs.store import Store
from paperbench.specs.table import Table
from tests.compare.judging import COPY, compared, external, record, records
from tests.golden import assert_golden
from tests.helpers import a_session
from tests.report.conftest import SWEEP
from tests.report.stores import write_run


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def text_of(comparison: Comparison, root: Path = Path("nowhere"), form: Any = "table", *, long: bool = True) -> str:
    return render(Report(comparison), Store(root), form, long)


def row(text: str, title: str) -> list[str]:
    """Return the cells of the first table row with a title."""
    line = next(line for line in text.splitlines() if line.startswith(title))
    return [part.strip() for part in line.split("  ") if part.strip()]


@pytest.fixture
def reports(tables: dict[str, Table], shared: Comparison, failing: Comparison) -> dict[str, Comparison]:
    table1, table2, table5 = tables["table1"], tables["table2"], tables["table5"]
    seen = [record(table5, f"{row.id}/top1", 20.1) for row in table5.experiment.rows]
    sweep = [
        external(table1, SWEEP, 90.0, seed=seed, setting=setting.label)
        for setting in table1.cell(SWEEP).settings
        for seed in range(5)
    ]
    smoke = record(table2, "preact/resnet110", 12.0, profile="smoke")
    return {
        "shared": shared,
        "failing": failing,
        "external": compared(table1, externals=sweep),
        "smoke": compared(table2, smoke, profile="smoke"),
        **{name: compared(table, on_request=True) for name, table in tables.items()},
        "in each row": compared(table5, *seen, on_request=True),
    }


@pytest.mark.parametrize("name", ["shared", "failing"])
def test_long_report(reports: dict[str, Comparison], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert_golden(f"report_{name}_long", text_of(reports[name]))


@pytest.mark.parametrize("name", ["shared", "failing", "smoke", "external", "table4"])
def test_short_report_and_summary(reports: dict[str, Comparison], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    report = Report(reports[name])
    assert_golden(
        f"report_{name}", f"{render(report, Store(Path('nowhere')), 'table', False)}\n\n\n{summary(report)}\n"
    )


@pytest.mark.parametrize("columns", [40, 80, pytest.param(200, marks=pytest.mark.full)])
@pytest.mark.parametrize("long", [False, True])
def test_lines_of_80_columns_fit_and_words_are_never_cut(
    reports: dict[str, Comparison], columns: int, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for comparison in reports.values():
        text = text_of(comparison, long=long)
        assert columns < 80 or max(map(len, text.splitlines())) <= columns
        cases = {word for row in Report(comparison).grid.rows for word in re.findall(r"\w+", row[0])}
        assert cases <= set(re.findall(r"\w+", text))


def notes(comparison: Comparison) -> dict[str, Iterable[str]]:
    """What a report says besides its tables of cells and runs."""
    report = Report(comparison, resting_on_records=lambda: 2)
    claims = report.open_claims("not run")
    return {
        "cells": [f"{cell.cell.id}: {cell.ours}; {cell.verdict}; {cell.notes}" for cell in report.cells if cell.notes],
        "errors": [f"{net.name}: {net.errors}" for net in report.nets if net.errors],
        "notes": report.short_notes,
        "methods": report.method_notes,
        "below the cells": report.cell_notes,
        "not pooled": report.not_pooled,
        "diverged": report.diverged,
        "external": (*report.external_results(), *report.external_results(long=False)),
        "deviations": report.deviations,
        "claims": (report.claims, *(f"{', '.join(c.claim.id for c in found)}: {why}" for why, found in claims.items())),
        "summary": summary(report).splitlines(),
    }


def test_notes(table1: Table, table2: Table) -> None:
    pre, original, same = "preact/resnet110", "original/resnet110", (6.3, 6.4, 6.4, 6.5, 6.3)
    three = (pre, original, "relu_only_preact/resnet110")
    whole = [run for cell in table2.cells() for run in records(table2, cell.id, same)]
    by_seed: list[dict[int, float | None]] = [
        {0: inf},
        {0: 6.0, 1: 6.1, 3: 6.3, 4: 6.4, 5: None},
        dict(enumerate((6.33, inf, 6.37, 6.32, 6.40, 8.0, 8.1))),
    ]
    outlying = [(6.33, 6.38, 6.37, 6.32, 8.1), (6.33, 6.38, 6.37, 6.32, 6.80), (6.0, 7.0, 8.0, 5.0, 9.5)]
    outlying += [(6.33, 6.38, 8.1), (6.33, 6.38, 6.37, 6.32, inf)]
    other = [
        record(table2, pre, error, data=replace(COPY, fingerprint=key * 64)) for key, error in (("c", 8.0), ("d", 9.0))
    ]
    elsewhere = [external(table2, pre, e, seed=s, source="A lab") for s, e in enumerate((6.3, 6.4, 6.35, 6.45, 16.9))]
    noisy = (5.2, 5.9, 5.3, 5.8, 5.5, 5.45, 5.4, 5.5, 5.55, 5.5)
    cells = (pre, "preact/resnet164", original, "original/resnet164")
    in_tf32 = [
        [record(table2, cell, 6.5, precision="tf32" if n in chosen else "fp32") for n, cell in enumerate(cells)]
        for chosen in ((0, 1, 2), (0, 1), (0,))
    ]
    comparisons = {
        "no run": compared(table2),
        "a cell alone": compared(table2, *records(table2, pre, same)),
        "three cells": compared(table2, *(run for cell in three for run in records(table2, cell, same))),
        "all cells": compared(table2, *whole),
        "all runs but one": compared(table2, *whole[:-1]),
        "one cell failing": compared(table1, *records(table1, "conv_shortcut/resnet110", [inf] * 5)),
        **{
            f"by seed {number}": compared(
                table2, *(record(table2, pre, error, seed=seed) for seed, error in runs.items())
            )
            for number, runs in enumerate(by_seed)
        },
        **{f"outliers {number}": compared(table2, *records(table2, pre, some)) for number, some in enumerate(outlying)},
        "extended": compared(table2, *records(table2, "preact/resnet164", noisy)),
        "other pixels": compared(table2, *other),
        "external alone": compared(table2, externals=elsewhere),
        "external beside ours": compared(table2, record(table2, pre, 6.4), externals=elsewhere),
        **{f"in tf32 {number}": compared(table2, *runs) for number, runs in enumerate(in_tf32)},
        "selected": compared(table2, record(table2, pre, 6.5), cells=pre),
    }
    lines, before = [], dict[str, list[str]]()
    for name, comparison in comparisons.items():
        found = {part: list(texts) for part, texts in notes(comparison).items()}
        lines.append(f"{name}:")
        for part, texts in found.items():
            if texts:
                same = texts == before.get(part)
                lines += [f"  {part}: as before"] if same else [f"  {part}:", *(f"    {text}" for text in texts)]
        before = found
    assert_golden("report_notes", "\n".join(lines))


def test_runs_are_listed_with_the_newest_values_of_their_records(table2: Table, tmp_path: Path) -> None:
    prefix = record(table2, "preact/resnet110", None, iteration=1_000, sessions=(a_session(1_000, seconds=60.0),))
    lines = [
        HistoryLine(500, 1.28, 0.1, 2.0, 60.0, None, 55.5, 10.0),
        HistoryLine(1000, 2.56, 0.1, 1.25, 45.25, None, None, 20.0),
    ]
    beyond = HistoryLine(1500, 3.84, 0.1, 0.5, 20.0, None, 1.0, 30.0)
    write_run(Store(tmp_path), prefix, history_bytes(lines))
    with Store(tmp_path).directory(prefix.run).history_file.open("ab") as file:
        file.write(history_bytes([beyond]))
    text = text_of(compared(table2, prefix), tmp_path)
    assert "(at 1,000)" in row(text, "full pre-activation")
    assert row(text, prefix.run)[2:] == ["fp32", "partial", "1,000", "1.2500", "45.25", "55.50", "-", "1.0"]


def test_only_columns_of_the_selected_cells_are_shown(table2: Table) -> None:
    text = text_of(compared(table2, record(table2, "preact/resnet110", 6.5), cells="preact/resnet110"))
    assert ("ResNet-110, paper" in text, "ResNet-164" in text) == (True, False)


def test_run_of_two_cells_is_listed_once(table2: Table) -> None:
    run = record(table2, "preact/resnet110", 6.5)
    assert text_of(compared(table2, run, replace(run))).count(run.run) == 1


def test_markdown(numbers: Comparison) -> None:
    assert_golden("report_in_markdown", text_of(numbers, form="markdown"))


def test_without_a_terminal_lines_have_80_columns(numbers: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    assert 70 < max(map(len, text_of(numbers).splitlines())) <= 80


def test_only_the_long_report_reads_a_file_of_each_run(numbers: Comparison) -> None:
    report = Report(numbers, resting_on_records=lambda: 1 // 0)
    assert render(report, Store(Path("nowhere")), "table", False)
    with pytest.raises(ZeroDivisionError):
        render(report, Store(Path("nowhere")), "table", True)


def test_markdown_escapes_html_and_links_everywhere(table2: Table) -> None:
    titled = replace(table2.experiment, case="a <b>|c", title="T <script>")
    row_ = replace(titled.rows[0], title="x | <i>y")
    cells = tuple(replace(c, row=row_) if c.row.id == row_.id else c for c in table2.all_cells)
    table = replace(table2, experiment=replace(titled, rows=(row_, *titled.rows[1:])), all_cells=cells)
    hostile = "<img src=x> [click](javascript:1) &lt;"
    ours = record(table, "preact/resnet110", 8.0, data=replace(COPY, name=hostile, origin=hostile))
    text = text_of(
        compared(table, ours, externals=[external(table, "preact/resnet164", 5.5, source=hostile)]), form="markdown"
    )
    assert "x \\| &lt;i>y" in text
    assert "a &lt;b>\\|c" in text
    assert "<" not in text
    assert "](" not in text
    assert text.count("&lt;img src=x> [click]&#40;javascript:1) &amp;lt;") >= 4


def test_prose_of_several_lines_forges_no_heading_in_markdown(table2: Table) -> None:
    footnotes = {"*": "a note\n## Forged\n- item"}
    expected = replace(table2.expected, footnotes=footnotes)
    first = replace(table2.all_cells[0], expected=replace(table2.all_cells[0].expected, mark="*"))
    table = replace(table2, expected=expected, all_cells=(first, *table2.all_cells[1:]))
    for text in (text_of(compared(table), form="markdown"), published_table(table, "markdown")):
        assert "*: a note ## Forged - item" in text.splitlines()
