from __future__ import annotations

import hashlib
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


def test_published_number_is_beside_median_difference_and_verdict(table2: Table) -> None:
    comparison = compared(table2, *records(table2, "preact/resnet110", (6.4, 6.5, 6.6)))
    text = text_of(comparison)
    assert row(text, "full pre-activation") == [
        *("full pre-activation", "4(e)"),
        *("6.37", "6.50 (+0.13), n=3", "underpowered [a]"),
        *("5.46", "-", "not run"),
    ]
    assert f"\n[a] {in_cell(comparison, 'preact/resnet110').reason}\n" in text
    assert row(text, "preact/resnet110")[1:] == ["6.40, 6.50, 6.60", "6.50", "-", "-", "0.5"]
    assert "of 5 runs, or of n where given" in flat(text)


@pytest.mark.parametrize("name", ["numbers", "shared", "failing"])
def test_report_has_tables_notes_claims_deviations_and_runs(name: str, request: pytest.FixtureRequest) -> None:
    assert_golden(f"report_of_{name}", text_of(request.getfixturevalue(name), form="markdown"))


def test_noise_rule_is_named_if_it_is_not_the_default(table2: Table, numbers: Comparison, shared: Comparison) -> None:
    for form, long in (("table", False), ("table", True), ("markdown", True)):
        note = "By --noise per-cell, each cell uses its own noise"
        assert note in flat(text_of(numbers, form=form, long=long))
        assert note not in flat(text_of(shared, form=form, long=long))
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


def test_further_columns_of_the_paper_are_around_the_results(table1: Table) -> None:
    text = text_of(compared(table1))
    assert row(text, "case") == ["case", "Fig.", "on shortcut", "on F", "error (%), paper", "ours", "verdict", "remark"]
    assert row(text, "constant scaling") == [
        *("constant scaling", "2(b)", "0", "1"),
        *("fail", "-", "not run", "This is a plain net"),
    ]


def test_literature_means_and_marks_are_as_printed(tables: dict[str, Table]) -> None:
    text = text_of(compared(tables["table4"], on_request=True))
    assert row(text, "NIN") == ["NIN", "8.81", "35.68"]
    assert "4.62† (4.69±0.20)" in text
    assert "22.71 (22.68±0.22)" in text
    assert "†: mini-batches of 64 instead of 128" in text


def test_claims_have_test_level_basis_and_section(table2: Table) -> None:
    comparison = compared(
        table2,
        *records(table2, "preact/resnet164", (5.4, 5.5, 5.3, 5.45, 5.5)),
        *records(table2, "relu_only_preact/resnet164", (5.9, 5.8, 5.95, 6.0, 5.85)),
        *records(table2, "original/resnet164", (5.9, 5.95, 6.0, 5.8, 5.9)),
    )
    claims = {c.claim.id: c for c in comparison.claims}
    close, early = claims["relu_only_preact_close_164"], claims["original_slightly_slower_start_164"]
    claims_text = flat(text_of(comparison).split("\n\nClaims\n\n")[1])
    assert claims_text.startswith("2 supported, 1 undecided, 11 not run.")
    assert (
        "supported: ReLU-only pre-activation performs very similarly to the original unit on ResNet-164 (Sec. 4.1; "
        f"relu_only_preact_close_164). By {close.test} at alpha = 0.05; {close.basis} {close.findings[0]} supported: "
    ) in claims_text
    assert "bn_after_addition_worse_110" in claims_text.split("Not run:")[1]
    assert f"Undecided: original_slightly_slower_start_164: {early.reason}" in claims_text


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


def test_reduced_profile_has_no_verdicts(table2: Table) -> None:
    profile, depths = "smoke", ("14", "20")
    text = text_of(compared(table2, record(table2, "preact/resnet110", 12.0, profile=profile), profile=profile))
    assert all(f"ours at depth {depth}" in text for depth in depths)
    assert f"Not comparable with the paper: profile {profile} is not its experiment" in text
    assert "verdict" not in row(text, "case")
    assert row(text, "cell ")[-1] == "median"
    assert row(text, "full pre-activation")[3].startswith("12.00")
    assert "(+" not in row(text, "full pre-activation")[3]
    assert "ours: test error (%) of 1 run." in text


