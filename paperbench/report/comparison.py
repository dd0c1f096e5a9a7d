"""A comparison as text: the table in the paper's shape, and every run behind it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from tabulate import tabulate

from paperbench.compare.comparison import CellComparison, Comparison, Group
from paperbench.errors import PaperbenchError
from paperbench.report.divergence import describe
from paperbench.runs.history import HistoryLine
from paperbench.runs.record import Record
from paperbench.runs.store import Store

Format = Literal["table", "markdown"]
_TABULATE = {"table": "simple", "markdown": "github"}
_NOTHING = "-"


def render(comparison: Comparison, store: Store, form: Format) -> str:
    """The whole report: table, what the numbers are, runs.

    Args:
        store: Where the histories of the runs are.
    """
    table = comparison.table
    source = f"{table.expected.source.table} of arXiv:{table.expected.source.arxiv}"
    heading, subheading, item = ("## ", "### ", "- ") if form == "markdown" else ("", "", "  ")
    parts = [
        f"{heading}{source}: {table.experiment.title}",
        f"Profile {comparison.profile}",
        _paper_table(comparison, form),
        *_notes(comparison, item),
    ]
    runs = _runs_table(comparison, store, form)
    if runs:
        parts += [f"{subheading}Runs", runs]
    return "\n\n".join(parts)


def _paper_table(comparison: Comparison, form: Format) -> str:
    experiment = comparison.table.experiment
    chosen = {c.cell.column.id for c in comparison.cells}
    columns = [column for column in experiment.columns if column.id in chosen]
    headers = ["case", "Fig."]
    for column in columns:
        headers += [f"{column.title}, paper", f"ours{_trained_depth(comparison, column.id)}"]
    rows = []
    for row in experiment.rows:
        cells = [comparison.in_cell(row.id, column.id) for column in columns]
        if any(cells):
            rows.append([row.title, row.figure, *(text for cell in cells for text in _both_numbers(cell))])
    return tabulate(rows, headers, tablefmt=_TABULATE[form], disable_numparse=True, colalign=_alignment(len(headers)))


def _alignment(columns: int) -> tuple[str, ...]:
    return ("left", "left", *("right",) * (columns - 2))


def _trained_depth(comparison: Comparison, column: str) -> str:
    """The depth that stands behind "ours", where it is not the paper's."""
    profile = comparison.table.profiles.named(comparison.profile)
    depths = {c.cell.net_in(profile).depth for c in comparison.cells if c.cell.column.id == column}
    return f" at depth {depths.pop()}" if profile.depth and len(depths) == 1 else ""


def _both_numbers(cell: CellComparison | None) -> tuple[str, str]:
    if cell is None:
        return "", ""
    published = cell.cell.expected.value
    return "fail" if published == "fail" else f"{published:.2f}", _our_number(cell)


def _our_number(cell: CellComparison) -> str:
    if cell.shown is None:
        return _NOTHING
    median = cell.shown.median
    if median is None:
        farthest = max(record.iteration for record in cell.shown.records)
        return f"(at {farthest:,})"
    difference = f" ({cell.difference:+.2f})" if cell.difference is not None and math.isfinite(median) else ""
    return f"{_percent(median)}{difference}, {_runs_behind(cell.shown)}"


def _percent(error: float) -> str:
    return "diverged" if math.isinf(error) else f"{error:.2f}"


def _runs_behind(group: Group) -> str:
    diverged = f" ({group.diverged} diverged)" if group.diverged else ""
    return f"n={len(group.errors)}{diverged}"


def _notes(comparison: Comparison, item: str) -> Iterator[str]:
    """What a reader must know to read the numbers."""
    started = [c for c in comparison.cells if c.shown]
    if not started:
        yield "No run of this table in this profile yet."
        return
    iterations = comparison.table.recipe_in(comparison.table.profiles.named(comparison.profile)).iterations
    yield (
        "ours: median test error (%) of n runs after the last iteration. "
        f"(at k): no run has ended yet, the farthest is at iteration k of {iterations:,}."
    )
    for reason in dict.fromkeys(c.reason for c in started if c.reason):
        cells = [c.cell.id for c in started if c.reason == reason]
        which = "" if len(cells) == len(started) else f" ({', '.join(cells)})"
        yield f"Not comparable with the paper: {reason}{which}."
    measured = [(c.cell, c.shown) for c in started if c.shown and c.standing == "measured"]
    short = [
        f"{cell.id} {len(g.errors)} of {cell.published_runs}"
        for cell, g in measured
        if len(g.errors) < cell.published_runs
    ]
    if short:
        yield f"Fewer runs than behind the published number: {', '.join(short)}."
    if any(c.difference is not None for c in started):
        yield "(+x): our median less the published number. This version does not yet judge whether that is noise."
    conditions = sorted({c.shown.conditions for c in started if c.shown})
    yield "\n".join(["Conditions (data, precision, numerics version):\n", *(f"{item}{text}" for text in conditions)])
    for c in started:
        for group in c.others:
            ended = (
                f"median {_percent(group.median)}, {_runs_behind(group)}" if group.median is not None else "in progress"
            )
            yield f"Also for {c.cell.id}, not pooled: {group.conditions}: {ended}."
    diverged = {
        record.run: f"{record.run}: {describe(record.divergence)}"
        for c in started
        for group in (c.shown, *c.others)
        for record in (group.records if group else ())
        if record.divergence
    }
    if diverged:
        yield "\n".join(["Diverged:\n", *(f"{item}{text}" for text in diverged.values())])


def _runs_table(comparison: Comparison, store: Store, form: Format) -> str | None:
    headers = [
        *("run", "net", "seed", "prec.", "status", "iteration", "train loss", "train err"),
        *("test err, moving avg", "test err, reported", "minutes"),
    ]
    rows: dict[str, list[str]] = {}
    complaints = []
    for cell in comparison.cells:
        for group in (cell.shown, *cell.others):
            for record in group.records if group else ():
                try:
                    history = store.directory(record.run).history()
                except PaperbenchError as error:
                    history = []
                    complaints.append(f"Left out: {error}")
                rows[record.run] = _run_row(record, history)
    if not rows:
        return None
    alignment = ("left", "left", "right", "left", "left", *("right",) * (len(headers) - 5))
    text = tabulate(rows.values(), headers, tablefmt=_TABULATE[form], disable_numparse=True, colalign=alignment)
    return "\n\n".join([text, *complaints])


def _run_row(record: Record, history: list[HistoryLine]) -> list[str]:
    upto = [line for line in history if line.iteration <= record.iteration]
    trained = next((line for line in reversed(upto) if line.train_loss is not None), None)
    tested = next((line for line in reversed(upto) if line.test_error is not None), None)
    moving_average = record.result.moving_average_test_error if record.result else tested and tested.test_error
    return [
        record.run,
        record.net,
        str(record.seed),
        record.spec.precision,
        record.status,
        f"{record.iteration:,}",
        f"{trained.train_loss:.4f}" if trained and trained.train_loss is not None else _NOTHING,
        f"{trained.train_error:.2f}" if trained and trained.train_error is not None else _NOTHING,
        f"{moving_average:.2f}" if moving_average is not None else _NOTHING,
        f"{record.result.test_error:.2f}" if record.result else _NOTHING,
        f"{record.seconds / 60:.1f}",
    ]
