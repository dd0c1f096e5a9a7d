from __future__ import annotations

import hashlib
import re
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
from tests.compare.judging import COPY, compared, external, in_cell, record, records
from tests.golden import assert_golden
from tests.helpers import a_session, write_record
from tests.report.conftest import SWEEP

SAME = ("preact/resnet110", "original/resnet110", "relu_only_preact/resnet110")


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def text_of(comparison: Comparison, root: Path = Path("nowhere"), form: Any = "table", *, long: bool = True) -> str:
    return render(Report(comparison), Store(root), form, long)


def row(text: str, title: str) -> list[str]:
    """Return the cells of the first table row with a title."""
    line = next(line for line in text.splitlines() if line.startswith(title))
    return [part.strip() for part in line.split("  ") if part.strip()]


def flat(text: str) -> str:
    """Join the lines of prose."""
    return " ".join(text.split())


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


def test_noise_of_an_incomplete_table_can_change(table2: Table) -> None:
    alone = compared(table2, *records(table2, "preact/resnet110", (6.3, 6.4, 6.4, 6.5, 6.3)))
    assert "Noise between runs: each cell's own, as there are too few to share it." in flat(text_of(alone))
    three = [run for cell in SAME for run in records(table2, cell, (6.3, 6.4, 6.4, 6.5, 6.3))]
    text = flat(text_of(compared(table2, *three)))
    assert "ask whether our Hodges-Lehmann estimate minus the published median lies within the tolerance" in text
    assert "estimated from all cells of the table. It can change, and verdicts with it, until all cells have" in text


def test_noise_of_a_complete_table_can_change_no_more(table2: Table) -> None:
    runs = [run for cell in table2.cells() for run in records(table2, cell.id, (6.3, 6.4, 6.4, 6.5, 6.3))]
    assert "Noise between runs: estimated from all cells of the table. 0.5 false alarms" in flat(
        text_of(compared(table2, *runs))
    )
    assert "It can change" in flat(text_of(compared(table2, *runs[:-1])))


def test_differing_cells_are_named_if_any_cell_was_judged(table1: Table, table2: Table, failing: Comparison) -> None:
    both = "constant_scaling_unscaled/resnet110 (better), conv_shortcut/resnet110 (worse)."
    assert f"By the rule for failing nets, 2 cells differ from the paper: {both}" in flat(text_of(failing))
    one = compared(table1, *records(table1, "conv_shortcut/resnet110", [inf] * 5))
    assert "By the rule for failing nets, 1 cell differs from the paper: conv_shortcut/" in flat(text_of(one))
    none = compared(table2, *records(table2, "preact/resnet110", (6.3, 6.4, 6.4, 6.5, 6.3)))
    assert "over the cells compared, no cell differs from the paper." in flat(text_of(none))
    assert "from the paper" not in text_of(compared(table2)).split("\n\nClaims")[0]


@pytest.mark.parametrize(
    ("errors", "ours", "listed"),
    [
        ({0: inf}, "diverged, n=1", "diverged"),
        (
            {0: 6.0, 1: 6.1, 3: 6.3, 4: 6.4, 5: None},
            "6.20 (-0.17), n=4",
            "6.00, 6.10, seed 3: 6.30, 6.40; seed 5 is at iteration 1,000",
        ),
        (
            dict(enumerate((6.33, inf, 6.37, 6.32, 6.40, 8.0, 8.1))),
            "6.37 (+0.00)",
            "6.33, diverged, 6.37, 6.32, 6.40; not counted: seed 5: 8.00, 8.10",
        ),
    ],
    ids=["diverged median", "a seed missing and one under way", "more than planned"],
)
def test_errors_are_listed_by_seed(table2: Table, errors: dict[int, float | None], ours: str, listed: str) -> None:
    runs = [record(table2, "preact/resnet110", error, seed=seed) for seed, error in errors.items()]
    comparison = compared(table2, *runs)
    assert ours in row(text_of(comparison), "full pre-activation")
    assert [net.errors for net in Report(comparison).nets if net.errors] == [listed]


def test_groups_on_different_pixels_are_told_apart(table2: Table) -> None:
    other = replace(COPY, fingerprint="d" * 64)
    runs = [record(table2, "preact/resnet110", 8.0, data=COPY), record(table2, "preact/resnet110", 9.0, data=other)]
    text = text_of(compared(table2, *runs))
    assert ("pixels dddddddd" in text) != ("pixels cccccccc" in text)  # whichever of the two is not shown above


def test_deviation_of_a_whole_row_names_the_row(table2: Table) -> None:
    cells = ["preact/resnet110", "preact/resnet164", "original/resnet110", "original/resnet164"]
    runs = [record(table2, cell, 6.5, precision="tf32") for cell in cells[:3]] + [record(table2, cells[3], 6.5)]
    assert "\n  precision: fp32 -> tf32 (all but original/resnet164)\n" in text_of(compared(table2, *runs))
    runs = [record(table2, cell, 6.5, precision="tf32") for cell in cells[:2]] + runs[2:]
    runs[2] = record(table2, cells[2], 6.5)
    assert "\n  precision: fp32 -> tf32 (preact/*)\n" in text_of(compared(table2, *runs))
    assert "\n  precision: fp32 -> tf32 (preact/resnet110)\n" in text_of(compared(table2, runs[0], *runs[2:]))


