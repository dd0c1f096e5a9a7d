"""What a report says about a comparison. Every note and sentence is made here; the formats lay them out."""

from __future__ import annotations

import math
import string
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import get_args

from paperbench.compare.claims import ClaimVerdict, Standing
from paperbench.compare.comparison import Comparison
from paperbench.compare.deviations import Deviation
from paperbench.compare.evidence import Group, Run
from paperbench.compare.statistics import FIRST_LOOK, SECOND_LOOK, Interval
from paperbench.compare.verdicts import CellComparison, NetComparison
from paperbench.errors import count
from paperbench.report.grid import Beside, Grid, Marked, paper_grid
from paperbench.specs.experiment import Column

NOTHING = "-"


@dataclass(frozen=True)
class NetReport:
    """One net of a cell."""

    cell_id: str
    net: NetComparison

    @property
    def name(self) -> str:
        """The cell's id, and the setting of a net of a sweep."""
        label = self.net.setting.label
        return f"{self.cell_id} ({label})" if label else self.cell_id

    @cached_property
    def errors(self) -> str:
        """Test error in percent of each run; empty without any."""
        runs, counted = self.net.shown.runs if self.net.shown else (), self.net.counted
        further = [run for run in runs if run.error is not None and run not in counted]
        running = [run.record for run in runs if run.record and run.record.status == "partial"]
        parts = [
            _by_seed(counted),
            f"not counted: {_by_seed(further)}" if further else "",
            *(f"seed {record.seed} is at iteration {record.iteration:,}" for record in running),
        ]
        return "; ".join(filter(None, parts))

    @property
    def others(self) -> list[str]:
        """Runs under other conditions, a text for each group."""
        return [self._other(group) for group in self.net.others]

    def _other(self, group: Group) -> str:
        text = str(group.conditions)
        same = [one for one in (self.net.shown, *self.net.others) if one and str(one.conditions) == text]
        if group.conditions.data and len(same) > 1:
            text += f", pixels {group.conditions.data.fingerprint[:8]}"
        if group.median is None:
            return f"{text}: no run has ended"
        return f"{text}: {_by_seed(group.ended)}; median {percent(group.median)}"


@dataclass(frozen=True)
class CellReport:
    """One cell.

    Attributes:
        compared: The cell, judged.
        differs: Whether it differs from the paper after Holm's correction.
    """

    compared: CellComparison
    differs: bool

    @cached_property
    def nets(self) -> list[NetReport]:
        return [NetReport(self.compared.cell.id, net) for net in self.compared.nets]

    @cached_property
    def ours(self) -> str:
        """What stands beside the published number."""
        compared = self.compared
        if len(compared.nets) > 1:
            return str(compared.failing) if compared.failing.runs else NOTHING
        (net,) = compared.nets
        if net.median is None:
            is_running = net.shown is not None and any(record.status == "partial" for record in net.shown.records)
            return f"(at {net.shown.farthest:,})" if net.shown and is_running else NOTHING
        text = percent(net.median)
        if compared.difference is not None and math.isfinite(compared.difference):
            text += f" ({compared.difference:+.2f})"
        return text if len(net.errors) == compared.planned else f"{text}, n={len(net.errors)}"

    @property
    def difference(self) -> str:
        """Our median minus the published number, with its interval; empty if it was not tested."""
        interval = self.compared.judgement.interval
        if interval is None:
            return ""
        bounds = format_interval(interval)
        return f"{interval.difference:+.2f} points {bounds} at a tolerance of {self.compared.cell.tolerance:g}"

    @cached_property
    def notes(self) -> list[str]:
        """What a reader must know about the verdict."""
        compared, judgement = self.compared, self.compared.judgement
        notes = []
        if judgement.shift is not None:
            notes.append(f"shifted by {judgement.shift:+.2f}, within the tolerance")
        if compared.reason and (compared.verdict != "not run" or self.ours == NOTHING):
            notes.append(compared.reason)
        if compared.verdict in ("worse", "better") and not self.differs:
            if judgement.p_value is not None:
                notes.append("beyond the tolerance, but not after Holm's correction over the cells compared")
            else:
                notes.append("the runs disagree, so this does not count as a difference")
        if compared.shown and compared.shown.conditions.source is not None:
            notes.append(f"external: reported by {compared.shown.conditions.source}")
        return notes


