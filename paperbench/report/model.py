"""What a report says about a comparison. Every note and sentence is made here; the formats lay them out."""

from __future__ import annotations

import math
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from paperbench.catalogue import DATASETS
from paperbench.compare.claims import ClaimVerdict, Standing
from paperbench.compare.comparison import Comparison
from paperbench.compare.deviations import Deviation
from paperbench.compare.evidence import Group, Run
from paperbench.compare.statistics import FIRST_LOOK, SECOND_LOOK, Interval, binomial_standard_error
from paperbench.compare.verdicts import CellComparison, NetComparison
from paperbench.report.layout import Beside, Grid, Marked, paper_grid
from paperbench.specs.experiment import Column
from paperbench.specs.table import Cell

NOTHING = "-"


@dataclass(frozen=True)
class NetReport:
    """One net of a cell.

    Attributes:
        name: The cell's id, and the setting of a net of a sweep.
        errors: Test error in percent of each run; empty without any.
        others: Runs under other conditions, a text for each group.
    """

    net: NetComparison
    name: str
    errors: str
    others: tuple[str, ...]


@dataclass(frozen=True)
class CellReport:
    """One cell.

    Attributes:
        compared: The cell, judged.
        differs: Whether it differs from the paper after Holm's correction.
        ours: What stands beside the published number.
        difference: Our median minus the published number, with its interval; empty if it was not tested.
        notes: What a reader must know about the verdict.
    """

    compared: CellComparison
    differs: bool
    ours: str
    difference: str
    notes: tuple[str, ...]
    nets: tuple[NetReport, ...]


@dataclass(frozen=True)
class Report:
    """All that a report says.

    Attributes:
        design: Profile and number of runs.
        caption: Title and source, for a table that stands alone.
        grid: The paper's table with ours beside it.
        footnotes: The paper's own, by mark.
        letters: Notes about single cells, by the letter that the grid refers to them with.
        notes: About the whole table.
        test_set_noise: How much errors would vary over other test images, which no verdict includes.
        claims: How many there are of each standing; empty without any.
        deviations: Where our runs deviate from the paper, as "topic: paper -> ours (cells)".
        choices: What our runs did where the paper does not say, as "topic: ours (cells)".
    """

    comparison: Comparison
    title: str
    design: str
    caption: str
    grid: Grid
    footnotes: Mapping[str, str]
    letters: Mapping[str, str]
    notes: tuple[str, ...]
    test_set_noise: tuple[str, ...]
    cells: tuple[CellReport, ...]
    claims: str
    deviations: tuple[str, ...]
    choices: tuple[str, ...]

    @property
    def has_verdicts(self) -> bool:
        """Whether the runs are of the paper's experiment, and not of a reduced profile."""
        return self.comparison.profile == "paper"

    @property
    def nets(self) -> list[NetReport]:
        return [net for cell in self.cells for net in cell.nets]


def build_report(comparison: Comparison, left_out: int = 0) -> Report:
    """Say everything that is to be said about a comparison.

    Args:
        left_out: How many records and results were not used.
    """
    table = comparison.table
    title = f"{table.source.table} of arXiv:{table.source.arxiv}"
    reduced = "" if comparison.profile == "paper" else f" in the reduced profile {comparison.profile}"
    cells = tuple(_cell(comparison, compared) for compared in comparison.cells)
    grid, letters = _grid(comparison, cells)
    marks = {compared.cell.expected.mark for compared in comparison.cells}
    ours = dict.fromkeys(c.cell.id for c in comparison.cells for net in c.nets if net.shown and net.shown.records)
    return Report(
        comparison,
        f"{title}: {table.experiment.title}",
        _design(comparison),
        f"{table.experiment.title}: {title} and our runs{reduced}.",
        grid,
        {mark: text for mark, text in table.expected.footnotes.items() if mark in marks},
        {letter: text for text, letter in letters.items()},
        tuple(_notes(comparison, left_out, any(cell.ours.startswith("(at") for cell in cells))),
        tuple(_test_set_noise(comparison)),
        cells,
        _claims(comparison),
        tuple(f"{d.topic}: {d.paper} -> {d.ours}{_whose(d, ours)}" for d in comparison.deviations if d.paper),
        tuple(f"{d.topic}: {d.ours}{_whose(d, ours)}" for d in comparison.deviations if not d.paper),
    )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def percent(error: float) -> str:
    """A test error as text."""
    return "diverged" if math.isinf(error) else f"{error:.2f}"


