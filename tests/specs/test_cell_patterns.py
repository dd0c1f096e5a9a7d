from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from paperbench.errors import PaperbenchError
from paperbench.specs.table import Table


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["preact", "original"], ["original/110", "preact/110", "original/164", "preact/164"]),
        (("preact/*110", "preact", "preact"), ["preact/110", "preact/164"]),
        ("preact", ["preact/110", "preact/164"]),
    ],
)
def test_patterns_choose_cells_in_the_order_of_the_table(
    table2: Table, patterns: str | Sequence[str], expected: list[str]
) -> None:
    assert [cell.id.replace("resnet", "") for cell in table2.cells(patterns)] == expected


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["original", "preakt"], "No cell of table2 matches 'preakt'. Did you mean 'preact'?"),
        ("resnet111", "Did you mean 'resnet110'?"),
        ("preakt/*", "Did you mean 'preact/*'?"),
        ("*/resnet101", "Did you mean '*/resnet110'?"),
        ("preakt/resnet100", "Did you mean 'preact/resnet110'?"),
        ("original,preact", "Give several patterns one by one, without commas: original preact."),
        ("xyz", "Known: bn_after_addition, original, preact,"),
        ([], "Give at least one"),
    ],
)
def test_pattern_without_a_cell_is_refused_with_a_suggestion(
    table2: Table, patterns: str | Sequence[str], message: str
) -> None:
    with pytest.raises(PaperbenchError, match=re.escape(message)):
        table2.cells(patterns)


def test_row_on_request_must_be_named_in_full_whatever_else_matches(tables: dict[str, Table]) -> None:
    table = tables["table4"]
    with pytest.raises(PaperbenchError, match="only if their row is named in full: resnet1202"):
        table.cells(["resnet110", "resnet120*"])
    ids = [cell.id for cell in table.cells(["*", "resnet1202"])]
    assert len(ids) == len(set(ids)) == len(table.all_cells)
