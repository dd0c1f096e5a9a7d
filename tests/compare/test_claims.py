"""Verdicts on claims, against scipy's tests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from paperbench.compare.claims import ClaimVerdict
from paperbench.compare.statistics import compute_contrast
from paperbench.runs.record import Record
from paperbench.specs.table import Table
from tests.compare.judging import (
    COPY,
    Histories,
    a_table,
    compared,
    external,
    interval_text,
    p_text,
    prior_by_definition,
    record,
    records,
    the_claim,
    welch_p,
    welch_text,
    with_claim,
)

TABLE1, TABLE2, TABLE3, TABLE4 = (a_table(f"table{i}") for i in (1, 2, 3, 4))
A, B, C, D = "preact/resnet110", "original/resnet110", "bn_after_addition/resnet110", "relu_only_preact/resnet110"

LOW = [6.31, 6.42, 6.25, 6.51, 6.38]
MIDDLE = [6.40, 6.72, 6.31, 6.55, 6.61]
HIGH = [8.10, 8.43, 7.98, 8.20, 8.29]
WILD = [6.0, 9.5, 6.2, 9.1, 6.1]
LOSS_LOW = [0.021, 0.024, 0.020, 0.022, 0.023]
LOSS_HIGH = [0.031, 0.036, 0.033, 0.030, 0.034]
LOSSES = {(A, "train_loss"): LOSS_LOW, (B, "train_loss"): LOSS_HIGH}

IN_FP32, IN_TF32 = "CIFAR-10, fp32, numerics 1", "CIFAR-10, tf32, numerics 1"
BASIS = f"5 runs per net, {IN_FP32}"
Errors = Mapping[str, Sequence[float | None]]


TF32 = {"precision": "tf32"}


def runs_of(table: Table, errors: Errors, **how: Any) -> list[Record]:
    return [run for cell, found in errors.items() for run in records(table, cell, found, **how)]


def lower(errors: Errors, table: Table = TABLE2, by: float | None = None, **how: Any) -> ClaimVerdict:
    """The claim that the first cell is lower than the others."""
    return the_claim(with_claim(table, "lower", *errors, by=by), *runs_of(table, errors), **how)


def moved(sample: Sequence[float], shift: float) -> list[float]:
    return [x + shift for x in sample]


def moved_to(one: Sequence[float], other: Sequence[float], p_target: float) -> list[float]:
    """The other, moved for Welch's test to give this p-value."""
    low, high = -5.0, 5.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if welch_p(one, moved(other, middle)) > p_target else (low, middle)
    return moved(other, low)


def p_found(standing: str, p_for: float, p_against: float) -> str:
    """The p-value that ends a finding."""
    return f"{p_text(p_against)} against it" if standing == "contradicted" else p_text(p_for)


# Lower


@pytest.mark.parametrize(
    ("one", "other", "by", "standing"),
    [
        (LOW, moved(HIGH, 30), None, "supported"),  # p<1e-9
        (HIGH, LOW, None, "contradicted"),
        (LOW, WILD, None, "undecided"),  # by Student's test on pooled spreads p is another
        (LOW, moved_to(LOW, MIDDLE, 0.049), None, "supported"),
        (LOW, moved_to(LOW, MIDDLE, 0.051), None, "undecided"),
        (LOW, moved_to(LOW, MIDDLE, 0.951), None, "contradicted"),
        (LOW, moved_to(LOW, MIDDLE, 0.949), None, "undecided"),
        (LOW, moved(moved_to(LOW, MIDDLE, 0.049), 0.7), 0.7, "supported"),
        (LOW, moved(moved_to(LOW, MIDDLE, 0.951), 0.7), 0.7, "contradicted"),
    ],
)
def test_lower_is_welchs_test(one: list[float], other: list[float], by: float | None, standing: str) -> None:
    p = welch_p(moved(one, by or 0), other)
    verdict = lower({A: one, B: other}, by=by)
    assert (verdict.standing, verdict.level, verdict.basis) == (standing, 0.05, BASIS)
    assert verdict.test == ("Welch's test" if by is None else f"Welch's test, by {by:g} points")
    # the finding gives the difference itself, not minus the margin
    finding = f"{A} - {B} = {welch_text(one, other)} points in test error, {p_found(standing, p, 1 - p)}"
    assert verdict.findings == (finding,)
    assert verdict.reason == ("too much noise" if standing == "undecided" else "")


@pytest.mark.parametrize(
    ("p_values", "standing"),
    [
        ((0.04, 0.04), "supported"),  # each at the full level
        ((1e-6, 0.5), "undecided"),
        ((0.974, 1e-6), "undecided"),
        ((0.976, 1e-6), "contradicted"),  # one against it at the divided level
    ],
)
def test_lower_must_hold_for_every_other_cell(p_values: tuple[float, float], standing: str) -> None:
    samples = {A: LOW, B: MIDDLE, C: HIGH}
    errors = dict(samples)
    for name, p in zip((B, C), p_values, strict=True):
        estimate, error, degrees = moderated(samples, {A: 1, name: -1})
        errors[name] = moved(samples[name], estimate - float(stats.t.ppf(p, degrees)) * error)
    verdict = lower(errors)
    assert verdict.standing == standing
    for name, p, finding in zip((B, C), p_values, verdict.findings, strict=True):
        assert finding.startswith(f"{A} - {name} = ")
        assert finding.endswith(f", {p_found(standing, p, 1 - p)}")