@dataclass(frozen=True)
class Report:
    """All that a report says.

    Attributes:
        left_out: How many records and results were not used.
    """

    comparison: Comparison
    left_out: int = 0

    @property
    def has_verdicts(self) -> bool:
        """Whether the runs are of the paper's experiment, and not of a reduced profile."""
        return self.comparison.profile == "paper"

    @cached_property
    def cells(self) -> list[CellReport]:
        differing = self.comparison.differing
        return [CellReport(compared, compared in differing) for compared in self.comparison.cells]

    @property
    def nets(self) -> list[NetReport]:
        return [net for cell in self.cells for net in cell.nets]

    @property
    def title(self) -> str:
        """Which table of which paper."""
        source = self.comparison.table.source
        return f"{source.table} of arXiv:{source.arxiv}"

    @cached_property
    def _shown(self) -> list[CellReport]:
        """Cells for the grid, row by row."""
        rows = [row.id for row in self.comparison.table.experiment.rows]
        shown = [c for c in self.cells if c.compared.cell.expected.value != "unprinted" or c.compared.shown]
        return sorted(shown, key=lambda cell: rows.index(cell.compared.cell.row.id))

    @cached_property
    def letters(self) -> dict[str, str]:
        """Notes about single cells, each with the letter that the grid refers to it with."""
        notes = dict.fromkeys(note for cell in self._shown for note in cell.notes if self.has_verdicts)
        return {note: _letter(number) for number, note in enumerate(notes)}

    @cached_property
    def grid(self) -> Grid:
        """The paper's table with ours beside it."""
        ours = {cell.compared.cell.id: cell.ours for cell in self._shown}
        verdicts = {
            cell.compared.cell.id: Marked(cell.compared.verdict, [self.letters[note] for note in cell.notes])
            for cell in self._shown
            if self.has_verdicts
        }

        def beside(column: Column) -> list[Beside]:
            found = [Beside(f"ours{_trained_depth(self.comparison, column)}", "right", ours)]
            return [*found, Beside("verdict", "left", verdicts)] if self.has_verdicts else found

        return paper_grid(self.comparison.table, [cell.compared.cell for cell in self._shown], beside)

    @property
    def footnotes(self) -> dict[str, str]:
        """The paper's own, by mark."""
        marks = {cell.compared.cell.expected.mark for cell in self.cells}
        return {mark: text for mark, text in self.comparison.table.expected.footnotes.items() if mark in marks}

    @property
    def notes(self) -> Iterator[str]:
        """About the whole table."""
        comparison = self.comparison
        if self.left_out:
            yield f"Left out: {self.left_out} of the records and results, listed separately."
        groups = [net.net.shown for net in self.nets if net.net.shown]
        if not groups:
            yield "No run of this table in this profile yet."
            return
        yield from _result(comparison)
        is_running = any(cell.ours.startswith("(at") for cell in self.cells)
        farthest = "; (at k): no run has ended, the farthest is at iteration k" if is_running else ""
        yield (
            f"ours: median test error (%) after the last iteration over {count(comparison.planned, 'run')}, or over n "
            f"where given; (+x): minus the published number, in points{farthest}."
        )
        if not self.has_verdicts:
            what = comparison.table.profiles.named(comparison.profile).title
            yield f"Not comparable with the paper: profile {comparison.profile} is not its experiment ({what})."
        conditions = sorted({str(group.conditions) for group in groups if group.conditions.source is None})
        if conditions:
            yield f"Our runs (data, precision, numerics version): {'; '.join(conditions)}."
        tested = comparison.tested
        if tested:
            is_extended = any(c.judgement.look and c.judgement.look.number == 2 for c in tested)
            extension = f" ({SECOND_LOOK:g} after the extension)" if is_extended else ""
            yield (
                f"Verdicts: two one-sided tests at alpha = {FIRST_LOOK:g}{extension} of the difference of medians "
                f"against the tolerance. {comparison.expected_false_alarms:.2g} false alarms would be expected in "
                f"{count(len(tested), 'tested cell')} if every true difference were exactly the tolerance."
            )

    @property
    def claims(self) -> str:
        """How many there are of each standing; empty without any."""
        comparison = self.comparison
        counts = Counter(claim.standing for claim in comparison.claims)
        parts = [f"{counts[standing]} {standing}" for standing in get_args(Standing) if counts[standing]]
        if comparison.claims_left_out:
            parts.append(f"{comparison.claims_left_out} about cells that were not selected")
        contradicted = ", ".join(c.claim.id for c in comparison.claims if c.standing == "contradicted")
        return f"{', '.join(parts)}.{f' Contradicted: {contradicted}.' if contradicted else ''}" if parts else ""

    @property
    def deviations(self) -> list[str]:
        """Where our runs deviate from the paper, as "topic: paper -> ours (cells)"."""
        return [f"{d.topic}: {d.paper} -> {d.ours}{self._whose(d)}" for d in self.comparison.deviations if d.paper]

    @property
    def choices(self) -> list[str]:
        """What our runs did where the paper does not say, as "topic: ours (cells)"."""
        return [f"{d.topic}: {d.ours}{self._whose(d)}" for d in self.comparison.deviations if not d.paper]

    def _whose(self, deviation: Deviation) -> str:
        """Which cells a deviation is about, the shorter way round; nothing if it is all that have runs of ours."""
        ours = dict.fromkeys(net.cell_id for net in self.nets if net.net.shown and net.net.shown.records)
        others = [cell for cell in ours if cell not in deviation.cells]
        if not deviation.cells or not others:
            return ""
        is_most = len(others) < len(deviation.cells)
        return f" (all but {', '.join(others)})" if is_most else f" ({', '.join(deviation.cells)})"


