"""Tables of text: the paper's, with room for more columns beside each column of results, and how they are narrowed."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paperbench.specs.expected import LiteratureRow
from paperbench.specs.experiment import Column, Row
from paperbench.specs.table import Cell, Table

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
    """What stands beside the published numbers of each column.

    Attributes:
        headers: Of the additional columns, given a column of the table.
        texts: As many, given a cell.
        alignment: As many.
    """

    headers: Callable[[Column], Sequence[str]]
    texts: Callable[[Cell], Sequence[str]]
    alignment: Sequence[str]


def paper_grid(table: Table, cells: Sequence[Cell], beside: Beside | None = None) -> Grid:
    """The table as the paper prints it, rows of the literature included.

    Args:
        cells: Which to show; columns and rows without any are left out.
    """
    experiment = table.experiment
    by_place = {(cell.row.id, cell.column.id): cell for cell in cells}
    columns = [c for c in experiment.columns if any(column == c.id for _, column in by_place)]
    rows = [row for row in experiment.rows if any(row_id == row.id for row_id, _ in by_place)]
    has_figures = any(row.figure for row in rows)
    before = [label for label, place in experiment.labels.items() if place == "before"]
    after = [label for label, place in experiment.labels.items() if place == "after"]
    headers = [experiment.case, *(["Fig."] if has_figures else []), *before]
    alignment = ["left"] * len(headers)
    for column in columns:
        headers.append(column.title if beside is None else f"{column.title}, paper")
        alignment.append("right")
        if beside is not None:
            headers += beside.headers(column)
            alignment += beside.alignment
    headers += after
    alignment += ["left"] * len(after)
    width = len(beside.alignment) if beside else 0

    def line(title: str, figure: str, labels: dict[str, str], results: list[Sequence[str]]) -> tuple[str, ...]:
        first = [title, *([figure] if has_figures else []), *(labels.get(label, "") for label in before)]
        return (*first, *(text for texts in results for text in texts), *(labels.get(label, "") for label in after))

    def of_experiment(row: Row) -> tuple[str, ...]:
        found = [by_place.get((row.id, column.id)) for column in columns]
        results: list[Sequence[str]] = []
        for cell in found:
            extra = [""] * width if cell is None or beside is None else beside.texts(cell)
            results.append(["" if cell is None else published(cell), *extra])
        params = next((cell.expected.params for cell in found if cell and cell.expected.params), None)
        return line(_titled(row.title, params), row.figure, dict(row.labels), results)

    def of_literature(row: LiteratureRow) -> tuple[str, ...]:
        numbers = [_number(row.cells.get(column.id), table.expected.defaults.decimals) for column in columns]
        results: list[Sequence[str]] = [[number, *[""] * width] for number in numbers]
        return line(_titled(row.title, row.params), "", dict(row.labels), results)

    is_whole = len(cells) == len(table.all_cells) or {row.id for row in rows} >= {
        row.id for row in experiment.rows if not row.on_request
    }
    literature = table.expected.literature if is_whole else ()
    return Grid(
        tuple(headers),
        (
            *(of_literature(row) for row in literature if row.place == "above"),
            *map(of_experiment, rows),
            *(of_literature(row) for row in literature if row.place == "below"),
        ),
        tuple(alignment),
    )


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


def _number(value: float | None, decimals: int) -> str:
    return "" if value is None else f"{value:.{decimals}f}"


def _titled(title: str, params: str | None) -> str:
    return f"{title} ({params})" if params else title


Lines = list[str]
"""A text in lines, to stand one above the other."""


def narrowed(grid: Grid, width: int, gap: int) -> tuple[list[Lines], list[list[Lines]]]:
    """Headers and rows, each text broken into lines no shorter than it takes for the table to fit, if it can.

    Args:
        width: In characters.
        gap: Characters between columns.
    """
    headers: list[Lines] = [[text] for text in grid.headers]
    rows: list[list[Lines]] = [[[text] for text in row] for row in grid.rows]
    for length in (60, 40, 32, 24, 20):
        columns = list(zip(headers, *rows, strict=True))
        if sum(max(len(line) for lines in column for line in lines) + gap for column in columns) - gap <= width:
            break
        rows = [[_broken(text, a, length) for text, a in zip(row, grid.alignment, strict=True)] for row in grid.rows]
        widths = [max((len(line) for row in rows for line in row[n]), default=0) for n in range(len(headers))]
        headers = [_broken_header(text, widest) for text, widest in zip(grid.headers, widths, strict=True)]
    return headers, rows


def _broken(text: str, alignment: str, length: int) -> Lines:
    if isinstance(text, Marked) or len(text) <= length:
        return [text]
    number, is_two, mean = text.partition(" (")
    if alignment == "right":
        return [number, f"({mean}"] if is_two else [text]
    return _wrapped(text, length)


def _broken_header(text: str, width: int) -> Lines:
    """Broken behind its commas, and where it is wider than its column."""
    parts = [_wrapped(part, max(width, 6)) for part in text.replace(", ", ",\n").split("\n")]
    return [line for part in parts for line in part]


def _wrapped(text: str, length: int) -> Lines:
    whole = FORMULA.sub(lambda found: found[0].replace(" ", "\0"), text)
    lines = textwrap.wrap(whole, length, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines] or [""]
