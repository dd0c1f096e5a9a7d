"""Whether the paper's claims hold among our own runs.

Our runs are compared with each other and not with published numbers, so that a claim can be tested on any data and in
any profile. Only runs with the same pixels, precision and numerics version are compared. Means are compared by Welch's
test, and equivalence is tested by two one-sided Welch tests (TOST). Tests of test errors use the noise of the table.
Nets are compared with themselves at initialisation by the one-sample t-test, on one difference per seed.

A claim with several parts is supported if every part is supported at the full level. It is contradicted if one part is
contradicted at the level divided by the number of parts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from paperbench.catalogue import DATASETS
from paperbench.compare.evidence import Conditions, Evidence, GroupFacts, RunFacts, errors_of
from paperbench.compare.failures import MIN_RUNS_TO_JUDGE, FailureCount, count_failures, median_fails
from paperbench.compare.noise import NO_PRIOR, Prior
from paperbench.compare.responses import Responses
from paperbench.compare.statistics import ANALYSES, FIRST_ALPHA, Contrast, compute_contrast
from paperbench.options import Selection, command
from paperbench.runs.record import Record
from paperbench.specs.cell import Cell
from paperbench.specs.claim import Claim, Measure

Standing = Literal["supported", "contradicted", "undecided", "not run"]

TrainingMean = Callable[[Record, Literal["train_loss", "train_error"], int, int], float | None]
"""Returns the mean of a value in a run's history after one iteration and up to another; infinite if a value is not
finite, None if the history ends before."""

WINDOWS = 64
"""Training loss and error are means over 1/64 of the schedule: 1,000 of the paper's 64,000 iterations."""

