"""The training curves of the nets of a comparison, from the histories of the runs that their verdicts are about."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeVar

from paperbench.compare.comparison import Comparison, trained_depth
from paperbench.compare.evidence import Conditions
from paperbench.errors import PaperbenchError, count, listing
from paperbench.runs.history import HistoryLine
from paperbench.runs.record import Record, Status
from paperbench.specs.cell import Cell
from paperbench.specs.experiment import Experiment, Figure, Row

T = TypeVar("T")
CurveMeasure = Literal["train_loss", "train_error", "test_loss", "test_error"]
XAxis = Literal["iterations", "epochs"]

MIN_LOSS, MAX_LOSS = 1e-6, 10.0
"""The training losses beyond which nothing is shown: diverging nets reach 1e30, and a stray 1e-300 is no curve."""
ERROR_LIMITS = (20.0, 40.0, 60.0, 80.0, 100.0)


@dataclass(frozen=True, repr=False)
class RunCurve:
    """The history of one run.

    Attributes:
        counted: Whether the verdict counts the run.
        problem: Why its history cannot be shown; empty if it can.
    """

    record: Record
    lines: tuple[HistoryLine, ...]
    counted: bool = True
    problem: str = ""

    def points(self, measure: CurveMeasure) -> list[tuple[int, float]]:
        """Return (iteration, value) where the run measured a value; NaN where a training value is not finite."""
        always = measure.startswith("train")
        values = ((line.iteration, getattr(line, measure)) for line in self.lines)
        return [(i, math.nan if value is None else value) for i, value in values if always or value is not None]

    def __repr__(self) -> str:
        return f"<{self.record.run}: {self.record.status} at {self.record.iteration:,}, {len(self.lines)} lines>"


@dataclass(frozen=True, repr=False)
class Curve:
    """The training curves of one net of a table, in the order of the seeds.

    Attributes:
        setting: The net's setting in a sweep; empty otherwise.
        iterations: Length of a complete run.
        drops: Iterations at which the learning rate drops.
        reported: The test error in percent that is reported, with batch norm's statistics re-estimated; the
            histories have moving averages. None without any, if the median diverged, or for a top-5 error.
    """

    cell: Cell
    setting: str
    conditions: Conditions
    runs: tuple[RunCurve, ...]
    iterations: int
    drops: tuple[int, ...]
    reported: float | None

    @property
    def name(self) -> str:
        """The cell's id, followed in a sweep by the net's setting."""
        return f"{self.cell.id} ({self.setting})" if self.setting else self.cell.id

    @property
    def is_prefix(self) -> bool:
        """Whether no run has ended."""
        return all(run.record.status == "partial" for run in self.runs)

    @property
    def state(self) -> str:
        """The number of runs that have ended, and of others: "4 runs; 1 diverged", "1 run; smoothed loss"."""
        counts = Counter(run.record.status for run in self.runs)
        ended = len(self.runs) - counts["partial"]
        parts = [count(ended, "run")] if ended else []
        counted = sum(run.counted for run in self.runs)
        if counted < ended:
            parts.append(f"{counted} counted")
        if counts["diverged"]:
            parts.append(f"{counts['diverged']} diverged" if ended > 1 else f"diverged at {self._farthest('diverged')}")
        if counts["partial"]:
            several = f"{counts['partial']} prefixes" if counts["partial"] > 1 else "prefix"
            parts.append(f"{several}, to {self._farthest('partial')}")
        if unreadable := sum(bool(run.problem) for run in self.runs):
            parts.append(f"{unreadable} unreadable")
        if self.runs[0].record.spec.recipe.get("label_smoothing"):
            parts.append("smoothed loss")
        return "; ".join(parts)

    def _farthest(self, status: Status) -> str:
        return f"{max(run.record.iteration for run in self.runs if run.record.status == status):,}"

    def median(self, measure: CurveMeasure) -> list[tuple[int, float]]:
        """Return the (iteration, median) of the runs that the verdict counts and whose histories can be read.

        A diverged run counts as infinitely bad from its end on; where it makes the median infinite, that is NaN. Before
        any run counts, it is the median of all, as far as all have come.
        """
        counted = [run for run in [run for run in self.runs if run.counted] or self.runs if run.lines]
        found = [dict(run.points(measure)) for run in counted]
        reached = {i for values in found for i in values}
        for run, values in zip(counted, found, strict=True):
            if run.record.status == "diverged":
                end = max(values, default=0)
                values |= dict.fromkeys((i for i in reached if i > end), math.inf)
        common = sorted(i for i in reached if all(i in values for values in found))
        medians = {i: statistics.median(math.inf if math.isnan(v[i]) else v[i] for v in found) for i in common}
        return [(i, value if math.isfinite(value) else math.nan) for i, value in medians.items()]

    @property
    def farthest(self) -> int:
        """The last iteration of any of its histories; 0 without any."""
        return max((run.lines[-1].iteration for run in self.runs if run.lines), default=0)

    def unit(self, x: XAxis) -> float:
        """Return how many iterations, or passes over the training set, an iteration is; NaN if no history says it."""
        if x == "iterations":
            return 1.0
        lines = (line for run in self.runs for line in reversed(run.lines) if line.epoch > 0)
        return next((line.epoch / line.iteration for line in lines), math.nan)

    def __repr__(self) -> str:
        return f"<curves of {self.name}: {count(len(self.runs), 'run')}>"


@dataclass(frozen=True, repr=False)
class CurvePanel:
    """Curves to draw into one pair of axes. No two are of the same training.

    Attributes:
        labels: A short label for each curve: the title of its row, with labels that tell rows apart, or of its column.
    """

    title: str
    curves: tuple[Curve, ...]
    labels: list[str]

    @property
    def legend(self) -> list[str]:
        """The labels with the state of each curve's runs."""
        return [f"{label}: {curve.state}" for label, curve in zip(self.labels, self.curves, strict=True)]

    def extent(self, x: XAxis) -> float:
        """Return where the last history ends. Batches of two sizes make epochs of two lengths."""
        return max((end for curve in self.curves if (end := curve.farthest * curve.unit(x)) > 0), default=1.0)

    @property
    def loss_limits(self) -> tuple[float, float]:
        """The lowest and the highest training loss to show: at least one decade, and no explosion."""
        values = [v for c in self.curves for run in c.runs for _, v in run.points("train_loss") if v >= MIN_LOSS]
        low, high = min(values, default=0.01), min(max(values, default=1.0), MAX_LOSS)
        return min(low, high / 10), high

    @property
    def max_error(self) -> float:
        """The highest test error to show: 20 % as in the paper, unless a net ends, or is half of the time, above it."""
        medians = [[v for _, v in curve.median("test_error") if math.isfinite(v)] for curve in self.curves]
        highest = max((max(values[-1], statistics.median_high(values)) for values in medians if values), default=0.0)
        return next((limit for limit in ERROR_LIMITS if highest < limit), 100.0)

    def split(self, most: int) -> list[CurvePanel]:
        """Return panels of at most that many curves, of about the same size. Each begins with the first curve."""
        if len(self.curves) <= most:
            return [self]
        others = len(self.curves) - 1
        n = math.ceil(others / (most - 1))
        bounds = pairwise(1 + round(i * others / n) for i in range(n + 1))
        panels = []
        for i, (start, end) in enumerate(bounds, 1):
            labels = [self.labels[0], *self.labels[start:end]]
            panels.append(CurvePanel(f"{self.title} ({i}/{n})", (self.curves[0], *self.curves[start:end]), labels))
        return panels

    def __repr__(self) -> str:
        return f"<panel {self.title!r}: {', '.join(self.labels)}>"


