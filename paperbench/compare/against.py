"""What changed between the runs of two results directories: a gate for those who change code, nets or packages.

Runs that both directories have, on the same machine, must be equal bit for bit. Where that cannot be asked, the errors
of both are tested for equivalence within a margin; docs/verdicts.md says how.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from paperbench import __version__
from paperbench.catalogue import DATASETS
from paperbench.compare.evidence import Evidence, GroupFacts, differences, errors_of
from paperbench.compare.noise import MIN_RUNS_OF_NOISE
from paperbench.compare.statistics import compute_contrast, holm
from paperbench.errors import count
from paperbench.options import is_bit_equal
from paperbench.runs.history import HistoryLine
from paperbench.runs.record import Record
from paperbench.specs.cell import Cell
from paperbench.specs.experiment import Setting
from paperbench.specs.table import Table
from paperbench.typed import typed

EQUIVALENCE_LEVEL, DIFFERENCE_LEVEL = 0.05, 0.01
"""Level of a net's test for equivalence, and of all tests for a difference together."""

MIN_RUNS = 2
"""Minimum number of runs on each side for a test."""

Outcome = Literal["identical", "equivalent", "different", "underpowered", "missing"]


@typed
class NetChange:
    """What changed in the runs of a net on one data set in one precision.

    Attributes:
        cell: "row/column".
        setting: The net's setting in a sweep; empty in a cell with one net.
        conditions: Data set and precision; empty if the sides have none in common.
        reason: What was found, in a sentence.
        new, baseline: The runs compared.
        difference: Mean error of the new runs minus that of the baseline, in percentage points; null if not tested.
        p_value: Of the hypothesis that nothing changed by more than the margin; null if not tested.
    """

    cell: str
    setting: str
    conditions: str
    outcome: Outcome
    reason: str
    new: GroupFacts | None = None
    baseline: GroupFacts | None = None
    difference: float | None = None
    p_value: float | None = None


@typed
class Changes:
    """What changed in the runs of a table, as `paperbench compare TABLE --against DIR --format json` writes it.

    Attributes:
        schema: Version of this format.
        paperbench: Version of paperbench that compared.
        margin: Smallest difference of errors that matters, in percentage points.
        without_runs: Number of nets that neither side has runs of; they have no outcome.
        left_out: Files and runs that could not be used, a sentence each.
    """

    schema: Literal[1]
    paperbench: str
    table: str
    profile: str
    margin: float
    nets: tuple[NetChange, ...]
    without_runs: int
    left_out: tuple[str, ...]

    @property
    def exit_status(self) -> int:
        """1 if a net differs; else 3 if one cannot be judged or there is none; else 0."""
        outcomes = {net.outcome for net in self.nets}
        return 1 if "different" in outcomes else 3 if not outcomes or outcomes & {"underpowered", "missing"} else 0


class Side:
    """The runs of one of the two results directories; `history` reads that of a run, by its id."""

    def __init__(
        self,
        name: str,
        table: Table,
        profile: str,
        records: Iterable[Record],
        history: Callable[[str], Sequence[HistoryLine]],
        other_tables: Callable[[], Iterable[Table]] = tuple,
    ) -> None:
        self.name, self.history = name, history
        self.evidence = Evidence(table, profile, MIN_RUNS_OF_NOISE, records, (), other_tables)

    def groups(self, cell: Cell, setting: Setting) -> dict[str, GroupFacts]:
        """Return the runs of a net by data and precision, those of the newest numerics version."""
        groups = sorted(self.evidence.groups(cell, setting), key=lambda group: group.conditions.numerics)
        facts = [(group.conditions.data, group.conditions.precision, group) for group in groups]
        return {f"{data.name} ({data.fingerprint[:8]}), {precision}": group for data, precision, group in facts if data}


