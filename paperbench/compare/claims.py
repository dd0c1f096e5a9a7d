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
from dataclasses import dataclass
from typing import Literal

from paperbench.compare.evidence import Conditions, Evidence, Group, Run, chance_error
from paperbench.compare.failing import LEAST_RUNS, failing, median_fails
from paperbench.compare.looks import planned_runs, progress
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
        self._training_mean = training_mean
        literature = {f"{row.id}/{column}": e for row in table.expected.literature for column, e in row.cells.items()}
        self._constants = {cell: literature[cell] for cell in claim.all_cells if cell in literature}
        self._cells = {cell: table.cell(cell) for cell in claim.all_cells if cell not in literature}
        self._groups = {
            (cell.id, setting.label): [g for g in evidence.groups(cell, setting) if g.conditions.source is None]
            for cell in self._cells.values()
            for setting in cell.settings
        }

    def verdict(self) -> ClaimVerdict:
        conditions = self._conditions()
        if conditions is None:
            return self._not_run()
        groups = {key: next(g for g in found if g.conditions == conditions) for key, found in self._groups.items()}
        for key, group in groups.items():
            if not self._reached(group):
                return ClaimVerdict(self._claim, "undecided", self._test, reason=self._what_lacks(key, group))
        if self._claim.kind == "diverges":
            return self._judge_failing(groups, conditions)
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
            "lower": "Welch's test",
            "close": f"two one-sided Welch tests, {margin}",
            "diverges": "median of the runs",
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

    def _conditions(self) -> Conditions | None:
        """Those that all cells have runs in: first where all planned runs are there, then the nearest to the paper."""
        shared: set[Conditions] | None = None
        for found in self._groups.values():
            here = {group.conditions for group in found}
            shared = here if shared is None else shared & here
        if not shared:
            return None

        def rank(conditions: Conditions) -> tuple[object, ...]:
            groups = [g for found in self._groups.values() for g in found if g.conditions == conditions]
            lacking = sum(len(self._runs(group, self._planned)) < self._planned for group in groups)
            return (lacking > 0, max(g.distance for g in groups), lacking)

        return min(shared, key=rank)

    def _not_run(self) -> ClaimVerdict:
        without = [self._name(key) for key, groups in self._groups.items() if not groups]
        if without:
            reason = f"no run of {', '.join(dict.fromkeys(without))}"
            return ClaimVerdict(self._claim, "not run", self._test, reason=reason)
        return ClaimVerdict(
            self._claim, "not run", self._test, reason="its cells have no data, precision and numerics in common"
        )

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
            return list(planned_runs(group, number))
        reached = self._claim.iteration or 0
        return [
            run
            for run in group.runs
            if run.seed < number and run.record and (run.record.iteration >= reached or run.record.status == "diverged")
        ]

    def _judge_failing(self, groups: Mapping[tuple[str, str], Group], conditions: Conditions) -> ClaimVerdict:
        """Every net fails; settled for one as soon as the missing runs cannot change it."""
        findings, standings = [], []
        basis: dict[tuple[str, str], list[Run]] = {}
        for key, group in groups.items():
            dataset = self._cells[key[0]].dataset_in(self._profile)
            basis[key] = list(planned_runs(group, self._planned))
            errors = [run.error for run in basis[key] if run.error is not None]
            does_fail = median_fails(errors, self._planned, dataset)
            standings.append("undecided" if does_fail is None else "supported" if does_fail else "contradicted")
            findings.append(f"{self._name(key)}: {failing(errors, dataset)}")
        standing: Standing = "supported"
        if "contradicted" in standings:
            standing = "contradicted"
        elif "undecided" in standings:
            standing = "undecided"
        reason = ""
        if standing == "undecided":
            key = list(groups)[standings.index("undecided")]
            reason = (
                f"{self._name(key)}: {progress(groups[key], self._planned)}; to say that a net fails takes {LEAST_RUNS}"
            )
        return ClaimVerdict(
            self._claim, standing, self._test, None, tuple(findings), self._basis(basis.values(), conditions), reason
        )

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
        findings = tuple(part.finding for part in parts)
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
        finding = f"{one} less {other}: {self._in_words(difference, measure)}, {_p(difference.less_p)}"
        return _Part(difference.less_p, _reversed(difference).less_p, finding)

    def _close(self, one: str, other: str, runs: Mapping[str, Sequence[Run]]) -> _Part:
        margin = self._claim.within or 0.0
        difference = self._difference(one, other, self._measure, runs)
        p_value = difference.equivalence_p(margin)
        beyond = Contrast(margin - abs(difference.estimate), difference.standard_error, difference.degrees)
        finding = f"{one} less {other}: {self._in_words(difference, self._measure)}, {_p(p_value)}"
        return _Part(p_value, beyond.less_p, finding)

    def _gains(self, pair: Sequence[str], other: Sequence[str], runs: Mapping[str, Sequence[Run]]) -> _Part:
        """The first pair's gain is the larger one: the difference of gains, other less first, is below 0."""
        weights: dict[str, float] = {}
        for cell, weight in zip((*other, *pair), (1.0, -1.0, -1.0, 1.0), strict=True):
            weights[cell] = weights.get(cell, 0.0) + weight
        samples = [self._values(cell, self._measure, runs[cell]) for cell in weights]
        difference = contrast(samples, list(weights.values()))
        gain = _reversed(difference)
        finding = (
            f"gain from {pair[0]} to {pair[1]} less that from {other[0]} to {other[1]}: "
            f"{self._in_words(gain, self._measure)}, {_p(difference.less_p)}"
        )
        return _Part(difference.less_p, gain.less_p, finding)

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

    @staticmethod
    def _in_words(difference: Contrast, measure: Measure) -> str:
        digits = 4 if measure == "train_loss" else 2
        return f"{difference.estimate:+.{digits}f}{_UNITS[measure]} in {_NAMES[measure]}"


class _NoValueError(Exception):
    """A run lacks what the claim is about."""


def _reversed(difference: Contrast) -> Contrast:
    return Contrast(-difference.estimate, difference.standard_error, difference.degrees)


def _p(value: float) -> str:
    return f"p = {value:.3f}" if value >= 0.001 else f"p = {value:.1e}" if value >= 1e-9 else "p < 1e-9"
