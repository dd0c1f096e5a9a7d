from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paperbench.compare.comparison import Comparison
from paperbench.report.comparison import render
from paperbench.runs.history import HistoryLine
from paperbench.runs.store import Store
from paperbench.specs.table import Table, load_table
from tests.helpers import ROOT
from tests.report.comparing import (
    COPY,
    compared,
    every_verdict_of_failing,
    every_verdict_of_numbers,
    external,
    record,
    records,
)


@pytest.fixture(scope="module")
def table1() -> Table:
    return load_table("table1", ROOT)


def text_of(comparison: Comparison, root: Path = Path("nowhere")) -> str:
    return render(comparison, Store(root), "table")


def row(text: str, title: str) -> list[str]:
    """The texts of the first table row that begins with a title."""
    line = next(line for line in text.splitlines() if line.startswith(title))
    return [part.strip() for part in line.split("  ") if part.strip()]


def flat(text: str) -> str:
    """Prose without its line breaks."""
    return " ".join(text.split())


def test_the_published_number_stands_beside_median_difference_runs_and_verdict(table2: Table) -> None:
    text = text_of(compared(table2, records(table2, "preact/resnet110", (6.4, 6.5, 6.6))))
    assert row(text, "full pre-activation") == [
        "full pre-activation",
        "4(e)",
        "6.37",
        "6.50 (+0.13), n=3",
        "underpowered",
        "5.46",
        "-",
        "not run",
    ]
    assert row(text, "preact/resnet110")[1:] == [
        "0: 6.40, 1: 6.50, 2: 6.60",
        "6.50",
        "6.37",
        "-",
        "-",
        "0.5",
        "3 of 5 runs",
    ]


def test_all_rows_of_the_paper_stand_in_its_order(table2: Table) -> None:
    text = text_of(compared(table2))
    assert [line.split("4(")[1][0] for line in text.splitlines() if "4(" in line] == ["a", "b", "c", "d", "e"]
    assert "No run of this table in this profile yet." in text
    assert "Cells\n" not in text


def test_every_verdict_has_its_word_and_its_reason(table2: Table) -> None:
    text = text_of(every_verdict_of_numbers(table2))
    assert row(text, "original Residual Unit")[3:] == [
        "6.60 (-0.01), n=5",
        "reproduced",
        "5.93",
        "6.10 (+0.17), n=5",
        "reproduced, shifted by +0.17",
    ]
    assert row(text, "BN after addition")[3:] == ["10.02 (+1.85), n=5", "worse", "6.50", "5.08 (-1.42), n=5", "better"]
    assert row(text, "ReLU before addition")[4] == "underpowered"
    assert row(text, "ReLU-only pre-activation")[3:] == [
        "9.20 (+2.49), n=5",
        "not comparable",
        "5.91",
        "(at 1,000)",
        "not run",
    ]
    assert row(text, "full pre-activation")[3:5] == ["7.30 (+0.93), n=5", "worse (alone)"]
    assert row(text, "full pre-activation")[-1] == "reproduced, external"
    assert row(text, "relu_before_addition/resnet110")[-1].startswith("unstable: 1 of 5 failed; extend it to 10 runs")
    differing = "bn_after_addition/resnet110 (worse), bn_after_addition/resnet164 (better)."
    assert f"After Holm's correction over the cells compared these differ from the paper: {differing}" in flat(text)
    assert "(alone): beyond the tolerance by itself, but not after Holm's correction over the cells" in flat(text)
    assert "6 cells were tested: if every true difference were exactly the tolerance, 0.3 false alarms" in flat(text)


def test_the_interval_the_noise_and_its_published_share_are_shown(table2: Table) -> None:
    text = text_of(every_verdict_of_numbers(table2))
    shown = row(text, "original/resnet110")
    assert shown[1:4] == ["0: 6.58, 1: 6.64, 2: 6.49, 3: 6.71, 4: 6.60", "6.60", "6.61"]
    assert shown[4].startswith("[-0.")
    assert shown[5].endswith("(33% published)")
    assert "%" not in row(text, "original/resnet164")[5]


def test_test_set_noise_is_told_and_not_added(table2: Table) -> None:
    text = flat(text_of(every_verdict_of_numbers(table2)))  # sqrt(p (1 - p) / 10,000) for 5.46 and 8.17 %
    assert "5.46 % of 10,000 has a binomial standard error of 0.23 points, 8.17 % one of 0.27. It is in no" in text