@dataclass(frozen=True)
class _Net:
    """A net on one data set in one precision, and its runs on both sides: new and baseline."""

    cell: Cell
    setting: Setting
    conditions: str
    sides: tuple[Side, Side]
    groups: tuple[GroupFacts, GroupFacts]

    def compare(self, margin: float) -> NetChange:
        return self._bit_for_bit() or self._by_errors(margin)

    def _change(self, outcome: Outcome, reason: str, *test: float | None) -> NetChange:
        return NetChange(self.cell.id, self.setting.label, self.conditions, outcome, reason, *self.groups, *test)

    def _bit_for_bit(self) -> NetChange | None:
        """Return the first difference of runs that must be equal, or that all runs are equal; else None."""
        new, baseline = self.groups
        equal = unfinished = 0
        for run in [run for run in new.ids if run in baseline.ids]:
            now, then = (side.evidence.records[run] for side in self.sides)
            if not must_be_equal(now, then):
                continue
            lines = [side.history(run) for side in self.sides]
            if change := first_difference(now, then, *lines):
                return self._change("different", change)
            equal += all(lines)
            unfinished += "partial" in (now.status, then.status)
        if not equal == len(new.runs) == len(baseline.runs):
            return None
        rest = f", {unfinished} of them as far as both sides have got" if unfinished else ""
        return self._change("identical", f"{count(equal, 'run')} equal bit for bit{rest}")

    def _by_errors(self, margin: float) -> NetChange:
        samples = [errors_of(group.runs) for group in self.groups]
        new, baseline = map(len, samples)
        diverged = [errors.count(math.inf) for errors in samples]
        if min(new, baseline) < MIN_RUNS:
            reason = f"too few runs: {new} new and {baseline} of the baseline have ended; {MIN_RUNS} are needed of each"
            return self._change("underpowered", reason)
        if any(diverged):
            reason = f"{diverged[0]} of {new} new runs and {diverged[1]} of {baseline} of the baseline diverged"
            if diverged == [new, baseline]:
                return self._change("equivalent", reason)
            are_opposite = diverged in ([new, 0], [0, baseline])
            p_value = 2 / math.comb(new + baseline, new) if are_opposite else None  # Fisher's exact test
            return self._change("underpowered", reason, None, p_value)
        contrast = compute_contrast(
            samples,
            [1, -1],
            priors=[
                side.evidence.prior(self.cell, self.setting, group.conditions, 1)
                for side, group in zip(self.sides, self.groups, strict=True)
            ],
            resolution=100 / DATASETS[self.cell.dataset_in(self.sides[0].evidence.profile)].test_images,
        )
        low, high = contrast.interval(EQUIVALENCE_LEVEL)
        outcome: Outcome = "equivalent" if contrast.p_equivalent(margin) <= EQUIVALENCE_LEVEL else "underpowered"
        reason = f"{contrast.estimate:+.2f} points, 90 % interval [{low:+.2f}, {high:+.2f}], margin {margin:g}"
        return self._change(outcome, reason, contrast.estimate, contrast.p_beyond(margin))


def must_be_equal(new: Record, baseline: Record) -> bool:
    """Whether the machines, engines and numerics versions of all sessions of both runs promise equal bits."""
    first, *others = (*new.sessions, *baseline.sessions)
    return all(
        is_bit_equal(one.engine)
        and not (one.processes and one.fallback)  # whose first steps were not those of one process
        and one.code.numerics == first.code.numerics
        and first.environment.is_same_machine(one.environment)
        for one in (first, *others)
    )


def first_difference(
    new: Record, baseline: Record, its_lines: Sequence[HistoryLine], lines_of_baseline: Sequence[HistoryLine]
) -> str | None:
    """Name the first number, times aside, in which two runs differ, as far as both have got."""
    for then, now in zip(lines_of_baseline, its_lines, strict=False):
        for change in differences({**vars(then), "seconds": None}, {**vars(now), "seconds": None}):
            return f"seed {new.seed}, iteration {then.iteration:,}: {change}"
    have_ended = "partial" not in (new.status, baseline.status)
    for change in differences(_end(baseline), _end(new)) if have_ended else ():
        return f"seed {new.seed}, at the end: {change}"
    return None


def _end(record: Record) -> dict[str, Any]:
    """Return what a run ended with."""
    result, divergence = record.result, record.divergence
    measured = {str(one.evaluation): {**vars(one), "evaluation": None} for one in result.evaluations} if result else {}
    return {
        "status": record.status,
        "divergence": {"iteration": divergence.iteration, "lr": divergence.learning_rate} if divergence else None,
        **({**vars(result), "evaluations": measured} if result else {}),
    }


def find_changes(cells: Sequence[Cell], new: Side, baseline: Side, margin: float) -> Changes:
    """Compare the runs of each net of some cells.

    Args:
        margin: Smallest difference of errors that matters, in percentage points.
    """
    found: list[NetChange] = []
    left_out = [f"{side.name}: {text}" for side in (new, baseline) for text in side.evidence.left_out]
    without_runs = 0
    for cell, setting in [(one, setting) for one in cells for setting in one.settings]:
        ours, theirs = (side.groups(cell, setting) for side in (new, baseline))
        shared = [conditions for conditions in ours if conditions in theirs]
        nets = [_Net(cell, setting, one, (new, baseline), (ours[one], theirs[one])) for one in shared]
        found += (net.compare(margin) for net in nets)
        if not ours and not theirs:
            without_runs += 1
        elif not nets:
            reason = f"new runs: {' and '.join(ours) or 'none'}; baseline: {' and '.join(theirs) or 'none'}"
            found.append(NetChange(cell.id, setting.label, "", "missing", reason))
        else:
            used = [group for net in nets for group in net.groups]
            for side in (new, baseline):
                others = [group for group in side.evidence.groups(cell, setting) if group not in used]
                left_out += [f"{side.name}: {cell.id}: {other!r}: nothing to compare with." for other in others]
    tested = {n: net.p_value for n, net in enumerate(found) if net.p_value is not None}
    for n, differs in zip(tested, holm([*tested.values()], DIFFERENCE_LEVEL), strict=True):
        found[n] = replace(found[n], outcome="different") if differs else found[n]
    table, profile = new.evidence.table.id, new.evidence.profile_name
    return Changes(1, __version__, table, profile, margin, tuple(found), without_runs, tuple(left_out))
