"""A comparison as text: the table in the paper's shape with verdicts, and everything that they rest on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tabulate import tabulate

from paperbench.catalogue import DATASETS
from paperbench.compare.claims import ClaimVerdict
from paperbench.compare.comparison import Comparison
from paperbench.compare.evidence import Group
from paperbench.compare.statistics import FIRST_LOOK, SECOND_LOOK, binomial_standard_error
from paperbench.compare.verdicts import CellComparison, NetComparison, in_words
from paperbench.errors import PaperbenchError
from paperbench.report.divergence import describe
from paperbench.report.layout import Beside, paper_grid, published
from paperbench.runs.history import Newest
from paperbench.runs.record import Record
from paperbench.runs.store import Store
from paperbench.specs.experiment import Column
from paperbench.specs.table import Cell

Format = Literal["table", "markdown"]
_NOTHING = "-"


@dataclass(frozen=True)
class _Style:
    """How a format writes headings, list items and tables."""

    heading: str
    subheading: str
    item: str
    tabulate: str

    def table(self, rows: Sequence[Sequence[str]], headers: Sequence[str], alignment: Sequence[str]) -> str:
        return tabulate(rows, headers, tablefmt=self.tabulate, disable_numparse=True, colalign=tuple(alignment))

    def items(self, heading: str, texts: Sequence[str]) -> str:
        return "\n".join([f"{heading}:", "", *(f"{self.item}{text}" for text in texts)])


_STYLES = {"table": _Style("", "", "  ", "simple"), "markdown": _Style("## ", "### ", "- ", "github")}


def render(comparison: Comparison, store: Store, form: Format) -> str:
    """The whole report: table with verdicts, what they rest on, claims, deviations, runs.

    Args:
        store: Where the histories of the runs are.
    """
    table, style = comparison.table, _STYLES[form]
    runs = f"{comparison.planned} runs a cell" if comparison.planned > 1 else "1 run a cell"
    parts = [
        f"{style.heading}{table.source.table} of arXiv:{table.source.arxiv}: {table.experiment.title}",
        f"Profile {comparison.profile}; {runs}, fixed beforehand",
        _paper_table(comparison, style),
        *_notes(comparison),
        *_cells_section(comparison, style),
        *_claims_section(comparison, style),
        *_deviations_section(comparison, style),
        *_runs_section(comparison, store, style),
    ]
    return "\n\n".join(parts)


def _paper_table(comparison: Comparison, style: _Style) -> str:
    shown = [c for c in comparison.cells if c.cell.expected.value != "unprinted" or c.shown]
    by_id = {c.cell.id: c for c in shown}
    has_verdicts = comparison.profile == "paper"

    def headers(column: Column) -> list[str]:
        return [f"ours{_trained_depth(comparison, column)}", *(["verdict"] if has_verdicts else [])]

    def texts(cell: Cell) -> list[str]:
        compared = by_id[cell.id]
        return [_our_result(compared), *([_verdict(comparison, compared)] if has_verdicts else [])]

    beside = Beside(headers, texts, ("right", *(["left"] if has_verdicts else [])))
    grid = paper_grid(comparison.table, [c.cell for c in shown], beside)
    lines = [style.table(grid.rows, grid.headers, grid.alignment)]
    marks = {c.cell.expected.mark for c in shown}
    footnotes = [f"{mark}: {text}" for mark, text in comparison.table.expected.footnotes.items() if mark in marks]
    return "\n\n".join([*lines, *footnotes])


def _trained_depth(comparison: Comparison, column: Column) -> str:
    """The depth that stands behind "ours", where it is not the paper's."""
    profile = comparison.table.profiles.named(comparison.profile)
    cells = [c.cell for c in comparison.cells if c.cell.column.id == column.id and c.cell.is_in(profile)]
    depths = {cell.net_in(profile).depth for cell in cells}
    return f" at depth {depths.pop()}" if profile.depth and len(depths) == 1 else ""


def _our_result(compared: CellComparison) -> str:
    """What stands in the column "ours"."""
    if len(compared.nets) == 1:
        return _median(compared.nets[0].shown, compared.difference)
    started = [net for net in compared.nets if net.shown]
    failings = [net.judgement.failing for net in started if net.judgement.failing]
    if not started:
        return _NOTHING
    if not failings:
        return f"{len(started)} of {len(compared.nets)} nets begun"
    failed = sum(f.failed for f in failings)
    return f"{failed} of {sum(f.runs for f in failings)} runs failed"


def _median(group: Group | None, difference: float | None) -> str:
    if group is None:
        return _NOTHING
    median = group.median
    if median is None:
        return f"(at {group.farthest:,})"
    of_what = f" ({difference:+.2f})" if difference is not None and math.isfinite(median) else ""
    return f"{_percent(median)}{of_what}, {_runs_behind(group)}"


def _percent(error: float) -> str:
    return "diverged" if math.isinf(error) else f"{error:.2f}"


