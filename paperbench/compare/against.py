"""What changed between the runs of two results directories, the new one and the baseline: docs/verdicts.md."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Literal

from paperbench.catalogue import DATASETS
from paperbench.compare.evidence import Evidence, GroupFacts, differences, errors_of
from paperbench.compare.statistics import compute_contrast, holm
from paperbench.errors import count
from paperbench.runs.history import HistoryLine
from paperbench.runs.record import Record
from paperbench.specs.cell import Cell
from paperbench.specs.experiment import Setting
from paperbench.typed import typed

EQUIVALENCE_LEVEL, DIFFERENCE_LEVEL = 0.05, 0.01
"""Level of a net's test for equivalence, and of all tests for a difference together."""

Outcome = Literal["identical", "equivalent", "different", "underpowered", "missing"]
_Found = tuple[Outcome, str] | tuple[Outcome, str, float | None, float | None]


@typed
class NetChange:
    """What changed in the runs of a net.

    Attributes:
        name: "row/column" and, in a sweep, the setting.
        new, baseline: The runs compared, of which as many count as have ended on both sides; null if one has none.
        difference: Mean error of the new runs minus that of the baseline, in percentage points; null if not tested.
        p_value: Of the hypothesis that nothing changed by more than the margin; null if not tested.
    """

    name: str
    new: GroupFacts | None
    baseline: GroupFacts | None
    outcome: Outcome
    reason: str
    difference: float | None = None
    p_value: float | None = None


@typed
class Changes:
    """What changed in the runs of a table, as `paperbench compare TABLE --against DIR --format json` writes it.

    Attributes:
        margin: Smallest difference of errors that matters, in percentage points.
        without_runs: Number of nets that neither side has runs of; they have no outcome.
        left_out: Files and runs that were not compared, a sentence each.
    """

    schema: Literal[1]
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


_ALWAYS_LEFT_OUT = {"seconds", "evaluation", "phase", "module"}
"""Also what only older records say of a divergence."""
_OF_INTERVALS = {"train_loss", "train_error", "best_test_error", "iteration", "learning_rate"}
"""What depends on how often a run logs and tests: also when it is found to diverge."""

ReadHistory = Callable[[str], Sequence[HistoryLine]]
"""Reads the history of a run, by its id."""


def find_changes(
    cells: Sequence[Cell], evidence: Sequence[Evidence], histories: Sequence[ReadHistory], margin: float
) -> Changes:
    """Compare the runs of each net of some cells: the newest that have the same data and precision on both sides.

    Args:
        evidence, histories: Those of the new runs and of the baseline.
        margin: Smallest difference of errors that matters, in percentage points.
    """
    names, found, without_runs = ("new", "baseline"), list[NetChange](), 0
    left_out = [f"{name}: {text}" for name, its in zip(names, evidence, strict=True) for text in its.left_out]
    for cell, setting in [(one, setting) for one in cells for setting in one.settings]:
        net = f"{cell.id}, {setting.label}" if setting.label else cell.id
        groups = [its.groups(cell, setting) for its in evidence]
        pairs = [(one, other) for one in groups[0] for other in groups[1] if _key(one) == _key(other)]
        if pairs:
            pair = max(pairs, key=lambda pair: [group.conditions.numerics for group in pair])
            for name, its in zip(names, groups, strict=True):
                left_out += [f"{name}: {net}: not compared: {one!r}" for one in its if one not in pair]
            n = min(len(group.ended) for group in pair)
            new, baseline = (group.counting(group.ended[:n]) for group in pair)
            sides = zip(groups, pair, strict=True)
            if any(one.conditions == chosen.conditions and one != chosen for its, chosen in sides for one in its):
                outcome: _Found = ("underpowered", "one side has runs with different or unknown facts")
            else:
                exact = _bit_for_bit(pair, evidence, histories)
                outcome = exact or _by_errors(cell, setting, pair, evidence, margin)
            found.append(NetChange(net, new, baseline, *outcome))
        elif any(groups):
            has = [", ".join(str(one.conditions) for one in its) or "no runs" for its in groups]
            found.append(NetChange(net, None, None, "missing", f"new: {has[0]}; baseline: {has[1]}"))
        else:
            without_runs += 1
    p_values = {n: net.p_value for n, net in enumerate(found) if net.p_value is not None}
    for n, differs in zip(p_values, holm([*p_values.values()], DIFFERENCE_LEVEL), strict=True):
        found[n] = replace(found[n], outcome="different") if differs else found[n]
    table, profile = evidence[0].table.id, evidence[0].profile_name
    return Changes(1, table, profile, margin, tuple(found), without_runs, tuple(left_out))


