"""A comparison as text: the table in the paper's shape with verdicts, and everything that they rest on."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from tabulate import tabulate

from paperbench.catalogue import DATASETS
from paperbench.compare.claims import ClaimVerdict
from paperbench.compare.comparison import Comparison
from paperbench.compare.evidence import Group, Run
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

_NOTHING = "-"
_WIDTH = 120


@dataclass(frozen=True)
class _Style:
    """How a format writes headings, list items and tables."""

    heading: str
    subheading: str
    item: str
    tabulate: str

    def table(self, rows: Sequence[Sequence[str]], headers: Sequence[str], alignment: Sequence[str]) -> str:
        if self.tabulate == "github":
            rows = [[text.replace("|", "\\|").replace("<", "&lt;") for text in row] for row in rows]
        return tabulate(rows, headers, tablefmt=self.tabulate, disable_numparse=True, colalign=tuple(alignment))

    def items(self, heading: str, texts: Sequence[str]) -> str:
        return "\n".join([f"{heading}:", "", *(self.paragraph(f"{self.item}{text}", "  ") for text in texts)])

    def paragraph(self, text: str, indent: str = "") -> str:
        """Prose, in lines that fit a terminal; what reads Markdown breaks lines by itself."""
        if self.tabulate == "github":
            return text
        hanging = f"{indent}  " if indent else ""
        return textwrap.fill(text, _WIDTH, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False)


_STYLES = {"table": _Style("", "", "  ", "simple"), "markdown": _Style("## ", "### ", "- ", "github")}


def render(comparison: Comparison, store: Store, form: Literal["table", "markdown"], left_out: int = 0) -> str:
    """The whole report: table with verdicts, what they rest on, claims, deviations, runs.

    Args:
        store: Where the histories of the runs are.
        left_out: How many records and results were not used, which the caller names.
    """
    table, style = comparison.table, _STYLES[form]
    parts = [
        f"{style.heading}{table.source.table} of arXiv:{table.source.arxiv}: {table.experiment.title}",
        f"Profile {comparison.profile}; {_planned(comparison)}",
        _paper_table(comparison, style),
        *(style.paragraph(note) for note in _notes(comparison, left_out)),
        *_cells_section(comparison, style),
        *_claims_section(comparison, style),
        *_deviations_section(comparison, style),
        *_runs_section(comparison, store, style),
    ]
    return "\n\n".join(parts)


def _planned(comparison: Comparison) -> str:
    """How many runs a cell were fixed beforehand, and by whom."""
    runs = f"{comparison.planned} runs a cell" if comparison.planned > 1 else "1 run a cell"
    usual = comparison.table.seeds_in(comparison.table.profiles.named(comparison.profile))
    return f"{runs}, fixed beforehand" + (f" by --seeds; the table says {usual}" if usual != comparison.planned else "")


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
        return _median(compared.nets[0], compared.difference)
    if not any(net.shown for net in compared.nets):
        return _NOTHING
    return f"{compared.failing.failed} of {compared.failing.runs} runs failed"


def _median(net: NetComparison, difference: float | None) -> str:
    if net.shown is None:
        return _NOTHING
    if net.median is None:
        is_on_the_way = any(record.status == "partial" for record in net.shown.records)
        return f"(at {net.shown.farthest:,})" if is_on_the_way else _NOTHING
    of_what = f" ({difference:+.2f})" if difference is not None and math.isfinite(net.median) else ""
    diverged = sum(map(math.isinf, net.errors))
    behind = f"n={len(net.errors)}" + (f" ({diverged} diverged)" if diverged else "")
    return f"{_percent(net.median)}{of_what}, {behind}"


def _percent(error: float) -> str:
    return "diverged" if math.isinf(error) else f"{error:.2f}"


def _verdict(comparison: Comparison, compared: CellComparison) -> str:
    text: str = compared.verdict
    if compared.judgement.shift is not None:
        text += f", shifted by {compared.judgement.shift:+.2f}"
    if compared.verdict in ("worse", "better") and compared not in comparison.differing:
        text += " (alone)" if compared.judgement.p_value is not None else " (unstable)"
    if compared.shown and compared.shown.conditions.source is not None:
        text += ", external"
    return text


def _notes(comparison: Comparison, left_out: int) -> Iterator[str]:
    """What a reader must know to read the table."""
    if left_out:
        yield f"Left out: {left_out} record{'s' if left_out > 1 else ''} or results, named beside this report."
    started = [c for c in comparison.cells if any(net.shown for net in c.nets)]
    if not started:
        yield "No run of this table in this profile yet."
        return
    yield (
        "ours: median test error (%) of n runs after the last iteration; (+x): ours - published, in points; "
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
        number = f"{len(tested)} cells were tested" if len(tested) > 1 else "1 cell was tested"
        yield (
            f"Verdicts: two one-sided tests at {FIRST_LOOK:.0%}{second} of the difference of medians against the "
            f"cell's tolerance. {number}: if every true difference were exactly the tolerance, "
            f"{comparison.expected_false_alarms:.2g} false alarms would be expected. After Holm's correction over the "
            f"cells compared {_those(comparison.differing)}."
        )
        yield from _test_set_noise(tested)
    elif comparison.differing:
        yield f"By the rule for failing nets {_those(comparison.differing)}."
    if any("(alone)" in _verdict(comparison, c) for c in comparison.cells):
        yield "(alone): beyond the tolerance by itself, but not after Holm's correction over the cells compared."


def _test_set_noise(tested: Sequence[CellComparison]) -> Iterator[str]:
    """For readers who think of other test images."""
    by_size: dict[int, list[float]] = {}
    for compared in tested:
        by_size.setdefault(DATASETS[compared.cell.dataset].test_images, []).append(compared.cell.number or 0.0)
    for images, errors in by_size.items():
        low, high = min(errors), max(errors)
        yield (
            f"Over other test images of the same kind, {low:.2f} % of {images:,} has a binomial standard error of "
            f"{binomial_standard_error(low, images):.2f} points"
            + (f", {high:.2f} % one of {binomial_standard_error(high, images):.2f}" if high > low else "")
            + ". It is in no verdict: both medians are over the same images."
        )


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
        if any(c.judgement.interval for c in comparison.cells):
            yield style.paragraph(
                f"interval: confidence interval of the difference of medians, in points ({1 - 2 * FIRST_LOOK:.0%}; "
                f"{1 - 2 * SECOND_LOOK:.0%} after the extension). std: of a single run, in points; in "
                "parentheses the weight of the published one in its square. tol.: tolerance, in points."
            )
    others = []
    for compared in comparison.cells:
        for net in compared.nets:
            for group in net.others:
                ended = "no run has ended"
                if group.median is not None:
                    ended = f"{_errors(group.ended)}; median {_percent(group.median)}"
                others.append(f"{_net_id(compared, net)}: {_told_apart(group, net)}: {ended}")
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


def _told_apart(group: Group, net: NetComparison) -> str:
    """The group's conditions, with a part of the fingerprint where another group's read the same."""
    text = str(group.conditions)
    groups = (net.shown, *net.others)
    if group.conditions.data and sum(str(one.conditions) == text for one in groups if one) > 1:
        return f"{text}, pixels {group.conditions.data.fingerprint[:8]}"
    return text


def _errors(runs: Iterable[Run]) -> str:
    return ", ".join(f"{run.seed}: {_percent(run.error)}" for run in runs if run.error is not None)


def _errors_of(net: NetComparison) -> str:
    """Errors of the runs that count, and of those that were not looked at."""
    later = [run for run in net.shown.ended if run not in net.counted] if net.shown else []
    return _errors(net.counted) + (f"; not looked at: {_errors(later)}" if later else "")


def _cell_row(compared: CellComparison, net: NetComparison) -> list[str]:
    judgement, cell = net.judgement, compared.cell
    noise = _NOTHING
    if judgement.noise:
        share = judgement.noise.published_weight
        noise = f"{judgement.noise.std:.2f}" + (f" ({share:.0%} published)" if share else "")
    is_number = cell.number is not None
    reason = judgement.reason if judgement.verdict != "not comparable" else ""
    return [
        _net_id(compared, net),
        _errors_of(net),
        _percent(net.median) if net.median is not None else _NOTHING,
        published(cell),
        in_words(judgement.interval) if judgement.interval else _NOTHING,
        noise,
        f"{cell.tolerance:g}" if is_number else _NOTHING,
        reason,
    ]


_MARKS = {"supported": "supported", "contradicted": "CONTRADICTED", "undecided": "undecided", "not run": "not run"}


def _claims_section(comparison: Comparison, style: _Style) -> Iterator[str]:
    if not comparison.claims and not comparison.claims_left_out:
        return
    yield f"{style.subheading}Claims"
    counts = [(sum(c.standing == standing for c in comparison.claims), standing) for standing in _MARKS]
    told = ", ".join(f"{number} {standing}" for number, standing in counts if number)
    if comparison.claims_left_out:
        told += f"{', ' if told else ''}{comparison.claims_left_out} about cells that were not chosen"
    yield style.paragraph(
        f"{told}. Judged on our runs alone, each at its own level, with no correction across claims. In "
        f"brackets: {1 - 2 * FIRST_LOOK:.0%} confidence intervals."
    )
    if comparison.profile != "paper":
        yield f"Profile {comparison.profile} trains other nets or data: what holds here need not hold of the paper's."
    tested = [claim for claim in comparison.claims if claim.findings]
    for standing in _MARKS:
        lines = [line for c in tested if c.standing == standing for line in _claim_lines(c, style)]
        if lines:
            yield "\n".join(lines)
    open_claims = [claim for claim in comparison.claims if not claim.findings]
    for standing in ("undecided", "not run"):
        by_reason: dict[str, list[str]] = {}
        for claim in open_claims:
            if claim.standing == standing:
                by_reason.setdefault(claim.reason, []).append(claim.claim.id)
        if by_reason:
            yield style.items(standing.capitalize(), [f"{', '.join(ids)}: {why}" for why, ids in by_reason.items()])


def _claim_lines(verdict: ClaimVerdict, style: _Style) -> Iterator[str]:
    claim, indent = verdict.claim, " " * len(style.item)
    says = f"{_MARKS[verdict.standing]}: {claim.says} ({claim.section}; {claim.id})."
    yield style.paragraph(f"{style.item}{says}", "  ")
    level = f" at {verdict.level:.0%}" if verdict.level is not None else ""
    reason = f" {verdict.reason}." if verdict.reason else ""
    yield style.paragraph(f"{indent}  {verdict.test}{level}; {verdict.basis}:{reason}", indent)
    for finding in verdict.findings:
        yield style.paragraph(f"{indent}{'  - ' if style.item.strip() else '    '}{finding}", f"{indent}    ")


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
