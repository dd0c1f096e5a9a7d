"""Helpers of the comparison tests: records of runs, and independently computed expectations."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from scipy import optimize, special, stats

from paperbench.compare.claims import ClaimVerdict
from paperbench.compare.comparison import Comparison, compare
from paperbench.compare.statistics import hodges_lehmann_variance, median_variance
from paperbench.compare.verdicts import CellFacts
from paperbench.runs.external import ExternalResult
from paperbench.runs.planning import run_spec
from paperbench.runs.record import DataFacts, Measured, Record, Result
from paperbench.specs.cell import Cell
from paperbench.specs.claim import Claim
from paperbench.specs.experiment import Setting
from paperbench.specs.recipe import Evaluation
from paperbench.specs.run_spec import RunSpec
from paperbench.specs.table import Table, read_table
from tests.helpers import ROOT, a_record, a_session

ORIGINAL = DataFacts("CIFAR-10", "the original files, md5 as published", True, "f" * 64)
COMPLETE = DataFacts("CIFAR-10", "class folders", False, "e" * 64, unverified=True)
COPY = DataFacts("CIFAR-10 (some copy)", "re-encoded", False, "c" * 64)

FIRST, SECOND = 0.05, 0.01
"""The levels of both analyses."""

Errors = Mapping[str, Sequence[float | None]]
"""Errors of runs with seeds from 0, by the cell's id."""


@functools.cache
def a_table(name: str) -> Table:
    """A shipped table, read once."""
    return read_table(name, ROOT)


def setting_of(cell: Cell, label: str | None) -> Setting:
    return next(s for s in cell.settings if label is None or s.label == label)


