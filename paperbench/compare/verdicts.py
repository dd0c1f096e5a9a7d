"""Whether a published result is reproduced: one verdict per cell.

reproduced      our error is within the tolerance of the published median, or fails as published
worse, better   our error is beyond the tolerance, higher or lower
underpowered    too few runs or too much noise for a verdict
not comparable  our runs are not the paper's experiment
not run         no run has ended
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from paperbench.compare.evidence import Evidence, Group, Run, errors_of
from paperbench.compare.failures import MIN_RUNS, FailureCount, count_failures, is_failure, median_fails
from paperbench.compare.noise import Noise, Prior, estimate_noise, variance_of
from paperbench.compare.statistics import (
    ANALYSES,
    FIRST_ALPHA,
    Interval,
    decide,
    difference_interval,
    p_beyond_tolerance,
)
from paperbench.specs.cell import Cell
from paperbench.specs.experiment import Setting

Verdict = Literal["reproduced", "worse", "better", "underpowered", "not comparable", "not run"]


@dataclass(frozen=True)
class Analysis:
    """One of the two planned analyses of a group; see `ANALYSES` for number and level."""

    number: int
    runs: tuple[Run, ...]
    level: float

    @property
    def errors(self) -> list[float]:
        return errors_of(self.runs)


@dataclass(frozen=True)
class Assessment:
    """A verdict and the statistics behind it.

    Attributes:
        reason: Empty if the interval is enough.
        analysis: The analysis that decided, or else the last one.
        interval: Confidence interval of the difference from the published median, in percentage points.
        noise: Spread of a single run.
        shift: The interval's difference, if it is significant but within the tolerance.
        p_value: P-value of the null hypothesis that the difference is within the tolerance, scaled to the level of
            the first analysis.
        failures: Failed runs among those that the verdict is about.
        is_by_failures: Whether the verdict follows from the number of failed runs and not from an interval.
    """

    verdict: Verdict
    reason: str = ""
    analysis: Analysis | None = None
    interval: Interval | None = None
    noise: Noise | None = None
    shift: float | None = None
    p_value: float | None = None
    failures: FailureCount | None = None
    is_by_failures: bool = False

    @property
    def is_certain_by_failures(self) -> bool:
        """Whether it needs no p-value: the median fails where the paper's did not, or no run fails where it did."""
        is_unanimous = self.failures is not None and self.failures.is_unanimous
        return self.is_by_failures and (self.verdict == "worse" or is_unanimous)


@dataclass(frozen=True)
class NetComparison:
    """One net of a cell with its assessment.

    Attributes:
        shown: The group closest to the paper, or None without runs.
        others: The other groups, closest first.
    """

    setting: Setting
    shown: Group | None
    others: tuple[Group, ...]
    assessment: Assessment
    planned: int

    @property
    def counted(self) -> tuple[Run, ...]:
        """The runs that count: those of the analysis, else the planned runs that have ended, else all that have."""
        if self.assessment.analysis:
            return self.assessment.analysis.runs
        if self.shown is None:
            return ()
        return tuple(self.shown.first(self.planned)) or tuple(self.shown.ended)

    @property
    def errors(self) -> list[float]:
        """Test errors in percent of the runs that count; infinite for diverged runs."""
        return errors_of(self.counted)

    @property
    def median(self) -> float | None:
        """Median of `errors`, or None if it is empty."""
        return statistics.median(self.errors) if self.errors else None


