"""Tables of text: layout as in the paper, and fitting to a width."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Literal

from tabulate import tabulate

from paperbench.specs.cell import Cell
from paperbench.specs.experiment import Column
from paperbench.specs.table import Table

MIN_WIDTH = 40
"""Width in characters below which nothing is fitted to the terminal."""
MAX_PROSE_WIDTH = 120
MIN_PROSE_COLUMN_WIDTH = 14
MIN_COLUMN_WIDTH = 3

_TERM = r"(?:[A-Za-z]_[A-Za-z0-9]|[a-z]\([a-z]\))"
FORMULA = re.compile(rf"(?<![\w.\-])(?:(?:[0-9]+ [-+] )?{_TERM}(?: = -?[0-9]+)?|[1-9][0-9]*(?:x[1-9][0-9]*)+)(?![\w(])")
"""Formulas such as "1 - g(x)", "b_g = -6" and "3x3"."""
_BREAKS = re.compile(r"(?<= )(?=\S)|(?<=\w[/(])(?=\w)")
_BREAKS_IN_NAMES = re.compile(r"(?<=\w\w[_-])(?=\w\w)")


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
        parts: For each column "key", "minor" or the id of the column of results to which it belongs. A grid that is too
            wide is printed in a block for each column of results. Empty if the grid has no such columns.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    alignment: tuple[str, ...]
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class AddedColumn:
    """A column to print beside a column of published numbers; `texts` by cell id."""

    header: str
    alignment: str
    texts: Mapping[str, str]


@dataclass(frozen=True)
class _Line:
    """A row of the paper's table. Published results and cells are by column id."""

    title: str
    params: str | None
    figure: str
    labels: Mapping[str, str]
    published: Mapping[str, str]
    cells: Mapping[str, Cell]


def paper_grid(
    table: Table, cells: Sequence[Cell], added_columns: Callable[[Column], Sequence[AddedColumn]] | None = None
) -> Grid:
    """Lay out a table as the paper prints it, with its rows from the literature.

    Args:
        cells: The cells to show; columns and rows without any are left out.
        added_columns: Returns the columns to add beside a column of results.
    """
    experiment = table.experiment
    rows = [row for row in experiment.rows if any(cell.row.id == row.id for cell in cells)]
    is_whole = len(cells) == len(table.all_cells) or all(row in rows or row.on_request for row in experiment.rows)
    lines = []
    for row in rows:
        of_row = {cell.column.id: cell for cell in cells if cell.row.id == row.id}
        params = next((cell.expected.params for cell in of_row.values() if cell.expected.params), None)
        numbers = {column: published(cell) for column, cell in of_row.items()}
        lines.append(_Line(row.title, params, row.figure, row.labels, numbers, of_row))
    literature: dict[str, list[_Line]] = {"above": [], "below": []}
    decimals = table.expected.defaults.decimals
    for one in table.expected.literature if is_whole else ():
        numbers = {column: f"{error:.{decimals}f}" for column, error in one.cells.items()}
        literature[one.place].append(_Line(one.title, one.params, "", one.labels, numbers, {}))
    lines = [*literature["above"], *lines, *literature["below"]]
    titles = [f"{line.title} ({line.params})" if line.params else line.title for line in lines]
    columns: list[tuple[str, str, str, list[str]]] = []

    def add_labels(place: str, part: str) -> None:
        for label, where in experiment.labels.items():
            if where == place:
                columns.append((part, label, "left", [line.labels.get(label, "") for line in lines]))

    columns.append(("key", experiment.case, "left", titles))
    if any(line.figure for line in lines):
        columns.append(("minor", "Fig.", "left", [line.figure for line in lines]))
    add_labels("before", "key")
    for column in experiment.columns:
        if any(cell.column.id == column.id for cell in cells):
            added = added_columns(column) if added_columns else ()
            if table.has_numbers or not added:
                header = f"{column.title}, paper" if added else column.title
                columns.append((column.id, header, "right", [line.published.get(column.id, "") for line in lines]))
            for ours in added:
                ids = [line.cells[column.id].id if column.id in line.cells else "" for line in lines]
                texts = [ours.texts.get(cell_id, "") for cell_id in ids]
                header = ours.header if columns[-1][0] == column.id else f"{column.title}, {ours.header}"
                columns.append((column.id, header, ours.alignment, texts))
    add_labels("after", "minor")
    parts, headers, alignment, texts_of_columns = zip(*columns, strict=True)
    return Grid(headers, tuple(zip(*texts_of_columns, strict=True)), alignment, parts)