@pytest.mark.parametrize(
    ("table", "cells", "guessing"),
    [(TABLE2, (A, B), 90.0), (TABLE3, ("cifar100_resnet164/preact", "cifar100_resnet164/original"), 99.0)],
)
def test_diverged_run_counts_as_guessing(table: Table, cells: tuple[str, str], guessing: float) -> None:
    verdict = lower({cells[0]: LOW, cells[1]: [math.inf, 6.5, math.inf, 8.1, 6.6]}, table)
    assert verdict.findings[0].endswith(p_text(welch_p(LOW, [guessing, 6.5, guessing, 8.1, 6.6])))
    assert lower({cells[0]: [math.inf] * 5, cells[1]: [math.inf] * 5}, table).standing == "undecided"


# Number of runs, and the second analysis


TEN_LOW = [*LOW, *LOW]
TEN_AT_FIVE_PERCENT = moved_to(TEN_LOW, [*MIDDLE, *MIDDLE], 0.03)
TEN_CLEAR = [*TEN_AT_FIVE_PERCENT[:5], *HIGH]


@pytest.mark.parametrize(
    ("errors", "seeds", "standing", "reason"),
    [
        ({A: [None] * 5, B: HIGH}, None, "undecided", f"{A}: too few runs: 0 of 5"),
        ({A: LOW, B: HIGH}, 1, "undecided", "too few runs: 1 planned, minimum 2"),
        (
            {A: [*LOW[:4], None, 6.4], B: HIGH},
            None,
            "undecided",
            f"{A}: too few runs: 4 of 5 (seeds 0-4 count; seed 4 is missing)",
        ),
        ({A: LOW, B: [], C: []}, None, "not run", f"no runs of our own: {B}, {C}"),
    ],
)
def test_claim_waits_for_all_planned_runs(errors: Errors, seeds: int | None, standing: str, reason: str) -> None:
    verdict = lower(errors, seeds=seeds)
    assert (verdict.standing, verdict.reason, verdict.findings) == (standing, reason, ())


@pytest.mark.parametrize(
    ("errors", "further"),
    [
        ({A: LOW, B: HIGH}, {A: [9.9] * 5, B: [1.0] * 5}),  # decided at the first analysis
        ({A: MIDDLE, B: moved(MIDDLE, 0.06)}, {A: [5.0] * 5, B: [9.0] * 4}),
        ({A: TEN_LOW, B: TEN_AT_FIVE_PERCENT}, {A: [5.0] * 10, B: [9.0] * 10}),  # beyond the second analysis
    ],
)
def test_runs_outside_the_two_analyses_change_nothing(errors: Errors, further: Errors) -> None:
    assert lower({cell: [*found, *further[cell]] for cell, found in errors.items()}) == lower(errors)


@pytest.mark.parametrize(("other", "standing"), [(TEN_AT_FIVE_PERCENT, "undecided"), (TEN_CLEAR, "supported")])
def test_second_analysis_uses_the_stricter_level(other: list[float], standing: str) -> None:
    assert lower({A: LOW, B: other[:5]}).standing == "undecided"
    p = welch_p(TEN_LOW, other)
    assert p < 0.05
    verdict = lower({A: TEN_LOW, B: other})
    assert (verdict.standing, verdict.level) == (standing, 0.01)
    assert p_text(p) in verdict.findings[0]
    assert verdict.basis.startswith("10 runs per net")


# Close and largest gain. The contrasts themselves are compared with scipy in test_statistics.py.


LOUD = [5.0, 7.9, 6.1, 7.2, 5.6]
ONE_TAIL = moved_to(moved(MIDDLE, 0.02), MIDDLE, 0.04)
"""Of MIDDLE beyond a margin of 0.02: one tail is below the level, both together are above it."""


@pytest.mark.parametrize(
    ("one", "other", "within", "standing"),
    [
        (MIDDLE, moved(LOW, 0.05), 0.5, "supported"),
        (LOUD, moved(LOUD, 0.01), 0.5, "undecided"),  # noise is no closeness
        (MIDDLE, moved(MIDDLE, 1.2), 0.5, "contradicted"),
        (MIDDLE, ONE_TAIL, 0.02, "undecided"),
    ],
)
def test_close_is_two_one_sided_tests(one: list[float], other: list[float], within: float, standing: str) -> None:
    contrast = compute_contrast([one, other], [1, -1])
    ending = p_found(standing, contrast.p_equivalent(within), contrast.p_beyond(within))
    verdict = the_claim(with_claim(TABLE2, "close", A, B, within=within), *runs_of(TABLE2, {A: one, B: other}))
    assert verdict.standing == standing
    assert verdict.findings == (f"{A} - {B} = {welch_text(one, other)} points in test error, {ending}",)
    assert verdict.test == f"two one-sided Welch tests (TOST), within {within:g} points"