_UNITS = {"test_error": " points", "train_error": " points", "train_loss": "", "negative_share": " points"}
_NAMES = {
    "test_error": "test error",
    "train_error": "training error",
    "train_loss": "training loss",
    "negative_share": "share of y_l < 0",
}


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim with its verdict.

    Attributes:
        test: The statistical test.
        level: Its one-sided error level.
        findings: One sentence per comparison.
        basis: The runs behind the verdict.
        reason: Why the claim is undecided or not run.
    """

    claim: Claim
    standing: Standing
    test: str
    level: float | None = None
    findings: tuple[str, ...] = ()
    basis: str = ""
    reason: str = ""

    def __repr__(self) -> str:
        return f"<{self.claim.id}: {self.standing}>"


@dataclass(frozen=True)
class Part:
    """One comparison of a claim: the sum of the means of `plus` minus that of `minus`, which are ids of cells.

    In "declines" claims the values of a cell are its differences from initialisation.
    """

    plus: tuple[str, ...]
    minus: tuple[str, ...]
    measure: Measure
    text: str

    def contrast(
        self, samples: Mapping[str, ArrayLike], constants: Mapping[str, float], priors: Mapping[str, Prior]
    ) -> Contrast:
        """Return the contrast.

        Args:
            samples: Values of each cell of ours, over the last axis.
            constants: Published numbers, treated as exact.
            priors: What the other cells of the table say about the variance of a cell of ours.
        """
        weights = Counter(self.plus)
        weights.subtract(self.minus)
        own = {cell: weight for cell, weight in weights.items() if cell not in constants}
        known = -sum(weights[cell] * number for cell, number in constants.items())
        return compute_contrast(
            [samples[cell] for cell in own], list(own.values()), known, [priors.get(cell, NO_PRIOR) for cell in own]
        )


def parts(claim: Claim) -> list[Part]:
    """Return the comparisons of a claim about means."""
    measure: Measure = claim.measure or "test_error"
    if claim.kind == "largest_gain":
        (a, b), *others = claim.pairs
        return [Part((a, d), (b, c), measure, f"({a} - {b}) - ({c} - {d})") for c, d in others]
    if claim.kind == "declines":
        return [Part((cell,), (), measure, f"{cell}, trained - initial") for cell in claim.cells]
    first, *rest = claim.cells
    pairs = [(first, other, measure) for other in rest]
    if claim.kind == "higher_loss_lower_error":
        pairs.insert(0, (rest[0], first, "train_loss"))
    return [Part((one,), (other,), its, f"{one} - {other}") for one, other, its in pairs]


def p_values(claim: Claim, contrast: Contrast) -> tuple[Any, Any]:
    """Return the p-values of one comparison for the alternatives that the claim holds, and that it does not."""
    match claim.kind:
        case "close":
            margin = claim.within or 0.0
            return contrast.p_equivalent(margin), contrast.p_beyond(margin)
        case "largest_gain":
            return contrast.p_greater(0), contrast.p_less(0)
        case _:
            bound = -(claim.by or 0.0)
            return contrast.p_less(bound), contrast.p_greater(bound)


def decide_claim(found: Sequence[tuple[Any, Any]], level: float) -> tuple[Any, Any]:
    """Return whether a claim is supported and whether it is contradicted, given the p-values of its parts."""
    supported = np.all([p_for <= level for p_for, _ in found], axis=0)
    contradicted = np.any([p_against <= level / len(found) for _, p_against in found], axis=0)
    return supported, contradicted


class _NoValueError(Exception):
    """A run lacks the value that the claim compares."""


def assess_claim(claim: Claim, evidence: Evidence, training_mean: TrainingMean, responses: Responses) -> ClaimVerdict:
    """Assess a claim by the runs of its cells."""
    assessor = _Assessor(claim, evidence, training_mean, responses)
    return assessor.assess_failures() if claim.kind in ("diverges", "converges") else assessor.assess_means()


class _Assessor:
    """A claim with the runs of its cells, grouped by net. The key of a net is its cell id and its setting's label."""

    def __init__(self, claim: Claim, evidence: Evidence, training_mean: TrainingMean, responses: Responses) -> None:
        self._claim, self._evidence = claim, evidence
        self._training_mean, self._responses = training_mean, responses
        self._planned, self._profile, table = evidence.planned, evidence.profile, evidence.table
        self._in_profile = "" if evidence.profile_name == "paper" else f", profile {evidence.profile_name}"
        literature = {f"{row.id}/{column}": e for row in table.expected.literature for column, e in row.cells.items()}
        self._constants = {cell: literature[cell] for cell in claim.all_cells if cell in literature}
        self._cells = {cell: table.cell(cell) for cell in claim.all_cells if cell not in literature}
        self._groups = {
            (cell.id, setting.label): [g for g in evidence.groups(cell, setting) if g.conditions.source is None]
            for cell in self._cells.values()
            for setting in cell.settings
        }

    def _verdict(self, standing: Standing, *, uses_table: bool = False, **values: Any) -> ClaimVerdict:
        return ClaimVerdict(self._claim, standing, _test(self._claim, uses_table), **values)

    def assess_means(self) -> ClaimVerdict:
        """Test differences of the cells' means."""
        obstacle = self._obstacle()
        if obstacle:
            return self._verdict("undecided", reason=obstacle)
        conditions = self._conditions()
        if conditions is None:
            return self._not_run()
        groups = {key: self._group(found, conditions) for key, found in self._groups.items()}
        for key, group in groups.items():
            if len(self._runs(group, self._planned)) < self._planned:
                return self._verdict("undecided", reason=self._missing_runs(key, group))
        verdict = self._verdict("undecided", reason=f"too few runs: {self._planned} planned, minimum 2")
        for number, level in ANALYSES if self._planned >= 2 else ():
            runs = {cell: self._runs(group, number * self._planned) for (cell, _), group in groups.items()}
            if all(len(found) == number * self._planned for found in runs.values()) and verdict.standing == "undecided":
                verdict = self._analyse(runs, number, level, conditions)
        return verdict

    def assess_failures(self) -> ClaimVerdict:
        """Check whether every net fails, or none does. Each net is assessed by its group closest to the paper."""
        found = {key: self._fails(key, groups[0]) for key, groups in self._groups.items() if groups}
        if not found:
            return self._not_run()
        expected = self._claim.kind == "diverges"
        obstacles = [f"no runs of our own: {_name(key)}" for key in self._groups if key not in found]
        obstacles += [reason for does_fail, _, reason in found.values() if does_fail is None]
        standing: Standing = "undecided" if obstacles else "supported"
        if any(does_fail is (not expected) for does_fail, _, _ in found.values()):
            standing = "contradicted"
        conditions = "; ".join(dict.fromkeys(str(self._groups[key][0].conditions) for key in found))
        return self._verdict(
            standing,
            findings=tuple(f"{_name(key)}: {count}" for key, (_, count, _) in found.items()),
            basis=conditions + self._in_profile,
            reason=obstacles[0] if standing == "undecided" else "",
        )

    def _fails(self, key: tuple[str, str], group: GroupFacts) -> tuple[bool | None, FailureCount, str]:
        """Return whether the median of a net fails (None if undecided), the failures, and why it is undecided."""
        dataset = self._cells[key[0]].dataset_in(self._profile)
        does_fail, count = None, count_failures([], dataset)
        for number, _ in ANALYSES:
            errors = errors_of(group.first(number * self._planned))
            does_fail, count = median_fails(errors, number * self._planned, dataset), count_failures(errors, dataset)
            if does_fail is not None or len(errors) < number * self._planned:
                break
        if does_fail is False and DATASETS[dataset].fail_above is None:
            return None, count, f"the paper does not define failing on {DATASETS[dataset].title}"
        minimum = f", minimum {MIN_RUNS_TO_JUDGE}" if len(group.first(self._planned)) < MIN_RUNS_TO_JUDGE else ""
        return does_fail, count, f"{_name(key)}: too few runs: {group.progress(self._planned)}{minimum}"

    def _obstacle(self) -> str:
        """Return why no runs could decide the claim in this profile, or an empty text."""
        cell_of_training: dict[str | None, str] = {}
        for cell in self._cells.values():
            key = self._evidence.training_key(cell, cell.settings[0])
            if key is not None and key in cell_of_training:
                return f"in profile {self._evidence.profile_name}, {cell_of_training[key]} and {cell.id} train the same"
            cell_of_training[key] = cell.id
        if self._constants and self._in_profile:
            return f"published numbers are not comparable with profile {self._evidence.profile_name}"
        recipes = [self._evidence.table.recipe_in(self._profile, cell.recipe) for cell in self._cells.values()]
        compares_losses = any(part.measure == "train_loss" for part in parts(self._claim))
        if compares_losses and len({recipe.label_smoothing for recipe in recipes}) > 1:
            return "training losses with different label smoothing are not comparable"
        return ""

    def _group(self, found: Sequence[GroupFacts], conditions: Conditions) -> GroupFacts:
        """Return the group of a net with these conditions; of those with different facts, the one with most runs."""
        return max(
            (group for group in found if group.conditions == conditions),
            key=lambda group: len(self._runs(group, self._planned)),
        )

    def _conditions(self) -> Conditions | None:
        """Return the conditions shared by all cells: preferably with all planned runs, then closest to the paper."""
        shared = set.intersection(*({group.conditions for group in found} for found in self._groups.values()))
        if self._constants:  # published numbers are comparable only with runs on the original pixels
            shared = {one for one in shared if one.data is not None and one.data.is_comparable}

        def rank(conditions: Conditions) -> tuple[object, ...]:
            groups = [self._group(found, conditions) for found in self._groups.values()]
            incomplete = sum(len(self._runs(group, self._planned)) < self._planned for group in groups)
            return incomplete > 0, conditions.distance, incomplete

        return min(shared, key=rank, default=None)

    def _not_run(self) -> ClaimVerdict:
        without = [_name(key) for key, groups in self._groups.items() if not groups]
        if without:
            reason = f"no runs of our own: {', '.join(without)}"
        elif self._constants:
            reason = "published numbers need runs on the original pixels"
        else:
            reason = "its cells share no data, precision and numerics"
        return self._verdict("not run", reason=reason)

    def _missing_runs(self, key: tuple[str, str], group: GroupFacts) -> str:
        iteration = self._claim.iteration
        if iteration is None:
            return f"{_name(key)}: too few runs: {group.progress(self._planned)}"
        last = self._evidence.table.recipe_in(self._profile, self._cells[key[0]].recipe).iterations
        if iteration > last:
            return f"runs of this profile end at iteration {last:,}, before {iteration:,}"
        done = len(self._runs(group, self._planned))
        return f"{_name(key)}: {done} of {self._planned} runs have reached iteration {iteration:,}"

    def _runs(self, group: GroupFacts, n: int) -> list[RunFacts]:
        """Return those of the first n runs that have ended or, for an early claim, have reached its iteration."""
        upto = self._claim.iteration
        if upto is None:
            return group.first(n)
        first = [run for run in group.runs if run.seed < n]
        known = [(run, run.iteration) for run in first if run.iteration is not None]
        return [run for run, reached in known if reached >= upto or run.status == "diverged"]

    def _analyse(
        self, runs: Mapping[str, Sequence[RunFacts]], number: int, level: float, conditions: Conditions
    ) -> ClaimVerdict:
        priors = {
            cell.id: self._evidence.prior(cell, cell.settings[0], conditions, number) for cell in self._cells.values()
        }
        try:
            found = [(part, self._contrast(part, runs, priors)) for part in parts(self._claim)]
        except _NoValueError as error:
            return self._verdict("undecided", level=level, reason=str(error))
        both = [p_values(self._claim, contrast) for _, contrast in found]
        supported, contradicted = decide_claim(both, level)
        standing: Standing = "supported" if supported else "contradicted" if contradicted else "undecided"
        findings = tuple(
            f"{part.text} = {_format_estimate(contrast, part.measure)}, "
            + (f"{_format_p(p_against)} against it" if standing == "contradicted" else _format_p(p_for))
            for (part, contrast), (p_for, p_against) in zip(found, both, strict=True)
        )
        constants = ", published numbers treated as exact" if self._constants else ""
        basis = f"{len(next(iter(runs.values())))} runs per net, {conditions}{self._in_profile}{constants}"
        reason = "too much noise" if standing == "undecided" else ""
        tests_errors = any(part.measure == "test_error" for part in parts(self._claim))
        uses_table = tests_errors and any(prior.degrees > 0 for prior in priors.values())
        return self._verdict(
            standing, level=level, findings=findings, basis=basis, reason=reason, uses_table=uses_table
        )

    def _contrast(self, part: Part, runs: Mapping[str, Sequence[RunFacts]], priors: Mapping[str, Prior]) -> Contrast:
        own = [cell for cell in (*part.plus, *part.minus) if cell not in self._constants]
        samples = {cell: self._values(cell, part.measure, runs[cell]) for cell in own}
        return part.contrast(samples, self._constants, priors if part.measure == "test_error" else {})

    def _values(self, cell_id: str, measure: Measure, runs: Sequence[RunFacts]) -> list[float]:
        """Return one value per run; by errors and losses, a diverged run counts as random guessing."""
        if measure == "negative_share":
            return self._negative_shares(cell_id, [self._evidence.records[run.run] for run in runs if run.run])
        cell = self._cells[cell_id]
        classes = DATASETS[cell.dataset_in(self._profile)].num_classes
        guessing = math.log(classes) if measure == "train_loss" else 100 * (1 - 1 / classes)
        found = [self._value(cell, measure, run) for run in runs]
        return [value if math.isfinite(value) else guessing for value in found]

    def _negative_shares(self, cell_id: str, records: Sequence[Record]) -> list[float]:
        """Return the share of y_l < 0 in each run's net, or its difference from initialisation."""
        for record in records:
            if record.status == "diverged":
                raise _NoValueError(f"run {record.run} (seed {record.seed} of {cell_id}) diverged")
        initial = [0.0] * len(records)
        if self._claim.kind == "declines":
            initial = self._analysed(cell_id, records, is_trained=False)
        trained = self._analysed(cell_id, records, is_trained=True)
        return [after - before for after, before in zip(trained, initial, strict=True)]

    def _analysed(self, cell_id: str, records: Sequence[Record], *, is_trained: bool) -> list[float]:
        found = [self._responses.negative_share(record, is_trained=is_trained) for record in records]
        shares = [share for share in found if share is not None]
        if len(shares) == len(records):
            return shares
        state, seeds, flags = ("trained", None, ["--trained"]) if is_trained else ("initial", len(records), [])
        nets = Selection(self._evidence.table.id, self._claim.cells, self._evidence.profile_name, seeds)
        missing = f"{len(shares)} of {len(records)} {state} nets are analysed"
        raise _NoValueError(f"{cell_id}: {missing} (`{command('analyze', nets, None, *flags)}`)")

    def _value(self, cell: Cell, measure: Literal["test_error", "train_loss", "train_error"], run: RunFacts) -> float:
        if measure == "test_error":
            return math.inf if run.error is None else run.error
        if run.run is None:
            raise _NoValueError(f"{cell.id}: external results have no history")
        record = self._evidence.records[run.run]
        last = self._evidence.table.recipe_in(self._profile, cell.recipe).iterations
        upto = self._claim.iteration or last
        if record.status == "diverged" and record.iteration < upto:
            return math.inf
        value = self._training_mean(record, measure, upto - max(1, last // WINDOWS), upto)
        if value is None:
            raise _NoValueError(f"run {record.run} has no {_NAMES[measure]} at iteration {upto:,}")
        return value


def _test(claim: Claim, uses_table: bool) -> str:
    unit, noise = _UNITS[claim.measure or "test_error"], ", noise of the table" if uses_table else ""
    match claim.kind:
        case "lower":
            return "Welch's test" + (f", by {claim.by:g}{unit}" if claim.by else "") + noise
        case "close":
            return f"two one-sided Welch tests (TOST), within {claim.within:g}{unit}{noise}"
        case "largest_gain":
            return f"Welch's test on differences of differences{noise}"
        case "higher_loss_lower_error":
            return "two Welch tests" + (", the errors with the noise of the table" if uses_table else "")
        case "early":
            return f"Welch's test at iteration {claim.iteration:,}"
        case "declines":
            return "one-sample t-test on differences from initialisation"
        case _:
            return "whether the median fails"


def _name(key: tuple[str, str]) -> str:
    return f"{key[0]} ({key[1]})" if key[1] else key[0]


def _format_estimate(found: Contrast, measure: Measure) -> str:
    digits = 4 if measure == "train_loss" else 2
    low, high = found.interval(FIRST_ALPHA)
    interval = f"[{low:+.{digits}f}, {high:+.{digits}f}]"
    return f"{found.estimate:+.{digits}f} {interval}{_UNITS[measure]} in {_NAMES[measure]}"


def _format_p(value: float) -> str:
    if value > 0.999:
        return "p>0.999"
    return f"p={value:.3f}" if value >= 0.001 else f"p={value:.1e}" if value >= 1e-9 else "p<1e-9"
