"""The contents of a report on a comparison. All notes are made here; the formats lay them out."""

from __future__ import annotations

import math
import statistics
import string
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from typing import get_args

from paperbench.catalogue import DATASETS
from paperbench.compare.claims import ClaimVerdict, Standing
from paperbench.compare.comparison import Comparison, trained_depth
from paperbench.compare.deviations import Deviation
from paperbench.compare.evidence import GroupFacts, RunFacts, errors_of
from paperbench.compare.failures import FailureCount
from paperbench.compare.origins import NO_ORIGINS, Origin, Origins
from paperbench.compare.statistics import FIRST_ALPHA, SECOND_ALPHA, Interval
from paperbench.compare.verdicts import CellFacts, NetFacts, Verdict
from paperbench.errors import count
from paperbench.report.grid import NOTHING, AddedColumn, Grid, Marked, paper_grid
from paperbench.runs.record import Record
from paperbench.specs.cell import Cell
from paperbench.specs.experiment import Column

AGREEMENTS = {"agree": "agree", "differ": "do not agree", "undecided": "are not shown to agree"}
MIN_RUNS_FOR_OUTLIERS = 4
OUTLIER_MADS = 3

WORDS: dict[Verdict | Standing, tuple[str, str]] = {
    "reproduced": (
        "✓",
        "the interval of our error minus the published one lies within the tolerance, or the net fails as the paper's "
        "does",
    ),
    "worse": ("▲", "the interval lies above the tolerance, or the net fails where the paper's does not"),
    "better": ("▼", "the interval lies below the tolerance, or the net does not fail where the paper's does"),
    "underpowered": ("?", "the runs do not decide: neither that the number holds nor that it does not"),
    "not comparable": ("≠", "the runs are not the paper's experiment: other images, or another profile"),
    "not run": ("○", "no run has ended"),
    "supported": ("✓", "the claim holds among our own runs, at the error level given"),
    "contradicted": ("✗", "the opposite holds among our own runs, at the error level given"),
    "undecided": ("?", "our runs do not decide"),
}
"""Verdicts and standings: their signs, and what they mean, in short."""


@dataclass(frozen=True)
class NetReport:
    """One net of a cell."""

    cell: Cell
    compared: CellFacts
    net: NetFacts

    @property
    def name(self) -> str:
        """The cell's id, followed in a sweep by the setting of the net."""
        return f"{self.cell.id} ({self.net.setting})" if self.net.setting else self.cell.id

    @property
    def ours(self) -> GroupFacts | None:
        """The runs that the verdict is about, unless they are external results."""
        shown = self.net.shown
        return shown if shown and shown.conditions.source is None else None

    @cached_property
    def errors(self) -> str:
        """Test error in percent of each run, by seed; empty without runs."""
        runs, counted = self.net.shown.runs if self.net.shown else (), self.net.counted
        further = [run for run in runs if run.error_or_inf is not None and not run.counted]
        parts = [
            _by_seed(counted),
            f"not counted: {_by_seed(further)}" if further else "",
            *(f"seed {run.seed} is at iteration {run.iteration:,}" for run in runs if run.status == "partial"),
        ]
        return "; ".join(filter(None, parts))

    @cached_property
    def outliers(self) -> list[str]:
        """Counted runs far from their median, as "seed (error)"."""
        runs = [run for run in self.net.counted if run.error is not None]
        if len(runs) < MIN_RUNS_FOR_OUTLIERS:
            return []
        median = statistics.median(errors_of(runs))
        deviations = [abs(error - median) for error in errors_of(runs)]
        bound = max(OUTLIER_MADS * 1.4826 * statistics.median(deviations), self.cell.tolerance)
        far = [run for run, deviation in zip(runs, deviations, strict=True) if deviation > bound]
        return [f"seed {run.seed} ({percent(run.error or 0.0)})" for run in far]

    @property
    def others(self) -> list[str]:
        """Our runs under other conditions, a text for each group."""
        return [self._describe(group) for group in self.net.others if group.conditions.source is None]

    def external_results(self, long: bool = True, notes: Sequence[str] = ()) -> Iterator[str]:
        """Describe the results of each external source; if `long`, with the error of each run.

        Args:
            notes: Notes on the verdict, if it rests on these results.
        """
        for group in self.net.groups:
            if group.conditions.source is None:
                continue
            is_judged = group is self.net.shown
            runs = self.net.counted if is_judged else group.runs
            median = statistics.median(errors_of(runs))
            text = f"{self.name}: {percent(median)}"
            if self.cell.number is not None and math.isfinite(median):
                text += f" ({median - self.cell.number:+.2f})"
            text += f", n={len(runs)}, reported by {group.conditions.source}"
            if is_judged:
                text += f": {self.net.verdict}" + (f" ({'; '.join(notes)})" if notes else "")
                text += "".join(f"; {outlier} is far from the others: check it" for outlier in self.outliers)
            yield f"{text}; errors: {self.errors if is_judged else _by_seed(runs)}" if long else text

    def _describe(self, group: GroupFacts) -> str:
        text = str(group.conditions)
        same = [one for one in self.net.groups if str(one.conditions) == text]
        if group.conditions.data and len(same) > 1:
            text += f", pixels {group.conditions.data.fingerprint[:8]}"
            if any(one.facts for one in same):
                text += f", facts {group.facts or 'unknown'}"
        if group.median_or_inf is None:
            return f"{text}: no run has ended"
        return f"{text}: {_by_seed(group.ended)}; median {percent(group.median_or_inf)}"


