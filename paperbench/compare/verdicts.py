"""Whether a published result is reproduced: one verdict per cell. docs/verdicts.md says what they mean."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field

from paperbench.compare.evidence import Evidence, GroupFacts, RunFacts, errors_of
from paperbench.compare.failures import MIN_RUNS_TO_JUDGE, FailureCount, count_failures, is_failure, median_fails
from paperbench.compare.noise import Noise, Prior, estimate_noise, variance_of
from paperbench.compare.statistics import ANALYSES, FIRST_ALPHA, Interval, decide, difference_interval
from paperbench.errors import count
from paperbench.specs.cell import Cell
from paperbench.specs.expected import ExpectedCell
from paperbench.specs.experiment import Setting
from paperbench.specs.recipe import Evaluation
from paperbench.typed import typed

Verdict = Literal["reproduced", "worse", "better", "underpowered", "not comparable", "not run"]
AnalysisNumber = Annotated[int, Field(ge=1, le=2)]


@dataclass(frozen=True)
class _Assessment:
    """A verdict and the statistics behind it; see `CellFacts`."""

    verdict: Verdict
    reason: str = ""
    analysis: AnalysisNumber | None = None
    interval: Interval | None = None
    noise: Noise | None = None
    shift: float | None = None
    p_value: float | None = None


@typed
class NetFacts:
    """One net of a cell.

    Attributes:
        setting: The net's setting in a sweep, such as gate_bias=-3; empty in a cell with one net.
        net: The net that is trained, as timm's `create_model` takes it; a reduced profile changes its depth.
        reason: The reason for the verdict; empty where the interval is reason enough.
        analysis: 1 if the verdict follows from the planned runs, 2 if from twice as many, null if from fewer.
        failures: Failed runs among those counted; null without counted runs.
        shown: The runs that the verdict is about.
        others: The other groups, the nearest to the paper first.
    """

    setting: str
    net: str
    verdict: Verdict
    reason: str
    analysis: AnalysisNumber | None
    failures: FailureCount | None
    shown: GroupFacts | None
    others: tuple[GroupFacts, ...]

    @property
    def groups(self) -> tuple[GroupFacts, ...]:
        """All groups, the nearest to the paper first."""
        return (self.shown, *self.others) if self.shown else ()

    @property
    def counted(self) -> tuple[RunFacts, ...]:
        return tuple(run for run in self.shown.runs if run.counted) if self.shown else ()

    @property
    def errors(self) -> list[float]:
        """Test errors in percent of the runs that count; infinite for diverged runs."""
        return errors_of(self.counted)

    @property
    def median_or_inf(self) -> float | None:
        """Median of `errors`, or None if it is empty."""
        return self.shown.median_or_inf if self.shown else None

    def __repr__(self) -> str:
        return f"<{self.net[:80]}: {self.verdict}, {count(len(self.shown.runs) if self.shown else 0, 'run')}>"


@typed
class CellFacts:
    """One cell, judged.

    Attributes:
        id: "row/column".
        row, column: Titles of its row and column.
        dataset: Key of the data set of the paper's nets.
        evaluation: How its nets are tested in this profile; null for whole images.
        labels: The paper's further columns.
        published: The published result, with number of runs, statistic and tolerance if it is a number.
        home: "table/row/column" of the cell in which the published result appears first.
        differs: Whether it differs from the paper after Holm's correction, which makes the exit status 1.
        shift: The interval's difference, if it is significant but within the tolerance.
        difference: Our median minus the published number, whatever the verdict; null unless both are numbers.
        p_value: Of the hypothesis that the true difference is within the tolerance; in the second analysis times the
            ratio of the two levels, so that Holm's correction can compare it with the first's.
        nets: The net, or all nets of a sweep. The other values are for all nets together.
    """

    id: str
    row: str
    column: str
    metric: str
    dataset: str
    evaluation: Evaluation | None
    recipe: str
    labels: Mapping[str, str]
    figure: str
    published: ExpectedCell
    home: str
    verdict: Verdict
    reason: str
    differs: bool
    analysis: AnalysisNumber | None
    failures: FailureCount | None
    shift: float | None
    difference: float | None
    interval: Interval | None
    p_value: Annotated[float, Field(ge=0, le=1)] | None
    noise: Noise | None
    nets: tuple[NetFacts, ...]

    @property
    def shown(self) -> GroupFacts | None:
        """The group closest to the paper of the only net, or of a sweep's first net."""
        return self.nets[0].shown

    @property
    def is_by_failures(self) -> bool:
        """Whether the verdict follows from the number of failed runs and not from an interval."""
        can_be_open = len(self.nets) > 1
        decided = ("reproduced", "worse", "better", *["underpowered"] * can_be_open)
        return self.interval is None and self.verdict in decided

    @property
    def is_certain_by_failures(self) -> bool:
        """Whether it needs no p-value: the median fails where the paper's did not, or no run fails where it did."""
        agree = (net.failures and net.failures.is_unanimous for net in self.nets if net.verdict == self.verdict)
        return self.is_by_failures and (self.verdict == "worse" or any(agree))

    def __repr__(self) -> str:
        shown, published = self.shown, self.published.value
        median = ("diverged" if shown.median_diverged else shown.median) if shown else None
        ours = median if len(self.nets) == 1 else self.failures
        left, right = (f"{one:.2f}" if isinstance(one, float) else str(one or "") for one in (ours, published))
        return f"<{self.id}: {self.verdict}, {f'{left} beside' if left else 'published'} {right}>"