def _runs_behind(group: Group) -> str:
    diverged = f" ({group.diverged} diverged)" if group.diverged else ""
    return f"n={len(group.errors)}{diverged}"


def _verdict(comparison: Comparison, compared: CellComparison) -> str:
    text: str = compared.verdict
    if compared.judgement.shift is not None:
        text += f", shifted by {compared.judgement.shift:+.2f}"
    if compared.verdict in ("worse", "better") and compared not in comparison.differing:
        text += " (one of many)" if compared.judgement.p_value is not None else " (unstable)"
    if compared.shown and compared.shown.conditions.source is not None:
        text += ", external"
    return text


def _notes(comparison: Comparison) -> Iterator[str]:
    """What a reader must know to read the table."""
    started = [c for c in comparison.cells if any(net.shown for net in c.nets)]
    if not started:
        yield "No run of this table in this profile yet."
        return
    yield (
        "ours: median test error (%) of n runs after the last iteration; (+x): less the published number; "
        "(at k): no run has ended, the farthest is at iteration k."
    )
    reasons = [c.reason for c in started if c.verdict == "not comparable"]
    for reason in dict.fromkeys(reasons):
        cells = [c.cell.id for c in started if c.reason == reason]
        which = "" if len(cells) == len(started) else f" ({', '.join(cells)})"
        yield f"Not comparable with the paper: {reason}{which}."
    tested = comparison.tested
    if tested:
        looks = {c.judgement.look.number for c in tested if c.judgement.look}
        second = f" ({SECOND_LOOK:.0%} after the extension)" if 2 in looks else ""
        yield (
            f"Verdicts: the interval of two one-sided tests at {FIRST_LOOK:.0%}{second} for the difference of medians, "
            f"held against the cell's tolerance. {len(tested)} cells were tested: were each just at the edge of its "
            f"tolerance, {comparison.expected_false_alarms:.2g} of them would be called worse or better by chance. "
            f"After Holm's correction over the table {_those(comparison.differing)}."
        )
        published_errors = [c.cell.number for c in tested if c.cell.number is not None]
        images = DATASETS[tested[0].cell.dataset].test_images
        low, high = min(published_errors), max(published_errors)
        yield (
            f"Over other test images of the same kind, {low:.2f} % of {images:,} has a binomial standard error of "
            f"{binomial_standard_error(low, images):.2f} points"
            + (f", {high:.2f} % one of {binomial_standard_error(high, images):.2f}" if high > low else "")
            + ". It is in no verdict: both medians are over the same images."
        )
    elif comparison.differing:
        yield f"By the rule for failing nets {_those(comparison.differing)}."
    if any("(one of many)" in _verdict(comparison, c) for c in comparison.cells):
        yield "(one of many): beyond the tolerance by itself, but not after Holm's correction over the table."


def _those(differing: Sequence[CellComparison]) -> str:
    if not differing:
        return "no cell differs from the paper"
    listed = ", ".join(f"{c.cell.id} ({c.verdict})" for c in differing)
    return f"{'this differs' if len(differing) == 1 else 'these differ'} from the paper: {listed}"


def _cells_section(comparison: Comparison, style: _Style) -> Iterator[str]:
    """Every run's error, and what the verdict makes of them."""
    rows = []
    for compared in comparison.cells:
        for net in compared.nets:
            if net.shown and net.shown.errors:
                rows.append(_cell_row(compared, net))
    if rows:
        headers = ("cell", "errors by seed", "median", "paper", "interval", "std", "tol.", "why")
        alignment = ("left", "left", "right", "right", "left", "right", "right", "left")
        width = len(headers) if comparison.profile == "paper" else headers.index("interval")
        yield f"{style.subheading}Cells"
        yield style.table([row[:width] for row in rows], headers[:width], alignment[:width])
    others = []
    for compared in comparison.cells:
        for net in compared.nets:
            for group in net.others:
                ended = f"{_errors(group)}; median {_percent(group.median)}" if group.median is not None else "none yet"
                others.append(f"{_net_id(compared, net)}: {group.conditions}: {ended}")
    if others:
        yield style.items("Also there, and not pooled", others)
    conditions = sorted(
        {str(net.shown.conditions) for c in comparison.cells for net in c.nets if net.shown is not None}
    )
    if conditions:
        yield style.items("Conditions of the runs shown (data, precision, numerics version)", conditions)
    diverged = {
        record.run: f"{record.run}: {describe(record.divergence)}"
        for c in comparison.cells
        for net in c.nets
        for group in (net.shown, *net.others)
        for record in (group.records if group else ())
        if record.divergence
    }
    if diverged:
        yield style.items("Diverged", list(diverged.values()))


def _net_id(compared: CellComparison, net: NetComparison) -> str:
    return f"{compared.cell.id} ({net.setting.label})" if net.setting.label else compared.cell.id


def _errors(group: Group) -> str:
    return ", ".join(f"{run.seed}: {_percent(run.error)}" for run in group.ended if run.error is not None)