def test_runs_are_listed_with_the_newest_values_of_their_records(table2: Table, tmp_path: Path) -> None:
    prefix = record(table2, "preact/resnet110", None, iteration=1_000, sessions=(a_session(1_000, seconds=60.0),))
    lines = [
        HistoryLine(500, 1.28, 0.1, 2.0, 60.0, None, 55.5, 10.0),
        HistoryLine(1000, 2.56, 0.1, 1.25, 45.25, None, None, 20.0),
    ]
    beyond = HistoryLine(1500, 3.84, 0.1, 0.5, 20.0, None, 1.0, 30.0)
    files = replace(prefix.files, history_lines=2, history_sha256=hashlib.sha256(history_bytes(lines)).hexdigest())
    prefix = replace(prefix, files=files)
    write_record(Store(tmp_path), prefix).history_file.write_bytes(history_bytes([*lines, beyond]))
    text = text_of(compared(table2, prefix), tmp_path)
    assert "(at 1,000)" in row(text, "full pre-activation")
    assert row(text, prefix.run)[2:] == ["fp32", "partial", "1,000", "1.2500", "45.25", "55.50", "-", "1.0"]


def test_only_columns_of_the_selected_cells_are_shown(table2: Table) -> None:
    text = text_of(compared(table2, record(table2, "preact/resnet110", 6.5), cells="preact/resnet110"))
    assert "ResNet-110, paper" in text
    assert "ResNet-164" not in text
    assert "14 not judged; they need cells that were not selected." in text


def test_run_of_two_cells_is_listed_once(table2: Table) -> None:
    run = record(table2, "preact/resnet110", 6.5)
    assert text_of(compared(table2, run, replace(run))).count(run.run) == 1


def test_markdown_has_headings_lists_and_tables(numbers: Comparison) -> None:
    text = text_of(numbers, form="markdown")
    assert text.startswith("## Table 2 of arXiv:1603.05027")
    for heading in ("### Cells", "### Claims", "### Deviations from the paper", "### Runs"):
        assert f"\n\n{heading}\n\n" in text
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]
    assert len(tables) == 3
    for lines in tables:
        assert {line.count("|") for line in lines} == {lines[0].count("|")}
    assert "| worse [e] " in text
    assert "\n\n- supported: " in text


def test_without_a_terminal_lines_have_80_columns(numbers: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr("os.get_terminal_size", lambda *_: (_ for _ in ()).throw(OSError))
    assert 70 < max(map(len, text_of(numbers).splitlines())) <= 80


@pytest.mark.parametrize(
    ("errors", "outliers"),
    [
        ((6.33, 6.38, 6.37, 6.32, 8.1), ["preact/resnet110: seed 4 (8.10)"]),
        ((6.33, 6.38, 6.37, 6.32, 6.80), []),  # within the tolerance
        ((6.0, 7.0, 8.0, 5.0, 9.5), []),  # as far apart as the others
        ((6.33, 6.38, 8.1), []),  # too few runs
        ((6.33, 6.38, 6.37, 6.32, inf), []),  # diverged
    ],
)
def test_outliers_are_named_and_still_count(table2: Table, errors: tuple[float, ...], outliers: list[str]) -> None:
    report = Report(compared(table2, *records(table2, "preact/resnet110", errors)))
    notes = [note for note in report.short_notes if note.startswith("Outliers, which count like every run: ")]
    assert len(notes) == len(outliers)
    assert all(outlier in note for note, outlier in zip(notes, outliers, strict=True))
    assert [len(net.net.counted) for net in report.nets if net.ours] == [len(errors)]


def test_only_the_long_report_reads_a_file_of_each_run(numbers: Comparison) -> None:
    report = Report(numbers, resting_on_records=lambda: 1 // 0)
    assert render(report, Store(Path("nowhere")), "table", False)
    with pytest.raises(ZeroDivisionError):
        render(report, Store(Path("nowhere")), "table", True)


def test_noise_and_outliers_of_external_results_are_with_them(table2: Table) -> None:
    errors = (6.3, 6.4, 6.35, 6.45, 16.9)
    externals = [external(table2, "preact/resnet110", e, seed=s, source="A lab") for s, e in enumerate(errors)]
    comparison = compared(table2, externals=externals)
    text = flat(text_of(comparison, long=False))
    assert in_cell(comparison, "preact/resnet110").verdict == "underpowered"
    assert (
        "n=5, reported by A lab: underpowered (too much noise); seed 4 (16.90) is far from the others: check it" in text
    )
    assert "[a]" not in text
    assert "Outliers" not in text
    assert row(summary(Report(comparison)), "preact/resnet110")[-1] == "-"


def test_claims_without_runs_name_the_missing_cells_once(table2: Table) -> None:
    text = text_of(compared(table2)).split("Not run:")[1]
    assert text.count("no runs of our own: ") == 1
    assert flat(text).count(", preact/resnet110") == 1


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
