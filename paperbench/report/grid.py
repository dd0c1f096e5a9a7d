"""Tables of text: layout as in the paper, and fitting to a width."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress, zip_longest

from tabulate import tabulate

from paperbench.specs.cell import Cell
from paperbench.specs.experiment import Column
from paperbench.specs.table import Table
from paperbench.streams import MIN_WIDTH, wrapped

NOTHING = "-"
MAX_PROSE_WIDTH = 120
_MIN_PROSE_WIDTH = 14  # of a column, while others can still be narrower
_GAP = 2  # between columns
_HEADERS, _PROSE, NUMBERS, _VERDICTS, _NAMES = range(5)  # what `fitted` may break: each also what is before it

_TERM = r"(?:[A-Za-z]_[A-Za-z0-9]|[a-z]\([a-z]\))"
FORMULA = re.compile(rf"(?<![\w.\-])(?:(?:[0-9]+ [-+] )?{_TERM}(?: = -?[0-9]+)?|[1-9][0-9]*(?:x[1-9][0-9]*)+)(?![\w(])")
"""Formulas such as "1 - g(x)", "b_g = -6" and "3x3"."""
_WHOLE = re.compile(rf"{FORMULA.pattern}|\[[^]]*\]")  # such as "[-0.20, +0.18]"
_BREAKS = re.compile(r"(?<= )(?=\S)|(?<=\w[/(])(?=\w)")
_BREAKS_IN_NAMES = re.compile(r"(?<=\w\w[_-])(?<!\de-)(?=\w\w)")  # not in 1.5e-05


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


AddedColumn = tuple[str, str, Mapping[str, str]]
"""Header, alignment, and texts by cell id of a column to print beside a column of published numbers."""


@dataclass(frozen=True)
class _Line:
    """A row of the paper's table. Published results and cells are by column id."""

    title: str
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
        params = next((f" ({cell.expected.params})" for cell in of_row.values() if cell.expected.params), "")
        numbers = {column: published(cell) for column, cell in of_row.items()}
        lines.append(_Line(row.title + params, row.figure, row.labels, numbers, of_row))
    literature: dict[str, list[_Line]] = {"above": [], "below": []}
    decimals = table.defaults.decimals
    for one in table.expected.literature if is_whole else ():
        numbers = {column: f"{error:.{decimals}f}" for column, error in one.cells.items()}
        title = f"{one.title} ({one.params})" if one.params else one.title
        literature[one.place].append(_Line(title, "", one.labels, numbers, {}))
    lines = [*literature["above"], *lines, *literature["below"]]
    columns: list[tuple[str, str, str, list[str]]] = []

    def add_labels(place: str, part: str) -> None:
        names = [label for label, where in experiment.labels.items() if where == place]
        columns.extend((part, name, "left", [line.labels.get(name, "") for line in lines]) for name in names)

    columns.append(("key", experiment.case, "left", [line.title for line in lines]))
    if any(line.figure for line in lines):
        columns.append(("minor", "Fig.", "left", [line.figure for line in lines]))
    add_labels("before", "key")
    for column in experiment.columns:
        if any(cell.column.id == column.id for cell in cells):
            added = added_columns(column) if added_columns else ()
            if table.has_numbers or not added:
                header = f"{column.title}, paper" if added else column.title
                columns.append((column.id, header, "right", [line.published.get(column.id, "") for line in lines]))
            for header, alignment, texts in added:
                ids = [line.cells[column.id].id if column.id in line.cells else "" for line in lines]
                title = header if columns[-1][0] == column.id else f"{column.title}, {header}"
                columns.append((column.id, title, alignment, [texts.get(cell_id, "") for cell_id in ids]))
    add_labels("after", "minor")
    parts, headers, alignments, texts_of_columns = zip(*columns, strict=True)
    return Grid(headers, tuple(zip(*texts_of_columns, strict=True)), alignments, parts)


def published(cell: Cell) -> str:
    """Format a published result as the paper prints it."""
    expected, decimals = cell.expected, cell.defaults.decimals
    if expected.value == "unprinted":
        return NOTHING
    if not isinstance(expected.value, float):
        return "fail"
    mean = ""
    if expected.mean is not None and expected.std is not None:
        mean = f" ({expected.mean:.{decimals}f}±{expected.std:.{decimals}f})"
    return f"{expected.value:.{decimals}f}{expected.mark or ''}{mean}"


def terminal_width() -> int:
    """Return the width that text is fitted to: $COLUMNS, else that of the terminal on stdout, else 80; at least 40."""
    return max(MIN_WIDTH, shutil.get_terminal_size((80, 24)).columns)


def paragraph(text: str, indent: str = "") -> str:
    """Wrap prose to the terminal's width, or to `MAX_PROSE_WIDTH`; `indent` is for all lines but the first."""
    return wrapped(text, min(terminal_width(), MAX_PROSE_WIDTH), indent)