NEARLY_LOW = [6.5, 6.4, 6.6, 6.9, 6.2]


@pytest.mark.parametrize(
    ("pair", "other", "errors", "weights", "standing"),
    [
        ((C, A), (B, D), {C: HIGH, A: LOW, B: MIDDLE, D: NEARLY_LOW}, {C: 1, A: -1, B: -1, D: 1}, "supported"),
        ((B, D), (C, A), {B: MIDDLE, D: NEARLY_LOW, C: HIGH, A: LOW}, {B: 1, D: -1, C: -1, A: 1}, "contradicted"),
        ((C, A), (B, A), {C: HIGH, A: NEARLY_LOW, B: MIDDLE}, {C: 1, B: -1}, "supported"),  # what is shared cancels
        ((C, A), (A, B), {C: moved(HIGH, -1.9), A: LOW, B: MIDDLE}, {C: 1, A: -2, B: 1}, "undecided"),  # or twice
    ],
)
def test_largest_gain_is_a_difference_of_differences(
    pair: tuple[str, str], other: tuple[str, str], errors: Errors, weights: dict[str, float], standing: str
) -> None:
    estimate, error, degrees = moderated(errors, weights)
    t, reach = stats.t(degrees), stats.t.isf(0.05, degrees) * error
    text = interval_text(estimate, estimate - reach, estimate + reach)
    ending = p_found(standing, t.sf(estimate / error), t.cdf(estimate / error))
    claim = with_claim(TABLE2, "largest_gain", pairs=(pair, other))
    verdict = the_claim(claim, *runs_of(TABLE2, errors))
    assert verdict.standing == standing
    formula = f"({pair[0]} - {pair[1]}) - ({other[0]} - {other[1]})"
    assert verdict.findings == (f"{formula} = {text} points in test error, {ending}",)
    assert verdict.test == "Welch's test on differences of differences, noise of the table"


def test_largest_gain_must_exceed_every_other() -> None:
    errors = {C: HIGH, A: LOW, B: MIDDLE, D: moved(HIGH, 2)}
    claim = with_claim(TABLE2, "largest_gain", pairs=((C, A), (C, B), (D, A)))
    verdict = the_claim(claim, *runs_of(TABLE2, errors))
    assert (verdict.standing, len(verdict.findings)) == ("contradicted", 2)


# The noise of the table


def moderated(errors: Errors, weights: Mapping[str, float]) -> tuple[float, float, float]:
    """Estimate, standard error and degrees of freedom of a contrast with the prior of each cell.

    The parts of the variance that come from priors are treated as one estimate.
    """
    samples = {cell: [float(x) for x in found if x is not None] for cell, found in errors.items()}
    variances = [float(np.var(x, ddof=1)) for x in samples.values()]
    own_degrees = [len(x) - 1.0 for x in samples.values()]
    shared, shared_std, own_variances, total = 0.0, 0.0, 0.0, 0.0
    for cell, weight in weights.items():
        i, n = list(samples).index(cell), len(samples[cell])
        variance, degrees = prior_by_definition(variances, own_degrees, i)
        assert degrees > 0
        scale = weight**2 / n / (degrees + n - 1)
        shared += scale * degrees * variance
        shared_std += scale * degrees * variance * math.sqrt(2 / degrees)
        own_variances += 2 * (scale * (n - 1) * variances[i]) ** 2 / (n - 1)
        total += scale * (degrees * variance + (n - 1) * variances[i])
    estimate = sum(weight * float(np.mean(samples[cell])) for cell, weight in weights.items())
    return estimate, math.sqrt(total), 2 * total**2 / (shared_std**2 + own_variances)


UNEQUAL = {A: LOW, B: MIDDLE, C: HIGH, D: [6.9, 6.4, 7.1, 6.2, 6.7], "original/resnet164": [5.9, 6.0, 5.8, 6.2, 5.7]}


@pytest.mark.parametrize(
    ("kind", "values", "test"),
    [
        ("lower", {}, "Welch's test, noise of the table"),
        ("lower", {"by": 0.1}, "Welch's test, by 0.1 points, noise of the table"),
        ("close", {"within": 0.4}, "two one-sided Welch tests (TOST), within 0.4 points, noise of the table"),
    ],
)
def test_claims_on_test_errors_use_the_noise_of_the_table(kind: str, values: dict[str, float], test: str) -> None:
    verdict = the_claim(with_claim(TABLE2, kind, A, B, **values), *runs_of(TABLE2, UNEQUAL))
    estimate, error, degrees = moderated(UNEQUAL, {A: 1, B: -1})
    t = stats.t(degrees)
    p = t.cdf((estimate + values.get("by", 0.0)) / error)
    if kind == "close":
        p = t.sf((values["within"] - abs(estimate)) / error)
    reach = float(t.isf(0.05)) * error
    expected = f"= {interval_text(estimate, estimate - reach, estimate + reach)} points in test error, {p_text(p)}"
    assert verdict.findings[0].endswith(expected)
    assert verdict.standing == ("supported" if p <= 0.05 else "undecided")
    assert verdict.test == test