def format_interval(interval: Interval) -> str:
    """Its ends in percentage points."""
    return f"[{interval.low:+.2f}, {interval.high:+.2f}]"


def method(verdict: ClaimVerdict) -> str:
    """How a claim was judged: test, level and runs, and why it is open."""
    level = f" at alpha = {verdict.level:g}" if verdict.level is not None else ""
    return "; ".join(filter(None, [f"{verdict.test}{level}", verdict.basis, verdict.reason]))


def _design(comparison: Comparison) -> str:
    planned = comparison.planned
    usual = comparison.table.seeds_in(comparison.table.profiles.named(comparison.profile))
    by_whom = f" by --seeds; the table says {usual}" if usual != planned else ""
    return f"Profile {comparison.profile}; {_count(planned, 'run')} per cell, fixed beforehand{by_whom}"


def _cell(comparison: Comparison, compared: CellComparison) -> CellReport:
    differs, ours, interval = compared in comparison.differing, _ours(compared), compared.judgement.interval
    difference = ""
    if interval:
        tolerance = f"at a tolerance of {compared.cell.tolerance:g}"
        difference = f"{interval.difference:+.2f} points {format_interval(interval)} {tolerance}"
    notes = tuple(_cell_notes(compared, differs, ours))
    return CellReport(compared, differs, ours, difference, notes, tuple(_net(compared, net) for net in compared.nets))


def _ours(compared: CellComparison) -> str:
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


def _cell_notes(compared: CellComparison, differs: bool, ours: str) -> Iterator[str]:
    judgement = compared.judgement
    if judgement.shift is not None:
        yield f"shifted by {judgement.shift:+.2f}, within the tolerance"
    if compared.reason and (compared.verdict != "not run" or ours == NOTHING):
        yield compared.reason
    if compared.verdict in ("worse", "better") and not differs:
        if judgement.p_value is not None:
            yield "alone: beyond the tolerance, but not after Holm's correction over the cells compared"
        else:
            yield "the runs disagree, so that this does not count as a difference"
    if compared.shown and compared.shown.conditions.source is not None:
        yield f"external: reported by {compared.shown.conditions.source}"


def _net(compared: CellComparison, net: NetComparison) -> NetReport:
    name = f"{compared.cell.id} ({net.setting.label})" if net.setting.label else compared.cell.id
    return NetReport(net, name, _errors_of(net), tuple(_group(group, net) for group in net.others))


def _errors_of(net: NetComparison) -> str:
    runs = net.shown.runs if net.shown else ()
    further = [run for run in runs if run.error is not None and run not in net.counted]
    running = [run for run in runs if run.record and run.record.status == "partial"]
    parts = [
        _by_seed(net.counted),
        f"not counted: {_by_seed(further)}" if further else "",
        "; ".join(f"seed {run.seed} is at iteration {run.record.iteration:,}" for run in running if run.record),
    ]
    return "; ".join(filter(None, parts))


def _by_seed(runs: Iterable[Run]) -> str:
    """Errors in the order of their seeds from 0 on; a seed is named where it does not follow the one before."""
    texts, following = [], 0
    for run in runs:
        if run.error is not None:
            texts.append(f"{'' if run.seed == following else f'seed {run.seed}: '}{percent(run.error)}")
            following = run.seed + 1
    return ", ".join(texts)


def _group(group: Group, net: NetComparison) -> str:
    text = str(group.conditions)
    same = [one for one in (net.shown, *net.others) if one and str(one.conditions) == text]
    if group.conditions.data and len(same) > 1:
        text += f", pixels {group.conditions.data.fingerprint[:8]}"
    if group.median is None:
        return f"{text}: no run has ended"
    return f"{text}: {_by_seed(group.ended)}; median {percent(group.median)}"


def _grid(comparison: Comparison, cells: Sequence[CellReport]) -> tuple[Grid, dict[str, str]]:
    """The table, and the letters of its notes."""
    shown = [c for c in cells if c.compared.cell.expected.value != "unprinted" or c.compared.shown]
    by_id = {c.compared.cell.id: c for c in shown}
    has_verdicts = comparison.profile == "paper"
    letters: dict[str, str] = {}

    def headers(column: Column) -> list[str]:
        return [f"ours{_trained_depth(comparison, column)}", *(["verdict"] if has_verdicts else [])]

    def texts(cell: Cell) -> list[str]:
        found = by_id[cell.id]
        if not has_verdicts:
            return [found.ours]
        for note in found.notes:
            letters.setdefault(note, _letter(len(letters)))
        return [found.ours, Marked(found.compared.verdict, [letters[note] for note in found.notes])]

    beside = Beside(headers, texts, ("right", *(["left"] if has_verdicts else [])))
    return paper_grid(comparison.table, [c.compared.cell for c in shown], beside), letters


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


