"""Whether a published result holds: one verdict a cell.

reproduced      our median is within the tolerance of the published one, or fails as the published one did
worse, better   it is beyond the tolerance, on the side of the higher or of the lower errors
underpowered    too few runs, or too much noise, to say either
not comparable  our runs are not of the paper's experiment
not run         no run has ended
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from paperbench.compare.evidence import Evidence, Group, Run, errors_of
from paperbench.compare.failing import MIN_RUNS, Failing, failing, fails, median_fails
from paperbench.compare.statistics import (
    FIRST_LOOK,
    LOOKS,
    Interval,
    Noise,
    beyond_tolerance_p,
    decide,
    median_interval,
    noise,
)
from paperbench.specs.experiment import Setting
from paperbench.specs.table import Cell

Verdict = Literal["reproduced", "worse", "better", "underpowered", "not comparable", "not run"]


@dataclass(frozen=True)
class Look:
    """One look at a group; see `LOOKS` for its number and level."""

    number: int
    runs: tuple[Run, ...]
    level: float

    @property
    def errors(self) -> list[float]:
        return errors_of(self.runs)


@dataclass(frozen=True)
class Judgement:
    """A verdict with what it rests on.

    Attributes:
        reason: Empty where the interval says all.
        look: The look that decided, or the last.
        interval: Of the difference of medians, in percentage points.
        noise: Of a single run.
        shift: Our median minus the published number, if the two differ significantly within the tolerance.
        p_value: Of the hypothesis that the difference is within the tolerance, at the level of the first look.
        failing: Of the runs that it is about.
        rests_on_rule: Whether it follows from runs that failed or did not, and from no interval.
    """

    verdict: Verdict
    reason: str = ""
    look: Look | None = None
    interval: Interval | None = None
    noise: Noise | None = None
    shift: float | None = None
    p_value: float | None = None
    failing: Failing | None = None
    rests_on_rule: bool = False

    @property
    def is_sure_by_rule(self) -> bool:
        """Whether it needs no p-value: the median fails where the paper's did not, or no run fails where it did."""
        is_unanimous = self.failing is not None and self.failing.is_unanimous
        return self.rests_on_rule and (self.verdict == "worse" or is_unanimous)


@dataclass(frozen=True)
class NetComparison:
    """One net of a cell, judged.

    Attributes:
        shown: The group nearest to the paper, if there is any run.
        others: The other groups, nearest first.
    """

    setting: Setting
    shown: Group | None
    others: tuple[Group, ...]
    judgement: Judgement
    planned: int

    @property
    def counted(self) -> tuple[Run, ...]:
        """The runs that the verdict is about: those of the look or, before one, those of the planned that have ended.

        If only others have ended, these.
        """
        if self.judgement.look:
            return self.judgement.look.runs
        if self.shown is None:
            return ()
        return tuple(self.shown.first(self.planned)) or tuple(self.shown.ended)

    @property
    def errors(self) -> list[float]:
        """Test errors in percent of the runs that count, infinite where one diverged."""
        return errors_of(self.counted)

    @property
    def median(self) -> float | None:
        """Median of `errors`; None without any."""
        return statistics.median(self.errors) if self.errors else None


@dataclass(frozen=True)
class CellComparison:
    """One cell, judged.

    Attributes:
        nets: One, or each of a sweep.
        planned: Runs fixed beforehand.
        is_reduced: Whether the profile changes what is trained.
        dataset: Key of the data set that its nets are trained on in the profile.
    """

    cell: Cell
    nets: tuple[NetComparison, ...]
    judgement: Judgement
    planned: int
    is_reduced: bool
    dataset: str

    @property
    def verdict(self) -> Verdict:
        return self.judgement.verdict

    @property
    def asks_for_reproduction(self) -> bool:
        """Whether the paper prints a result, and it is run without being named or has been run."""
        has_begun = any(net.shown for net in self.nets)
        return self.cell.expected.value != "unprinted" and (has_begun or not self.cell.row.on_request)

    @property
    def reason(self) -> str:
        return self.judgement.reason

    @property
    def shown(self) -> Group | None:
        """The group nearest to the paper of a cell with one net; of a sweep that of its first."""
        return self.nets[0].shown

    @property
    def failing(self) -> Failing:
        """Of the runs that count, over all nets of a sweep."""
        return failing([error for net in self.nets for error in net.errors], self.dataset)

    @property
    def difference(self) -> float | None:
        """Our median minus the published number in percentage points; None without either, or of a reduced net."""
        median = self.nets[0].median
        if self.is_reduced or median is None or self.cell.number is None or len(self.nets) > 1:
            return None
        return round(median - self.cell.number, 9)


def judge_cell(cell: Cell, evidence: Evidence) -> CellComparison:
    """Judge a cell by the runs of its nets."""
    nets = []
    for setting in cell.settings:
        groups = evidence.groups(cell, setting)
        shown = groups[0] if groups else None
        judgement = _judge_net(cell, shown, evidence.profile_name, evidence.planned)
        nets.append(NetComparison(setting, shown, tuple(groups[1:]), judgement, evidence.planned))
    judgement = nets[0].judgement if len(nets) == 1 else _judge_sweep(nets)
    is_reduced, dataset = evidence.profile_name != "paper", evidence.profile.dataset or cell.dataset
    return CellComparison(cell, tuple(nets), judgement, evidence.planned, is_reduced, dataset)


