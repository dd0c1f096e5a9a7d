"""What follows the table in a whole report: what verdicts rest on, claims, deviations, runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paperbench.compare.statistics import FIRST_LOOK, SECOND_LOOK
from paperbench.errors import PaperbenchError
from paperbench.report.divergence import describe
from paperbench.report.layout import Grid
from paperbench.report.model import NOTHING, NetReport, Report, format_interval, method, percent
from paperbench.runs.history import History
from paperbench.runs.record import Record
from paperbench.runs.store import Store
from paperbench.specs.table import Cell


@dataclass(frozen=True)
class Items:
    """A list; each item has a text and what is listed below it."""

    heading: str
    items: Sequence[tuple[str, Sequence[str]]]


@dataclass(frozen=True)
class Section:
    """Blocks under a heading."""

    heading: str
    blocks: Sequence[str | Items | Grid]


def sections(report: Report, store: Store) -> list[Section]:
    """The sections that have anything to say.

    Args:
        store: Where the histories of the runs are.
    """
    found = {
        "Cells": _cells(report),
        "Claims": _claims(report),
        "Where our runs deviate from the paper's": _deviations(report),
        "Runs": _runs(report, store),
    }
    filled = {heading: list(blocks) for heading, blocks in found.items()}
    return [Section(heading, blocks) for heading, blocks in filled.items() if blocks]


def _items(heading: str, texts: Sequence[str]) -> Iterator[Items]:
    if texts:
        yield Items(heading, [(text, ()) for text in texts])


def _cells(report: Report) -> Iterator[str | Items | Grid]:
    rows = [_cell_row(net, cell.compared.cell) for cell in report.cells for net in cell.nets if net.errors]
    if rows:
        headers = ("cell", "errors by seed from 0 on", "median", "interval", "std", "tol.")
        alignment = ("left", "left", "right", "right", "right", "right")
        width = len(headers) if report.has_verdicts else headers.index("interval")
        yield Grid(headers[:width], tuple(row[:width] for row in rows), alignment[:width])
        if any(c.compared.judgement.interval for c in report.cells):
            yield (
                "interval: confidence interval of the difference of medians, in points "
                f"({1 - 2 * FIRST_LOOK:.0%}; {1 - 2 * SECOND_LOOK:.0%} after the extension). std: of a single run, in "
                "points; in parentheses the weight of the published one in its square. tol.: tolerance, in points."
            )
        yield from report.test_set_noise
    yield from _items("Not pooled with these", [f"{net.name}: {text}" for net in report.nets for text in net.others])
    diverged: dict[str, dict[str, None]] = {}
    for record in _records(report):
        if record.divergence:
            diverged.setdefault(describe(record.divergence), {})[record.run] = None
    yield from _items("Diverged", [f"{', '.join(runs)}: {how}" for how, runs in diverged.items()])


def _cell_row(report: NetReport, cell: Cell) -> tuple[str, ...]:
    net, judgement = report.net, report.net.judgement
    std = NOTHING
    if judgement.noise:
        share = judgement.noise.published_weight
        std = f"{judgement.noise.std:.2f}" + (f" ({share:.0%})" if share else "")
    interval = format_interval(judgement.interval) if judgement.interval else NOTHING
    tolerance = f"{cell.tolerance:g}" if cell.number is not None else NOTHING
    median = percent(net.median) if net.median is not None else NOTHING
    return report.name, report.errors, median, interval, std, tolerance


def _records(report: Report) -> Iterator[Record]:
    """Of all runs, each once."""
    groups = [group for net in report.nets for group in (net.net.shown, *net.net.others) if group]
    yield from {record.run: record for group in groups for record in group.records}.values()


def _claims(report: Report) -> Iterator[str | Items | Grid]:
    if not report.claims:
        return
    yield (
        f"{report.claims} Judged on our runs alone, each at its own level, with no correction across claims. In "
        f"brackets: {1 - 2 * FIRST_LOOK:.0%} confidence intervals."
    )
    profile, claims = report.comparison.profile, report.comparison.claims
    if not report.has_verdicts:
        yield f"Profile {profile} trains other nets or data: what holds here need not hold of the paper's."
    for standing in ("supported", "contradicted", "undecided"):
        mark = standing.upper() if standing == "contradicted" else standing
        found = [
            (f"{mark}: {c.claim.says} ({c.claim.section}; {c.claim.id}). {method(c)}", c.findings)
            for c in claims
            if c.standing == standing and c.findings
        ]
        if found:
            yield Items("", found)
    for standing in ("undecided", "not run"):
        by_reason: dict[str, list[str]] = {}
        for c in claims:
            if c.standing == standing and not c.findings:
                by_reason.setdefault(c.reason, []).append(c.claim.id)
        yield from _items(standing.capitalize(), [f"{', '.join(ids)}: {why}" for why, ids in by_reason.items()])


def _deviations(report: Report) -> Iterator[str | Items | Grid]:
    yield from _items("The paper's way -> ours", report.deviations)
    yield from _items("Where the paper does not say", report.choices)


def _runs(report: Report, store: Store) -> Iterator[str | Items | Grid]:
    headers = ("run", "net", "prec.", "status", "iteration", "train loss", "train err", "moving avg err", "test err")
    rows, complaints = [], []
    for record in _records(report):
        try:
            history = History.read(store.directory(record.run).history_file)
            rows.append(_run_row(record, history))
        except PaperbenchError as error:
            complaints.append(f"Left out: {error}")
    if rows:
        yield Grid((*headers, "minutes"), tuple(rows), (*("left",) * 4, *("right",) * 6))
        yield "moving avg err: test error with batch norm's moving averages. test err: the one that is reported."
    yield from complaints


def _run_row(record: Record, history: History) -> tuple[str, ...]:
    loss, error = (history.newest(measure, record.iteration) for measure in ("train_loss", "train_error"))
    result = record.result
    moving_average = result.moving_average_test_error if result else history.newest("test_error", record.iteration)
    return (
        record.run,
        record.net,
        record.spec.precision,
        record.status,
        f"{record.iteration:,}",
        f"{loss:.4f}" if loss is not None else NOTHING,
        f"{error:.2f}" if error is not None else NOTHING,
        f"{moving_average:.2f}" if moving_average is not None else NOTHING,
        f"{record.result.test_error:.2f}" if record.result else NOTHING,
        f"{record.seconds / 60:.1f}",
    )