def thinned(lines: Sequence[HistoryLine], record: Record, parts: int) -> Sequence[HistoryLine]:
    """Return the last line and the last test in each part of a training, or all lines if they are not more than parts.

    Histories with lines at equal iterations keep them at equal iterations.
    """
    if len(lines) <= parts:
        return lines
    kept: dict[tuple[int, bool], HistoryLine] = {}
    for line in lines:
        part = (line.iteration - 1) * parts // record.spec.recipe["iterations"]
        kept[part, False] = kept[part, line.test_error is not None] = line
    return sorted({*kept.values()}, key=lambda line: line.iteration)


def curves_of(comparison: Comparison, read: Callable[[Record], Sequence[HistoryLine]]) -> Iterator[Curve]:
    """Yield the curves of every net with runs of ours.

    Args:
        read: Reads the history of a run.
    """
    profile = comparison.table.profiles.named(comparison.profile)
    for compared in comparison.cells:
        cell, recipe = comparison.table.cell(compared.id), comparison.table.recipe_in(profile, compared.recipe)
        for net in compared.nets:
            if net.shown and net.shown.ids:
                records = ((comparison.records[run.run], run.counted) for run in net.shown.runs if run.run)
                runs = tuple(_run_curve(record, counted, read) for record, counted in records)
                drops = recipe.drops.at if recipe.drops else ()
                yield Curve(
                    *(cell, net.setting, net.shown.conditions, runs, recipe.iterations, drops),
                    reported=net.shown.median if compared.metric == "top1" else None,
                )