def test_second_analysis_of_a_claim_uses_the_runs_at_hand_of_the_other_cells() -> None:
    errors = {**UNEQUAL, A: [*LOW, *moved(LOW, 0.1)], B: [*MIDDLE, *moved(MIDDLE, -0.2)]}
    table = with_claim(TABLE2, "lower", A, B, by=0.05)
    estimate, error, degrees = moderated(errors, {A: 1, B: -1})
    p = stats.t.cdf((estimate + 0.05) / error, degrees)
    verdict = the_claim(table, *runs_of(TABLE2, errors))
    assert (verdict.level, p_text(p) in verdict.findings[0]) == (0.01, True)


def test_published_number_is_compared_with_the_noise_of_the_table() -> None:
    cells = {OURS: [7.5, 7.4, 7.9, 7.6, 7.55], "resnet110/cifar10": LOW, "preact_resnet1001/cifar10": MIDDLE}
    verdict = the_claim(AGAINST_HIGHWAY, *runs_of(TABLE4, cells))
    estimate, error, degrees = moderated(cells, {OURS: 1})
    assert p_text(stats.t.cdf((estimate - 7.72) / error, degrees)) in verdict.findings[0]
    assert verdict.test == "Welch's test, noise of the table"


@pytest.mark.parametrize("how", [{"measure": "train_loss"}, {"measure": "train_error"}, {"iteration": 8_000}])
def test_claims_on_training_keep_to_their_own_noise(how: dict[str, Any]) -> None:
    measure = how.setdefault("measure", "train_loss")
    kind = "early" if "iteration" in how else "lower"
    means = {(A, measure): LOSS_LOW, (B, measure): moved(LOSS_LOW, 0.001)}
    runs, histories = with_means(UNEQUAL, means)
    verdict = the_claim(with_claim(TABLE2, kind, A, B, **how), *runs, histories=histories)
    assert p_text(welch_p(LOSS_LOW, moved(LOSS_LOW, 0.001))) in verdict.findings[0]
    assert "noise of the table" not in verdict.test


def test_only_the_errors_of_a_two_part_claim_use_the_noise_of_the_table() -> None:
    runs, histories = with_means(UNEQUAL, {(A, "train_loss"): LOSS_HIGH, (B, "train_loss"): LOSS_LOW})
    verdict = the_claim(with_claim(TABLE2, "higher_loss_lower_error", A, B), *runs, histories=histories)
    assert verdict.test == "two Welch tests, the errors with the noise of the table"
    estimate, error, degrees = moderated(UNEQUAL, {A: 1, B: -1})
    assert p_text(welch_p(LOSS_LOW, LOSS_HIGH)) in verdict.findings[0]
    assert p_text(stats.t.cdf(estimate / error, degrees)) in verdict.findings[1]


# Training loss and error


Means = Mapping[tuple[str, str], Sequence[float]]


def with_means(errors: Errors, means: Means, **how: Any) -> tuple[list[Record], Histories]:
    """Runs, and means of a measure over their histories."""
    histories, runs = Histories(), []
    for cell, found in errors.items():
        its = records(TABLE2, cell, found, **how)
        for (named, measure), values in means.items():
            if named == cell:
                histories.put(its[: len(values)], measure, values)
        runs += its
    return runs, histories


@pytest.mark.parametrize(
    ("measure", "low", "high", "digits", "unit"),
    [
        ("train_loss", LOSS_LOW, LOSS_HIGH, 4, " in training loss"),
        ("train_error", LOW, HIGH, 2, " points in training error"),
    ],
)
def test_training_measure_is_the_mean_of_the_last_64th(
    measure: str, low: list[float], high: list[float], digits: int, unit: str
) -> None:
    runs, histories = with_means({A: LOW, B: LOW}, {(A, measure): low, (B, measure): high})
    verdict = the_claim(with_claim(TABLE2, "lower", A, B, measure=measure), *runs, histories=histories)
    assert verdict.standing == "supported"
    assert verdict.findings == (f"{A} - {B} = {welch_text(low, high, digits)}{unit}, {p_text(welch_p(low, high))}",)
    assert set(histories.asked) == {(run.run, measure, 63_000, 64_000) for run in runs}


def test_margin_on_training_loss_has_no_unit() -> None:
    runs, histories = with_means({A: LOW, B: LOW}, LOSSES)
    verdict = the_claim(with_claim(TABLE2, "lower", A, B, measure="train_loss", by=0.02), *runs, histories=histories)
    assert (verdict.standing, verdict.test) == ("contradicted", "Welch's test, by 0.02")


