"""Whether a claim of the paper holds among our own runs.

Our runs are compared with each other and not with published numbers, so that a claim can be judged on any data and in
any profile; the verdict says on which. Only runs of one data fingerprint, precision and numerics version are compared
with each other, by Welch's test on means; that two are about equal, by two one-sided tests.

A statement with several parts is supported if every part is, each at the full level. It is contradicted if one part is,
at the level divided by the number of parts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from paperbench.catalogue import DATASETS
from paperbench.compare.evidence import Conditions, Evidence, Group, Run, errors_of
from paperbench.compare.failing import MIN_RUNS, Failing, failing, median_fails
from paperbench.compare.statistics import FIRST_LOOK, LOOKS, Contrast, contrast
from paperbench.runs.record import Record
from paperbench.specs.claim import Claim, Measure
from paperbench.specs.table import Cell

Standing = Literal["supported", "contradicted", "undecided", "not run"]

TrainingMean = Callable[[Record, Literal["train_loss", "train_error"], int, int], float | None]
"""Mean of a value over the history of a run after one iteration and up to another; infinite if it is no longer finite,
None if the history does not reach so far."""

WINDOWS = 64
"""Training loss and error are means over a 64th of the schedule: 1,000 iterations of the paper's 64,000."""

_UNITS = {"test_error": " points", "train_error": " points", "train_loss": ""}
_NAMES = {"test_error": "test error", "train_error": "training error", "train_loss": "training loss"}


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim, judged.

    Attributes:
        test: The statistical test.
        level: Its error level, one-sided.
        findings: What was found, one sentence per comparison.
        basis: Which runs it rests on.
        reason: Why it is undecided or not run.
    """

    claim: Claim
    standing: Standing
    test: str
    level: float | None = None
    findings: tuple[str, ...] = ()
    basis: str = ""
    reason: str = ""


@dataclass(frozen=True)
class _Part:
    """One comparison of a claim: p-values for it, and against it."""

    p_value: float
    counter_p_value: float
    finding: str


class _NoValueError(Exception):
    """A run lacks what the claim is about."""


def judge_claim(claim: Claim, evidence: Evidence, training_mean: TrainingMean) -> ClaimVerdict:
    """Judge a claim by the runs of its cells.

    Args:
        training_mean: Where training losses and errors come from.
    """
    judge = _Judge(claim, evidence, training_mean)
    return judge.on_failing() if claim.kind in ("diverges", "converges") else judge.by_tests()


class _Judge:
    """A claim with the runs of its cells; a net's key is its cell and setting, as a cell can stand for several nets."""

    def __init__(self, claim: Claim, evidence: Evidence, training_mean: TrainingMean) -> None:
        self._claim, self._evidence, self._training_mean = claim, evidence, training_mean
        self._planned, self._profile, table = evidence.planned, evidence.profile, evidence.table
        self._in_profile = "" if evidence.profile_name == "paper" else f", profile {evidence.profile_name}"
        self._measure: Measure = claim.measure or "test_error"
        self._verdict = partial(ClaimVerdict, claim, test=_test(claim, _UNITS[self._measure]))
        literature = {f"{row.id}/{column}": e for row in table.expected.literature for column, e in row.cells.items()}
        self._constants = {cell: literature[cell] for cell in claim.all_cells if cell in literature}
        self._cells = {cell: table.cell(cell) for cell in claim.all_cells if cell not in literature}
        self._groups = {
            (cell.id, setting.label): [g for g in evidence.groups(cell, setting) if g.conditions.source is None]
            for cell in self._cells.values()
            for setting in cell.settings
        }

    def by_tests(self) -> ClaimVerdict:
        """Compare the means of the cells."""
        obstacle = self._obstacle()
        if obstacle:
            return self._verdict("undecided", reason=obstacle)
        conditions = self._conditions()
        if conditions is None:
            return self._not_run()
        groups = {key: next(g for g in found if g.conditions == conditions) for key, found in self._groups.items()}
        for key, group in groups.items():
            if len(self._runs(group, self._planned)) < self._planned:
                return self._verdict("undecided", reason=self._what_lacks(key, group))
        judged = self._verdict("undecided", reason=f"the test needs two runs per cell, and {self._planned} is planned")
        for number, level in LOOKS if self._planned >= 2 else ():
            runs = {cell: self._runs(group, number * self._planned) for (cell, _), group in groups.items()}
            if all(len(found) == number * self._planned for found in runs.values()) and judged.standing == "undecided":
                judged = self._judge_look(runs, level, conditions)
        return judged

    def on_failing(self) -> ClaimVerdict:
        """Whether every net fails, or none does. Each is judged by its own runs nearest to the paper."""
        judged = {key: self._fails(key, groups[0]) for key, groups in self._groups.items() if groups}
        if not judged:
            return self._not_run()
        expected = self._claim.kind == "diverges"
        open_because = [f"no run of our own of {_name(key)}" for key in self._groups if key not in judged]
        open_because += [reason for does_fail, _, reason in judged.values() if does_fail is None]
        standing: Standing = "undecided" if open_because else "supported"
        if any(does_fail is (not expected) for does_fail, _, _ in judged.values()):
            standing = "contradicted"
        conditions = "; ".join(dict.fromkeys(str(self._groups[key][0].conditions) for key in judged))
        return self._verdict(
            standing,
            findings=tuple(f"{_name(key)}: {counted}" for key, (_, counted, _) in judged.items()),
            basis=conditions + self._in_profile,
            reason=open_because[0] if standing == "undecided" else "",
        )

    def _fails(self, key: tuple[str, str], group: Group) -> tuple[bool | None, Failing, str]:
        """Whether the median of a net fails; how many runs did; and why, where it is None, that is open."""
        dataset = self._cells[key[0]].dataset_in(self._profile)
        does_fail, counted = None, failing([], dataset)
        for number, _ in LOOKS:
            errors = errors_of(group.first(number * self._planned))
            does_fail, counted = median_fails(errors, number * self._planned, dataset), failing(errors, dataset)
            if does_fail is not None or len(errors) < number * self._planned:
                break
        if does_fail is False and DATASETS[dataset].fail_above is None:
            title = DATASETS[dataset].title
            return None, counted, f"the paper does not say above which error a net has failed on {title}"
        reason = f"{_name(key)}: {group.progress(self._planned)}"
        if len(group.first(self._planned)) < MIN_RUNS:
            reason += f"; it takes {MIN_RUNS} to say that a net fails"
        return does_fail, counted, reason

    def _obstacle(self) -> str:
        """Why the claim cannot be judged in this profile or on these data, whatever the runs say."""
        by_training: dict[str | None, str] = {}
        for cell in self._cells.values():
            training = self._evidence.trains(cell, cell.settings[0])
            if training is not None and training in by_training:
                return (
                    f"in profile {self._evidence.profile_name} {by_training[training]} and {cell.id} are one training"
                )
            by_training[training] = cell.id
        if self._constants and self._in_profile:
            return f"published numbers are not comparable with profile {self._evidence.profile_name}"
        return ""

    def _conditions(self) -> Conditions | None:
        """Those that all cells have runs in: first where all planned runs are there, then the nearest to the paper."""
        shared = set.intersection(*({group.conditions for group in found} for found in self._groups.values()))
        if self._constants:  # published numbers can be compared with runs on the original pixels only
            shared = {one for one in shared if one.data is not None and one.data.canonical}

        def rank(conditions: Conditions) -> tuple[object, ...]:
            groups = [g for found in self._groups.values() for g in found if g.conditions == conditions]
            lacking = sum(len(self._runs(group, self._planned)) < self._planned for group in groups)
            return lacking > 0, conditions.distance, lacking

        return min(shared, key=rank, default=None)

    def _not_run(self) -> ClaimVerdict:
        without = [_name(key) for key, groups in self._groups.items() if not groups]
        if without:
            reason = f"no run of our own of {', '.join(without)}"
        elif self._constants:
            reason = "published numbers can be compared with runs on the original pixels only"
        else:
            reason = "its cells have no data, precision and numerics in common"
        return self._verdict("not run", reason=reason)

    def _what_lacks(self, key: tuple[str, str], group: Group) -> str:
        iteration = self._claim.iteration
        if iteration is None:
            return f"{_name(key)}: {group.progress(self._planned)} have ended"
        last = self._evidence.table.recipe_in(self._profile, self._cells[key[0]].recipe).iterations
        if iteration > last:
            return f"in this profile runs end at iteration {last:,}, before {iteration:,}"
        done = len(self._runs(group, self._planned))
        return f"{_name(key)}: {done} of {self._planned} runs have reached iteration {iteration:,}"

    def _runs(self, group: Group, number: int) -> list[Run]:
        """Those of the first `number` runs that have ended or, of an early claim, have come to its iteration."""
        if self._claim.iteration is None:
            return group.first(number)
        return [
            run
            for run in group.runs
            if run.seed < number
            and run.record
            and (run.record.iteration >= self._claim.iteration or run.record.status == "diverged")
        ]

    def _judge_look(self, runs: Mapping[str, Sequence[Run]], level: float, conditions: Conditions) -> ClaimVerdict:
        try:
            parts = self._parts(runs)
        except _NoValueError as error:
            return self._verdict("undecided", level=level, reason=str(error))
        standing: Standing = "undecided"
        if all(part.p_value <= level for part in parts):
            standing = "supported"
        elif any(part.counter_p_value <= level / len(parts) for part in parts):
            standing = "contradicted"
        if standing == "contradicted":
            findings = tuple(f"{part.finding}, {_p(part.counter_p_value)} against it" for part in parts)
        else:
            findings = tuple(f"{part.finding}, {_p(part.p_value)}" for part in parts)
        constants = ", and published numbers taken as exact" if self._constants else ""
        basis = f"{len(next(iter(runs.values())))} runs per net, {conditions}{self._in_profile}{constants}"
        reason = "the difference is not clear of the noise" if standing == "undecided" else ""
        return self._verdict(standing, level=level, findings=findings, basis=basis, reason=reason)

    def _parts(self, runs: Mapping[str, Sequence[Run]]) -> list[_Part]:
        claim = self._claim
        if claim.kind == "largest_gain":
            (a, b), *others = claim.pairs
            return [self._part(f"({a} - {b}) - ({c} - {d})", [a, d], [b, c], self._measure, runs) for c, d in others]
        first, *rest = claim.cells
        pairs = [(first, other, self._measure) for other in rest]
        if claim.kind == "higher_loss_lower_error":
            pairs.insert(0, (rest[0], first, "train_loss"))
        return [self._part(f"{one} - {other}", [one], [other], measure, runs) for one, other, measure in pairs]

    def _part(
        self,
        what: str,
        plus: Sequence[str],
        minus: Sequence[str],
        measure: Measure,
        runs: Mapping[str, Sequence[Run]],
    ) -> _Part:
        """Test a sum of the cells' means; a published number is known exactly."""
        weights = Counter(plus)
        weights.subtract(minus)
        own = {cell: weight for cell, weight in weights.items() if cell not in self._constants}
        known = -sum(weights[cell] * number for cell, number in self._constants.items())
        found = contrast([self._values(cell, measure, runs[cell]) for cell in own], list(own.values()), known)
        finding = f"{what} = {_estimate(found, measure)}"
        match self._claim.kind:
            case "close":
                margin = self._claim.within or 0.0
                return _Part(found.equivalence_p(margin), found.beyond_p(margin), finding)
            case "largest_gain":
                return _Part(found.above_p(0), found.below_p(0), finding)
            case _:
                bound = -(self._claim.by or 0.0)
                return _Part(found.below_p(bound), found.above_p(bound), finding)

    def _values(self, cell_id: str, measure: Measure, runs: Sequence[Run]) -> list[float]:
        """One value per run; a diverged run counts as guessing, which it is no better than."""
        cell = self._cells[cell_id]
        classes = DATASETS[cell.dataset_in(self._profile)].num_classes
        guessing = math.log(classes) if measure == "train_loss" else 100 * (1 - 1 / classes)
        found = [self._value(cell, measure, run) for run in runs]
        return [value if math.isfinite(value) else guessing for value in found]

    def _value(self, cell: Cell, measure: Measure, run: Run) -> float:
        if measure == "test_error":
            return math.inf if run.error is None else run.error
        record = run.record
        if record is None:
            raise _NoValueError(f"{cell.id}: a result from elsewhere has no history")
        last = self._evidence.table.recipe_in(self._profile, cell.recipe).iterations
        upto = self._claim.iteration or last
        if record.status == "diverged" and record.iteration < upto:
            return math.inf
        value = self._training_mean(record, measure, upto - max(1, last // WINDOWS), upto)
        if value is None:
            raise _NoValueError(f"the history of run {record.run} has no {_NAMES[measure]} at iteration {upto:,}")
        return value


def _test(claim: Claim, unit: str) -> str:
    match claim.kind:
        case "lower":
            return "Welch's test" + (f", by {claim.by:g}{unit}" if claim.by else "")
        case "close":
            return f"two one-sided Welch tests, within {claim.within:g}{unit}"
        case "largest_gain":
            return "Welch's test on differences of differences"
        case "higher_loss_lower_error":
            return "two Welch tests"
        case "early":
            return f"Welch's test at iteration {claim.iteration:,}"
        case _:
            return "whether the median fails"


def _name(key: tuple[str, str]) -> str:
    return f"{key[0]} ({key[1]})" if key[1] else key[0]


def _estimate(found: Contrast, measure: Measure) -> str:
    digits = 4 if measure == "train_loss" else 2
    low, high = found.interval(FIRST_LOOK)
    interval = f"[{low:+.{digits}f}, {high:+.{digits}f}]"
    return f"{found.estimate:+.{digits}f} {interval}{_UNITS[measure]} in {_NAMES[measure]}"


def _p(value: float) -> str:
    if value > 0.999:
        return "p>0.999"
    return f"p={value:.3f}" if value >= 0.001 else f"p={value:.1e}" if value >= 1e-9 else "p<1e-9"