def _key(group: GroupFacts) -> tuple[object, ...]:
    """Return what runs must share. Not the numerics version: a change of it is to be judged by errors."""
    data = group.conditions.data
    return data and data.fingerprint, group.conditions.precision


def _bit_for_bit(
    pair: Sequence[GroupFacts], evidence: Sequence[Evidence], histories: Sequence[ReadHistory]
) -> _Found | None:
    """Return the first difference of runs that must be equal, or that all runs are equal; else None.

    If they log or test at other iterations, only the tests that both have are compared.
    """
    equal = behind = 0
    for run in [run for run in pair[0].ids if run in pair[1].ids]:
        new, baseline = (its.records[run] for its in evidence)
        sessions = (*new.sessions, *baseline.sessions)
        if not all(session.must_equal(sessions[0]) for session in sessions):
            continue
        now, then = ({line.iteration: line for line in read(run)} for read in histories)
        both = sorted(now.keys() & then.keys())
        reached = min(max(lines, default=0) for lines in (now, then))
        alone = [iteration for iteration in now.keys() ^ then.keys() if iteration <= reached]
        left_out = _ALWAYS_LEFT_OUT
        if alone or new.test_every != baseline.test_every:
            left_out = left_out | _OF_INTERVALS
            both = [k for k in both if None not in (then[k].test_error, now[k].test_error)]
        places = [(f"iteration {k:,}", _numbers(then[k], left_out), _numbers(now[k], left_out)) for k in both]
        statuses = {new.status, baseline.status}
        is_behind = "partial" in statuses and (len(statuses) == 2 or new.iteration != baseline.iteration)
        places += [] if is_behind else [("at the end", _end(baseline, left_out), _end(new, left_out))]
        for place, before, after in places:
            for change in differences(before, after):
                return "different", f"seed {new.seed}, {place}: {change}"
        equal += bool(both)
        behind += is_behind
    if not equal == len(pair[0].runs) == len(pair[1].runs):
        return None
    if behind:
        return "underpowered", f"{count(equal, 'run')} equal bit for bit, {behind} only as far as both sides have got"
    return "identical", f"{count(equal, 'run')} equal bit for bit"


def _numbers(value: Any, left_out: Collection[str]) -> dict[str, Any]:
    return {name: its for name, its in vars(value).items() if name not in left_out}


def _end(record: Record, left_out: Collection[str]) -> dict[str, Any]:
    result, divergence = (_numbers(one, left_out) if one else {} for one in (record.result, record.divergence))
    measured = {str(one.evaluation): _numbers(one, left_out) for one in result.get("evaluations", ())}
    return {"status": record.status, **divergence, **result, "evaluations": measured}


def _by_errors(
    cell: Cell, setting: Setting, pair: Sequence[GroupFacts], evidence: Sequence[Evidence], margin: float
) -> _Found:
    """Test the errors of equally many ended runs of both sides: of unequal numbers, Welch's test errs too often."""
    ended = [len(group.ended) for group in pair]
    n = min(ended)
    if n < 2:
        few = f"too few runs have ended: {ended[0]} new, {ended[1]} in the baseline; 2 of each are needed"
        return "underpowered", few
    samples = [errors_of(group.ended[:n]) for group in pair]
    diverged = [errors.count(math.inf) for errors in samples]
    if any(diverged):
        reason = f"{diverged[0]} of {n} new runs and {diverged[1]} of {n} of the baseline diverged"
        p_value = 2 / 4**n if sorted(diverged) == [0, n] else None  # the most, whatever the chance to diverge
        return "equivalent" if min(diverged) == n else "underpowered", reason, None, p_value
    priors = [its.prior(cell, setting, one.conditions, 1) for its, one in zip(evidence, pair, strict=True)]
    resolution = 100 / DATASETS[cell.dataset_in(evidence[0].profile)].test_images
    contrast = compute_contrast(samples, [1, -1], priors=priors, resolution=resolution)
    low, high = contrast.interval(EQUIVALENCE_LEVEL)
    outcome: Outcome = "equivalent" if contrast.p_equivalent(margin) <= EQUIVALENCE_LEVEL else "underpowered"
    reason = f"{contrast.estimate:+.2f} points, 90 % interval [{low:+.2f}, {high:+.2f}], margin {margin:g}"
    return outcome, reason, contrast.estimate, contrast.p_beyond(margin)
