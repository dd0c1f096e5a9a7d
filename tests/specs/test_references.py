"""A number that several tables print is in one file; the others refer to it if the experiment is the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import yaml

from paperbench.report.published import describe
from paperbench.specs.table import Table
from tests.helpers import ROOT
from tests.specs.small_specs import ONE, ONE_EXPECTED, REMOVED, TWO, TWO_EXPECTED, SmallSpecs


def is_reference(name: str, cell_id: str) -> bool:
    """Whether the file of a shipped table refers to another table for a cell."""
    row, column = cell_id.split("/")
    written = yaml.safe_load((ROOT / "expected" / f"{name}.yaml").read_text(encoding="utf-8"))["cells"][row][column]
    return isinstance(written, dict) and "same_as" in written


def test_every_published_number_and_peer_is_in_one_file(tables: dict[str, Table]) -> None:
    digests: Counter[str] = Counter()
    peers: Counter[tuple[str, str, float]] = Counter()
    for name, table in tables.items():
        peers.update((table.cell(peer.cell).home, peer.source, peer.value) for peer in table.expected.peers)
        for cell in table.all_cells:
            if not is_reference(name, cell.id):
                digests.update(table.experiment_digest(cell, setting) for setting in cell.settings)
    assert set(digests.values()) == set(peers.values()) == {1}


def test_reference_brings_the_number_with_its_description(specs: SmallSpecs) -> None:
    specs.set(ONE_EXPECTED, ("defaults",), {"statistic": "median", "n": 7, "tolerance": 0.4})
    table = specs.load("two")
    cell = table.cell("baseline/cifar")
    assert (cell.number, cell.published_runs, cell.tolerance, cell.home) == (6.61, 7, 0.4, "one/original/basic")
    assert (cell.expected.std, cell.expected.std_source, cell.expected.note) == (0.16, "v1", "from v1")
    assert (cell.expected.mark, cell.expected.params) == (None, "1.7M"), "marks and parameters stay with their table"
    assert table.cell("large/imagenet").tolerance == 0.3
    specs.set(TWO_EXPECTED, ("cells", "baseline", "cifar", "note"), "own note")
    assert specs.load("two").cell("baseline/cifar").expected.note == "own note"


def test_a_table_of_references_alone_needs_no_defaults(specs: SmallSpecs) -> None:
    specs.set(TWO_EXPECTED, ("defaults",), REMOVED)
    specs.set(TWO_EXPECTED, ("cells", "large"), REMOVED)
    table = specs.load("two")
    assert table.defaults == table.cell("baseline/cifar").defaults == specs.load("one").defaults
    text = " ".join(describe(table, "paper", long=True).split())
    assert "Published: median of 5 runs. Tolerance: 0.5 percentage points. -: no number is published." in text
    assert "published: " not in text, "all numbers are by as many runs"


def test_remarks_follow_the_number(specs: SmallSpecs) -> None:
    home = specs.load("one")
    specs.set(
        ONE_EXPECTED, ("peers",), [vars(peer) for peer in (*home.peers, replace(home.peers[0], cell="preact/deep"))]
    )
    table = specs.load("two")
    assert table.peers == (replace(home.peers[0], cell="baseline/cifar"),)
    assert table.disputed == (replace(home.disputed[0], cell="baseline/cifar"),)


@pytest.mark.parametrize(
    ("file", "path", "value", "difference"),
    [
        (TWO, ("rows", 0, "cells", "cifar"), "original_resnet56", "net is original_resnet110; here it is original_re"),
        (TWO, ("columns", 0, "dataset"), "cifar100", "data set is cifar10; here it is cifar100."),
        (TWO, ("rows", 0, "recipe"), "large", "recipe is small; here it is large."),
        (TWO, ("rows", 0, "evaluation"), "crop224", "evaluation is whole images; here it is crop224."),
        (ONE, ("columns", 0, "metric"), "top5", "metric is top5; here it is top1."),
    ],
)
def test_reference_to_another_experiment_is_refused(
    specs: SmallSpecs, file: str, path: tuple[str | int, ...], value: Any, difference: str
) -> None:
    specs.set(file, path, value)
    ((_, _, message),) = specs.complaints("two")
    assert message.startswith("cells.baseline.cifar: one/original/basic is another experiment: its ")
    assert difference in message


def test_other_spelling_of_the_same_net_is_the_same_experiment(specs: SmallSpecs) -> None:
    net = {"model": "preact_resnet110", "kwargs": {"placement": "original"}}
    specs.set(TWO, ("rows", 0, "cells", "cifar"), net)
    assert specs.load("two").cell("baseline/cifar").number == 6.61


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ({"same_as": "onne/original/basic"}, "same_as must name a cell of another table. Did you mean 'one'?"),
        ({"same_as": "two/large/imagenet"}, "same_as must name a cell of another table."),
        ({"same_as": "one/orignal/basic"}, "one has no cell 'orignal/basic'. Did you mean 'original/basic'?"),
        ({"same_as": "original/basic"}, "must be table/row/column, such as table2/original/resnet110."),
        ({"same_as": "one/original/basic", "n": 5}, "n: belongs with the number, in one/original/basic."),
        ({"same_as": "one/original/basic", "tolerance": 1.0}, "tolerance: is only for cells with a number."),
    ],
)
def test_wrong_reference_is_refused(specs: SmallSpecs, cell: dict[str, Any], message: str) -> None:
    specs.set(TWO_EXPECTED, ("cells", "baseline", "cifar"), cell)
    assert any(message in complaint for _, _, complaint in specs.complaints("two"))


def test_reference_to_a_reference_is_refused(specs: SmallSpecs) -> None:
    specs.set(ONE_EXPECTED, ("cells", "original", "basic"), {"same_as": "two/baseline/cifar"})
    specs.set(ONE_EXPECTED, ("footnotes",), {})
    ((_, _, message),) = specs.complaints("two")
    assert message.endswith("one/original/basic refers to two/baseline/cifar; name that cell instead.")
