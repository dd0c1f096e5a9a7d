from __future__ import annotations

from dataclasses import replace

import pytest

from paperbench.compare.power import Outlook, assess_outlook
from paperbench.report.outlook import render
from paperbench.specs.table import Table
from tests.compare.judging import compared, records
from tests.golden import assert_golden


@pytest.fixture(scope="module")
def outlook(table2: Table) -> Outlook:
    """Table 2 with a cell that has a verdict, one with two of five runs, and eight without runs."""
    runs = [
        *records(table2, "preact/resnet110", (6.3, 6.4, 6.4, 6.5, 6.3)),
        *records(table2, "original/resnet110", (6.5, 6.7)),
    ]
    return assess_outlook(compared(table2, *runs), tables=200)


def test_outlooks(tables: dict[str, Table], outlook: Outlook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    table2 = tables["table2"]
    first, *others = outlook.next_runs
    useless = tuple(replace(one, worth=0.0) for one in others)
    chosen = [cell.id for cell in table2.cells("*/resnet110")]
    texts = [
        render(outlook),
        *(
            f"Next: {render(one, long=True).partition('Next: ')[2]}"
            for one in (outlook, *(replace(outlook, next_runs=runs) for runs in ((first, *useless), useless, ())))
        ),
        *(render(assess_outlook(compared(table2, seeds=seeds), tables=200)) for seeds in (1, 2)),
        render(assess_outlook(compared(table2), std=0.25, tables=200, cells=chosen)),
        *(render(assess_outlook(compared(tables[name]), tables=200)) for name in ("table1", "table5")),
    ]
    assert_golden("outlooks", f"\n\n{'=' * 100}\n\n".join(texts))


def test_chances_are_those_of_the_simulation(outlook: Outlook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = [line.split("  ") for line in render(outlook, long=True).split("Next: ")[1].splitlines()]
    rows = {cells[0]: [cell.strip() for cell in cells[1:] if cell.strip()] for cells in lines}
    for one in outlook.next_runs:
        runs, verdicts, claims, worth = rows[one.cells[0]]
        assert (runs, worth) == (f"{one.missing} of {one.total}", f"{one.worth:.2f}")
        assert verdicts == (f"{sum(one.verdicts.values()):.1f} of 1" if one.verdicts else "-")
        assert claims == f"{sum(one.claims.values()):.1f} of {len(one.claims)}"


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("long", [False, True])
def test_lines_fit_the_terminal(outlook: Outlook, monkeypatch: pytest.MonkeyPatch, columns: int, long: bool) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert max(map(len, render(outlook, long).splitlines())) <= columns