def assess_cell(cell: Cell, evidence: Evidence) -> CellFacts:
    """Assess a cell by the runs of its nets. Whether it differs from the paper depends on the other cells, too."""
    found = [_assess_net(cell, setting, evidence) for setting in cell.settings]
    nets = tuple(net for net, _ in found)
    assessment = found[0][1] if len(found) == 1 else _assess_sweep(nets)
    counts = [net.failures for net in nets if net.failures]
    median, difference = nets[0].shown.median if nets[0].shown else None, None
    if evidence.profile_name == "paper" and median is not None and cell.number is not None:
        difference = round(median - cell.number, 9)
    return CellFacts(
        id=cell.id,
        row=cell.row.title,
        column=cell.column.title,
        metric=cell.column.metric,
        dataset=cell.dataset,
        evaluation=evidence.table.evaluation_in(evidence.profile, cell),
        recipe=cell.recipe,
        labels=cell.row.labels,
        figure=cell.row.figure,
        published=cell.published,
        home=cell.home,
        differs=False,
        failures=FailureCount.total(counts) if counts else None,
        difference=difference,
        nets=nets,
        **vars(assessment),
    )


def _assess_net(cell: Cell, setting: Setting, evidence: Evidence) -> tuple[NetFacts, _Assessment]:
    groups = evidence.groups(cell, setting)
    shown = groups[0] if groups else None
    found = _assess_group(cell, setting, shown, evidence)
    counted: Collection[RunFacts] = ()
    if shown:
        counted = shown.first((found.analysis or 1) * evidence.planned) or shown.ended
        shown = shown.counting(counted)
        if shown.conditions.is_unverified and found.verdict not in ("not run", "not comparable"):
            found = replace(found, reason="; ".join(filter(None, [found.reason, "images unverified"])))
    facts = NetFacts(
        setting=setting.label,
        net=str(cell.reference_in(evidence.profile, setting)),
        verdict=found.verdict,
        reason=found.reason,
        analysis=found.analysis,
        failures=count_failures(errors_of(counted), cell.dataset_in(evidence.profile)) if counted else None,
        shown=shown,
        others=tuple(groups[1:]),
    )
    return facts, found


def _assess_group(cell: Cell, setting: Setting, group: GroupFacts | None, evidence: Evidence) -> _Assessment:
    planned = evidence.planned
    if group is None:
        return _Assessment("not run")
    if not group.ended:
        if any(run.status == "partial" for run in group.runs):
            return _Assessment("not run", f"unfinished; the farthest run is at iteration {group.farthest:,}")
        return _Assessment("not run", "its runs did not measure this error")
    obstacle = _obstacle(cell, group, evidence.profile_name)
    if obstacle:
        return _Assessment("not comparable", obstacle)
    found = [
        _analyse(cell, errors, number, level, evidence.prior(cell, setting, group.conditions, number))
        for number, level in ANALYSES
        if len(errors := errors_of(group.first(number * planned))) == number * planned
    ]
    if not found:
        return _assess_incomplete(cell, group, planned)
    decisive = next((one for one in found if one.verdict != "underpowered"), found[-1])
    can_be_extended = 2 * planned >= MIN_RUNS_TO_JUDGE or decisive.interval is not None
    if decisive.verdict == "underpowered" and len(found) == 1 and can_be_extended:
        ended = f" ({len(group.ended)} have ended)" if len(group.ended) > planned else ""
        return replace(decisive, reason=f"{decisive.reason}; extend to {2 * planned} runs{ended}")
    return decisive


