from __future__ import annotations

from pathlib import Path

import pytest

from paperbench.compare.comparison import compare
from paperbench.report.comparison import render
from paperbench.runs.history import HistoryLine
from paperbench.runs.record import Record
from paperbench.runs.store import Store
from paperbench.specs.table import Table
from tests.compare.test_comparison import COPY, compared, record


def rendered(table: Table, root: Path, *records: Record, profile: str = "paper", form: str = "table") -> list[str]:
    return render(compared(table, *records, profile=profile), Store(root), form).splitlines()


def row(lines: list[str], title: str) -> str:
    return next(line for line in lines if title in line)


def test_the_published_number_stands_beside_median_difference_and_number_of_runs(table2: Table, tmp_path: Path) -> None:
    runs = [record(table2, "preact/resnet110", 6.4 + seed / 10, seed=seed) for seed in range(3)]
    lines = rendered(table2, tmp_path, *runs)
    assert row(lines, "full pre-activation").split()[2:] == ["4(e)", "6.37", "6.50", "(+0.13),", "n=3", "5.46", "-"]
    assert row(lines, "Fewer runs").endswith("preact/resnet110 3 of 5.")
    assert any("does not yet judge" in line for line in lines)


def test_all_rows_of_the_paper_stand_in_its_order(table2: Table, tmp_path: Path) -> None:
    lines = rendered(table2, tmp_path)
    figures = [line.split("4(")[1][0] for line in lines if "4(" in line]
    assert figures == ["a", "b", "c", "d", "e"]
    assert any("No run of this table in this profile yet." in line for line in lines)


def test_a_diverged_median_is_a_word_and_has_no_difference(table2: Table, tmp_path: Path) -> None:
    lines = rendered(table2, tmp_path, record(table2, "preact/resnet110", None, status="diverged"))
    assert "diverged, n=1 (1 diverged)" in row(lines, "full pre-activation")
    assert any("not finite from iteration 5 on, at rate 0.1; first the output of stages.0.1" in line for line in lines)
    runs = [record(table2, "preact/resnet110", 6.5, seed=seed) for seed in (1, 2)]
    lines = rendered(table2, tmp_path, record(table2, "preact/resnet110", None, status="diverged"), *runs)
    assert "6.50 (+0.13), n=3 (1 diverged)" in row(lines, "full pre-activation")


def test_a_prefix_shows_its_iteration_and_what_its_history_says(table2: Table, tmp_path: Path) -> None:
    prefix = record(table2, "preact/resnet110", None, status="partial")
    directory = Store(tmp_path).directory(prefix.run)
    directory.settle_history(
        [
            HistoryLine(500, 1.28, 0.1, 2.0, 60.0, None, 55.5, 10.0),
            HistoryLine(1000, 2.56, 0.1, 1.25, 45.25, None, None, 20.0),
            HistoryLine(1500, 3.84, 0.1, 0.5, 20.0, None, 1.0, 30.0),  # beyond the record
        ]
    )
    lines = rendered(table2, tmp_path, prefix)
    assert "(at 1,000)" in row(lines, "full pre-activation")
    assert row(lines, "partial").split()[3:] == [
        "0",
        "fp32",
        "partial",
        "1,000",
        "1.2500",
        "45.25",
        "55.50",
        "-",
        "1.0",
    ]


def test_other_data_are_named_and_other_groups_listed(table2: Table, tmp_path: Path) -> None:
    runs = [record(table2, "preact/resnet110", 8.0, data=COPY), record(table2, "preact/resnet110", 6.5, seed=1)]
    text = "\n".join(rendered(table2, tmp_path, *runs))
    assert "6.50 (+0.13), n=1" in text
    assert "Also for preact/resnet110, not pooled: CIFAR-10 (some copy), fp32, numerics 1: median 8.00, n=1." in text
    text = "\n".join(rendered(table2, tmp_path, runs[0]))
    assert "8.00 (+1.63), n=1" in text
    assert "Not comparable with the paper: CIFAR-10 (some copy) has not the pixels of the paper's data." in text


@pytest.mark.parametrize(("profile", "depths"), [("smoke", ("14", "20")), ("shallow", ("20", "29"))])
def test_reduced_depths_stand_in_the_heading(
    table2: Table, tmp_path: Path, profile: str, depths: tuple[str, str]
) -> None:
    run = record(table2, "preact/resnet110", 12.0, profile=profile)
    text = "\n".join(rendered(table2, tmp_path, run, profile=profile))
    assert all(f"ours at depth {depth}" in text for depth in depths)
    assert f"profile {profile} is not the paper's experiment" in text


def test_only_the_columns_of_the_chosen_cells_are_shown(table2: Table, tmp_path: Path) -> None:
    run = record(table2, "preact/resnet110", 6.5)
    comparison = compare(table2, table2.cells("preact/resnet110"), "paper", [run])
    text = render(comparison, Store(tmp_path), "table")
    assert "ResNet-110, paper" in text
    assert "ResNet-164" not in text


def test_markdown_is_a_table_of_pipes(table2: Table, tmp_path: Path) -> None:
    lines = rendered(table2, tmp_path, record(table2, "preact/resnet110", 6.5), form="markdown")
    assert row(lines, "full pre-activation").strip().startswith("| full pre-activation")
    assert row(lines, "a net").count("|") == 12