def test_training_losses_with_and_without_label_smoothing_are_not_compared() -> None:
    recipe = TABLE4.recipes["paper", "cifar_torch"]
    smooth = replace(TABLE4, recipes={**TABLE4.recipes, ("paper", "cifar_torch"): replace(recipe, label_smoothing=0.1)})
    cells = ("preact_resnet1001_batch64/cifar10", "preact_resnet1001/cifar10")
    for measure, is_refused in ("train_loss", True), ("train_error", False):
        verdict = the_claim(with_claim(smooth, "lower", *cells, measure=measure))
        assert ("label smoothing" in verdict.reason) is is_refused


def test_window_is_a_64th_of_each_recipes_schedule() -> None:
    cells = ("preact_resnet1001_batch64/cifar10", "preact_resnet1001/cifar10")
    histories, runs = Histories(), []
    for cell, values in zip(cells, (LOSS_LOW, LOSS_HIGH), strict=True):
        runs += histories.put(records(TABLE4, cell, LOW), "train_loss", values)
    verdict = the_claim(with_claim(TABLE4, "lower", *cells, measure="train_loss"), *runs, histories=histories)
    assert verdict.standing == "supported"
    assert {window[2:] for window in histories.asked} == {(156_250 - 2_441, 156_250), (63_000, 64_000)}


def test_run_that_diverged_by_the_window_counts_as_guessing() -> None:
    """The last run of B diverged before the window; the mean of the first is not finite."""
    means = {(A, "train_loss"): LOSS_LOW, (B, "train_loss"): [math.inf, *LOSS_HIGH[1:4]]}
    runs, histories = with_means({A: LOW, B: [*HIGH[:4], math.inf]}, means)
    verdict = the_claim(with_claim(TABLE2, "lower", A, B, measure="train_loss"), *runs, histories=histories)
    guessing = math.log(10)
    assert p_text(welch_p(LOSS_LOW, [guessing, *LOSS_HIGH[1:4], guessing])) in verdict.findings[0]
    assert {run for run, *_ in histories.asked} == {run.run for run in runs[:9]}


@pytest.mark.parametrize(
    ("losses", "errors", "standing"),
    [
        ((LOSS_HIGH, LOSS_LOW), (LOW, HIGH), "supported"),
        ((LOSS_LOW, LOSS_HIGH), (LOW, HIGH), "contradicted"),
        ((LOSS_LOW, LOSS_LOW), (LOW, HIGH), "undecided"),
        ((LOSS_HIGH, LOSS_LOW), (LOW, moved_to(LOW, MIDDLE, 0.97)), "undecided"),  # against it at half the level only
    ],
)
def test_higher_loss_and_lower_error_must_both_hold(losses: Any, errors: Any, standing: str) -> None:
    means = {(A, "train_loss"): losses[0], (B, "train_loss"): losses[1]}
    runs, histories = with_means({A: errors[0], B: errors[1]}, means)
    verdict = the_claim(with_claim(TABLE2, "higher_loss_lower_error", A, B), *runs, histories=histories)
    assert (verdict.standing, verdict.test) == (standing, "two Welch tests")
    for finding, unit, one, other in (
        (verdict.findings[0], " in training loss", losses[1], losses[0]),
        (verdict.findings[1], " points in test error", errors[0], errors[1]),
    ):
        p = welch_p(one, other)
        assert finding.endswith(f"{unit}, {p_found(standing, p, 1 - p)}")


# Early


def early(measure: str = "train_loss") -> Table:
    return with_claim(TABLE2, "early", A, B, measure=measure, iteration=8_000)


@pytest.mark.parametrize(
    ("errors", "reached"),
    [
        ({A: [None] * 5, B: [None] * 5}, 8_000),
        ({A: [None, *LOW[1:]], B: [*HIGH[:4], None]}, 9_000),  # prefixes and ended runs
        ({A: [None] * 5, B: [math.inf] * 5}, 8_000),  # what diverged later counts as it was
    ],
)
def test_early_claim_needs_only_its_iteration(errors: Errors, reached: int) -> None:
    """The window is 1/64 of the whole schedule."""
    runs, histories = with_means(errors, LOSSES, iteration=reached)
    verdict = the_claim(early(), *runs, histories=histories)
    assert (verdict.standing, verdict.test) == ("supported", "Welch's test at iteration 8,000")
    assert p_text(welch_p(LOSS_LOW, LOSS_HIGH)) in verdict.findings[0]
    assert sorted(histories.asked) == sorted((r.run, "train_loss", 7_000, 8_000) for r in runs)


