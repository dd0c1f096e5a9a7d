"""Whether a claim of the paper holds among our own runs.

Our runs are compared with each other and not with published numbers, so that a claim can be judged on any data and in
any profile; the verdict says on which. Only runs of one data fingerprint, precision and numerics version are set
against each other, by Welch's test on means; that two are about equal, by two one-sided tests.

A statement with several parts is supported if every part is, each at the full level. It is contradicted if one part is,
at the level divided by the number of parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from paperbench.catalogue import DATASETS
from paperbench.compare.evidence import Conditions, Evidence, Group, Run, chance_error
from paperbench.compare.failing import LEAST_RUNS, Failing, failing, median_fails
from paperbench.compare.looks import progress
from paperbench.compare.statistics import FIRST_LOOK, SECOND_LOOK, Contrast, against, contrast, welch
from paperbench.runs.record import Record
from paperbench.specs.claim import Claim, Measure
from paperbench.specs.table import Cell, Table

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
        findings: What was found, one sentence a comparison.
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


def judge_claim(
    claim: Claim, table: Table, evidence: Evidence, profile: str, planned: int, training_mean: TrainingMean
) -> ClaimVerdict:
    """Judge a claim by the runs of its cells.

    Args:
        planned: Runs a cell, fixed beforehand.
        training_mean: Where training losses and errors come from.
    """
    return _Judge(claim, table, evidence, profile, planned, training_mean).verdict()


class _Judge:
    def __init__(
        self,
        claim: Claim,
        table: Table,
        evidence: Evidence,
        profile: str,
        planned: int,
        training_mean: TrainingMean,
    ) -> None:
        self._claim, self._table, self._planned = claim, table, planned
        self._profile_name, self._profile = profile, table.profiles.named(profile)
        self._evidence, self._training_mean = evidence, training_mean
        literature = {f"{row.id}/{column}": e for row in table.expected.literature for column, e in row.cells.items()}
        self._constants = {cell: literature[cell] for cell in claim.all_cells if cell in literature}
        self._cells = {cell: table.cell(cell) for cell in claim.all_cells if cell not in literature}
        self._groups = {
            (cell.id, setting.label): [
                group for group in evidence.groups(cell, setting, planned) if group.conditions.source is None
            ]
            for cell in self._cells.values()
            for setting in cell.settings
        }

    def verdict(self) -> ClaimVerdict:
        if self._claim.kind in ("diverges", "converges"):
            return self._judge_failing()
        obstacle = self._obstacle()
        if obstacle:
            return ClaimVerdict(self._claim, "undecided", self._test, reason=obstacle)
        conditions = self._conditions()
        if conditions is None:
            return self._not_run()
        groups = {key: next(g for g in found if g.conditions == conditions) for key, found in self._groups.items()}
        for key, group in groups.items():
            if not self._reached(group):
                return ClaimVerdict(self._claim, "undecided", self._test, reason=self._what_lacks(key, group))
        if self._planned < 2:
            reason = f"the test takes two runs a cell or more, and {self._planned} is planned"
            return ClaimVerdict(self._claim, "undecided", self._test, reason=reason)
        judged = None
        for number, level in ((1, FIRST_LOOK), (2, SECOND_LOOK)):
            runs = {key: self._runs(group, number * self._planned) for key, group in groups.items()}
            if any(len(found) < number * self._planned for found in runs.values()):
                break
            judged = self._judge_look({cell: found for (cell, _), found in runs.items()}, level, conditions)
            if judged.standing != "undecided":
                return judged
        if judged is None:
            lacking = next(
                key for key, found in groups.items() if len(self._runs(found, self._planned)) < self._planned
            )
            reason = self._what_lacks(lacking, groups[lacking])
            return ClaimVerdict(self._claim, "undecided", self._test, reason=reason)
        return judged

    @property
    def _test(self) -> str:
        margin = f"within {self._claim.within:g}{_UNITS[self._measure]}" if self._claim.within else ""
        return {
            "lower": "Welch's test" + (f", by {self._claim.by:g}{_UNITS[self._measure]}" if self._claim.by else ""),
            "close": f"two one-sided Welch tests, {margin}",
            "diverges": "whether the median fails",
            "converges": "whether the median fails",
            "largest_gain": "Welch's test on differences of differences",
            "higher_loss_lower_error": "two Welch tests",
            "early": f"Welch's test at iteration {self._claim.iteration:,}" if self._claim.iteration else "",
        }[self._claim.kind]

    @property
    def _measure(self) -> Measure:
        return self._claim.measure or "test_error"

    @property
    def _is_about_endings(self) -> bool:
        return self._claim.kind != "early"

    def _obstacle(self) -> str:
        """Why the claim cannot be judged in this profile or on these data, whatever the runs say."""
        by_training: dict[str | None, str] = {}
        for cell in self._cells.values():
            training = self._evidence.trains(cell, cell.settings[0])
            if training is not None and training in by_training:
                return f"in profile {self._profile_name} {by_training[training]} and {cell.id} are one training"
            by_training[training] = cell.id
        if self._constants and self._profile_name != "paper":
            return f"published numbers are not comparable with profile {self._profile_name}"
        return ""

    def _conditions(self) -> Conditions | None:
        """Those that all cells have runs in: first where all planned runs are there, then the nearest to the paper."""
        shared: set[Conditions] | None = None
        for found in self._groups.values():
            here = {group.conditions for group in found if self._fits_constants(group.conditions)}
            shared = here if shared is None else shared & here
        if not shared:
            return None

        def rank(conditions: Conditions) -> tuple[object, ...]:
            groups = [g for found in self._groups.values() for g in found if g.conditions == conditions]
            lacking = sum(len(self._runs(group, self._planned)) < self._planned for group in groups)
            return (lacking > 0, conditions.distance, lacking)

        return min(shared, key=rank)

    def _fits_constants(self, conditions: Conditions) -> bool:
        """Published numbers can be held against runs on the original pixels only."""
        return not self._constants or (conditions.data is not None and conditions.data.canonical)

    def _not_run(self) -> ClaimVerdict:
        without = [self._name(key) for key, groups in self._groups.items() if not groups]
        if without:
            reason = f"no run of our own of {', '.join(dict.fromkeys(without))}"
            return ClaimVerdict(self._claim, "not run", self._test, reason=reason)
        reason = "its cells have no data, precision and numerics in common"
        if self._constants:
            reason = "published numbers can be held against runs on the original pixels only"
        return ClaimVerdict(self._claim, "not run", self._test, reason=reason)

    def _reached(self, group: Group) -> bool:
        return bool(self._runs(group, self._planned))

    def _name(self, key: tuple[str, str]) -> str:
        return f"{key[0]} ({key[1]})" if key[1] else key[0]

    def _what_lacks(self, key: tuple[str, str], group: Group) -> str:
        if self._is_about_endings:
            return f"{self._name(key)}: {progress(group, self._planned)} have ended"
        done = len(self._runs(group, self._planned))
        iteration = self._claim.iteration or 0
        last = self._table.recipe_in(self._profile, self._cells[key[0]].recipe).iterations
        if iteration > last:
            return f"in this profile runs end at iteration {last:,}, before {iteration:,}"
        return f"{self._name(key)}: {done} of {self._planned} runs have come to iteration {iteration:,}"

    def _runs(self, group: Group, number: int) -> list[Run]:
        """The first `number` runs, as far as they have come as far as the claim looks."""
        if self._is_about_endings:
            return group.first(number)
        reached = self._claim.iteration or 0
        return [
            run
            for run in group.runs
            if run.seed < number and run.record and (run.record.iteration >= reached or run.record.status == "diverged")
        ]

    def _judge_failing(self) -> ClaimVerdict:
        """Every net fails. Nets are not compared with each other, so each is judged by what there is for it."""
        judged = {key: self._fails(key[0], groups[0]) for key, groups in self._groups.items() if groups}
        findings = tuple(f"{self._name(key)}: {counted}" for key, (_, counted) in judged.items())
        basis = "; ".join(dict.fromkeys(str(self._groups[key][0].conditions) for key in judged))
        says = self._claim.kind == "diverges"
        against = any(does_fail is (not says) for does_fail, _ in judged.values())
        lacking = [key for key in self._groups if key not in judged or judged[key][0] is None]
        standing: Standing = "contradicted" if against else "supported" if not lacking else "undecided"
        if not judged:
            return self._not_run()
        reason = self._why_failing_is_open(lacking[0]) if standing == "undecided" else ""
        reduced = "" if self._profile_name == "paper" else f", profile {self._profile_name}"
        return ClaimVerdict(self._claim, standing, self._test, None, findings, basis + reduced, reason)

    def _fails(self, cell_id: str, group: Group) -> tuple[bool | None, Failing]:
        """Whether the median fails, None as long as that is open; and how many runs did."""
        dataset = self._cells[cell_id].dataset_in(self._profile)
        does_fail, counted = None, failing([], dataset)
        for number in (self._planned, 2 * self._planned):
            errors = [run.error for run in group.first(number) if run.error is not None]
            does_fail, counted = median_fails(errors, number, dataset), failing(errors, dataset)
            if does_fail is not None or len(errors) < number:
                break
        if does_fail is False and DATASETS[dataset].fail_above is None:
            return None, counted
        return does_fail, counted

    def _why_failing_is_open(self, key: tuple[str, str]) -> str:
        groups, dataset = self._groups[key], self._cells[key[0]].dataset_in(self._profile)
        if not groups:
            return f"no run of our own of {self._name(key)}"
        errors = [run.error for run in groups[0].first(self._planned) if run.error is not None]
        if DATASETS[dataset].fail_above is None and median_fails(errors, self._planned, dataset) is False:
            return f"above which error a net has failed is not said for {DATASETS[dataset].title}"
        told = f"{self._name(key)}: {progress(groups[0], self._planned)}"
        return told if len(errors) >= LEAST_RUNS else f"{told}; to say that a net fails takes {LEAST_RUNS}"

    def _judge_look(self, runs: Mapping[str, Sequence[Run]], level: float, conditions: Conditions) -> ClaimVerdict:
        try:
            parts = self._parts(runs)
        except _NoValueError as error:
            return ClaimVerdict(self._claim, "undecided", self._test, level, reason=str(error))
        standing: Standing = "undecided"
        if all(part.p_value <= level for part in parts):
            standing = "supported"
        elif any(part.counter_p_value <= level / len(parts) for part in parts):
            standing = "contradicted"
        reason = "" if standing != "undecided" else "the difference is not clear of the noise"
        against = standing == "contradicted"
        findings = tuple(
            f"{part.finding}, {_p(part.counter_p_value if against else part.p_value)}"
            + (" against it" if against else "")
            for part in parts
        )
        basis = self._basis(runs.values(), conditions)
        return ClaimVerdict(self._claim, standing, self._test, level, findings, basis, reason)

    def _basis(self, runs: Iterable[Sequence[Run]], conditions: Conditions) -> str:
        counts = sorted({len(found) for found in runs})
        number = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        reduced = "" if self._profile_name == "paper" else f", profile {self._profile_name}"
        constants = ", and published numbers taken as exact" if self._constants else ""
        return f"{number} runs a net, {conditions}{reduced}{constants}"

    def _parts(self, runs: Mapping[str, Sequence[Run]]) -> list[_Part]:
        claim = self._claim
        if claim.kind == "largest_gain":
            return [self._gains(claim.pairs[0], pair, runs) for pair in claim.pairs[1:]]
        first, *rest = claim.cells
        if claim.kind == "higher_loss_lower_error":
            return [
                self._lower(rest[0], first, "train_loss", runs),
                self._lower(first, rest[0], "test_error", runs),
            ]
        if claim.kind == "close":
            return [self._close(first, other, runs) for other in rest]
        return [self._lower(first, other, self._measure, runs) for other in rest]

    def _lower(self, one: str, other: str, measure: Measure, runs: Mapping[str, Sequence[Run]]) -> _Part:
        difference = self._difference(one, other, measure, runs)
        shifted = replace(difference, estimate=difference.estimate + (self._claim.by or 0.0))
        finding = self._finding(f"{one} - {other}", difference, measure)
        return _Part(shifted.less_p, _reversed(shifted).less_p, finding)

    def _close(self, one: str, other: str, runs: Mapping[str, Sequence[Run]]) -> _Part:
        margin = self._claim.within or 0.0
        difference = self._difference(one, other, self._measure, runs)
        finding = self._finding(f"{one} - {other}", difference, self._measure)
        return _Part(difference.equivalence_p(margin), difference.beyond_p(margin), finding)

    def _gains(self, pair: Sequence[str], other: Sequence[str], runs: Mapping[str, Sequence[Run]]) -> _Part:
        """The first pair's gain is the larger one: the difference of gains, other less first, is below 0."""
        weights: dict[str, float] = {}
        for cell, weight in zip((*other, *pair), (1.0, -1.0, -1.0, 1.0), strict=True):
            weights[cell] = weights.get(cell, 0.0) + weight
        samples = [self._values(cell, self._measure, runs[cell]) for cell in weights]
        difference = contrast(samples, list(weights.values()))
        gain = _reversed(difference)
        gains = f"({pair[0]} - {pair[1]}) - ({other[0]} - {other[1]})"
        return _Part(difference.less_p, gain.less_p, self._finding(gains, gain, self._measure))

    def _difference(self, one: str, other: str, measure: Measure, runs: Mapping[str, Sequence[Run]]) -> Contrast:
        values = self._values(one, measure, runs[one])
        if other in self._constants:
            return against(values, self._constants[other])
        return welch(values, self._values(other, measure, runs[other]))

    def _values(self, cell_id: str, measure: Measure, runs: Sequence[Run]) -> list[float]:
        """One value a run; a diverged run counts as guessing, which it is no better than."""
        cell = self._cells[cell_id]
        classes_error = chance_error(cell.dataset_in(self._profile))
        chance = -math.log(1 - classes_error / 100) if measure == "train_loss" else classes_error
        found = [self._value(cell, measure, run) for run in runs]
        return [value if math.isfinite(value) else chance for value in found]

    def _value(self, cell: Cell, measure: Measure, run: Run) -> float:
        if measure == "test_error":
            return math.inf if run.error is None else run.error
        record = run.record
        if record is None:
            raise _NoValueError(f"{cell.id}: a result from elsewhere has no history")
        last = self._table.recipe_in(self._profile, cell.recipe).iterations
        upto = self._claim.iteration or last
        if record.status == "diverged" and record.iteration < upto:
            return math.inf
        value = self._training_mean(record, measure, upto - max(1, last // WINDOWS), upto)
        if value is None:
            raise _NoValueError(f"the history of run {record.run} has no {_NAMES[measure]} at iteration {upto:,}")
        return value

    def _finding(self, what: str, difference: Contrast, measure: Measure) -> str:
        digits = 4 if measure == "train_loss" else 2
        low, high = difference.interval(FIRST_LOOK)
        interval = f"[{low:+.{digits}f}, {high:+.{digits}f}]"
        return f"{what} = {difference.estimate:+.{digits}f} {interval}{_UNITS[measure]} in {_NAMES[measure]}"


class _NoValueError(Exception):
    """A run lacks what the claim is about."""


def _reversed(difference: Contrast) -> Contrast:
    return Contrast(-difference.estimate, difference.standard_error, difference.degrees)


def _p(value: float) -> str:
    if value > 0.999:
        return "p>0.999"
    return f"p={value:.3f}" if value >= 0.001 else f"p={value:.1e}" if value >= 1e-9 else "p<1e-9"