def test_other_groups_are_listed_and_not_pooled(table2: Table) -> None:
    text = text_of(every_verdict_of_numbers(table2))
    heading = "Also there, and not pooled:\n\n"
    assert f"{heading}  original/resnet110: CIFAR-10, bf16, numerics 1: 0: 6.70; median 6.70" in text
    assert "(-0.01), n=5" in row(text, "original Residual Unit")[3]


def test_results_from_elsewhere_are_marked_with_their_source(table2: Table) -> None:
    ours = records(table2, "preact/resnet110", (6.4, 6.5, 6.3, 6.2, 6.4))
    elsewhere = [external(table2, "preact/resnet110", 9.0, seed=seed, source="a letter") for seed in range(5)]
    text = text_of(compared(table2, ours, elsewhere))
    assert row(text, "full pre-activation")[3:5] == ["6.40 (+0.03), n=5", "reproduced"]
    assert "  preact/resnet110: external: a letter: 0: 9.00, 1: 9.00, 2: 9.00, 3: 9.00, 4: 9.00; median 9.00" in text


def test_failing_nets_are_counted(table1: Table) -> None:
    text = text_of(every_verdict_of_failing(table1))
    rows = [line for line in text.splitlines() if line.startswith("constant scaling")]
    assert "diverged, n=5 (3 diverged)" in rows[0]
    assert "reproduced" in rows[0]
    assert "better" in rows[1]
    assert "30 of 30 runs failed" in row(text, "exclusive gating")
    assert "worse" in row(text, "1x1 conv shortcut")
    assert "3 of 5 failed: unstable" in text
    differing = "constant_scaling_unscaled/resnet110 (better), conv_shortcut/resnet110 (worse)."
    assert f"these differ from the paper: {differing}" in flat(text)
    assert "exclusive_gating_0_to_5/resnet110 (gate_bias=-3)" in text
    assert "not finite from iteration 5 on, at rate 0.1; first the output of stages.0.1" in text


def test_the_papers_further_columns_stand_around_the_results(table1: Table) -> None:
    text = text_of(compared(table1))
    header = row(text, "case")
    assert header == ["case", "Fig.", "on shortcut", "on F", "error (%), paper", "ours", "verdict", "remark"]
    assert row(text, "constant scaling") == [
        "constant scaling",
        "2(b)",
        "0",
        "1",
        "fail",
        "-",
        "not run",
        "This is a plain net",
    ]


def test_literature_means_and_marks_stand_as_printed() -> None:
    text = text_of(compared(load_table("table4", ROOT)))
    assert row(text, "NIN") == ["NIN", "8.81", "35.68"]
    assert "4.62† (4.69±0.20)" in text
    assert "22.71 (22.68±0.22)" in text
    assert "†: mini-batches of 64 instead of 128" in text


def test_claims_come_with_test_level_basis_and_section(table2: Table) -> None:
    runs = [
        *records(table2, "preact/resnet164", (5.4, 5.5, 5.3, 5.45, 5.5)),
        *records(table2, "relu_only_preact/resnet164", (5.9, 5.8, 5.95, 6.0, 5.85)),
        *records(table2, "original/resnet164", (5.9, 5.95, 6.0, 5.8, 5.9)),
    ]
    claims = text_of(compared(table2, runs)).split("\n\nClaims\n\n")[1]
    assert claims.startswith("2 supported, 1 undecided, 11 not run.")
    told = flat(claims)
    assert (
        "supported: ReLU-only pre-activation performs very similarly to the original unit on ResNet-164 (Sec. 4.1; "
        "relu_only_preact_close_164). two one-sided Welch tests, within 0.5 points at 5%; 5 runs per net, CIFAR-10, "
        "fp32, numerics 1: relu_only_preact/resnet164 - original/resnet164 = -0.01 ["
    ) in told
    assert "supported: After that start the original ResNet-164 trains well" in told
    assert "bn_after_addition_worse_110" in told.split("Not run:")[1]
    assert "no run of our own of original/resnet110, bn_after_addition/resnet110" in told
    assert "Undecided: original_slightly_slower_start_164: the history of run" in told


def test_only_the_runs_that_were_looked_at_are_counted(table2: Table) -> None:
    early, late = (5.90, 5.95, 5.93, 5.88, 5.96), (8.0, 8.1, 8.2)
    text = text_of(compared(table2, records(table2, "original/resnet164", (*early, *late))))
    assert row(text, "original Residual Unit")[-2:] == ["5.93 (+0.00), n=5", "reproduced"]
    assert row(text, "original/resnet164")[1].endswith("4: 5.96; not looked at: 5: 8.00, 6: 8.10, 7: 8.20")