@dataclass(frozen=True)
class CellReport:
    """One cell."""

    cell: Cell
    compared: CellFacts
    planned: int

    @cached_property
    def nets(self) -> list[NetReport]:
        return [NetReport(self.cell, self.compared, net) for net in self.compared.nets]

    @property
    def is_external(self) -> bool:
        """Whether the verdict rests on external results alone."""
        return any(net.net.shown for net in self.nets) and not any(net.ours for net in self.nets)

    @property
    def verdict(self) -> str:
        """The verdict to print beside our result."""
        return NOTHING if self.is_external else self.compared.verdict

    @cached_property
    def ours(self) -> str:
        """Our result, to print beside the published number."""
        compared = self.compared
        nets = [net.net for net in self.nets if net.ours]
        if not nets:
            return NOTHING
        if len(compared.nets) > 1:
            counts = [net.failures for net in nets if net.failures]
            return str(FailureCount.total(counts)) if counts else NOTHING
        (net,) = nets
        if net.shown and net.median_or_inf is None:
            is_running = any(run.status == "partial" for run in net.shown.runs)
            return f"(at {net.shown.farthest:,})" if is_running else NOTHING
        text = percent(net.median_or_inf or 0.0)
        if compared.difference is not None:
            text += f" ({compared.difference:+.2f})"
        return text if len(net.errors) == self.planned else f"{text}, n={len(net.errors)}"

    @cached_property
    def notes(self) -> list[str]:
        """Notes that qualify the verdict."""
        compared, notes = self.compared, []
        if compared.shift is not None:
            notes.append(f"shifted by {compared.shift:+.2f}, within the tolerance")
        if compared.reason and (compared.verdict != "not run" or self.ours == NOTHING):
            notes.append(compared.reason)
        if compared.verdict in ("worse", "better") and not compared.differs:
            if compared.p_value is not None:
                notes.append("beyond the tolerance, but not after Holm's correction over the cells compared")
            else:
                notes.append("the runs disagree, so this does not count as a difference")
        if any(net.net.shown and not net.ours for net in self.nets):  # last, as `external_results` omits it
            notes.append("rests on external results, listed separately")
        return notes