@dataclass(frozen=True)
class CellComparison:
    """One cell with its assessment.

    Attributes:
        nets: One net, or all nets of a sweep.
        planned: Planned runs per net.
        is_reduced: Whether the profile changes the experiment.
        dataset: Key of the data set that its nets train on in the profile.
    """

    cell: Cell
    nets: tuple[NetComparison, ...]
    assessment: Assessment
    planned: int
    is_reduced: bool
    dataset: str

    @property
    def verdict(self) -> Verdict:
        return self.assessment.verdict

    @property
    def must_reproduce(self) -> bool:
        """Whether `--require reproduced` covers the cell: its result is printed, and it runs by default or has runs."""
        has_begun = any(net.shown for net in self.nets)
        return self.cell.expected.value != "unprinted" and (has_begun or not self.cell.row.on_request)

    @property
    def reason(self) -> str:
        return self.assessment.reason

    @property
    def shown(self) -> Group | None:
        """The group closest to the paper of the only net, or of a sweep's first net."""
        return self.nets[0].shown

    @property
    def failures(self) -> FailureCount:
        """Failed runs among those that count, over all nets of a sweep."""
        return count_failures([error for net in self.nets for error in net.errors], self.dataset)

    @property
    def difference(self) -> float | None:
        """Our median minus the published number in percentage points, or None if they cannot be compared."""
        median = self.nets[0].median
        if self.is_reduced or median is None or self.cell.number is None or len(self.nets) > 1:
            return None
        return round(median - self.cell.number, 9)


def assess_cell(cell: Cell, evidence: Evidence) -> CellComparison:
    """Assess a cell by the runs of its nets."""
    nets = []
    for setting in cell.settings:
        groups = evidence.groups(cell, setting)
        shown = groups[0] if groups else None
        assessment = _assess_net(cell, setting, shown, evidence)
        if shown and shown.conditions.is_unverified and assessment.verdict not in ("not run", "not comparable"):
            assessment = replace(assessment, reason="; ".join(filter(None, [assessment.reason, "images unverified"])))
        nets.append(NetComparison(setting, shown, tuple(groups[1:]), assessment, evidence.planned))
    assessment = nets[0].assessment if len(nets) == 1 else _assess_sweep(nets)
    is_reduced, dataset = evidence.profile_name != "paper", cell.dataset_in(evidence.profile)
    return CellComparison(cell, tuple(nets), assessment, evidence.planned, is_reduced, dataset)


def _assess_net(cell: Cell, setting: Setting, group: Group | None, evidence: Evidence) -> Assessment:
    planned = evidence.planned
    if group is None:
        return Assessment("not run")
    if not group.ended:
        if any(record.status == "partial" for record in group.records):
            return Assessment("not run", f"unfinished; the farthest run is at iteration {group.farthest:,}")
        return Assessment("not run", "its runs did not measure this error")
    obstacle = _obstacle(cell, group, evidence.profile_name)
    if obstacle:
        return Assessment("not comparable", obstacle)
    analyses = [Analysis(number, tuple(group.first(number * planned)), level) for number, level in ANALYSES]
    found = [
        _analyse(cell, analysis, evidence.prior(cell, setting, group.conditions, analysis.number))
        for analysis in analyses
        if len(analysis.runs) == analysis.number * planned
    ]
    if not found:
        return _assess_incomplete(cell, group, planned)
    decisive = next((one for one in found if one.verdict != "underpowered"), found[-1])
    can_be_extended = 2 * planned >= MIN_RUNS or decisive.interval is not None
    if decisive.verdict == "underpowered" and len(found) == 1 and can_be_extended:
        ended = f" ({len(group.ended)} have ended)" if len(group.ended) > planned else ""
        return replace(decisive, reason=f"{decisive.reason}; extend to {2 * planned} runs{ended}")
    return decisive


def _obstacle(cell: Cell, group: Group, profile: str) -> str:
    """Return why a group cannot be compared with the published number, or an empty text."""
    if cell.expected.value == "unprinted":
        return "no number is published"
    if profile != "paper":
        return f"profile {profile} is not the paper's experiment"
    if group.conditions.data is not None and not group.conditions.data.is_comparable:
        return f"{group.conditions.data.name} does not have the paper's pixels"
    return ""


def _assess_incomplete(cell: Cell, group: Group, planned: int) -> Assessment:
    """Return a verdict only if the remaining planned runs cannot change it."""
    errors = errors_of(group.first(planned))
    does_fail = median_fails(errors, planned, cell.dataset)
    if does_fail or (does_fail is False and cell.number is None):
        return _assess_failures(cell, does_fail, count_failures(errors, cell.dataset), None)
    return Assessment("underpowered", f"too few runs: {group.progress(planned)}")