@pytest.mark.parametrize(
    ("of_b", "reached"),
    [
        ([(0, 8_000), (1, 8_000), (2, 7_999), (3, 8_000), (4, 8_000)], 4),
        ([(0, 8_000), (1, 8_000), (2, 8_000), (3, 8_000), (5, 8_000)], 4),
    ],
)
def test_prefixes_that_are_too_short_are_waited_for(of_b: list[tuple[int, int]], reached: int) -> None:
    runs, histories = with_means({A: [None] * 5}, LOSSES, iteration=8_000)
    runs += [record(TABLE2, B, None, seed=seed, iteration=iteration) for seed, iteration in of_b]
    verdict = the_claim(early(), *runs, histories=histories)
    assert verdict.standing == "undecided"
    assert verdict.reason == f"{B}: {reached} of 5 runs have reached iteration 8,000"
    assert histories.asked == []


def test_run_that_diverged_before_an_early_iteration_counts_as_guessing() -> None:
    runs, histories = with_means({A: [None] * 5}, {(A, "train_error"): LOW}, iteration=8_000)
    gone = [record(TABLE2, B, math.inf, seed=seed, iteration=1_000) for seed in range(5)]
    verdict = the_claim(early(measure="train_error"), *runs, *gone, histories=histories)
    assert verdict.standing == "supported"
    assert f"= {np.mean(LOW) - 90:+.2f} [" in verdict.findings[0]
    assert {run for run, *_ in histories.asked} == {run.run for run in runs}


@pytest.mark.parametrize("has_histories", [True, False])
def test_history_without_the_iteration_leaves_a_claim_undecided(has_histories: bool) -> None:
    runs, histories = with_means({A: LOW, B: HIGH}, {(A, "train_loss"): LOSS_LOW})
    verdict = the_claim(early(), *runs, histories=histories if has_histories else None)
    lacking = runs[5 if has_histories else 0].run
    assert verdict.standing == "undecided"
    assert verdict.reason == f"run {lacking} has no training loss at iteration 8,000"


def test_iteration_beyond_the_end_of_a_profile() -> None:
    runs = runs_of(TABLE2, {A: LOW, B: HIGH}, profile="smoke")
    verdict = the_claim(early(), *runs, profile="smoke", seeds=5)
    assert verdict.standing == "undecided"
    assert verdict.reason == "runs of this profile end at iteration 80, before 8,000"


# Failing


PLAIN, UNSCALED = "plain/resnet110", "constant_scaling_unscaled/resnet110"
SWEEP, LABELS = "exclusive_gating_0_to_5/resnet110", [f"gate_bias={bias}" for bias in (0, -1, -2, -3, -4, -5)]
BAD, GOOD = [90.0] * 5, [12.0] * 5
OPPOSITE = {"supported": "contradicted", "contradicted": "supported", "undecided": "undecided"}


@pytest.mark.parametrize(
    ("errors", "seeds", "diverges", "finding", "reason"),
    [
        (BAD, 5, "supported", "5 of 5 failed", ""),
        ([30.0, 12.0, 30.0], 5, "undecided", "2 of 3 failed", "too few runs: 3 of 5"),
        ([None], 5, "undecided", "0 of 0 failed", "too few runs: 0 of 5, minimum 3"),
        ([30.0, 12.0, 30.0, 30.0], 2, "supported", "3 of 4 failed", ""),  # at the second analysis
    ],
)
@pytest.mark.parametrize("kind", ["diverges", "converges"])
def test_net_diverges_if_its_median_fails(
    kind: str, errors: list[float | None], seeds: int, diverges: str, finding: str, reason: str
) -> None:
    verdict = the_claim(with_claim(TABLE1, kind, PLAIN), *records(TABLE1, PLAIN, errors), seeds=seeds)
    assert verdict.standing == (diverges if kind == "diverges" else OPPOSITE[diverges])
    assert (verdict.findings, verdict.test) == ((f"{PLAIN}: {finding}",), "whether the median fails")
    assert verdict.reason == (f"{PLAIN}: {reason}" if reason else "")


@pytest.mark.parametrize(
    ("plain", "unscaled", "diverge", "converge"),
    [
        (BAD, GOOD, "contradicted", "contradicted"),
        (BAD[:2], GOOD, "contradicted", "undecided"),  # one sure counterexample is enough, whatever is missing
        ([], BAD, "undecided", "contradicted"),
        ([], [], "not run", "not run"),
    ],
)
def test_several_nets_must_all_fail(plain: list[float], unscaled: list[float], diverge: str, converge: str) -> None:
    runs = runs_of(TABLE1, {PLAIN: plain, UNSCALED: unscaled})
    for kind, standing in (("diverges", diverge), ("converges", converge)):
        verdict = the_claim(with_claim(TABLE1, kind, PLAIN, UNSCALED), *runs)
        assert verdict.standing == standing
        assert len(verdict.findings) == bool(plain) + bool(unscaled)
        if standing == "undecided" and not plain:
            assert verdict.reason == f"no runs of our own: {PLAIN}"