@dataclass(frozen=True)
class Report:
    """The contents of a report.

    Attributes:
        has_notes: Whether the grid has letters for notes.
    """

    comparison: Comparison
    origins: Origins = NO_ORIGINS
    left_out: int = 0  # records and results that were not used
    resting_on_records: Callable[[], int] = lambda: 0  # counts, slowly, runs that kept neither net nor last checkpoint
    has_notes: bool = True

    @property
    def is_reduced(self) -> bool:
        """Whether the profile is not the paper's experiment."""
        return self.comparison.profile != "paper"

    @property
    def has_verdicts(self) -> bool:
        """Whether the runs can be compared with published numbers."""
        return self.comparison.table.has_numbers and not self.is_reduced

    @cached_property
    def cells(self) -> list[CellReport]:
        table, planned = self.comparison.table, self.comparison.planned
        return [CellReport(table.cell(compared.id), compared, planned) for compared in self.comparison.cells]

    @property
    def nets(self) -> list[NetReport]:
        return [net for cell in self.cells for net in cell.nets]

    @property
    def design(self) -> str:
        """The profile, and how many runs were planned."""
        comparison = self.comparison
        table, planned = comparison.table, comparison.planned
        usual = table.seeds_in(table.profiles.named(comparison.profile))
        by_option = f" by --seeds; the table says {usual}" if usual != planned else ""
        return f"Profile {comparison.profile}; {count(planned, 'run')} per cell, fixed beforehand{by_option}"

    @property
    def result(self) -> str:
        """How many cells have each verdict and how many claims each standing, and on which data, in one sentence."""
        verdicts = Counter(cell.compared.verdict for cell in self._shown if self.comparison.table.has_numbers)
        external = sum(cell.is_external for cell in self._shown)
        standings = Counter(claim.standing for claim in self.comparison.claims)
        data = sorted({net.ours.conditions.data.name for net in self.nets if net.ours and net.ours.conditions.data})
        parts = [
            f"of {count(counts.total(), noun)}, "
            + ", ".join(f"{counts[word]} {word}" for word in words if counts[word])
            for noun, counts, words in (("cell", verdicts, get_args(Verdict)), ("claim", standings, get_args(Standing)))
            if counts
        ]
        if external:
            parts.append(f"{count(external, 'cell')} judged by external results alone")
        where = f"; our runs were trained on {' and '.join(data)}" if data else ""
        text = "; ".join(parts) or "no cell is judged"
        return f"{text[0].upper()}{text[1:]}{where}."

    @property
    def records(self) -> list[Record]:
        ids = dict.fromkeys(run for net in self.nets for group in net.net.groups for run in group.ids)
        return [self.comparison.records[run] for run in ids]

    @cached_property
    def _shown(self) -> list[CellReport]:
        """Cells in the grid, row by row."""
        rows = [row.id for row in self.comparison.table.experiment.rows]
        shown = [c for c in self.cells if c.cell.expected.value != "unprinted" or c.compared.shown]
        return sorted(shown, key=lambda cell: rows.index(cell.cell.row.id))

    def _has_letters(self, cell: CellReport) -> bool:
        return self.has_verdicts and self.has_notes and not cell.is_external

    @cached_property
    def letters(self) -> dict[str, str]:
        """The letter that stands for each note in the grid: a to z, then aa, ab and so on."""
        cells = filter(self._has_letters, self._shown)
        notes = dict.fromkeys(note for cell in cells for note in cell.notes)
        letters = string.ascii_lowercase
        return dict(zip(notes, chain(letters, map("".join, product(letters, repeat=2))), strict=False))

    @cached_property
    def grid(self) -> Grid:
        """The paper's table with our results beside it."""
        ours = {cell.cell.id: cell.ours for cell in self._shown}
        verdicts = {
            cell.cell.id: Marked(cell.verdict, [self.letters[note] for note in cell.notes if self._has_letters(cell)])
            for cell in self._shown
            if self.has_verdicts
        }

        def added_columns(column: Column) -> list[AddedColumn]:
            cells = [cell.cell for cell in self.cells if cell.cell.column.id == column.id]
            found: list[AddedColumn] = [(f"ours{trained_depth(self.comparison, cells)}", "right", ours)]
            return [*found, ("verdict", "left", verdicts)] if self.has_verdicts else found

        return paper_grid(self.comparison.table, [cell.cell for cell in self._shown], added_columns)

    @property
    def footnotes(self) -> dict[str, str]:
        """The paper's footnotes, by mark."""
        marks = {cell.cell.expected.mark for cell in self.cells}
        return {mark: text for mark, text in self.comparison.table.expected.footnotes.items() if mark in marks}

    @property
    def has_runs(self) -> bool:
        """Whether any run or external result of these cells exists."""
        return any(net.net.shown for net in self.nets)

    def external_results(self, long: bool = True) -> list[str]:
        """Describe external results, a text for each source and net."""
        texts: list[str] = []
        for cell, net in [(c, n) for c in self.cells for n in c.nets]:
            notes = cell.notes[:-1] if len(cell.nets) == 1 else [net.net.reason]
            # The advice in "too much noise; extend to 10 runs" is for our runs.
            texts += net.external_results(long, [note.partition("; extend to")[0] for note in notes if note])
        return texts

    @property
    def short_notes(self) -> Iterator[str]:
        """Notes about the whole table that no reader can do without."""
        comparison = self.comparison
        if self.left_out:
            yield f"Left out: {self.left_out} of the records and results, listed separately."
        if not self.has_runs:
            yield "No run of this table in this profile yet."
            return
        yield from _result(comparison)
        is_running = any(cell.ours.startswith("(at") for cell in self.cells)
        farthest = "; (at k): no run has ended, the farthest is at iteration k" if is_running else ""
        minus = "; (+x): minus the published number, in points" if self.has_verdicts else ""
        median = "median " if comparison.planned > 1 else ""
        or_n = ", or of n where given" if any("n=" in cell.ours for cell in self.cells) else ""
        if any(net.ours for net in self.nets):
            yield f"ours: {median}test error (%) of {count(comparison.planned, 'run')}{or_n}{minus}{farthest}."
        if any(one.by or _checks(one) for one in self.origins.trained):
            yield f"Trained {', '.join(map(_trained, self.origins.trained))}."
        if not comparison.table.has_numbers:
            yield "No number is published for this table, so its cells have no verdicts."
        elif self.is_reduced:
            what = comparison.table.profiles.named(comparison.profile).title
            yield f"Not comparable with the paper: profile {comparison.profile} is not its experiment ({what})."
        if outliers := [f"{net.name}: {text}" for net in self.nets if net.ours for text in net.outliers]:
            yield (
                f"Outliers, which count like every run: {'; '.join(outliers)}. They are farther from the median of at "
                f"least {MIN_RUNS_FOR_OUTLIERS} runs than the tolerance and than {OUTLIER_MADS} x 1.4826 times the "
                "median absolute deviation."
            )

    @property
    def method_notes(self) -> Iterator[str]:
        """Notes about the runs and the tests behind the verdicts."""
        comparison = self.comparison
        if conditions := sorted({str(net.ours.conditions) for net in self.nets if net.ours}):
            yield f"Our runs were trained on (data, precision, version of our numerics): {'; '.join(conditions)}."
        if resting := self.resting_on_records():
            yield (
                f"{count(resting, 'run')} kept neither weights nor a last checkpoint: only the records "
                "say that the training took place, and on which data."
            )
        if tested := comparison.tested:
            is_extended = any(cell.analysis == 2 for cell in tested)
            extension = f" ({SECOND_ALPHA:g} after the extension)" if is_extended else ""
            yield (
                f"Verdicts: two one-sided tests at alpha = {FIRST_ALPHA:g}{extension} ask whether our {self.estimates} "
                f"minus the published median lies within the tolerance or beyond it. {self._noise} "
                f"{comparison.expected_false_alarms:.2g} false alarms would be expected in "
                f"{count(len(tested), 'tested cell')} if every true difference were exactly the tolerance."
            )

    @cached_property
    def cell_grid(self) -> Grid:
        """Errors, interval and noise of each net with results of ours; no rows without any."""
        headers = ("cell", "errors by seed from 0", "median", "interval", "std", "tol.")
        alignment = ("left", "left", "right", "right", "right", "right")
        width = len(headers) if self.has_verdicts else headers.index("interval")
        rows = tuple(_cell_row(net)[:width] for net in self.tried)
        return Grid(headers[:width], rows, alignment[:width])

    @property
    def tried(self) -> list[NetReport]:
        """The nets of the rows of `cell_grid`."""
        return [net for net in self.nets if net.ours and net.errors]

    @property
    def cell_notes(self) -> Iterator[str]:
        if self.has_verdicts and any(cell.compared.interval for cell in self.cells):
            noises = [cell.compared.noise for cell in self.cells if cell.compared.noise]
            parts = ["of the other cells' variance (table)"] * any(noise.table_weight for noise in noises)
            parts += ["of the published variance (paper)"] * any(noise.published_weight for noise in noises)
            weights = f"; in parentheses the weight {' or '.join(parts)} in it" if parts else ""
            yield (
                f"interval: confidence interval of our {self.estimates} minus the published median, in points "
                f"({1 - 2 * FIRST_ALPHA:.0%}; {1 - 2 * SECOND_ALPHA:.0%} after the extension). std: standard deviation "
                f"of a single run, in points{weights}. tol.: tolerance, in points."
            )
        yield from _test_set_noise(self.comparison)

    @property
    def not_pooled(self) -> list[str]:
        """Our runs under other conditions than the runs of a verdict."""
        return [f"{net.name}: {text}" for net in self.nets for text in net.others]

    @property
    def origin_grid(self) -> Grid:
        """Who trained which cells on which machine, and how many of these runs were repeated or retrained in part."""
        cells = [cell.cell.id for cell in self.cells]
        rows = tuple(
            (one.by or NOTHING, one.machine, str(len(one.runs)), _rows(one.cells, cells), _checks(one) or NOTHING)
            for one in self.origins.trained
        )
        headers, alignment = ("by", "machine", "runs", "cells", "checks"), ("left", "left", "right", "left", "left")
        return Grid(headers, rows, alignment)

    @property
    def origin_notes(self) -> Iterator[str]:
        """Whether machines agree."""
        for one in self.origins.agreements:
            low, high = one.interval
            yield (
                f"{' and '.join(one.machines)} {AGREEMENTS[one.standing]} within {one.margin:g} points: "
                f"{one.difference:+.2f} [{low:+.2f}, {high:+.2f}], over {count(one.nets, 'net')} "
                f"({' and '.join(map(str, one.runs))} runs)."
            )

    @property
    def diverged(self) -> list[str]:
        found: dict[str, list[str]] = defaultdict(list)
        for record in self.records:
            if record.divergence:
                found[str(record.divergence)].append(record.run)
        return [f"{', '.join(runs)}: {how}" for how, runs in found.items()]

    @cached_property
    def _tested_alone(self) -> list[str]:
        """Tested cells that use their own noise."""
        return [cell.id for cell in self.comparison.tested if cell.noise and cell.noise.rests_on != "table"]

    @property
    def estimates(self) -> str:
        """The estimates of our error that were tested."""
        alone, tested = self._tested_alone, self.comparison.tested
        if len(alone) == len(tested):
            return "median"
        return "Hodges-Lehmann estimate" + (" (median where a cell uses its own noise)" if alone else "")

    @property
    def _noise(self) -> str:
        """The noise that the tests of the cells used."""
        alone, tested = self._tested_alone, self.comparison.tested
        if len(alone) == len(tested):
            return "Noise between runs: each cell's own, as there are too few to share it."
        own = f"; own noise: {', '.join(alone)}" if alone else ""
        comparison = self.comparison
        has_runs = {c.id for c in comparison.cells if c.analysis or not comparison.must_reproduce(c)}
        is_partial = not {cell.id for cell in comparison.table.cells()} <= has_runs
        change = " It can change, and verdicts with it, until all cells have their runs." if is_partial else ""
        return f"Noise between runs: estimated from all cells of the table{own}.{change}"

    @property
    def claims(self) -> str:
        """The number of claims of each standing, and the contradicted ones; empty without claims."""
        comparison = self.comparison
        counts = Counter(claim.standing for claim in comparison.claims)
        parts = [f"{counts[standing]} {standing}" for standing in get_args(Standing) if counts[standing]]
        if n := comparison.claims_left_out:
            parts.append(f"{n} not judged; {'it needs' if n == 1 else 'they need'} cells that were not selected")
        contradicted = ", ".join(c.claim.id for c in comparison.claims if c.standing == "contradicted")
        return f"{', '.join(parts)}.{f' Contradicted: {contradicted}.' if contradicted else ''}" if parts else ""

    @property
    def judged_claims(self) -> list[ClaimVerdict]:
        """The claims with findings, those that our runs decide first."""
        order = ("supported", "contradicted", "undecided")
        judged = [claim for claim in self.comparison.claims if claim.standing in order[:2] or claim.findings]
        return sorted(judged, key=lambda claim: order.index(claim.standing))

    def open_claims(self, standing: Standing) -> dict[str, list[ClaimVerdict]]:
        """The claims of a standing without any finding, by the reason; all that lack runs have one reason together."""
        by_reason: dict[str, list[ClaimVerdict]] = {}
        cells: dict[str, None] = {}
        for claim in self.comparison.claims:
            if claim.standing == standing and not claim.findings:
                why, _, missing = claim.reason.partition("no runs of our own: ")
                by_reason.setdefault(why, []).append(claim)
                cells |= dict.fromkeys(missing.split(", ")) if missing else {}
        return {why or f"no runs of our own: {', '.join(cells)}": found for why, found in by_reason.items()}

    @property
    def claim_notes(self) -> Iterator[str]:
        """How many claims have each standing, and how they were judged."""
        yield (
            f"{self.claims} Judged on our runs alone, each at its own level, with no correction for their number. In "
            f"brackets: {1 - 2 * FIRST_ALPHA:.0%} confidence intervals."
        )
        if self.is_reduced:
            yield (
                f"Profile {self.comparison.profile} trains other nets, data or recipes: a claim that holds here need "
                "not hold for the paper's nets."
            )

    @property
    def deviations(self) -> list[str]:
        return [f"{d.topic}: {d.paper} -> {d.ours}{self._whose(d)}" for d in self.comparison.deviations if d.paper]

    @property
    def choices(self) -> list[str]:
        """Our choices where the paper is silent."""
        return [f"{d.topic}: {d.ours}{self._whose(d)}" for d in self.comparison.deviations if not d.paper]

    def _whose(self, deviation: Deviation) -> str:
        """List the cells of a deviation, or the cells without it; empty if all cells with our runs have it."""
        ours = dict.fromkeys(net.cell.id for net in self.nets if net.ours)
        others = [cell for cell in ours if cell not in deviation.cells]
        if not deviation.cells or not others:
            return ""
        is_most = len(others) < len(deviation.cells)
        return f" ({'all but ' * is_most}{_rows(others if is_most else deviation.cells, ours)})"


