from __future__ import annotations

from dataclasses import replace

import pytest

from paperbench.compare.power import Outlook, assess_outlook
from paperbench.report.outlook import render, valuable
from paperbench.specs.table import Table
from tests.compare.judging import compared, records


def flat(text: str) -> str:
    return " ".join(text.split())


def row(text: str, title: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"{title}  "))
    return [part.strip() for part in line.split("  ") if part.strip()]


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(scope="module")
def outlook(table2: Table) -> Outlook:
    """Table 2 with a cell that has a verdict, one with two of five runs, and eight without runs."""
    runs = [
        *records(table2, "preact/resnet110", (6.3, 6.4, 6.4, 6.5, 6.3)),
        *records(table2, "original/resnet110", (6.5, 6.7)),
    ]
    return assess_outlook(compared(table2, *runs), tables=200)


def test_every_chance_is_shown(outlook: Outlook) -> None:
    text = render(outlook, long=True)
    alone = next(one for one in outlook.cells if one.cells == ("original/resnet110",))
    pairs = [f"{100 * first:.0f} / {100 * both:.0f}" for first, both in (alone.reproduced, alone.worse)]
    false = f"{100 * alone.false[0]:.1f} / {100 * alone.false[1]:.1f}"
    assert row(text, "original/resnet110") == ["original/resnet110", "0.5", *pairs, false]
    for claim in outlook.claims:
        chances = " / ".join(f"{100 * chance:.0f}" for chance in claim.supported)
        assert row(text, claim.claim.id) == [claim.claim.id, chances]
    next_runs = text.split("Next: ")[1]
    for one in outlook.next_runs:
        (cell,) = one.cells
        _, runs, verdicts, claims, worth = row(next_runs, cell)
        assert runs == f"{one.missing} of {one.total}"
        assert verdicts == (f"{one.verdicts[cell]:.1f} of 1" if one.verdicts else "-")
        assert claims == f"{sum(one.claims.values()):.1f} of {len(one.claims)}"
        assert worth == f"{one.worth:.2f}"
    assert row(next_runs, "original/resnet110")[1] == "3 of 5"


def test_every_column_is_explained(outlook: Outlook) -> None:
    text = flat(render(outlook))
    for column in ("tol.", "reproduced", "worse", "false", "runs", "verdicts", "claims", "worth"):
        assert f" {column}: " in text
    assert f"a standard deviation of {outlook.std:.2g} points between runs (that of the runs at hand;" in text
    assert "judged with noise shared across the table." in text
    assert "after 5 / 10 runs, if the printed numbers are the true errors" in text
    assert "Claims not simulated: 3 not about mean test errors." in text


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("long", [False, True])
def test_lines_fit_the_terminal(outlook: Outlook, monkeypatch: pytest.MonkeyPatch, columns: int, long: bool) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert max(map(len, render(outlook, long).splitlines())) <= columns


def test_next_runs_are_cut_unless_long(outlook: Outlook) -> None:
    assert len(outlook.next_runs) == 9
    assert "And 1 more net: `--long` lists them." in render(outlook)
    assert f"\n{outlook.next_runs[-1].cells[0]} " not in render(outlook).split("Next: ")[1]
    assert "`--long`" not in render(outlook, long=True)


def test_cells_whose_runs_decide_nothing_are_left_out(outlook: Outlook) -> None:
    first, *others = outlook.next_runs
    some = replace(outlook, next_runs=(first, *(replace(one, worth=0.0) for one in others)))
    assert valuable(some) == [first]
    assert "The next runs of 8 other nets alone would decide hardly anything." in render(some)
    assert "Next: nothing, as no further run" in render(replace(outlook, next_runs=some.next_runs[1:]))
    assert "Next: nothing. The verdicts and claims" in render(replace(outlook, next_runs=()))


def test_one_run_decides_nothing_without_a_published_std(table2: Table) -> None:
    text = render(assess_outlook(compared(table2, seeds=1), tables=200))
    assert flat(text).startswith("Table 2: what 1 run per cell would decide, or 2 where 1 is too few.")
    assert row(text, "9 cells, cifar10") == ["9 cells, cifar10", "0.5", "-", "-", "-"]
    assert "-: no verdict, as fewer than 3 runs need a published std." in flat(text)
    assert "14 that need at least 2 runs per cell, or are not about mean test errors" in flat(text)
    two = render(assess_outlook(compared(table2, seeds=2), tables=200))
    assert [text[:4] for text in row(two, "9 cells, cifar10")[2:]] == ["- / "] * 3


def test_difference_within_the_tolerance_has_no_chance_of_worse(tables: dict[str, Table]) -> None:
    text = render(assess_outlook(compared(tables["table1"]), tables=200))
    assert row(text, "5 cells, cifar10")[1::2] == ["1", "-"]
    assert "(-: within the tolerance)" in flat(text)


def test_assumptions_are_named(table2: Table) -> None:
    chosen = [cell.id for cell in table2.cells("*/resnet110")]
    text = flat(render(assess_outlook(compared(table2), std=0.25, tables=200, cells=chosen)))
    assert "a standard deviation of 0.25 points between runs (as given by `--std`), and judged with noise" in text
    assert "Claims not simulated: 1 not about mean test errors; 7 about cells that are not" in text
    text = flat(render(assess_outlook(compared(table2), tables=200)))
    assert "0.18 points between runs (typical of those that the authors print; `--std` sets another)" in text


def test_cells_that_show_the_same_runs_share_a_line(tables: dict[str, Table]) -> None:
    text = render(assess_outlook(compared(tables["table5"]), tables=200), long=True)
    assert row(text, "8 cells, imagenet, top-5")[1] == "0.3"
    next_runs = text.split("Next: ")[1]
    assert row(next_runs, "original_resnet152_224/top1 and 3 more")[1] == "3 of 3"
    assert row(next_runs, "preact_resnet200/top1 and 1 more")[1] == "3 of 3"