def test_every_setting_of_a_sweep_must_diverge() -> None:
    claim = with_claim(TABLE1, "diverges", SWEEP)
    runs = [run for label in LABELS for run in records(TABLE1, SWEEP, BAD, setting=label)]
    verdict = the_claim(claim, *runs)
    assert verdict.standing == "supported"
    assert verdict.findings == tuple(f"{SWEEP} ({label}): 5 of 5 failed" for label in LABELS)
    lacking = the_claim(claim, *runs[:10], *runs[15:])
    assert (lacking.standing, lacking.reason) == ("undecided", f"no runs of our own: {SWEEP} (gate_bias=-2)")


@pytest.mark.parametrize(
    ("runs", "standing", "basis"),
    [
        ([(PLAIN, BAD, {}), (UNSCALED, BAD, TF32)], "supported", f"{IN_FP32}; {IN_TF32}"),
        ([(PLAIN, BAD[:1], {}), (PLAIN, GOOD, TF32)], "contradicted", IN_TF32),
    ],
)
def test_each_net_fails_by_its_group_closest_to_the_paper(runs: Any, standing: str, basis: str) -> None:
    found = [run for cell, errors, how in runs for run in records(TABLE1, cell, errors, **how)]
    verdict = the_claim(with_claim(TABLE1, "diverges", PLAIN, UNSCALED), *found)
    assert (verdict.standing, verdict.basis) == (standing, basis)


def test_outside_cifar10_only_diverged_nets_fail() -> None:
    claim = with_claim(TABLE1, "diverges", PLAIN)

    def verdict(errors: list[float]) -> ClaimVerdict:
        return the_claim(claim, *records(TABLE1, PLAIN, errors, profile="smoke"), profile="smoke", seeds=5)

    found = verdict([90.0] * 5)
    assert (found.standing, found.findings) == ("undecided", (f"{PLAIN}: 0 of 5 failed",))
    assert found.reason == "the paper does not define failing on scikit-learn's handwritten digits at 32x32"
    diverged = verdict([math.inf, 25.0, math.inf, math.inf])
    assert diverged.standing == "supported"
    assert diverged.basis.endswith(", profile smoke")


# Literature


HIGHWAY, OURS = "highway/cifar10", "preact_resnet164/cifar10"
AGAINST_HIGHWAY = with_claim(TABLE4, "lower", OURS, HIGHWAY)
BETTER = [5.0, 5.1, 5.2, 5.1, 5.0]


@pytest.mark.parametrize(("shift", "standing"), [(0.0, "undecided"), (-1.0, "supported")])
def test_published_number_is_treated_as_exact(shift: float, standing: str) -> None:
    errors = moved([7.5, 7.4, 7.9, 7.6, 7.55], shift)
    verdict = the_claim(AGAINST_HIGHWAY, *records(TABLE4, OURS, errors))
    p = float(stats.ttest_1samp(errors, 7.72, alternative="less").pvalue)
    low, high = stats.ttest_1samp(errors, 7.72).confidence_interval(0.9)
    text = interval_text(float(np.mean(errors)) - 7.72, low - 7.72, high - 7.72)
    assert verdict.findings == (f"{OURS} - {HIGHWAY} = {text} points in test error, {p_text(p)}",)
    assert verdict.standing == standing
    assert verdict.basis == f"{BASIS}, published numbers treated as exact"


def test_published_number_needs_runs_on_original_pixels() -> None:
    copies = records(TABLE4, OURS, BETTER, data=COPY)
    verdict = the_claim(AGAINST_HIGHWAY, *copies)
    assert verdict.standing == "not run"
    assert verdict.reason == "published numbers need runs on the original pixels"
    verdict = the_claim(AGAINST_HIGHWAY, *copies, *records(TABLE4, OURS, BETTER[:2]))
    assert (verdict.standing, verdict.reason) == ("undecided", f"{OURS}: too few runs: 2 of 5")
    faster = records(TABLE4, OURS, BETTER, precision="bf16")
    assert the_claim(AGAINST_HIGHWAY, *copies, *faster).standing == "supported"


def test_published_number_is_not_compared_in_a_reduced_profile() -> None:
    runs = records(TABLE4, OURS, BETTER, profile="shallow")
    verdict = the_claim(AGAINST_HIGHWAY, *runs, profile="shallow", seeds=5)
    assert (verdict.standing, verdict.findings) == ("undecided", ())
    assert verdict.reason == "published numbers are not comparable with profile shallow"


# One training under two names


DEEP, LESS = "cifar10_resnet1001/preact", "cifar10_resnet164/preact"


def test_cells_with_the_same_training_are_not_compared() -> None:
    claim = with_claim(TABLE3, "close", DEEP, "cifar10_resnet110/original", LESS, within=0.5)
    for runs in ([], records(TABLE3, DEEP, LOW, profile="shallow")):
        verdict = the_claim(claim, *runs, profile="shallow")
        assert verdict.standing == "undecided"
        assert verdict.reason == f"in profile shallow, {DEEP} and {LESS} train the same"
    assert the_claim(claim).standing == "not run"