def _cell_row(report: NetReport) -> tuple[str, ...]:
    cell, median = report.cell, report.net.median_or_inf
    noise, interval = report.compared.noise, report.compared.interval
    weights = {"table": noise.table_weight, "paper": noise.published_weight} if noise else {}
    share = "".join(f" ({whose} {weight:.0%})" for whose, weight in weights.items() if weight)
    return (
        report.name,
        report.errors,
        percent(median) if median is not None else NOTHING,
        format_interval(interval) if interval else NOTHING,
        f"{noise.std:.2f}{share}" if noise else NOTHING,
        f"{cell.tolerance:g}" if cell.number is not None else NOTHING,
    )


def _test_set_noise(comparison: Comparison) -> Iterator[str]:
    """Report how much errors would vary over other test images, which no verdict includes."""
    by_size: dict[int, list[float]] = {}
    for compared in comparison.tested:
        number = comparison.table.cell(compared.id).number
        by_size.setdefault(DATASETS[compared.dataset].test_images, []).append(number or 0.0)
    for images, errors in by_size.items():
        ends = min(errors), max(errors)
        of_each = [f"{math.sqrt(e * (100 - e) / images):.2f} points at {e:.2f} %" for e in ends]
        yield (
            f"On other test images errors would vary: the binomial standard error on {images:,} is "
            f"{', '.join(dict.fromkeys(of_each))}. No verdict includes it, as our errors and the published ones are "
            "over the same images."
        )