def published(cell: Cell) -> str:
    """Format a published result as the paper prints it."""
    expected, decimals = cell.expected, cell.defaults.decimals
    if expected.value == "unprinted":
        return "-"
    if cell.number is None:
        return "fail"
    mean = ""
    if expected.mean is not None and expected.std is not None:
        mean = f" ({expected.mean:.{decimals}f}±{expected.std:.{decimals}f})"
    return f"{cell.number:.{decimals}f}{expected.mark or ''}{mean}"


def terminal_width() -> int:
    """Return the width that text is fitted to: $COLUMNS, else that of the terminal on stdout, else 80; at least 40."""
    return max(MIN_WIDTH, shutil.get_terminal_size((80, 24)).columns)


def paragraph(text: str, indent: str = "") -> str:
    """Wrap prose to the terminal's width, or to `MAX_PROSE_WIDTH`; `indent` is for all lines but the first."""
    width = min(terminal_width(), MAX_PROSE_WIDTH)
    return textwrap.fill(text, width, subsequent_indent=indent, break_on_hyphens=False)


def as_text(grid: Grid, long: bool = True, width: int | None = None) -> str:
    """Format a grid for a width, by default the terminal's; unless `long`, without minor columns that do not fit."""
    width = width or terminal_width()
    blocks = [
        _select(grid, ("key", "minor", part)) for part in dict.fromkeys(grid.parts) if part not in ("key", "minor")
    ] or [grid]
    narrow = blocks if long else [_select(block, [part for part in block.parts if part != "minor"]) for block in blocks]
    attempts: list[tuple[Breaking, list[Grid]]] = [
        ("headers", [grid]),
        ("headers", blocks),
        ("headers", narrow),
        ("numbers", narrow),
        ("verdicts", narrow),
        ("names", narrow),
        ("anywhere", narrow),
    ]
    for breaking, grids in attempts:
        if all(can_fit(one, width, 2, breaking) for one in grids):
            break
    return "\n\n".join(_draw(one, width, breaking) for one in grids)


def _draw(grid: Grid, width: int, breaking: Breaking) -> str:
    headers, rows = fitted(grid, width, 2, breaking)
    widths = [max(len(line) for lines in column for line in lines) for column in zip(headers, *rows, strict=True)]
    pads = [str.rjust if alignment == "right" else str.ljust for alignment in grid.alignment]
    return "\n".join(
        "  ".join(pad(text, width) for pad, text, width in zip(pads, texts, widths, strict=True)).rstrip()
        for row in (headers, [["-" * width] for width in widths], *rows)
        for texts in zip_longest(*row, fillvalue="")
    )


def _select(grid: Grid, parts: Sequence[str]) -> Grid:
    """Keep the columns of some parts, and the rows that have a text in one of their columns of results."""
    kept = [n for n, part in enumerate(grid.parts) if part in parts]
    results = [n for n in kept if grid.parts[n] not in ("key", "minor")]
    return Grid(
        tuple(grid.headers[n] for n in kept),
        tuple(tuple(row[n] for n in kept) for row in grid.rows if any(row[n] for n in results)),
        tuple(grid.alignment[n] for n in kept),
        tuple(grid.parts[n] for n in kept),
    )