def as_text(grid: Grid, long: bool = True, width: int | None = None) -> str:
    """Format a grid for a width, by default the terminal's; unless `long`, without minor columns that do not fit.

    A grid that is too wide even then is wider than the terminal: no number or word is cut.
    """
    width = width or terminal_width()
    blocks = [
        _select(grid, ("key", "minor", part)) for part in dict.fromkeys(grid.parts) if part not in ("key", "minor")
    ] or [grid]
    narrow = blocks if long else [_select(block, [part for part in block.parts if part != "minor"]) for block in blocks]
    fitting = (grids for grids in ([grid], blocks) if all(_can_fit(one, width) for one in grids))
    return "\n\n".join(_draw(one, width) for one in next(fitting, narrow))


def _draw(grid: Grid, width: int) -> str:
    headers, rows = fitted(grid, width, _GAP)
    widths = [max(len(line) for lines in column for line in lines) for column in zip(headers, *rows, strict=True)]
    pads = [str.rjust if alignment == "right" else str.ljust for alignment in grid.alignment]
    return "\n".join(
        "  ".join(pad(text, width) for pad, text, width in zip(pads, texts, widths, strict=True)).rstrip()
        for row in (headers, [["-" * width] for width in widths], *rows)
        for texts in zip_longest(*row, fillvalue="")
    )


def _select(grid: Grid, parts: Sequence[str]) -> Grid:
    """Keep the columns of some parts, and the rows that have a text in one of their columns of results."""
    kept = [part in parts for part in grid.parts]
    results = [part in parts and part not in ("key", "minor") for part in grid.parts]
    rows = tuple(tuple(compress(row, kept)) for row in grid.rows if any(compress(row, results)))
    headers, alignment, its_parts = (tuple(compress(of, kept)) for of in (grid.headers, grid.alignment, grid.parts))
    return Grid(headers, rows, alignment, its_parts)


def escape_markdown(text: str) -> str:
    """Escape HTML and links in a document, as names and sources in a results directory may come from anyone."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("](", "]&#40;")


def as_markdown(grid: Grid) -> str:
    """Format a grid as a Markdown table; `escape_markdown` is still to be applied."""
    headers, *rows = ([text.replace("|", "\\|") for text in row] for row in (grid.headers, *grid.rows))
    return tabulate(rows, headers, "github", disable_numparse=True, colalign=grid.alignment)


Lines = list[str]
"""The lines of one table cell."""


def fitted(grid: Grid, width: int, gap: int, last: int = _NAMES) -> tuple[list[Lines], list[list[Lines]]]:
    """Break texts into lines, the widest column first, until the table fits or nothing more may be broken.

    First headers are broken, then prose, then also numbers before a parenthesis, verdicts with notes, and names between
    their words; `last` is the last of these to be broken.
    """
    columns = list(zip(grid.headers, *grid.rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    for breaking in range(last + 1):
        minima = _minima(grid, breaking)
        while sum(widths) + gap * (len(widths) - 1) > width:
            shrinkable = [n for n, least in enumerate(minima) if widths[n] > least]
            if not shrinkable:
                break
            widths[max(shrinkable, key=lambda n: widths[n])] -= 1
    broken = [[_wrap(text, size) for text in column] for column, size in zip(columns, widths, strict=True)]
    headers, *rows = map(list, zip(*broken, strict=True))
    return headers, rows


def _can_fit(grid: Grid, width: int) -> bool:
    """Whether a table fits with only headers and prose broken."""
    return sum(_minima(grid, _PROSE)) + _GAP * (len(grid.headers) - 1) <= width


def _minima(grid: Grid, breaking: int) -> list[int]:
    """Return how narrow each column may become."""

    def least(text: str, alignment: str) -> int:
        whole_until = _VERDICTS if isinstance(text, Marked) else NUMBERS if alignment == "right" else _PROSE
        if breaking < whole_until:
            return len(text)
        if alignment == "right" and breaking < _NAMES:
            return max(map(len, text.replace(" (", "\n(").split("\n")))  # "22.71 (22.68±0.22)"
        return max(_longest_word(text, breaking), min(len(text), _MIN_PROSE_WIDTH) if breaking < _NAMES else 0)

    columns = zip(grid.alignment, grid.headers, *grid.rows, strict=True)
    return [
        max(_longest_word(header, breaking), *(least(text, alignment) for text in texts), 0)
        for alignment, header, *texts in columns
    ]


def _words(text: str) -> Lines:
    """Split a text where it may be broken: at spaces, and in names after a slash or parenthesis."""
    whole = _WHOLE.sub(lambda found: found[0].replace(" ", "\0").replace("(", "\1"), text)
    return [word.replace("\0", " ").replace("\1", "(") for word in _BREAKS.split(whole)]


def _longest_word(text: str, breaking: int) -> int:
    words = _words(text)
    parts = chain.from_iterable(map(_BREAKS_IN_NAMES.split, words)) if breaking == _NAMES else words
    return max(len(part.rstrip()) for part in parts)


def _wrap(text: str, width: int) -> Lines:
    if len(text) <= width:
        return [text]
    lines = [""]
    for word in _words(text):
        for part in [word] if len(word.rstrip()) <= width else _BREAKS_IN_NAMES.split(word):
            if lines[-1] and len((lines[-1] + part).rstrip()) > width:
                lines.append("")
            lines[-1] += part
    return [line.rstrip() for line in lines]