def test_cells_with_the_same_training_can_fail_together() -> None:
    claim = with_claim(TABLE3, "diverges", DEEP, LESS)
    verdict = the_claim(claim, *records(TABLE3, DEEP, [math.inf] * 3, profile="smoke"), profile="smoke", seeds=3)
    assert (verdict.standing, len(verdict.findings)) == ("supported", 2)


@pytest.mark.parametrize("profile", ["paper", "smoke"])
def test_recipe_and_data_distinguish_trainings(profile: str) -> None:
    without = "cifar10_resnet164_no_warm_up/preact"
    runs = runs_of(TABLE3, {LESS: LOW, without: HIGH}, profile=profile)
    verdict = the_claim(with_claim(TABLE3, "lower", LESS, without), *runs, profile=profile, seeds=5)
    assert verdict.standing == "supported"
    verdict = the_claim(with_claim(TABLE3, "lower", LESS, "cifar100_resnet164/preact"), profile=profile)
    assert (verdict.standing == "not run") == (profile != "smoke")  # both are on digits there


# Which runs


A_BELOW_B = with_claim(TABLE2, "lower", A, B)


def test_runs_of_different_conditions_are_not_compared() -> None:
    verdict = the_claim(A_BELOW_B, *records(TABLE2, A, LOW), *records(TABLE2, B, HIGH, numerics=2))
    assert verdict.standing == "not run"
    assert verdict.reason == "its cells share no data, precision and numerics"


RIGHT: Errors = {A: LOW, B: HIGH}
WRONG: Errors = {A: HIGH, B: LOW}
COPIES, BF16_COPIES = {"data": COPY}, {"data": COPY, "precision": "bf16", "numerics": 3}


@pytest.mark.parametrize(
    ("runs", "standing", "basis"),
    [
        ([(RIGHT, BF16_COPIES)], "supported", f"{COPY.name}, bf16, numerics 3"),
        # the nearest that all cells have in common
        ([({A: LOW}, {}), (RIGHT, BF16_COPIES), (WRONG, TF32)], "contradicted", "CIFAR-10, tf32, numerics 1"),
        # complete ones before nearer ones that lack runs
        ([({A: HIGH, B: LOW[:4]}, {}), (RIGHT, COPIES)], "supported", f"{COPY.name}, fp32, numerics 1"),
    ],
)
def test_claim_uses_the_closest_complete_conditions(
    runs: list[tuple[Errors, dict[str, Any]]], standing: str, basis: str
) -> None:
    found = [run for errors, how in runs for run in runs_of(TABLE2, errors, **how)]
    verdict = the_claim(A_BELOW_B, *found, profile=found[0].spec.profile, seeds=5)
    assert (verdict.standing, verdict.basis) == (standing, f"5 runs per net, {basis}")


def test_reason_names_what_the_closest_incomplete_conditions_lack() -> None:
    runs = [*runs_of(TABLE2, {A: LOW, B: HIGH[:4]}, data=COPY), *runs_of(TABLE2, {A: LOW[:1], B: LOW[:2]})]
    assert the_claim(A_BELOW_B, *runs).reason == f"{A}: too few runs: 1 of 5"


def test_claims_ignore_external_results() -> None:
    entered = [external(TABLE2, cell, e, seed=i) for cell, es in ((A, LOW), (B, HIGH)) for i, e in enumerate(es)]
    for of_a, lacking in (([], f"{A}, {B}"), (LOW, B)):
        verdict = the_claim(A_BELOW_B, *records(TABLE2, A, of_a), externals=entered)
        assert (verdict.standing, verdict.reason) == ("not run", f"no runs of our own: {lacking}")
    both = the_claim(A_BELOW_B, *runs_of(TABLE2, {A: HIGH, B: LOW}), externals=entered)
    assert both.standing == "contradicted"


@pytest.mark.parametrize(("pattern", "claims"), [("preact_resnet164", 1), ("preact_resnet1001/*", 0)])
def test_claim_needs_only_its_own_cells_selected(pattern: str, claims: int) -> None:
    comparison = compared(AGAINST_HIGHWAY, cells=pattern)
    assert (len(comparison.claims), comparison.claims_left_out) == (claims, 1 - claims)


def test_published_results_of_table2_support_all_claims() -> None:
    """Runs that scatter by 0.05 around the printed medians, and losses as in Fig. 6."""
    histories, runs = Histories(), []
    for cell in TABLE2.cells():
        errors = [cell.number + d for d in (-0.06, 0.03, 0.0, -0.02, 0.05)]  # type: ignore[operator]
        found = records(TABLE2, cell.id, errors)
        start = {"preact": 0.5, "original": 0.6}.get(cell.row.id, 0.9)
        runs += histories.put(found, "train_loss", [start + d for d in (-0.01, 0.02, 0.0, 0.01, -0.02)])
    comparison = compared(TABLE2, *runs, training_mean=histories)
    assert [(v.claim.id, v.standing) for v in comparison.claims] == [
        (claim.id, "supported") for claim in TABLE2.expected.claims
    ]
    assert {c.verdict for c in comparison.cells} == {"reproduced"}