def _run_curve(record: Record, counted: bool, read: Callable[[Record], Sequence[HistoryLine]]) -> RunCurve:
    try:
        return RunCurve(record, tuple(read(record)), counted)
    except PaperbenchError as error:
        return RunCurve(record, (), counted, str(error))


def notes_on(curves: Sequence[Curve], comparison: Comparison, figure: str | None = None) -> list[str]:
    """Return what a reader of these curves must know, such as that they are not of the paper's nets or data."""
    what = comparison.table.cited(f"Fig. {figure.removeprefix('fig')}" if figure else "")
    notes = [f"Our runs for {what}." if curves else f"Published numbers of {what} alone; no run of ours yet."]
    if comparison.profile != "paper":
        title = comparison.table.profiles.named(comparison.profile).title
        notes.append(f"Profile {comparison.profile}, not the paper's experiment: {title}.")
    data = [curve.conditions.data for curve in curves]
    if names := dict.fromkeys(one.name for one in data if one and not one.is_comparable):
        notes.append(f"Data: {', '.join(names)}, not the paper's images.")
    if len(conditions := dict.fromkeys(str(curve.conditions) for curve in curves)) > 1:
        alike = [(how, [curve.name for curve in curves if str(curve.conditions) == how]) for how in conditions]
        notes.append(f"Conditions differ: {'; '.join(f'{how} ({listing(names)})' for how, names in alike)}.")
    cells = {curve.cell.id for curve in curves}
    nets = [net for compared in comparison.cells if compared.id in cells for net in compared.nets]
    if others := {run for net in nets for group in net.others for run in group.ids}:
        notes.append(f"Not drawn: {count(len(others), 'run')} of these nets in other precision, versions or data.")
    if any(run.record.status == "partial" for curve in curves for run in curve.runs):
        notes.append("Prefix: a run that has not ended.")
    return notes


def panels_of(curves: Sequence[Curve], comparison: Comparison, figure: Figure | None = None) -> list[CurvePanel]:
    """Return the panels of a figure of the paper, or of the whole table; those without curves are left out."""
    experiment = comparison.table.experiment
    if figure:
        wanted = [(p.title, [c for cell in p.cells for c in curves if c.cell.id == cell]) for p in figure.panels]
    elif experiment.panel_per == "row":
        wanted = [
            (", ".join([row.title, *row.labels.values()]), [c for c in curves if c.cell.row.id == row.id])
            for row in experiment.rows  # labels tell apart rows on CIFAR-10 and CIFAR-100
        ]
    else:
        alone = comparison.table.name if len(experiment.columns) == 1 else ""
        columns = experiment.columns
        wanted = [(alone or one.title, [c for c in curves if c.cell.column.id == one.id]) for one in columns]
    panels = [_panel(title, found, comparison) for title, found in wanted if found]
    return _distinct(panels, lambda panel: panel.curves)  # Table 5 has columns for two errors of the same runs


def _panel(title: str, curves: Sequence[Curve], comparison: Comparison) -> CurvePanel:
    curves, experiment = _distinct(curves, lambda curve: [curve]), comparison.table.experiment
    title += trained_depth(comparison, [curve.cell for curve in curves])
    rows = {curve.cell.row.id for curve in curves}
    by_column = len(rows) == 1 and (len(curves) > 1 or experiment.panel_per == "row")
    titles = [curve.cell.column.title if by_column else _row_label(curve, experiment) for curve in curves]
    labels = [t if titles.count(t) == 1 else f"{t} ({c.name})" for t, c in zip(titles, curves, strict=True)]
    return CurvePanel(title, tuple(curves), labels)


def _row_label(curve: Curve, experiment: Experiment) -> str:
    """Return the title of a curve's row, with what tells it from other trainings of that title."""
    row = curve.cell.row
    training = row.cells, row.recipe
    others = [one for one in experiment.rows if one.title == row.title and (one.cells, one.recipe) != training]
    names = [name for name in experiment.labels if len({one.labels.get(name) for one in (row, *others)}) > 1]

    def texts(one: Row, n: int) -> list[str]:
        return [one.labels.get(name, "") for name in names[:n]]

    found = (n for n in range(len(names)) if len({tuple(texts(one, n)) for one in (row, *others)}) == 1 + len(others))
    told = " / ".join(texts(row, next(found, len(names))))
    return ", ".join(filter(None, (row.title, curve.setting or told)))


def _distinct(items: Iterable[T], curves: Callable[[T], Sequence[Curve]]) -> list[T]:
    """Return the items with the curves of runs that those before them do not have all."""
    found: dict[frozenset[str], T] = {}
    for item in items:
        runs = frozenset(run.record.run for curve in curves(item) for run in curve.runs)
        if not any(runs <= before for before in found):
            found[runs] = item
    return list(found.values())