def record(
    table: Table,
    cell: str,
    error: float | None,
    *,
    seed: int = 0,
    setting: str | None = None,
    profile: str = "paper",
    precision: Any = "fp32",
    data: DataFacts = ORIGINAL,
    numerics: int = 1,
    iteration: int | None = None,
    recipe: dict[str, Any] | None = None,
    net: dict[str, Any] | None = None,
    **changes: Any,
) -> Record:
    """Return the record of a run of a cell.

    Args:
        error: Infinite for a diverged run, None for an unfinished one.
        iteration: Last iteration of a run that did not finish.
        recipe, net: Changes to the spec.
        changes: Changes to the record.
    """
    spec, name = _spec_of(table.id, cell, setting, profile, precision, data.fingerprint)
    changed = {key: value for key, value in {**spec.recipe, **(recipe or {})}.items() if value is not None}
    spec = replace(spec, recipe=changed, net={**spec.net, **(net or {})})
    status = "partial" if error is None else "diverged" if math.isinf(error) else "finished"
    last = spec.recipe["iterations"]
    iteration = last if status == "finished" else iteration or min(1_000, last // 2)
    values: dict[str, Any] = {
        "spec": spec,
        "seed": seed,
        "net": name,
        "status": status,
        "iteration": iteration,
        "result": result(error) if error is not None and status == "finished" else None,
        "data": data,
        "sessions": (a_session(5, numerics=numerics), a_session(iteration, numerics=numerics)),
    }
    its_cell, its_profile = table.cell(cell), table.profiles.named(profile)
    if evaluations := table.recipe_in(its_profile, its_cell.recipe).evaluations:
        values["evaluations"] = tuple(evaluations.values())
    if evaluations and values["result"]:
        its_errors = (error, error / 4) if its_cell.column.metric == "top1" else (min(100.0, 4 * error), error)
        errors = dict.fromkeys(evaluations.values(), (its_errors[0] + 3, its_errors[1] + 1))
        values["result"] = photo_result({**errors, evaluations[its_cell.row.evaluation]: its_errors})
    return a_record(**{**values, **changes})


@functools.cache
def _spec_of(
    table_id: str, cell_id: str, label: str | None, profile_name: str, precision: Any, fingerprint: str
) -> tuple[RunSpec, str]:
    """Return the spec of a cell's runs, and the net's timm name."""
    table = a_table(table_id)
    profile, cell = table.profiles.named(profile_name), table.cell(cell_id)
    recipe, setting = table.recipe_in(profile, cell.recipe), setting_of(cell, label)
    spec = run_spec(cell.net_in(profile, setting), recipe, fingerprint, profile_name, precision)
    return spec, str(cell.reference_in(profile, setting))


def result(error: float) -> Result:
    """The errors differ, so that confusing them fails a test."""
    return Result(error, 0.3, min(100.0, error + 1), 0.4, max(0.0, error - 2))


def photo_result(errors: Mapping[Evaluation, tuple[float, float]]) -> Result:
    """Return the result of a run on photographs with these top-1 and top-5 errors."""
    measured = tuple(Measured(how, *one, 0.3 + number) for number, (how, one) in enumerate(errors.items()))
    return replace(result(measured[0].top1), test_loss=measured[0].loss, evaluations=measured)


def records(table: Table, cell: str, errors: Iterable[float | None], **how: Any) -> list[Record]:
    """Return runs with seeds from 0."""
    return [record(table, cell, error, seed=seed, **how) for seed, error in enumerate(errors)]


def runs_of(table: Table, errors: Errors, **how: Any) -> list[Record]:
    """Return runs of several cells."""
    return [run for cell, found in errors.items() for run in records(table, cell, found, **how)]


def external(
    table: Table, cell: str, error: float | None, *, seed: int = 0, source: str = "a paper", setting: str | None = None
) -> ExternalResult:
    """Return an external result; it diverged if `error` is None."""
    its_cell = table.cell(cell)
    its_setting = setting_of(its_cell, setting)
    digest = table.experiment_digest(its_cell, its_setting)
    return ExternalResult(1, "external", table.id, cell, its_setting.label, digest, seed, error, source)


def compared(
    table: Table, *runs: Record, profile: str = "paper", cells: str = "*", on_request: bool = False, **how: Any
) -> Comparison:
    """Compare the cells that match a pattern."""
    return compare(table, table.cells(cells, on_request=on_request), profile, runs, **how)


def compare_cell(table: Table, cell: str, *runs: Record, **how: Any) -> CellFacts:
    """Compare one cell."""
    (found,) = compared(table, *runs, cells=cell, **how).cells
    return found


def compare_errors(
    table: Table, cell: str, errors: Iterable[float | None], *, seeds: int | None = None, **how: Any
) -> CellFacts:
    """Compare one cell, given the errors of runs with seeds from 0."""
    profile = how.get("profile", "paper")
    return compare_cell(table, cell, *records(table, cell, errors, **how), profile=profile, seeds=seeds)


def in_cell(comparison: Comparison, cell: str) -> CellFacts:
    return next(c for c in comparison.cells if c.id == cell)


def with_expected(table: Table, cell: str, **changes: Any) -> Table:
    """The table with something else published in a cell."""
    cells = tuple(replace(c, expected=replace(c.expected, **changes)) if c.id == cell else c for c in table.all_cells)
    return replace(table, all_cells=cells)


# Claims


@dataclass
class Histories:
    """Fake histories: a mean per run and measure. Records what is asked for."""

    means: dict[tuple[str, str], float] = field(default_factory=dict)
    asked: list[tuple[str, str, int, int]] = field(default_factory=list)

    def put(self, runs: Sequence[Record], measure: str, values: Sequence[float]) -> Sequence[Record]:
        for run, value in zip(runs, values, strict=True):
            self.means[run.run, measure] = value
        return runs

    def __call__(self, run: Record, measure: str, after: int, upto: int) -> float | None:
        self.asked.append((run.run, measure, after, upto))
        return self.means.get((run.run, measure))


def with_claim(table: Table, kind: Any, *cells: str, **values: Any) -> Table:
    """The table with this claim and no other."""
    if kind in ("lower", "close", "largest_gain"):
        values.setdefault("measure", "test_error")
    claim = Claim("a_claim", "Something", "Sec. 1", kind, cells=cells, **values)
    return replace(table, expected=replace(table.expected, claims=(claim,)))


def the_claim(
    table: Table, *runs: Record, histories: Callable[..., float | None] | None = None, **how: Any
) -> ClaimVerdict:
    """Return the verdict on the only claim of a table."""
    (verdict,) = compared(table, *runs, on_request=True, training_mean=histories, **how).claims
    return verdict


def check_finding(finding: str, estimate: float, reach: float, p: float) -> None:
    """Compare the numbers of a finding: the estimate, its 90 % interval and the p-value."""
    shown = re.findall(r"[-+]\d+\.(\d+)", finding.rpartition(" = ")[2])
    numbers = [float(text) for text in re.findall(r"[-+]\d+\.\d+", finding.rpartition(" = ")[2])]
    tolerance = 0.51 * 10.0 ** -len(shown[0])
    assert numbers == pytest.approx([estimate, estimate - reach, estimate + reach], abs=tolerance), finding
    (found,) = re.findall(r"p[=<>]([\d.e-]+)", finding)
    assert float(found) == pytest.approx(p, rel=0.06, abs=1.1e-3 if p > 0.001 else 1e-9), finding


def welch(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float]:
    """The difference of the means, half its 90 % interval, and the p-value that a is lower."""
    test = stats.ttest_ind(a, b, equal_var=False, alternative="less")
    low, high = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.9)
    return float(np.mean(a) - np.mean(b)), float(high - low) / 2, float(test.pvalue)