def _obstacle(cell: Cell, group: GroupFacts, profile: str) -> str:
    """Return why a group cannot be compared with the published number, or an empty text."""
    if cell.expected.value == "unprinted":
        return "no number is published"
    if profile != "paper":
        return f"profile {profile} is not the paper's experiment"
    if group.conditions.data is not None and not group.conditions.data.is_comparable:
        return f"{group.conditions.data.name} does not have the paper's pixels"
    return ""


def _assess_incomplete(cell: Cell, group: GroupFacts, planned: int) -> _Assessment:
    """Return a verdict only if the remaining planned runs cannot change it."""
    errors = errors_of(group.first(planned))
    does_fail = median_fails(errors, planned, cell.dataset)
    if does_fail or (does_fail is False and cell.number is None):
        return _assess_failures(cell, does_fail, count_failures(errors, cell.dataset), None)
    return _Assessment("underpowered", f"too few runs: {group.progress(planned)}")


def _assess_failures(cell: Cell, does_fail: bool, count: FailureCount, analysis: int | None) -> _Assessment:
    """Return the verdict that follows from whether the median fails."""
    should_fail = cell.expected.value == "fail"
    verdict: Verdict = "better" if not does_fail else "reproduced" if should_fail else "worse"
    reason = str(count) + ("" if count.is_unanimous else ": unstable")
    reason += "" if analysis else "; the remaining runs cannot change it"
    return _Assessment(verdict, reason, analysis)


def _analyse(cell: Cell, errors: Sequence[float], number: int, level: float, prior: Prior) -> _Assessment:
    count = count_failures(errors, cell.dataset)
    does_fail = median_fails(errors, len(errors), cell.dataset)
    published = cell.number
    if does_fail or (does_fail is False and published is None):
        return _assess_failures(cell, does_fail, count, number)
    if published is None or is_failure(statistics.median(errors), cell.dataset):
        return _Assessment("underpowered", f"too few runs: {count}, minimum {MIN_RUNS_TO_JUDGE}", number)
    if any(map(math.isinf, errors)):
        return _Assessment("underpowered", f"unstable: {count}", number)
    published_std, runs = cell.expected.std, len(errors)
    variance = variance_of(errors, cell.resolution)
    if prior.degrees > 0:
        noise: Noise | None = prior.moderate(variance, runs - 1)
    else:
        noise = estimate_noise(variance, runs, published_std)
    if noise is None:
        return _Assessment("underpowered", "too few runs: 3 are needed without a published std", number)
    interval = difference_interval(errors, published, cell.published_runs, noise, level, published_std)
    verdict = decide(interval, cell.tolerance)
    reasons = []
    if noise.rests_on == "published":
        reasons.append("noise is the published standard deviation")
    if count.failed:
        reasons.append(f"unstable: {count}")
    if verdict == "underpowered":
        reasons.append("too much noise")
    is_shifted = verdict == "reproduced" and (interval.low > 0 or interval.high < 0)
    return _Assessment(
        verdict,
        "; ".join(reasons),
        number,
        interval,
        noise,
        shift=interval.difference if is_shifted else None,
        p_value=min(1.0, interval.p_beyond(cell.tolerance) * FIRST_ALPHA / level),
    )


def _assess_sweep(nets: Sequence[NetFacts]) -> _Assessment:
    """Return the verdict of a sweep: reproduced if every net fails, better if one certainly does not."""
    better, excluded, reproduced = (
        [net for net in nets if net.verdict == verdict] for verdict in ("better", "not comparable", "reproduced")
    )
    if better:
        return _Assessment("better", _reasons_by_setting(better))
    if all(net.verdict == "not run" for net in nets):
        return _Assessment("not run", next((net.reason for net in nets if net.reason), ""))
    if excluded:
        return _Assessment("not comparable", excluded[0].reason)
    if len(reproduced) == len(nets):
        total = FailureCount.total([net.failures for net in nets if net.failures])
        return _Assessment("reproduced", f"{total}, in {len(nets)} settings")
    return _Assessment("underpowered", _reasons_by_setting(net for net in nets if net.verdict != "reproduced"))


def _reasons_by_setting(nets: Iterable[NetFacts]) -> str:
    return "; ".join(f"{net.setting}: {net.reason or net.verdict}" for net in nets)
