"""Tables of text: the paper's, with room for more columns beside each column of results, and how they are printed."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from tabulate import tabulate

from paperbench.specs.cell import Cell
from paperbench.specs.expected import LiteratureRow
from paperbench.specs.experiment import Column, Row
from paperbench.specs.table import Table

WIDTH = 120
"""Of a terminal, in characters."""

_TERM = r"(?:[A-Za-z]_[A-Za-z0-9]|[a-z]\([a-z]\))"
FORMULA = re.compile(rf"(?<![\w.\-])(?:(?:[0-9]+ [-+] )?{_TERM}(?: = -?[0-9]+)?|[1-9][0-9]*(?:x[1-9][0-9]*)+)(?![\w(])")
"""Such as "1 - g(x)", "b_g = -6" and "3x3"."""


class Marked(str):
    """Text with the letters of the notes about it: "worse [e]"."""

    text: str
    letters: tuple[str, ...]

    def __new__(cls, text: str, letters: Sequence[str]) -> Marked:
        marked = super().__new__(cls, f"{text} [{', '.join(letters)}]" if letters else text)
        marked.text, marked.letters = text, tuple(letters)
        return marked


@dataclass(frozen=True)
class Grid:
    """Text in rows and columns.

    Attributes:
        alignment: "left" or "right" for each column.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    alignment: tuple[str, ...]


@dataclass(frozen=True)
class Beside:
    """A column that stands beside the published numbers of a column.

    Attributes:
        texts: By the id of the cell.
    """

    header: str
    alignment: str
    texts: Mapping[str, str]


@dataclass(frozen=True)
class _Line:
    """A row of the paper's table. Results, and ids of our cells, are by column id."""

    title: str
    figure: str
    labels: Mapping[str, str]
    published: Mapping[str, str]
    cells: Mapping[str, str]


def paper_grid(table: Table, cells: Sequence[Cell], beside: Callable[[Column], Sequence[Beside]] | None = None) -> Grid:
    """The table as the paper prints it, rows of the literature included.

    Args:
        cells: Which to show; columns and rows without any are left out.
        beside: Gives what stands beside a column of results.
    """
    experiment = table.experiment
    rows = [row for row in experiment.rows if any(cell.row.id == row.id for cell in cells)]
    is_whole = len(cells) == len(table.all_cells) or all(row in rows or row.on_request for row in experiment.rows)
    literature = [(row.place, _of_literature(row, table)) for row in table.expected.literature if is_whole]
    lines = [
        *(line for place, line in literature if place == "above"),
        *(_of_experiment(row, [cell for cell in cells if cell.row.id == row.id]) for row in rows),
        *(line for place, line in literature if place == "below"),
    ]

    def labels(where: str) -> list[tuple[str, str, list[str]]]:
        return [
            (label, "left", [line.labels.get(label, "") for line in lines])
            for label, place in experiment.labels.items()
            if place == where
        ]

    columns = [(experiment.case, "left", [line.title for line in lines])]
    if any(line.figure for line in lines):
        columns.append(("Fig.", "left", [line.figure for line in lines]))
    columns += labels("before")
    for column in experiment.columns:
        if any(cell.column.id == column.id for cell in cells):
            header = f"{column.title}, paper" if beside else column.title
            columns.append((header, "right", [line.published.get(column.id, "") for line in lines]))
            for ours in beside(column) if beside else ():
                texts = [ours.texts.get(line.cells.get(column.id, ""), "") for line in lines]
                columns.append((ours.header, ours.alignment, texts))
    columns += labels("after")
    headers, alignment, texts_of_columns = zip(*columns, strict=True)
    return Grid(headers, tuple(zip(*texts_of_columns, strict=True)), alignment)


def _of_experiment(row: Row, cells: Sequence[Cell]) -> _Line:
    params = next((cell.expected.params for cell in cells if cell.expected.params), None)
    results, ids = {c.column.id: published(c) for c in cells}, {c.column.id: c.id for c in cells}
    return _Line(_titled(row.title, params), row.figure, row.labels, results, ids)


def _of_literature(row: LiteratureRow, table: Table) -> _Line:
    results = {column: _number(error, table.expected.defaults.decimals) for column, error in row.cells.items()}
    return _Line(_titled(row.title, row.params), "", row.labels, results, {})


def _titled(title: str, params: str | None) -> str:
    return f"{title} ({params})" if params else title


def published(cell: Cell) -> str:
    """A published result as the paper prints it."""
    expected, decimals = cell.expected, cell.defaults.decimals
    if expected.value == "unprinted":
        return "-"
    if cell.number is None:
        return "fail"
    mean = ""
    if expected.mean is not None and expected.std is not None:
        mean = f" ({_number(expected.mean, decimals)}±{_number(expected.std, decimals)})"
    return f"{_number(cell.number, decimals)}{expected.mark or ''}{mean}"


def _number(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}"


def paragraph(text: str, indent: str = "") -> str:
    """Prose in lines that fit a terminal.

    Args:
        indent: Of all lines but the first.
    """
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def as_text(grid: Grid) -> str:
    """The grid for a terminal, narrowed to its width if that can be."""
    headers, rows = narrowed(grid, WIDTH, gap=2)
    widths = [_width(column) for column in zip(headers, *rows, strict=True)]
    pads = [str.rjust if alignment == "right" else str.ljust for alignment in grid.alignment]
    return "\n".join(
        "  ".join(pad(text, width) for pad, text, width in zip(pads, texts, widths, strict=True)).rstrip()
        for row in (headers, [["-" * width] for width in widths], *rows)
        for texts in zip_longest(*row, fillvalue="")
    )


def as_markdown(grid: Grid) -> str:
    """The grid with pipes."""
    rows = [[text.replace("|", "\\|").replace("<", "&lt;") for text in row] for row in grid.rows]
    return tabulate(rows, grid.headers, "github", disable_numparse=True, colalign=grid.alignment)


Lines = list[str]
"""A text in lines, to stand one above the other."""


def narrowed(grid: Grid, width: int, gap: int) -> tuple[list[Lines], list[list[Lines]]]:
    """Headers and rows, each text broken into lines no shorter than it takes for the table to fit, if it can.

    Args:
        width: In characters.
        gap: Characters between columns.
    """
    columns = [[[text] for text in column] for column in zip(grid.headers, *grid.rows, strict=True)]
    for length in (60, 40, 32, 24, 20):
        if sum(map(_width, columns)) + gap * (len(columns) - 1) <= width:
            break
        for n, (alignment, header) in enumerate(zip(grid.alignment, grid.headers, strict=True)):
            below = [_broken(row[n], alignment, length) for row in grid.rows]
            columns[n] = [_broken_header(header, _width(below)), *below]
    headers, *rows = map(list, zip(*columns, strict=True))
    return headers, rows


def _width(column: Sequence[Lines]) -> int:
    return max((len(line) for lines in column for line in lines), default=0)


def _broken(text: str, alignment: str, length: int) -> Lines:
    if isinstance(text, Marked) or len(text) <= length:
        return [text]
    if alignment == "right":  # "22.71 (22.68±0.22)"
        return text.replace(" (", "\n(").split("\n")
    return _wrapped(text, length)


def _broken_header(text: str, width: int) -> Lines:
    """Broken behind its commas, and where it is wider than its column."""
    return [line for part in text.replace(", ", ",\n").split("\n") for line in _wrapped(part, max(width, 6))]


def _wrapped(text: str, length: int) -> Lines:
    whole = FORMULA.sub(lambda found: found[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(whole, length, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines] or [""]
