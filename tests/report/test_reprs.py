"""What a notebook shows of objects: a short line each."""

from __future__ import annotations

from paperbench.compare.comparison import Comparison
from paperbench.report.json_format import document
from paperbench.specs.table import Table
from tests.compare.judging import record
from tests.golden import assert_golden


def test_reprs(numbers: Comparison, failing: Comparison, table2: Table) -> None:
    run = record(table2, "preact/resnet110", None, iteration=8_000)
    facts = [document(comparison) for comparison in (numbers, failing)]
    nets = [net for one in facts for cell in one.cells for net in cell.nets if net.shown]
    things = [
        *(thing for one in facts for thing in (one, *one.cells, *one.claims)),
        *(thing for net in nets for thing in (net, net.shown)),
        nets[2].shown.runs if nets[2].shown else None,
        *(run, run.spec, failing.table, failing.table.all_cells[0]),
    ]
    assert_golden("reprs", "\n".join(map(repr, things)))