# Numbers


@dataclass(frozen=True)
class Expectation:
    """The expected verdict on a cell, with the interval that it rests on."""

    verdict: str
    level: float
    difference: float
    low: float
    high: float
    p_value: float

    def check(self, cell: CellFacts) -> None:
        assert cell.interval
        found = (cell.interval.difference, cell.interval.low, cell.interval.high, cell.p_value)
        numbers = (self.difference, self.low, self.high, self.p_value)
        assert found == pytest.approx(numbers, rel=1e-6, abs=1e-8)
        assert (cell.verdict, cell.interval.level) == (self.verdict, self.level)
        is_shifted = self.verdict == "reproduced" and (self.low > 0 or self.high < 0)
        assert cell.shift == (cell.interval.difference if is_shifted else None)


def expectation(
    errors: Sequence[float],
    published: float,
    *,
    std: float | None = None,
    published_runs: int = 5,
    level: float = FIRST,
    tolerance: float = 0.5,
    resolution: float = 0.01,
    prior: tuple[float, float] = (0.0, 0.0),
) -> Expectation:
    """Two one-sided t-tests on the difference of medians, as paperbench.compare.statistics documents them.

    Args:
        prior: Variance and degrees of freedom from the other cells of the table.
    """
    n = len(errors)
    own, (prior_variance, prior_degrees) = variance_by_definition(errors, resolution), prior
    t: Any
    estimate, of_ours, of_theirs = float(np.median(errors)), median_variance(n), median_variance(published_runs)
    if prior_degrees:
        degrees = n - 1 + prior_degrees
        variance = (own * (n - 1) + prior_variance * prior_degrees) / degrees
        estimate, of_ours = walsh_median(errors), hodges_lehmann_variance(n)
        t = stats.t(degrees)
        if std is not None and std > math.sqrt(variance):
            parts = of_ours * variance, of_theirs * std**2
            t = stats.t(sum(parts) ** 2 / (parts[0] ** 2 / degrees + parts[1] ** 2 / (published_runs - 1)))
            of_theirs *= std**2 / variance
    elif n == 1:
        assert std is not None
        variance, t = (1.55 * std) ** 2, stats.norm
    elif std is None:
        variance, t = own, stats.t(n - 1)
    else:
        variance, t = ((n - 1) * own + 2 * (1.4 * std) ** 2) / (n + 1), stats.t(n + 1)
    difference = round(estimate - published, 9)
    error = math.sqrt(variance * (of_ours + of_theirs))
    low, high = difference - float(t.isf(level)) * error, difference + float(t.isf(level)) * error
    beyond = float(t.sf((abs(difference) - tolerance) / error) + t.sf((abs(difference) + tolerance) / error))
    is_within = -tolerance <= low and high <= tolerance
    is_beyond = "worse" if low > tolerance else "better" if high < -tolerance else "underpowered"
    verdict = "reproduced" if is_within else is_beyond
    return Expectation(verdict, level, difference, low, high, min(1.0, beyond * FIRST / level))