def test_prose_fits_120_columns(table2: Table) -> None:
    text = text_of(every_verdict_of_numbers(table2))
    blocks = [block for block in text.split("\n\n") if "---" not in block]
    assert max(len(line) for block in blocks for line in block.splitlines()) <= 120


def test_a_number_of_runs_that_is_not_the_tables_is_told(table2: Table) -> None:
    runs = records(table2, "preact/resnet110", (6.4, 6.5, 6.6))
    assert "3 runs a cell, fixed beforehand by --seeds; the table says 5" in text_of(compared(table2, runs, seeds=3))


def test_what_was_left_out_is_counted(table2: Table) -> None:
    text = render(compared(table2), Store(Path("nowhere")), "table", 2)
    assert "Left out: 2 records or results, named beside this report." in text


def test_groups_that_read_the_same_are_told_apart_by_their_pixels(table2: Table) -> None:
    other = replace(COPY, fingerprint="d" * 64)
    runs = [record(table2, "preact/resnet110", 8.0, data=COPY), record(table2, "preact/resnet110", 9.0, data=other)]
    text = text_of(compared(table2, runs))
    assert ("pixels dddddddd" in text) != ("pixels cccccccc" in text)  # whichever of the two is not shown above


def test_deviations_from_the_paper_stand_under_the_table(table2: Table) -> None:
    text = text_of(every_verdict_of_numbers(table2))
    deviations = text.split("Where our runs deviate from the paper's\n\n")[1]
    assert row(deviations, "framework") == ["framework", "Caffe", "PyTorch 2.15.0", "all"]
    assert row(deviations, "data")[1:] == [
        "CIFAR-10",
        "CIFAR-10 (some copy) (re-encoded)",
        "relu_only_preact/resnet110",
    ]
    assert "  batch norm, at test: reestimated" in deviations


def test_a_diverged_median_is_a_word_and_has_no_difference(table2: Table) -> None:
    text = text_of(compared(table2, records(table2, "preact/resnet110", (None,))))
    assert "diverged, n=1 (1 diverged)" in row(text, "full pre-activation")
    text = text_of(compared(table2, records(table2, "preact/resnet110", (None, 6.5, 6.5))))
    assert "6.50 (+0.13), n=3 (1 diverged)" in row(text, "full pre-activation")


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
    text = text_of(compared(table2, [prefix]), tmp_path)
    assert "(at 1,000)" in row(text, "full pre-activation")
    assert row(text, prefix.run)[2:] == ["0", "fp32", "partial", "1,000", "1.2500", "45.25", "55.50", "-", "1.0"]


@pytest.mark.parametrize(("profile", "depths"), [("smoke", ("14", "20")), ("shallow", ("20", "29"))])
def test_reduced_profiles_have_no_verdicts_and_say_why(table2: Table, profile: str, depths: tuple[str, str]) -> None:
    text = text_of(compared(table2, [record(table2, "preact/resnet110", 12.0, profile=profile)], profile=profile))
    assert all(f"ours at depth {depth}" in text for depth in depths)
    assert f"Not comparable with the paper: profile {profile} is not the paper's experiment." in text
    assert "verdict" not in row(text, "case")
    assert "(+" not in row(text, "full pre-activation")[3]


def test_only_the_columns_of_the_chosen_cells_are_shown(table2: Table) -> None:
    text = text_of(compared(table2, [record(table2, "preact/resnet110", 6.5)], cells="preact/resnet110"))
    assert "ResNet-110, paper" in text
    assert "ResNet-164" not in text
    assert "14 about cells that were not chosen." in text


def test_a_run_that_serves_two_cells_is_listed_once(table2: Table) -> None:
    run = record(table2, "preact/resnet110", 6.5)
    text = text_of(compared(table2, [run, replace(run)]))
    assert text.count(run.run) == 1


def test_markdown_has_headings_lists_and_tables_of_pipes(table2: Table) -> None:
    text = render(every_verdict_of_numbers(table2), Store(Path("nowhere")), "markdown")
    assert text.startswith("## Table 2 of arXiv:1603.05027")
    for heading in ("### Cells", "### Claims", "### Where our runs deviate from the paper's", "### Runs"):
        assert f"\n\n{heading}\n\n" in text
    tables = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")]
    assert len(tables) == 4
    for lines in tables:
        assert {line.count("|") for line in lines} == {lines[0].count("|")}