def _notes(comparison: Comparison, left_out: int, is_running: bool) -> Iterator[str]:
    if left_out:
        yield f"Left out: {left_out} of the records and results, named beside this report."
    groups = [net.shown for c in comparison.cells for net in c.nets if net.shown]
    if not groups:
        yield "No run of this table in this profile yet."
        return
    farthest = "; (at k): no run has ended, the farthest is at iteration k" if is_running else ""
    yield (
        f"ours: median test error (%) after the last iteration, of {_count(comparison.planned, 'run')} or of "
        f"n; (+x): minus the published number, in points{farthest}."
    )
    if comparison.profile != "paper":
        title = comparison.table.profiles.named(comparison.profile).title
        yield f"Not comparable with the paper: profile {comparison.profile} is not its experiment ({title})."
    conditions = sorted({str(group.conditions) for group in groups if group.conditions.source is None})
    if conditions:
        yield f"Our runs (data, precision, numerics version): {'; '.join(conditions)}."
    yield from _verdict_notes(comparison)


def _verdict_notes(comparison: Comparison) -> Iterator[str]:
    tested = comparison.tested
    if not tested:
        if any(c.judgement.rests_on_rule for c in comparison.cells):
            yield f"By the rule for failing nets, {_differing(comparison)}."
        return
    is_extended = any(c.judgement.look and c.judgement.look.number == 2 for c in tested)
    extension = f" ({SECOND_LOOK:g} after the extension)" if is_extended else ""
    yield (
        f"Verdicts: two one-sided tests at alpha = {FIRST_LOOK:g}{extension} of the difference of medians against the "
        f"tolerance. {comparison.expected_false_alarms:.2g} false alarms would be expected in "
        f"{_count(len(tested), 'tested cell')} if every true difference were exactly the tolerance. After "
        f"Holm's correction over the cells compared, {_differing(comparison)}."
    )


def _test_set_noise(comparison: Comparison) -> Iterator[str]:
    by_size: dict[int, list[float]] = {}
    for compared in comparison.tested:
        by_size.setdefault(DATASETS[compared.cell.dataset].test_images, []).append(compared.cell.number or 0.0)
    for images, errors in by_size.items():
        of_each = [f"{binomial_standard_error(e, images):.2f} points at {e:.2f} %" for e in (min(errors), max(errors))]
        yield (
            f"Other test images: the binomial standard error on {images:,} is {', '.join(dict.fromkeys(of_each))}. No "
            "verdict includes it, as both medians are over the same images."
        )


def _differing(comparison: Comparison) -> str:
    differing = comparison.differing
    if not differing:
        return "no cell differs from the paper"
    listed = ", ".join(f"{c.cell.id} ({c.verdict})" for c in differing)
    return f"{len(differing)} cell{'s differ' if len(differing) > 1 else ' differs'} from the paper: {listed}"


def _claims(comparison: Comparison) -> str:
    counts = Counter(claim.standing for claim in comparison.claims)
    told = [f"{counts[standing]} {standing}" for standing in get_args(Standing) if counts[standing]]
    if comparison.claims_left_out:
        told.append(f"{comparison.claims_left_out} about cells that were not chosen")
    contradicted = ", ".join(c.claim.id for c in comparison.claims if c.standing == "contradicted")
    return f"{', '.join(told)}.{f' Contradicted: {contradicted}.' if contradicted else ''}" if told else ""


def _whose(deviation: Deviation, ours: Iterable[str]) -> str:
    """Which cells a deviation is about, the shorter way round; nothing if it is all that have runs of ours.

    Args:
        ours: Ids of those cells.
    """
    others = [cell for cell in ours if cell not in deviation.cells]
    if not deviation.cells or not others:
        return ""
    is_most = len(others) < len(deviation.cells)
    return f" (all but {', '.join(others)})" if is_most else f" ({', '.join(deviation.cells)})"