def variance_by_definition(errors: Sequence[float], resolution: float = 0.01) -> float:
    return max(float(np.var(errors, ddof=1)) if len(errors) > 1 else 0.0, resolution**2 / 12)


def walsh_median(errors: Sequence[float]) -> float:
    """The Hodges-Lehmann estimate by its definition."""
    return float(np.median([(x + y) / 2 for i, x in enumerate(errors) for y in errors[: i + 1]]))


def prior_by_definition(variances: Sequence[float], degrees: Sequence[float], own: int) -> tuple[float, float]:
    """The prior of one cell, in plain Python from the definition in paperbench.compare.noise.

    Returns:
        Variance and degrees of freedom; both are 0 for a cell that takes nothing.
    """
    limit = 16 * sorted(variances)[(len(variances) - 1) // 2]
    others = [i for i, variance in enumerate(variances) if i != own and variance <= limit]
    total = sum(degrees[i] for i in others)
    if len(others) < 2 or variances[own] > 6.25 * sum(degrees[i] * variances[i] for i in others) / total:
        return 0.0, 0.0
    logs = [math.log(variances[i]) - special.digamma(degrees[i] / 2) + math.log(degrees[i] / 2) for i in others]
    counted = (total - total / len(others)) / 2
    if len(others) > 2:
        chance = sum(special.polygamma(1, degrees[i] / 2) for i in others) / len(others)
        excess = float(np.var(logs, ddof=1)) - float(chance)
        if excess > 0:
            half = optimize.brentq(lambda h: math.log(special.polygamma(1, h) / excess), 1e-6, 1e12, xtol=1e-14)
            counted = min(counted, 2 * half)
    return sum(degrees[i] * variances[i] for i in others) / total, counted


def table_prior(
    errors: Mapping[str, Sequence[float]], cell: str, n: int = 5, planned: int = 5, resolution: float = 0.01
) -> tuple[float, float]:
    """The prior of a cell at the analysis of n runs, by definition, from the errors on CIFAR-10 of all cells."""
    counted = {one: its[:n] if len(its) >= n else its[:planned] for one, its in errors.items()}
    whole = {one: its for one, its in counted.items() if len(its) >= max(3, planned) and max(its) <= 20}
    if cell not in whole:
        return 0.0, 0.0
    variances = [variance_by_definition(its, resolution) for its in whole.values()]
    return prior_by_definition(variances, [len(its) - 1.0 for its in whole.values()], list(whole).index(cell))


def contrast_by_definition(
    samples: Mapping[str, Sequence[float]],
    weights: Mapping[str, float],
    priors: Mapping[str, tuple[float, float]] | None = None,
) -> tuple[float, float, float]:
    """Estimate, standard error and degrees of freedom of a weighted sum of means: Welch's test, or moderated.

    The parts of the variance that come from priors rest on the same cells, so their errors add up.
    """
    estimate, total, shared_std, squares = 0.0, 0.0, 0.0, 0.0
    for cell, weight in weights.items():
        sample, (variance, degrees) = samples[cell], (priors or {}).get(cell, (0.0, 0.0))
        n = len(sample)
        scale = weight**2 / n / (degrees + n - 1)
        of_sample, of_prior = scale * (n - 1) * float(np.var(sample, ddof=1)), scale * degrees * variance
        estimate += weight * float(np.mean(sample))
        total += of_sample + of_prior
        shared_std += of_prior * math.sqrt(2 / degrees) if degrees else 0.0  # of the variance's estimate
        squares += 2 * of_sample**2 / (n - 1)
    return estimate, math.sqrt(total), 2 * total**2 / (shared_std**2 + squares)