def _rows(cells: Collection[str], among: Iterable[str]) -> str:
    """List cells; those of a row as "row/*" if they are all that it has among the given ones, and more than one."""
    by_row: dict[str, list[str]] = defaultdict(list)
    for cell in among:
        by_row[cell.partition("/")[0]].append(cell)
    texts = []
    for row, ids in by_row.items():
        is_whole = len(ids) > 1 and set(ids) <= set(cells)
        texts += [f"{row}/*"] if is_whole else [cell for cell in ids if cell in cells]
    return ", ".join(texts)


def _trained(origin: Origin) -> str:
    details = ", ".join(filter(None, (count(len(origin.runs), "run"), _checks(origin))))
    return f"{f'by {origin.by}' if origin.by else 'here'} on {origin.machine} ({details})"


def _checks(origin: Origin) -> str:
    """Say how many runs were repeated, or retrained in part (`verify --rerun --save`), and whether that agreed."""
    repeats = [f"{count(origin.repeats, 'repeat')} ({origin.identical} identical)"] * bool(origin.repeats)
    reruns = {"confirmed by a rerun": origin.confirmed, "refuted by a rerun": origin.refuted}
    return ", ".join([*repeats, *(f"{number} {what}" for what, number in reruns.items() if number)])


def percent(error: float) -> str:
    """Format a test error."""
    return "diverged" if math.isinf(error) else f"{error:.2f}"