def _judge_net(cell: Cell, group: Group | None, profile: str, planned: int) -> Judgement:
    if group is None:
        return Judgement("not run")
    if not group.ended:
        if any(record.status == "partial" for record in group.records):
            return Judgement("not run", f"the farthest run is at iteration {group.farthest:,}")
        return Judgement("not run", "its runs hold no error of this kind")
    obstacle = _obstacle(cell, group, profile)
    if obstacle:
        return Judgement("not comparable", obstacle)
    looks = [Look(number, tuple(group.first(number * planned)), level) for number, level in LOOKS]
    judged = [_judge_look(cell, look) for look in looks if len(look.runs) == look.number * planned]
    if not judged:
        return _judge_early(cell, group, planned)
    decided = next((j for j in judged if j.verdict != "underpowered"), judged[-1])
    can_be_extended = 2 * planned >= MIN_RUNS or decided.interval is not None
    if decided.verdict == "underpowered" and len(judged) == 1 and can_be_extended:
        extension = f"extend it to {2 * planned} runs"
        if len(group.ended) > planned:
            extension += f": {len(group.ended)} have ended, which change nothing yet"
        return replace(decided, reason=f"{decided.reason}; {extension}")
    return decided


def _obstacle(cell: Cell, group: Group, profile: str) -> str:
    """Why a group cannot be compared with the published number; empty if it can."""
    if profile != "paper":
        return f"profile {profile} is not the paper's experiment"
    if group.conditions.is_mixed:
        return "its runs were continued by other numerics or another torch"
    if group.conditions.data is not None and not group.conditions.data.canonical:
        return f"{group.conditions.data.name} does not have the pixels of the paper's data"
    if cell.expected.value == "unprinted":
        return "the paper prints no number for it"
    return ""


def _judge_early(cell: Cell, group: Group, planned: int) -> Judgement:
    """Before all planned runs have ended: only what the missing ones cannot change any more."""
    errors = errors_of(group.first(planned))
    does_fail = median_fails(errors, planned, cell.dataset)
    if does_fail or (does_fail is False and cell.number is None):
        return _by_rule(cell, does_fail, failing(errors, cell.dataset), None)
    return Judgement("underpowered", group.progress(planned))


def _by_rule(cell: Cell, does_fail: bool, counted: Failing, look: Look | None) -> Judgement:
    """A verdict on failing alone."""
    was_to_fail = cell.expected.value == "fail"
    verdict: Verdict = "better" if not does_fail else "reproduced" if was_to_fail else "worse"
    reason = str(counted) + ("" if counted.is_unanimous else ": unstable")
    reason += "" if look else "; the runs to come cannot change that"
    return Judgement(verdict, reason, look, failing=counted, rests_on_rule=True)


def _judge_look(cell: Cell, look: Look) -> Judgement:
    counted = failing(look.errors, cell.dataset)
    does_fail = median_fails(look.errors, len(look.errors), cell.dataset)
    published = cell.number
    if does_fail or (does_fail is False and published is None):
        return _by_rule(cell, does_fail, counted, look)
    if published is None or fails(statistics.median(look.errors), cell.dataset):
        reason = f"{counted}; it takes {MIN_RUNS} runs to say that a net fails, or does not"
        return Judgement("underpowered", reason, look, failing=counted)
    if any(map(math.isinf, look.errors)):
        return Judgement("underpowered", f"unstable: {counted}", look, failing=counted)
    resolution = 10.0**-cell.defaults.decimals
    spread = noise(look.errors, cell.expected.std, cell.published_runs, resolution)
    if spread is None:
        reason = "no spread is published, and it takes three runs to estimate ours"
        return Judgement("underpowered", reason, look, failing=counted)
    interval = median_interval(look.errors, published, cell.published_runs, spread, look.level)
    verdict = decide(interval, cell.tolerance)
    reasons = []
    if spread.rests_on == "published":
        reasons.append("rests on the published standard deviation")
    if counted.failed:
        reasons.append(f"unstable: {counted}")
    if verdict == "underpowered":
        reasons.append(f"the interval {format_interval(interval)} reaches across the tolerance of {cell.tolerance:g}")
    is_shifted = verdict == "reproduced" and (interval.low > 0 or interval.high < 0)
    return Judgement(
        verdict,
        "; ".join(reasons),
        look,
        interval,
        spread,
        shift=interval.difference if is_shifted else None,
        p_value=min(1.0, beyond_tolerance_p(interval, cell.tolerance) * FIRST_LOOK / look.level),
        failing=counted,
    )


def format_interval(interval: Interval) -> str:
    """As `[-0.12, +0.34]`, in percentage points."""
    return f"[{interval.low:+.2f}, {interval.high:+.2f}]"


def _judge_sweep(nets: Sequence[NetComparison]) -> Judgement:
    """A sweep holds if every net fails; one that surely does not fail is enough against it."""
    better, excluded, reproduced = (
        [net.judgement for net in nets if net.judgement.verdict == verdict]
        for verdict in ("better", "not comparable", "reproduced")
    )
    if better:
        reason = _by_setting(net for net in nets if net.judgement.verdict == "better")
        surest = min((j.failing for j in better if j.failing), key=lambda f: f.failed / f.runs)
        return Judgement("better", reason, failing=surest, rests_on_rule=True)
    if all(net.judgement.verdict == "not run" for net in nets):
        return Judgement("not run", next((net.judgement.reason for net in nets if net.judgement.reason), ""))
    if excluded:
        return Judgement("not comparable", excluded[0].reason)
    if len(reproduced) == len(nets):
        counts = [j.failing for j in reproduced if j.failing]
        total = Failing(sum(f.failed for f in counts), sum(f.runs for f in counts))
        return Judgement("reproduced", f"{total}, in {len(nets)} settings", failing=total, rests_on_rule=True)
    lacking = _by_setting(net for net in nets if net.judgement.verdict != "reproduced")
    return Judgement("underpowered", lacking, rests_on_rule=True)


def _by_setting(nets: Iterable[NetComparison]) -> str:
    return "; ".join(f"{net.setting.label}: {net.judgement.reason or net.judgement.verdict}" for net in nets)