def escape_markdown(text: str) -> str:
    """Escape HTML and links in a document, as names and sources in a results directory may come from anyone."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("](", "]&#40;")


def as_markdown(grid: Grid) -> str:
    """Format a grid as a Markdown table; `escape_markdown` is still to be applied."""
    headers, *rows = ([text.replace("|", "\\|") for text in row] for row in (grid.headers, *grid.rows))
    return tabulate(rows, headers, "github", disable_numparse=True, colalign=grid.alignment)


Lines = list[str]
"""The lines of one table cell."""

Breaking = Literal["headers", "numbers", "verdicts", "names", "anywhere"]
"""What may be broken into lines: headers and prose; then also numbers before a parenthesis; verdicts; names; words."""


def fitted(grid: Grid, width: int, gap: int, breaking: Breaking) -> tuple[list[Lines], list[list[Lines]]]:
    """Break texts into lines, headers and wide columns first, until the table fits or no column can be narrower."""
    columns = list(zip(grid.headers, *grid.rows, strict=True))
    without_headers = [max(_longest_word(header), *map(len, texts), 0) for header, *texts in columns]
    widths = [max(map(len, column)) for column in columns]
    for minima in (without_headers, _minima(grid, breaking)):
        while sum(widths) + gap * (len(columns) - 1) > width:
            shrinkable = [n for n, (now, least) in enumerate(zip(widths, minima, strict=True)) if now > least]
            if not shrinkable:
                break
            widths[max(shrinkable, key=lambda n: widths[n])] -= 1
    broken = [[_wrap(text, size) for text in column] for column, size in zip(columns, widths, strict=True)]
    headers, *rows = map(list, zip(*broken, strict=True))
    return headers, rows


def can_fit(grid: Grid, width: int, gap: int, breaking: Breaking) -> bool:
    """Whether `fitted` can make a table fit."""
    return sum(_minima(grid, breaking)) + gap * (len(grid.headers) - 1) <= width


def _minima(grid: Grid, breaking: Breaking) -> list[int]:
    """Return how narrow each column may become."""
    if breaking == "anywhere":
        return [MIN_COLUMN_WIDTH] * len(grid.headers)
    minima = []
    for alignment, header, *texts in zip(grid.alignment, grid.headers, *grid.rows, strict=True):
        breaks = _BREAKS_IN_NAMES if breaking == "names" else None
        least = _longest_word(header, breaks)
        for text in texts:
            is_verdict = isinstance(text, Marked) and breaking in ("headers", "numbers")
            if is_verdict or (alignment == "right" and breaking == "headers"):
                least = max(least, len(text))
            elif alignment == "right":  # "22.71 (22.68±0.22)"
                least = max(least, *map(len, text.replace(" (", "\n(").split("\n")))
            else:
                prose = 0 if breaks else min(len(text), MIN_PROSE_COLUMN_WIDTH)
                least = max(least, prose, _longest_word(text, breaks))
        minima.append(least)
    return minima


def _words(text: str) -> Lines:
    """Split a text where it may be broken: at spaces, and in names after a slash or parenthesis."""
    whole = FORMULA.sub(lambda found: found[0].replace(" ", "\0").replace("(", "\1"), text)
    return [word.replace("\0", " ").replace("\1", "(") for word in _BREAKS.split(whole)]


def _longest_word(text: str, breaks: re.Pattern[str] | None = None) -> int:
    words = _words(text)
    return max(len(part.rstrip()) for word in words for part in (breaks.split(word) if breaks else [word]))


def _wrap(text: str, width: int) -> Lines:
    if len(text) <= width:
        return [text]
    lines, line = [], ""
    words = [[word] if len(word.rstrip()) <= width else _BREAKS_IN_NAMES.split(word) for word in _words(text)]
    for word in chain.from_iterable(words):
        if line and len((line + word).rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        line += word
        while len(line.rstrip()) > width:
            lines.append(line[:width])
            line = line[width:]
    return [*lines, line.rstrip()] if line.strip() else lines