def percent(error: float) -> str:
    """A test error as text."""
    return "diverged" if math.isinf(error) else f"{error:.2f}"


def format_interval(interval: Interval) -> str:
    """Its ends in percentage points."""
    return f"[{interval.low:+.2f}, {interval.high:+.2f}]"


def method(verdict: ClaimVerdict) -> str:
    """How a claim was judged: test, level and runs, and why it is open."""
    level = f" at alpha = {verdict.level:g}" if verdict.level is not None else ""
    return "; ".join(filter(None, [f"By {verdict.test}{level}", verdict.basis, verdict.reason]))


def _by_seed(runs: Iterable[Run]) -> str:
    """Errors in the order of their seeds from 0 on; a seed is named where it does not follow the one before."""
    texts, following = [], 0
    for run in runs:
        if run.error is not None:
            texts.append(f"{'' if run.seed == following else f'seed {run.seed}: '}{percent(run.error)}")
            following = run.seed + 1
    return ", ".join(texts)


def _letter(number: int) -> str:
    """Letters a to z, then aa, ab and so on."""
    first, second = divmod(number, 26)
    return (string.ascii_lowercase[first - 1] if first else "") + string.ascii_lowercase[second]


def _trained_depth(comparison: Comparison, column: Column) -> str:
    """The depth of our nets, where it is not the paper's."""
    profile = comparison.table.profiles.named(comparison.profile)
    cells = [c.cell for c in comparison.cells if c.cell.column.id == column.id and c.cell.is_in(profile)]
    depths = {cell.net_in(profile).depth for cell in cells}
    return f" at depth {depths.pop()}" if profile.depth and len(depths) == 1 else ""


def _result(comparison: Comparison) -> Iterator[str]:
    """Which cells differ from the paper, if any was judged."""
    if comparison.tested:
        basis = "After Holm's correction over the cells compared"
    elif any(c.judgement.rests_on_rule for c in comparison.cells):
        basis = "By the rule for failing nets"
    else:
        return
    differing = comparison.differing
    if not differing:
        yield f"{basis}, no cell differs from the paper."
        return
    listed = ", ".join(f"{c.cell.id} ({c.verdict})" for c in differing)
    verb = "cell differs" if len(differing) == 1 else "cells differ"
    yield f"{basis}, {len(differing)} {verb} from the paper: {listed}."