def _cell_row(compared: CellComparison, net: NetComparison) -> list[str]:
    judgement, group, cell = net.judgement, net.shown, compared.cell
    noise = _NOTHING
    if judgement.noise:
        share = judgement.noise.published_weight
        noise = f"{judgement.noise.std:.2f}" + (f" ({share:.0%} published)" if share else "")
    is_number = cell.number is not None
    reason = judgement.reason if judgement.verdict != "not comparable" else ""
    return [
        _net_id(compared, net),
        _errors(group) if group else "",
        _percent(group.median) if group and group.median is not None else _NOTHING,
        published(cell),
        in_words(judgement.interval) if judgement.interval else _NOTHING,
        noise,
        f"{cell.tolerance:g}" if is_number else _NOTHING,
        reason,
    ]


_MARKS = {"supported": "supported", "contradicted": "CONTRADICTED", "undecided": "undecided", "not run": "not run"}


def _claims_section(comparison: Comparison, style: _Style) -> Iterator[str]:
    if not comparison.claims:
        return
    judged = [claim for claim in comparison.claims if claim.standing in ("supported", "contradicted")]
    open_claims = [claim for claim in comparison.claims if claim.standing not in ("supported", "contradicted")]
    counts = [f"{sum(c.standing == standing for c in comparison.claims)} {standing}" for standing in _MARKS]
    yield f"{style.subheading}Claims"
    yield (
        f"{', '.join(text for text in counts if not text.startswith('0 '))}. Judged on our runs alone, each at its own "
        "level: no correction is made across claims."
    )
    if judged:
        yield "\n".join(_claim_lines(judged, style))
    tested = [claim for claim in open_claims if claim.findings]
    if tested:
        yield "\n".join(_claim_lines(tested, style))
    lacking: dict[str, list[str]] = {}
    for claim in open_claims:
        if not claim.findings:
            lacking.setdefault(f"{claim.standing}: {claim.reason}", []).append(claim.claim.id)
    for reason, ids in lacking.items():
        yield f"{reason}: {', '.join(ids)}."


def _claim_lines(claims: Sequence[ClaimVerdict], style: _Style) -> Iterator[str]:
    for verdict in claims:
        claim = verdict.claim
        yield f"{style.item}{_MARKS[verdict.standing]}: {claim.says} ({claim.section}; {claim.id})."
        level = f" at {verdict.level:.0%}" if verdict.level is not None else ""
        reason = f" {verdict.reason[:1].upper()}{verdict.reason[1:]}." if verdict.reason else ""
        indent = " " * len(style.item)
        yield f"{indent}  {verdict.test}{level}; {verdict.basis}: {'; '.join(verdict.findings)}.{reason}"


def _deviations_section(comparison: Comparison, style: _Style) -> Iterator[str]:
    if not comparison.deviations:
        return
    yield f"{style.subheading}Where our runs deviate from the paper's"
    different = [d for d in comparison.deviations if d.paper]
    silent = [d for d in comparison.deviations if not d.paper]
    rows = [(d.topic, d.paper, d.ours, ", ".join(d.cells) or "all") for d in different]
    if rows:
        yield style.table(rows, ("", "paper", "ours", "cells"), ("left",) * 4)
    if silent:
        texts = [f"{d.topic}: {d.ours}" + (f" ({', '.join(d.cells)})" if d.cells else "") for d in silent]
        yield style.items("Where the paper does not say", texts)


def _runs_section(comparison: Comparison, store: Store, style: _Style) -> Iterator[str]:
    headers = [
        *("run", "net", "seed", "prec.", "status", "iteration", "train loss", "train err"),
        *("test err, moving avg", "test err, reported", "minutes"),
    ]
    rows: dict[str, list[str]] = {}
    complaints = []
    for compared in comparison.cells:
        for net in compared.nets:
            for group in (net.shown, *net.others):
                for record in group.records if group else ():
                    if record.run in rows:
                        continue
                    try:
                        newest = store.directory(record.run).newest_values(record)
                    except PaperbenchError as error:
                        newest = Newest()
                        complaints.append(f"Left out: {error}")
                    rows[record.run] = _run_row(record, newest)
    if rows:
        alignment = ("left", "left", "right", "left", "left", *("right",) * (len(headers) - 5))
        yield f"{style.subheading}Runs"
        yield style.table(list(rows.values()), headers, alignment)
    yield from complaints


def _run_row(record: Record, newest: Newest) -> list[str]:
    moving_average = record.result.moving_average_test_error if record.result else newest.test_error
    return [
        record.run,
        record.net,
        str(record.seed),
        record.spec.precision,
        record.status,
        f"{record.iteration:,}",
        f"{newest.train_loss:.4f}" if newest.train_loss is not None else _NOTHING,
        f"{newest.train_error:.2f}" if newest.train_error is not None else _NOTHING,
        f"{moving_average:.2f}" if moving_average is not None else _NOTHING,
        f"{record.result.test_error:.2f}" if record.result else _NOTHING,
        f"{record.seconds / 60:.1f}",
    ]