def format_interval(interval: Interval) -> str:
    """Format the bounds of an interval, in percentage points."""
    return f"[{interval.low:+.2f}, {interval.high:+.2f}]"


def method(verdict: ClaimVerdict) -> str:
    """Describe how a claim was judged: test, level, runs, and why it is undecided."""
    level = f" at alpha = {verdict.level:g}" if verdict.level is not None else ""
    return "; ".join(filter(None, [f"By {verdict.test}{level}", verdict.basis, verdict.reason]))


def _by_seed(runs: Iterable[RunFacts]) -> str:
    """List errors by seed from 0; a seed is named where it does not follow the one before."""
    texts, following = [], 0
    for run in runs:
        if (error := run.error_or_inf) is not None:
            texts.append(f"{'' if run.seed == following else f'seed {run.seed}: '}{percent(error)}")
            following = run.seed + 1
    return ", ".join(texts)


def _result(comparison: Comparison) -> Iterator[str]:
    """Name the cells that differ from the paper, if any cell was judged."""
    if comparison.tested:
        basis = "After Holm's correction over the cells compared"
    elif any(c.is_by_failures for c in comparison.cells):
        basis = "By the rule for failing nets"
    else:
        return
    differing = comparison.differing
    verb = f"{count(len(differing), 'cell') if differing else 'no cell'} differ{'s' * (len(differing) < 2)}"
    listed = ", ".join(f"{c.id} ({c.verdict})" for c in differing)
    yield f"{basis}, {verb} from the paper{f': {listed}' if differing else ''}."