def _assess_failures(cell: Cell, does_fail: bool, count: FailureCount, analysis: Analysis | None) -> Assessment:
    """Return the verdict that follows from whether the median fails."""
    should_fail = cell.expected.value == "fail"
    verdict: Verdict = "better" if not does_fail else "reproduced" if should_fail else "worse"
    reason = str(count) + ("" if count.is_unanimous else ": unstable")
    reason += "" if analysis else "; the remaining runs cannot change it"
    return Assessment(verdict, reason, analysis, failures=count, is_by_failures=True)


def _analyse(cell: Cell, analysis: Analysis, prior: Prior) -> Assessment:
    count = count_failures(analysis.errors, cell.dataset)
    does_fail = median_fails(analysis.errors, len(analysis.errors), cell.dataset)
    published = cell.number
    if does_fail or (does_fail is False and published is None):
        return _assess_failures(cell, does_fail, count, analysis)
    if published is None or is_failure(statistics.median(analysis.errors), cell.dataset):
        return Assessment("underpowered", f"too few runs: {count}, minimum {MIN_RUNS}", analysis, failures=count)
    if any(map(math.isinf, analysis.errors)):
        return Assessment("underpowered", f"unstable: {count}", analysis, failures=count)
    published_std, runs = cell.expected.std, len(analysis.runs)
    variance = variance_of(analysis.errors, cell.resolution)
    if prior.degrees > 0:
        noise: Noise | None = prior.moderate(variance, runs - 1)
    else:
        noise = estimate_noise(variance, runs, published_std, cell.published_runs)
    if noise is None:
        reason = "too few runs: 3 are needed without a published std"
        return Assessment("underpowered", reason, analysis, failures=count)
    interval = difference_interval(
        analysis.errors, published, cell.published_runs, noise, analysis.level, published_std
    )
    verdict = decide(interval, cell.tolerance)
    reasons = []
    if noise.rests_on == "published":
        reasons.append("noise is the published standard deviation")
    if count.failed:
        reasons.append(f"unstable: {count}")
    if verdict == "underpowered":
        reasons.append("too much noise")
    is_shifted = verdict == "reproduced" and (interval.low > 0 or interval.high < 0)
    return Assessment(
        verdict,
        "; ".join(reasons),
        analysis,
        interval,
        noise,
        shift=interval.difference if is_shifted else None,
        p_value=min(1.0, p_beyond_tolerance(interval, cell.tolerance) * FIRST_ALPHA / analysis.level),
        failures=count,
    )


def _assess_sweep(nets: Sequence[NetComparison]) -> Assessment:
    """Return the verdict of a sweep: reproduced if every net fails, better if one certainly does not."""
    better, excluded, reproduced = (
        [net.assessment for net in nets if net.assessment.verdict == verdict]
        for verdict in ("better", "not comparable", "reproduced")
    )
    if better:
        reason = _reasons_by_setting(net for net in nets if net.assessment.verdict == "better")
        clearest = min((a.failures for a in better if a.failures), key=lambda count: count.failed / count.runs)
        return Assessment("better", reason, failures=clearest, is_by_failures=True)
    if all(net.assessment.verdict == "not run" for net in nets):
        return Assessment("not run", next((net.assessment.reason for net in nets if net.assessment.reason), ""))
    if excluded:
        return Assessment("not comparable", excluded[0].reason)
    if len(reproduced) == len(nets):
        counts = [a.failures for a in reproduced if a.failures]
        total = FailureCount(sum(c.failed for c in counts), sum(c.runs for c in counts))
        return Assessment("reproduced", f"{total}, in {len(nets)} settings", failures=total, is_by_failures=True)
    missing = _reasons_by_setting(net for net in nets if net.assessment.verdict != "reproduced")
    return Assessment("underpowered", missing, is_by_failures=True)


def _reasons_by_setting(nets: Iterable[NetComparison]) -> str:
    return "; ".join(f"{net.setting.label}: {net.assessment.reason or net.assessment.verdict}" for net in nets)