def test_only_columns_of_the_selected_cells_are_shown(table2: Table) -> None:
    text = text_of(compared(table2, record(table2, "preact/resnet110", 6.5), cells="preact/resnet110"))
    assert "ResNet-110, paper" in text
    assert "ResNet-164" not in text
    assert "14 not judged; they need cells that were not selected." in text


def test_run_of_two_cells_is_listed_once(table2: Table) -> None:
    run = record(table2, "preact/resnet110", 6.5)
    assert text_of(compared(table2, run, replace(run))).count(run.run) == 1


def test_short_report_has_table_letters_and_a_line_per_claim(
    numbers: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = text_of(numbers, long=False)
    _, _, first, second, *_ = text.split("\n\n")  # a block per column of results
    assert row(first, "BN after addition") == ["BN after addition", "4(b)", "8.17", "10.02 (+1.85)", "worse"]
    assert row(second, "BN after addition") == ["BN after addition", "4(b)", "6.50", "5.08 (-1.42)", "better"]
    assert "\n[a] shifted by +0.17" in text
    assert "2 cells differ from the paper" in text
    claims = text.split("\n\nClaims: ")[1].split("\n\n")[0].splitlines()[1:]
    assert len(claims) == len(numbers.claims)
    assert "  CONTRADICTED  bn_after_addition_worse_164" in claims
    assert text.splitlines()[-1].startswith("`--long` adds")
    for absent in ("Deviations", "two one-sided tests", "6.58, 6.64", "\nRuns\n"):
        assert absent in text_of(numbers)
        assert absent not in text


@pytest.mark.parametrize("columns", [60, *(pytest.param(c, marks=pytest.mark.full) for c in (80, 200))])
@pytest.mark.parametrize("long", [False, True])
def test_every_line_fits_the_terminal(
    tables: dict[str, Table],
    shared: Comparison,
    failing: Comparison,
    columns: int,
    long: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for comparison in [*(compared(table, on_request=True) for table in tables.values()), shared, failing]:
        text = text_of(comparison, long=long)
        assert max(map(len, text.splitlines())) <= columns
        assert columns == 60 or all(cell.verdict in text for cell in comparison.cells)


def test_without_a_terminal_lines_have_80_columns(numbers: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr("os.get_terminal_size", lambda *_: (_ for _ in ()).throw(OSError))
    assert 70 < max(map(len, text_of(numbers).splitlines())) <= 80


def test_external_results_have_a_section_and_no_place_among_ours(numbers: Comparison, table1: Table) -> None:
    for long in (False, True):
        section = text_of(numbers, long=long).split("External results")[1].split("\n\nC")[0]
        assert "preact/resnet164: 5.50 (+0.04), n=10, reported by =A lab, by e-mail: reproduced" in section
        assert ("errors: 5.20, 5.90, 5.30" in section) is long
    sweep = [
        external(table1, SWEEP, 90.0, seed=seed, setting=setting.label)
        for setting in table1.cell(SWEEP).settings
        for seed in range(5)
    ]
    text = text_of(compared(table1, externals=sweep))
    assert row(text, "exclusive gating")[5:7] == ["-", "-"]
    assert "External results" not in text_of(compared(table1))


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


def test_summary_lists_cells_with_runs_in_few_lines(numbers: Comparison, tables: dict[str, Table]) -> None:
    lines = summary(Report(numbers)).splitlines()
    assert lines[0] == "Table 2, profile paper"
    assert row("\n".join(lines), "bn_after_addition/resnet110")[1:] == ["8.17", "10.02 (+1.85)", "worse"]
    assert len(lines) == 3 + 9
    assert not any("preact/resnet164 " in line and "relu" not in line for line in lines)
    lines = summary(Report(compared(tables["table4"]))).splitlines()
    assert len(lines) <= 13
    smoke = compared(numbers.table, record(numbers.table, "preact/resnet110", 12.0, profile="smoke"), profile="smoke")
    text = summary(Report(smoke))
    assert text.startswith("Table 2, profile smoke: not comparable with the paper\n")
    assert row(text, "preact/resnet110") == ["preact/resnet110", "6.37", "12.00"]


def test_summary_of_many_cells_lists_them_row_by_row(tables: dict[str, Table]) -> None:
    lines = summary(Report(compared(tables["table5"]))).splitlines()
    found = [line.split() for line in lines]
    assert ["original_resnet152_224", "23.0", "-", "not", "run", "6.7", "-", "not", "run"] in found
    assert len(lines) <= 17


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
