"""The paper's tables as grids of text, with room for more columns beside each column of results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paperbench.specs.expected import LiteratureRow
from paperbench.specs.experiment import Column, Row
from paperbench.specs.table import Cell, Table


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
