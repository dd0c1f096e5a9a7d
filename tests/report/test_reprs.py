"""What a notebook shows of objects: a short line each."""

from __future__ import annotations

from paperbench.compare.comparison import Comparison
from paperbench.report.json_format import document
from paperbench.specs.table import Table
from tests.compare.judging import record
from tests.report.conftest import SWEEP


def test_cells_show_our_result_beside_the_papers(numbers: Comparison, failing: Comparison) -> None:
    for comparison, cell, text in (
        (numbers, "original/resnet110", "reproduced, 6.60 beside 6.61"),
        (numbers, "bn_after_addition/resnet110", "worse, 10.02 beside 8.17"),
        (numbers, "relu_only_preact/resnet164", "not run, published 5.91"),
        (failing, SWEEP, "reproduced, 30 of 30 failed beside fail"),
        (failing, "conv_shortcut/resnet110", "worse, diverged beside 12.22"),
    ):
        (facts,) = (one for one in document(comparison).cells if one.id == cell)
        assert repr(facts) == f"<{cell}: {text}>"


def test_runs_and_their_groups_are_lines(numbers: Comparison, table2: Table) -> None:
    cells = {cell.id: cell for cell in document(numbers).cells}
    (net,) = cells["relu_before_addition/resnet110"].nets
    assert repr(net) == "<resnet110_relu_before_addition: underpowered, 5 runs>"
    assert net.shown
    assert repr(net.shown) == "<5 runs: CIFAR-10, fp32, numerics 1>"
    assert repr(net.shown.runs[1:3]) == "(<seed 1: 7.90>, <seed 2: diverged>)"
    run = record(table2, "preact/resnet110", None, iteration=8_000)
    assert repr(run) == f"<{run.run}: preact_resnet110, partial at 8,000>"
    assert repr(document(numbers).claims[0]).startswith("<")
    assert repr(run.spec) == f"<spec {run.run[:12]}: profile paper, fp32>"


def test_table_and_claims_are_lines(failing: Comparison) -> None:
    facts = document(failing)
    assert repr(failing.table) == "<table1: 11 cells>"
    assert repr(facts).startswith("<table1 compared: 2 reproduced, 1 worse, 1 better, 7 not run; claims: ")
    assert repr(failing.table.all_cells[0]) == "<original/resnet110: published 6.61>"
    assert repr(facts.claims[0]) == f"<{facts.claims[0].claim.id}: {facts.claims[0].standing}>"
