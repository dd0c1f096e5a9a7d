"""The paper's claims, judged among our own runs: against scipy's tests, and Satterthwaite's formula written out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from paperbench.compare.claims import ClaimVerdict
from paperbench.compare.comparison import compare
from paperbench.runs.record import Record
from paperbench.specs.table import Table
from tests.compare.judging import (
    COPY,
    Histories,
    a_table,
    compared,
    external,
    interval_text,
    mixed,
    p_text,
    record,
    records,
    the_claim,
    welch_p,
    welch_text,
    with_claim,
)

TABLE1, TABLE2, TABLE3 = a_table("table1"), a_table("table2"), a_table("table3")
A, B, C = "preact/resnet110", "original/resnet110", "bn_after_addition/resnet110"

LOW = [6.31, 6.42, 6.25, 6.51, 6.38]
MIDDLE = [6.40, 6.72, 6.31, 6.55, 6.61]
HIGH = [8.10, 8.43, 7.98, 8.20, 8.29]


def runs_of(table: Table, errors: dict[str, Sequence[float | None]], **how: Any) -> list[Record]:
    return [run for cell, found in errors.items() for run in records(table, cell, found, **how)]


def lower(errors: dict[str, Sequence[float | None]], table: Table = TABLE2, **how: Any) -> ClaimVerdict:
    """The claim that the first cell is lower than the others."""
    return the_claim(with_claim(table, "lower", *errors), *runs_of(table, errors), **how)


# Lower


def test_lower_is_supported_by_welchs_test() -> None:
    verdict = lower({A: LOW, B: HIGH})
    assert verdict.standing == "supported"
    p = welch_p(LOW, HIGH)
    assert verdict.findings == (f"{A} - {B} = {welch_text(LOW, HIGH)} points in test error, {p_text(p)}",)
    assert verdict.test == "Welch's test"
    assert verdict.level == 0.05
    assert verdict.basis == "5 runs per net, CIFAR-10, fp32, numerics 1"
    assert verdict.reason == ""


def test_lower_is_contradicted_by_the_opposite() -> None:
    verdict = lower({A: HIGH, B: LOW})
    assert verdict.standing == "contradicted"
    text, p = welch_text(HIGH, LOW), welch_p(LOW, HIGH)
    assert verdict.findings == (f"{A} - {B} = {text} points in test error, {p_text(p)} against it",)


def test_p_values_are_told_where_they_say_something() -> None:
    assert lower({A: LOW, B: [x + 30 for x in HIGH]}).findings[0].endswith("points in test error, p<1e-9")
    first, second = lower({A: LOW, B: HIGH, C: [x - 3 for x in LOW]}).findings
    assert first.endswith("points in test error, p>0.999 against it")
    assert second.endswith(f"points in test error, {p_text(1 - welch_p(LOW, [x - 3 for x in LOW]))} against it")


@pytest.mark.parametrize(("one", "other"), [(LOW, MIDDLE[::-1]), (MIDDLE, [x + 0.06 for x in MIDDLE])])
def test_lower_is_undecided_within_the_noise(one: list[float], other: list[float]) -> None:
    for first, second in ((one, other), (other, one)):
        p = welch_p(first, second)
        verdict = lower({A: first, B: second})
        expected = "supported" if p <= 0.05 else "contradicted" if 1 - p <= 0.05 else "undecided"
        assert verdict.standing == expected
        told = f"{p_text(1 - p)} against it" if expected == "contradicted" else p_text(p)
        assert verdict.findings[0].endswith(f", {told}")
    assert verdict.reason == ("" if expected != "undecided" else "the difference is not clear of the noise")


def test_the_test_is_on_means_with_unequal_spreads() -> None:
    wild = [6.0, 9.5, 6.2, 9.1, 6.1]
    assert welch_p(LOW, wild) != pytest.approx(float(stats.ttest_ind(LOW, wild, alternative="less").pvalue), abs=0.001)
    assert p_text(welch_p(LOW, wild)) in lower({A: LOW, B: wild}).findings[0]


@pytest.mark.parametrize(("p_target", "standing"), [(0.049, "supported"), (0.051, "undecided")])
def test_the_level_is_five_percent_on_one_side(p_target: float, standing: str) -> None:
    gap = shift_for(LOW, MIDDLE, p_target)
    verdict = lower({A: LOW, B: [x + gap for x in MIDDLE]})
    assert welch_p(LOW, [x + gap for x in MIDDLE]) == pytest.approx(p_target, abs=1e-6)
    assert verdict.standing == standing


def shift_for(one: list[float], other: list[float], p_target: float) -> float:
    """By how much to raise the other for Welch's test to give this p-value."""
    low, high = -5.0, 5.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if welch_p(one, [x + middle for x in other]) > p_target else (low, middle)
    return (low + high) / 2


def test_lower_than_several_takes_every_one_at_the_full_level() -> None:
    gap = shift_for(LOW, MIDDLE, 0.04)
    near = [x + gap for x in MIDDLE]
    assert lower({A: LOW, B: near, C: near}).standing == "supported"
    verdict = lower({A: LOW, B: HIGH, C: LOW})
    assert verdict.standing == "undecided"
    assert [
        p_text(welch_p(LOW, other)) in finding for other, finding in zip((HIGH, LOW), verdict.findings, strict=True)
    ]
    assert len(verdict.findings) == 2


@pytest.mark.parametrize(
    ("p_target", "standing"), [(0.049, "undecided"), (0.026, "undecided"), (0.024, "contradicted")]
)
def test_one_of_several_contradicts_at_the_divided_level(p_target: float, standing: str) -> None:
    gap = shift_for(LOW, MIDDLE, 1 - p_target)
    assert lower({A: LOW, B: [x + gap for x in MIDDLE], C: HIGH}).standing == standing


def test_alone_it_contradicts_at_the_full_level() -> None:
    gap = shift_for(LOW, MIDDLE, 1 - 0.049)
    assert lower({A: LOW, B: [x + gap for x in MIDDLE]}).standing == "contradicted"


def test_a_diverged_run_counts_as_guessing() -> None:
    verdict = lower({A: LOW, B: [math.inf, 6.5, math.inf, math.inf, 6.6]})
    assert p_text(welch_p(LOW, [90.0, 6.5, 90.0, 90.0, 6.6])) in verdict.findings[0]
    hundred = ("cifar100_resnet164/preact", "cifar100_resnet164/original")
    first = [24.1, 24.3, 24.2, 24.6, 24.0]
    verdict = lower({hundred[0]: first, hundred[1]: [math.inf, 25.0, 25.2, 99.0, 98.0]}, TABLE3)
    assert p_text(welch_p(first, [99.0, 25.0, 25.2, 99.0, 98.0])) in verdict.findings[0]


def test_two_nets_that_always_diverge_are_equally_bad() -> None:
    verdict = lower({A: [math.inf] * 5, B: [math.inf] * 5})
    assert verdict.standing == "undecided"


def by(margin: float, one: Sequence[float], other: Sequence[float], **how: Any) -> ClaimVerdict:
    table = with_claim(TABLE2, "lower", A, B, by=margin)
    return the_claim(table, *runs_of(TABLE2, {A: one, B: other}), **how)


@pytest.mark.parametrize("margin", [0.5, 1.5, 1.75, 1.9, 2.2])
def test_lower_by_a_margin_is_welchs_test_of_the_shifted(margin: float) -> None:
    p = welch_p([x + margin for x in LOW], HIGH)
    standing = "supported" if p <= 0.05 else "contradicted" if 1 - p <= 0.05 else "undecided"
    assert standing == {0.5: "supported", 1.5: "supported", 2.2: "contradicted"}.get(margin, "undecided")
    verdict = by(margin, LOW, HIGH)
    assert verdict.standing == standing
    told = f"{p_text(1 - p)} against it" if standing == "contradicted" else p_text(p)
    assert verdict.findings == (f"{A} - {B} = {welch_text(LOW, HIGH)} points in test error, {told}",)  # not shifted
    assert verdict.test == f"Welch's test, by {margin:g} points"


@pytest.mark.parametrize(
    ("p_target", "standing"), [(0.049, "supported"), (0.051, "undecided"), (0.951, "contradicted")]
)
def test_the_level_is_the_same_by_a_margin(p_target: float, standing: str) -> None:
    gap = shift_for(LOW, MIDDLE, p_target)
    assert by(0.7, LOW, [x + gap + 0.7 for x in MIDDLE]).standing == standing


def test_every_difference_must_be_by_the_margin() -> None:
    table = with_claim(TABLE2, "lower", A, B, C, by=1.0)
    near = [x + 0.5 for x in LOW]
    assert the_claim(table, *runs_of(TABLE2, {A: LOW, B: HIGH, C: HIGH})).standing == "supported"
    assert the_claim(table, *runs_of(TABLE2, {A: LOW, B: HIGH, C: near})).standing == "contradicted"


def test_a_margin_on_training_error_is_in_points_too() -> None:
    runs, histories = with_means({A: LOW, B: LOW}, {(A, "train_loss"): LOSS_LOW, (B, "train_loss"): LOSS_HIGH})
    for margin, standing in ((0.005, "supported"), (0.02, "contradicted")):
        table = with_claim(TABLE2, "lower", A, B, measure="train_loss", by=margin)
        verdict = the_claim(table, *runs, histories=histories)
        assert (verdict.standing, verdict.test) == (standing, f"Welch's test, by {margin}")


# How many runs, and the second look


def test_all_planned_runs_of_every_cell_are_waited_for() -> None:
    verdict = lower({A: LOW, B: HIGH[:4]})
    assert (verdict.standing, verdict.reason) == ("undecided", f"{B}: 4 of 5 runs have ended")
    assert verdict.findings == ()
    verdict = lower({A: [None] * 5, B: HIGH})
    assert (verdict.standing, verdict.reason) == ("undecided", f"{A}: 0 of 5 runs have ended")


def test_a_cell_without_any_run_leaves_a_claim_not_run() -> None:
    table = with_claim(TABLE2, "lower", A, B, C)
    verdict = the_claim(table, *records(TABLE2, A, LOW))
    assert (verdict.standing, verdict.reason) == ("not run", f"no run of our own of {B}, {C}")
    assert the_claim(table).standing == "not run"


def test_a_run_of_a_later_seed_replaces_no_planned_one() -> None:
    runs = [record(TABLE2, A, e, seed=s) for e, s in zip(LOW, (0, 1, 2, 3, 7), strict=True)]
    verdict = the_claim(with_claim(TABLE2, "lower", A, B), *runs, *records(TABLE2, B, HIGH))
    assert verdict.reason == f"{A}: 4 of 5 runs (seeds 0 to 4 count, and that of seed 4 is missing) have ended"


def test_runs_between_the_looks_change_nothing() -> None:
    near = [x + 0.06 for x in MIDDLE]
    nine = {A: [*MIDDLE, 5.0, 5.0, 5.0, 5.0], B: [*near, 9.0, 9.0, 9.0, 9.0]}
    assert lower(nine).standing == "undecided"
    assert lower(nine).findings == lower({A: MIDDLE, B: near}).findings
    uneven = {A: [*MIDDLE, *[5.0] * 5], B: [*near, *[9.0] * 4]}
    assert lower(uneven).findings == lower({A: MIDDLE, B: near}).findings


def test_ten_runs_decide_if_five_did_not_at_the_stricter_level() -> None:
    gap = shift_for(LOW, MIDDLE, 0.1)
    first, second = [*LOW, *LOW], [x + gap for x in [*MIDDLE, *MIDDLE]]
    p = welch_p(first, second)
    assert 0.01 < p < 0.05
    verdict = lower({A: first, B: second})
    assert (verdict.standing, verdict.level) == ("undecided", 0.01)
    assert p_text(p) in verdict.findings[0]
    assert verdict.basis.startswith("10 runs per net")
    clearer = [x + gap for x in [*MIDDLE, *HIGH]]
    verdict = lower({A: first, B: clearer})
    assert welch_p(first, clearer) < 0.01
    assert (verdict.standing, verdict.level) == ("supported", 0.01)


def test_ten_runs_do_not_change_what_five_decided_and_more_than_ten_nothing() -> None:
    five = lower({A: LOW, B: HIGH})
    assert lower({A: [*LOW, *[9.9] * 5], B: [*HIGH, *[1.0] * 5]}) == five
    near = [x + 0.01 for x in MIDDLE]
    ten = {A: [*MIDDLE, *MIDDLE], B: [*near, *near]}
    assert lower(ten).standing == "undecided"
    assert lower({cell: [*e, *[5.0 if cell == A else 9.0] * 10] for cell, e in ten.items()}) == lower(ten)


def test_another_number_of_seeds_can_be_fixed() -> None:
    verdict = lower({A: LOW[:3], B: HIGH[:3]}, seeds=3)
    assert verdict.standing == "supported"
    assert p_text(welch_p(LOW[:3], HIGH[:3])) in verdict.findings[0]
    assert verdict.basis.startswith("3 runs per net")
    assert lower({A: LOW, B: HIGH}, seeds=6).reason == f"{A}: 5 of 6 runs have ended"


def test_one_run_a_cell_decides_nothing() -> None:
    verdict = lower({A: LOW, B: HIGH}, seeds=1)
    assert (verdict.standing, verdict.reason) == (
        "undecided",
        "the test needs two runs per cell, and 1 is planned",
    )


# Close


def equivalence_p(one: list[float], other: list[float], margin: float) -> float:
    """The greater p-value of two one-sided tests, each by scipy on shifted samples."""
    return max(welch_p(one, [x + margin for x in other]), welch_p([x - margin for x in other], one))


def close(first: list[float], other: list[float], within: float = 0.5, **how: Any) -> ClaimVerdict:
    table = with_claim(TABLE2, "close", A, B, within=within)
    return the_claim(table, *runs_of(TABLE2, {A: first, B: other}), **how)


@pytest.mark.parametrize(("gap", "standing"), [(0.05, "supported"), (-0.05, "supported"), (0.6, "undecided")])
def test_close_is_two_one_sided_tests(gap: float, standing: str) -> None:
    other = [x + gap for x in LOW]
    verdict = close(MIDDLE, other)
    p = equivalence_p(MIDDLE, other, 0.5)
    assert (p <= 0.05) == (standing == "supported")
    assert verdict.standing == standing
    assert p_text(p) in verdict.findings[0]
    assert verdict.test == "two one-sided Welch tests, within 0.5 points"


def beyond_p(one: list[float], other: list[float], margin: float) -> float:
    """The greatest probability, within the margin, of a difference as large on either side."""
    found = stats.ttest_ind(one, other, equal_var=False)
    size = abs(float(np.mean(one) - np.mean(other)))
    error = size / abs(found.statistic)
    return float(stats.t.sf((size - margin) / error, found.df) + stats.t.sf((size + margin) / error, found.df))


def test_close_is_contradicted_by_both_tails() -> None:
    margin = 0.02
    verdicts = set()
    for gap in (0.15, 0.18, 0.2, 0.22, 0.25, 0.3):
        other = [x + gap for x in MIDDLE]
        p, verdict = beyond_p(MIDDLE, other, margin), close(MIDDLE, other, within=margin)
        verdicts.add(verdict.standing)
        assert verdict.standing == ("contradicted" if p <= 0.05 else "undecided")
        told = f"{p_text(p)} against it" if p <= 0.05 else p_text(equivalence_p(MIDDLE, other, margin))
        assert verdict.findings == (f"{A} - {B} = {welch_text(MIDDLE, other)} points in test error, {told}",)
    assert verdicts == {"contradicted", "undecided"}
    gap = shift_for([x + margin for x in MIDDLE], MIDDLE, 0.04)  # one tail below the level, both above it
    other = [x + gap for x in MIDDLE]
    assert welch_p([x + margin for x in MIDDLE], other) < 0.05 < beyond_p(MIDDLE, other, margin)
    assert close(MIDDLE, other, within=margin).standing == "undecided"


@pytest.mark.parametrize("sign", [1, -1])
def test_close_is_contradicted_beyond_the_margin(sign: int) -> None:
    far = [x + sign * 1.2 for x in MIDDLE]
    assert welch_p([x + 0.5 for x in MIDDLE], [x + 1.2 for x in MIDDLE]) < 0.05
    assert close(MIDDLE, far).standing == "contradicted"
    assert close(MIDDLE, far, within=1.2).standing == "undecided"
    assert close(MIDDLE, far, within=2.0).standing == "supported"


def test_a_difference_that_is_significant_but_small_is_close() -> None:
    other = [x + 0.3 for x in LOW]
    quiet = [x / 10 + 6 for x in LOW]
    quiet_other = [x + 0.3 for x in quiet]
    assert welch_p(quiet, quiet_other) < 0.05
    assert close(quiet, quiet_other).standing == "supported"
    assert close(LOW, other, within=0.2).standing == "undecided"


def test_noise_is_no_closeness() -> None:
    loud = [5.0, 7.9, 6.1, 7.2, 5.6]
    assert close(loud, list(reversed(loud))).standing == "undecided"


def test_close_to_several_takes_all() -> None:
    table = with_claim(TABLE2, "close", A, B, C, within=0.5)
    verdict = the_claim(table, *runs_of(TABLE2, {A: LOW, B: LOW, C: HIGH}))
    assert verdict.standing == "contradicted"
    assert len(verdict.findings) == 2
    assert the_claim(table, *runs_of(TABLE2, {A: LOW, B: LOW, C: LOW})).standing == "supported"


# Largest gain


def satterthwaite(parts: Sequence[tuple[float, Sequence[float]]]) -> tuple[str, float]:
    """Weighted sum of means with its interval, as text, and the one-sided p-value that it is above 0."""
    estimate = sum(w * np.mean(x) for w, x in parts)
    variances = [w**2 * np.var(x, ddof=1) / len(x) for w, x in parts]
    degrees = sum(variances) ** 2 / sum(v**2 / (len(x) - 1) for v, (_, x) in zip(variances, parts, strict=True) if v)
    error = math.sqrt(sum(variances))
    reach = stats.t.isf(0.05, degrees) * error
    text = interval_text(float(estimate), estimate - reach, estimate + reach)
    return f"= {text} points in test error", float(stats.t.sf(estimate / error, degrees))


D = "relu_only_preact/resnet110"


def gains(pairs: Any, errors: dict[str, Sequence[float | None]]) -> ClaimVerdict:
    return the_claim(with_claim(TABLE2, "largest_gain", pairs=pairs), *runs_of(TABLE2, errors))


def test_the_largest_gain_is_a_difference_of_differences() -> None:
    errors = {C: HIGH, A: LOW, B: MIDDLE, D: [6.5, 6.4, 6.6, 6.9, 6.2]}
    text, p = satterthwaite([(1, HIGH), (-1, LOW), (-1, MIDDLE), (1, errors[D])])
    verdict = gains(((C, A), (B, D)), errors)
    assert verdict.standing == "supported"
    assert verdict.findings == (f"({C} - {A}) - ({B} - {D}) {text}, {p_text(p)}",)
    assert verdict.test == "Welch's test on differences of differences"
    opposite = gains(((B, D), (C, A)), errors)
    assert opposite.standing == "contradicted"
    text, _ = satterthwaite([(1, MIDDLE), (-1, errors[D]), (-1, HIGH), (1, LOW)])
    assert opposite.findings == (f"({B} - {D}) - ({C} - {A}) {text}, {p_text(p)} against it",)


def test_the_largest_gain_is_undecided_within_the_noise() -> None:
    errors = {C: HIGH, A: LOW, B: [x + 1.7 for x in MIDDLE], D: [6.5, 6.4, 6.6, 6.9, 6.2]}
    _, p = satterthwaite([(1, HIGH), (-1, LOW), (-1, errors[B]), (1, errors[D])])
    assert 0.05 < p < 0.95
    verdict = gains(((C, A), (B, D)), errors)
    assert verdict.standing == "undecided"
    assert p_text(p) in verdict.findings[0]


def test_a_cell_that_two_pairs_share_on_one_side_cancels() -> None:
    errors = {C: HIGH, A: [5.0, 7.0, 6.0, 6.5, 5.5], B: MIDDLE}
    text, p = satterthwaite([(1, HIGH), (-1, MIDDLE)])
    verdict = gains(((C, A), (B, A)), errors)
    assert verdict.findings == (f"({C} - {A}) - ({B} - {A}) {text}, {p_text(p)}",)
    assert p == pytest.approx(welch_p(MIDDLE, HIGH))


def test_a_cell_that_two_pairs_share_on_both_sides_counts_twice() -> None:
    errors = {C: [7.0, 7.9, 7.2, 7.4, 7.1], A: [6.3, 6.9, 6.1, 6.2, 6.4], B: [6.0, 6.1, 5.7, 6.3, 6.2]}
    text, p = satterthwaite([(1, errors[C]), (-2, errors[A]), (1, errors[B])])
    verdict = gains(((C, A), (A, B)), errors)
    assert verdict.findings == (f"({C} - {A}) - ({A} - {B}) {text}, {p_text(p)}",)


def test_the_largest_gain_is_larger_than_every_other() -> None:
    errors = {C: HIGH, A: LOW, B: MIDDLE, D: [x + 2 for x in HIGH]}
    verdict = gains(((C, A), (C, B), (D, A)), errors)
    assert len(verdict.findings) == 2
    assert verdict.standing == "contradicted"


# Training loss and error


def with_means(
    errors: dict[str, Sequence[float | None]], means: dict[tuple[str, str], Sequence[float]], **how: Any
) -> tuple[list[Record], Histories]:
    """Runs, and means of a measure over their histories."""
    histories, runs = Histories(), []
    for cell, found in errors.items():
        its = records(TABLE2, cell, found, **how)
        for (named, measure), values in means.items():
            if named == cell:
                histories.put(its, measure, values)
        runs += its
    return runs, histories


LOSS_LOW = [0.021, 0.024, 0.020, 0.022, 0.023]
LOSS_HIGH = [0.031, 0.036, 0.033, 0.030, 0.034]


def test_training_loss_is_that_of_the_last_64th_of_the_schedule() -> None:
    runs, histories = with_means({A: LOW, B: LOW}, {(A, "train_loss"): LOSS_LOW, (B, "train_loss"): LOSS_HIGH})
    verdict = the_claim(with_claim(TABLE2, "lower", A, B, measure="train_loss"), *runs, histories=histories)
    assert verdict.standing == "supported"
    text, p = welch_text(LOSS_LOW, LOSS_HIGH, digits=4), welch_p(LOSS_LOW, LOSS_HIGH)
    assert verdict.findings == (f"{A} - {B} = {text} in training loss, {p_text(p)}",)
    assert set(histories.asked) == {(run.run, "train_loss", 63_000, 64_000) for run in runs}


def test_training_error_is_in_points() -> None:
    runs, histories = with_means({A: LOW, B: LOW}, {(A, "train_error"): LOW, (B, "train_error"): HIGH})
    verdict = the_claim(with_claim(TABLE2, "lower", A, B, measure="train_error"), *runs, histories=histories)
    assert f"= {welch_text(LOW, HIGH)} points in training error" in verdict.findings[0]
    assert {measure for _, measure, _, _ in histories.asked} == {"train_error"}


def test_a_margin_on_training_loss_has_no_unit() -> None:
    runs, histories = with_means({A: LOW, B: LOW}, {(A, "train_loss"): LOSS_LOW, (B, "train_loss"): LOSS_LOW})
    table = with_claim(TABLE2, "close", A, B, measure="train_loss", within=0.01)
    verdict = the_claim(table, *runs, histories=histories)
    assert (verdict.standing, verdict.test) == ("supported", "two one-sided Welch tests, within 0.01")


def test_the_window_is_a_64th_of_each_recipes_own_schedule() -> None:
    table = a_table("table4")
    cells = ("preact_resnet1001_batch64/cifar10", "preact_resnet1001/cifar10")
    histories, runs = Histories(), []
    for cell, values in zip(cells, (LOSS_LOW, LOSS_HIGH), strict=True):
        runs += histories.put(records(table, cell, LOW), "train_loss", values)
    verdict = the_claim(with_claim(table, "lower", *cells, measure="train_loss"), *runs, histories=histories)
    assert verdict.standing == "supported"
    assert {window[2:] for window in histories.asked} == {(156_250 - 2_441, 156_250), (63_000, 64_000)}


def test_a_claim_about_training_without_histories_is_undecided() -> None:
    runs, _ = with_means({A: LOW, B: HIGH}, {})
    verdict = the_claim(with_claim(TABLE2, "lower", A, B, measure="train_loss"), *runs)
    assert verdict.standing == "undecided"
    assert verdict.reason == f"the history of run {runs[0].run} has no training loss at iteration 64,000"


def test_a_run_that_diverged_before_the_window_ended_counts_as_guessing_and_is_not_asked() -> None:
    runs, histories = with_means({A: LOW, B: [*HIGH[:4], math.inf]}, {(A, "train_loss"): LOSS_LOW})
    histories.put(runs[5:9], "train_loss", LOSS_HIGH[:4])
    verdict = the_claim(with_claim(TABLE2, "lower", A, B, measure="train_loss"), *runs, histories=histories)
    p = welch_p(LOSS_LOW, [*LOSS_HIGH[:4], math.log(10)])
    assert p_text(p) in verdict.findings[0]
    assert runs[9].run not in {run for run, *_ in histories.asked}
    runs, histories = with_means({A: LOW, B: [*HIGH[:4], math.inf]}, {(A, "train_error"): LOW})
    histories.put(runs[5:9], "train_error", HIGH[:4])
    verdict = the_claim(with_claim(TABLE2, "lower", A, B, measure="train_error"), *runs, histories=histories)
    assert p_text(welch_p(LOW, [*HIGH[:4], 90.0])) in verdict.findings[0]


def test_a_training_mean_that_is_not_finite_counts_as_guessing() -> None:
    runs, histories = with_means({A: LOW, B: HIGH}, {(A, "train_loss"): LOSS_LOW, (B, "train_loss"): [math.inf] * 5})
    verdict = the_claim(with_claim(TABLE2, "lower", A, B, measure="train_loss"), *runs, histories=histories)
    assert f"= {np.mean(LOSS_LOW) - math.log(10):+.4f} [" in verdict.findings[0]


@pytest.mark.parametrize(
    ("losses", "errors", "standing"),
    [
        ((LOSS_HIGH, LOSS_LOW), (LOW, HIGH), "supported"),
        ((LOSS_LOW, LOSS_HIGH), (LOW, HIGH), "contradicted"),
        ((LOSS_HIGH, LOSS_LOW), (HIGH, LOW), "contradicted"),
        ((LOSS_HIGH, LOSS_LOW), (LOW, LOW), "undecided"),
        ((LOSS_LOW, LOSS_LOW), (LOW, HIGH), "undecided"),
    ],
)
def test_higher_loss_and_lower_error_takes_both(losses: Any, errors: Any, standing: str) -> None:
    runs, histories = with_means(
        {A: errors[0], B: errors[1]}, {(A, "train_loss"): losses[0], (B, "train_loss"): losses[1]}
    )
    verdict = the_claim(with_claim(TABLE2, "higher_loss_lower_error", A, B), *runs, histories=histories)
    assert verdict.standing == standing
    assert verdict.test == "two Welch tests"
    loss, error = verdict.findings
    assert "in training loss" in loss
    assert "points in test error" in error
    tested = [(losses[1], losses[0]), (errors[0], errors[1])]
    if standing == "contradicted":
        tested = [(other, one) for one, other in tested]
    for finding, (one, other) in zip(verdict.findings, tested, strict=True):
        assert finding.endswith(f", {p_text(welch_p(one, other))}" + " against it" * (standing == "contradicted"))
    assert {window[2:] for window in histories.asked} == {(63_000, 64_000)}


def test_either_half_of_it_contradicts_at_half_the_level() -> None:
    gap = shift_for(LOW, MIDDLE, 1 - 0.03)
    runs, histories = with_means(
        {A: LOW, B: [x + gap for x in MIDDLE]}, {(A, "train_loss"): LOSS_HIGH, (B, "train_loss"): LOSS_LOW}
    )
    verdict = the_claim(with_claim(TABLE2, "higher_loss_lower_error", A, B), *runs, histories=histories)
    assert verdict.standing == "undecided"


# Early


def early(iteration: int = 8_000, table: Table = TABLE2, measure: str = "train_loss") -> Table:
    return with_claim(table, "early", A, B, measure=measure, iteration=iteration)


def test_early_claims_are_judged_on_prefixes() -> None:
    runs, histories = with_means(
        {A: [None] * 5, B: [None] * 5}, {(A, "train_loss"): LOSS_LOW, (B, "train_loss"): LOSS_HIGH}, iteration=8_000
    )
    verdict = the_claim(early(), *runs, histories=histories)
    assert verdict.standing == "supported"
    assert verdict.test == "Welch's test at iteration 8,000"
    assert p_text(welch_p(LOSS_LOW, LOSS_HIGH)) in verdict.findings[0]
    assert set(histories.asked) == {(run.run, "train_loss", 7_000, 8_000) for run in runs}


def test_prefixes_and_ended_runs_count_alike() -> None:
    runs, histories = with_means(
        {A: [None, *LOW[1:]], B: [*HIGH[:4], None]},
        {(A, "train_loss"): LOSS_LOW, (B, "train_loss"): LOSS_HIGH},
        iteration=9_000,
    )
    verdict = the_claim(early(), *runs, histories=histories)
    assert verdict.standing == "supported"
    assert {window[2:] for window in histories.asked} == {(7_000, 8_000)}
    assert len(histories.asked) == 10


def test_a_prefix_that_did_not_come_so_far_is_waited_for() -> None:
    means = {(A, "train_loss"): LOSS_LOW, (B, "train_loss"): LOSS_HIGH}
    runs, histories = with_means({A: [None] * 5, B: [None] * 5}, means, iteration=8_000)
    runs[7] = record(TABLE2, B, None, seed=2, iteration=7_999)
    verdict = the_claim(early(), *runs, histories=histories)
    assert (verdict.standing, verdict.reason) == ("undecided", f"{B}: 4 of 5 runs have reached iteration 8,000")
    assert histories.asked == []
    none = the_claim(early(), *runs[:5], record(TABLE2, B, None, iteration=7_999), histories=histories)
    assert (none.standing, none.reason) == ("undecided", f"{B}: 0 of 5 runs have reached iteration 8,000")


def test_a_later_seed_replaces_no_prefix_either() -> None:
    means = {(A, "train_loss"): LOSS_LOW, (B, "train_loss"): LOSS_HIGH}
    runs, histories = with_means({A: [None] * 5, B: [None] * 5}, means, iteration=8_000)
    runs[4] = record(TABLE2, A, None, seed=5, iteration=8_000)
    assert the_claim(early(), *runs, histories=histories).reason == f"{A}: 4 of 5 runs have reached iteration 8,000"


def test_an_early_claim_does_not_count_as_a_prefix_what_diverged_before() -> None:
    """A run that diverged at iteration 1,000 has come as far as it ever will, and guesses from there on."""
    means = {(A, "train_loss"): LOSS_LOW}
    runs, histories = with_means({A: [None] * 5, B: [math.inf] * 5}, means, iteration=8_000)
    late = [record(TABLE2, B, math.inf, seed=seed, iteration=1_000) for seed in range(5)]
    verdict = the_claim(early(), *runs[:5], *late, histories=histories)
    assert verdict.standing == "supported"
    assert f"= {np.mean(LOSS_LOW) - math.log(10):+.4f} [" in verdict.findings[0]
    assert {run for run, *_ in histories.asked} == {run.run for run in runs[:5]}
    runs, histories = with_means({A: [None] * 5}, {(A, "train_error"): LOW}, iteration=8_000)
    verdict = the_claim(early(measure="train_error"), *runs, *late, histories=histories)
    low, high = stats.ttest_1samp(LOW, 90).confidence_interval(0.9)
    text = interval_text(float(np.mean(LOW)) - 90, low - 90, high - 90)
    assert f"= {text} points in training error" in verdict.findings[0]


def test_a_run_that_diverged_later_counts_as_what_it_was() -> None:
    means = {(A, "train_loss"): LOSS_LOW, (B, "train_loss"): LOSS_HIGH}
    runs, histories = with_means({A: [None] * 5, B: [math.inf] * 5}, means, iteration=8_000)
    verdict = the_claim(early(), *runs, histories=histories)
    assert p_text(welch_p(LOSS_LOW, LOSS_HIGH)) in verdict.findings[0]


def test_a_history_that_lacks_the_iteration_leaves_it_undecided() -> None:
    runs, histories = with_means({A: [None] * 5, B: [None] * 5}, {(A, "train_loss"): LOSS_LOW}, iteration=8_000)
    verdict = the_claim(early(), *runs, histories=histories)
    assert verdict.standing == "undecided"
    assert verdict.reason == f"the history of run {runs[5].run} has no training loss at iteration 8,000"


def test_an_iteration_beyond_the_profiles_last_is_never_reached() -> None:
    runs = runs_of(TABLE2, {A: LOW, B: HIGH}, profile="smoke")
    verdict = the_claim(early(), *runs, profile="smoke", seeds=5)
    assert verdict.standing == "undecided"
    assert verdict.reason == "in this profile runs end at iteration 80, before 8,000"


def test_the_early_window_is_a_64th_of_the_schedule_not_of_the_prefix() -> None:
    histories, runs = Histories(), []
    for cell, values in ((A, LOSS_LOW), (B, LOSS_HIGH)):
        runs += histories.put(records(TABLE2, cell, [None] * 5, iteration=2_000), "train_loss", values)
    the_claim(early(2_000), *runs, histories=histories)
    assert {window[2:] for window in histories.asked} == {(1_000, 2_000)}


# Failing


PLAIN, SWEEP = "plain/resnet110", "exclusive_gating_0_to_5/resnet110"
UNSCALED = "constant_scaling_unscaled/resnet110"
BAD, GOOD = [90.0] * 5, [12.0] * 5


def diverges(*cells: str) -> Table:
    return with_claim(TABLE1, "diverges", *cells)


def converges(*cells: str) -> Table:
    return with_claim(TABLE1, "converges", *cells)


@pytest.mark.parametrize(
    ("errors", "standing", "finding"),
    [
        ([90.0] * 5, "supported", "5 of 5 failed"),
        ([math.inf] * 3, "supported", "3 of 3 failed"),
        ([30.0, 12.0, 30.0, 12.0, 30.0], "supported", "3 of 5 failed"),
        ([30.0, 12.0, 12.0, 12.0, 30.0], "contradicted", "2 of 5 failed"),
        ([20.0] * 5, "contradicted", "0 of 5 failed"),
        ([12.0] * 3, "contradicted", "0 of 3 failed"),
        ([30.0, 12.0, 30.0], "undecided", "2 of 3 failed"),
        ([30.0, 30.0], "undecided", "2 of 2 failed"),
    ],
)
def test_a_net_diverges_as_its_median_fails(errors: list[float], standing: str, finding: str) -> None:
    verdict = the_claim(diverges(PLAIN), *records(TABLE1, PLAIN, errors))
    assert verdict.standing == standing
    assert verdict.findings == (f"{PLAIN}: {finding}",)
    assert verdict.test == "whether the median fails"
    assert verdict.level is None
    assert (verdict.reason != "") == (standing == "undecided")


def test_why_it_is_not_known_whether_a_net_diverges() -> None:
    runs = records(TABLE1, PLAIN, [30.0, 12.0, 30.0])
    verdict = the_claim(diverges(PLAIN), *runs)
    assert verdict.reason == f"{PLAIN}: 3 of 5 runs"
    begun = the_claim(diverges(PLAIN), record(TABLE1, PLAIN, None))
    assert (begun.standing, begun.reason) == ("undecided", f"{PLAIN}: 0 of 5 runs; it takes 3 to say that a net fails")
    none = the_claim(diverges(PLAIN))
    assert (none.standing, none.reason) == ("not run", f"no run of our own of {PLAIN}")


@pytest.mark.parametrize("seeds", [1, 2])
@pytest.mark.parametrize("profile", ["paper", "smoke"])
def test_less_than_three_runs_do_not_tell_whether_a_net_diverges(seeds: int, profile: str) -> None:
    runs = records(TABLE1, PLAIN, [math.inf] * seeds, profile=profile)
    verdict = the_claim(diverges(PLAIN), *runs, seeds=seeds, profile=profile)
    assert verdict.standing == "undecided"
    if profile == "paper":
        assert verdict.reason == f"{PLAIN}: {seeds} of {seeds} runs; it takes 3 to say that a net fails"


@pytest.mark.parametrize(
    ("errors", "standing", "finding"),
    [
        ([12.0] * 5, "supported", "0 of 5 failed"),
        ([12.0] * 3, "supported", "0 of 3 failed"),
        ([12.0, 30.0, 12.0, math.inf, 12.0], "supported", "2 of 5 failed"),
        ([12.0, 30.0, 12.0, math.inf, 30.0], "contradicted", "3 of 5 failed"),
        ([90.0] * 3, "contradicted", "3 of 3 failed"),
        ([12.0, 30.0, 12.0], "undecided", "1 of 3 failed"),
        ([12.0, 12.0], "undecided", "0 of 2 failed"),
    ],
)
def test_a_net_converges_as_its_median_does_not_fail(errors: list[float], standing: str, finding: str) -> None:
    verdict = the_claim(converges(PLAIN), *records(TABLE1, PLAIN, errors))
    assert verdict.standing == standing
    assert verdict.findings == (f"{PLAIN}: {finding}",)
    assert (verdict.test, verdict.level) == ("whether the median fails", None)
    assert (verdict.reason != "") == (standing == "undecided")


def test_several_nets_converge_if_every_one_does() -> None:
    both = converges(PLAIN, UNSCALED)
    assert the_claim(both, *runs_of(TABLE1, {PLAIN: GOOD, UNSCALED: GOOD})).standing == "supported"
    assert the_claim(both, *runs_of(TABLE1, {PLAIN: GOOD, UNSCALED: BAD})).standing == "contradicted"
    assert the_claim(both, *runs_of(TABLE1, {PLAIN: GOOD, UNSCALED: GOOD[:2]})).standing == "undecided"


@pytest.mark.parametrize(
    ("errors", "standing"), [([30.0, 12.0, 30.0, 30.0], "supported"), ([12.0] * 4, "contradicted")]
)
def test_a_net_that_the_first_look_leaves_open_is_looked_at_again(errors: list[float], standing: str) -> None:
    verdict = the_claim(diverges(PLAIN), *records(TABLE1, PLAIN, errors[:2]), seeds=2)
    assert verdict.standing == "undecided"
    verdict = the_claim(diverges(PLAIN), *records(TABLE1, PLAIN, errors), seeds=2)
    assert verdict.standing == standing
    assert verdict.findings == (f"{PLAIN}: {sum(e > 20 for e in errors)} of 4 failed",)


def test_what_the_first_look_says_is_not_looked_at_again() -> None:
    verdict = the_claim(diverges(PLAIN), *records(TABLE1, PLAIN, [*BAD, *GOOD, *GOOD]))
    assert (verdict.standing, verdict.findings) == ("supported", (f"{PLAIN}: 5 of 5 failed",))


def test_each_net_fails_by_its_own_runs_nearest_to_the_paper() -> None:
    both = diverges(PLAIN, UNSCALED)
    near = records(TABLE1, PLAIN, BAD)
    for how, basis in (({"precision": "tf32"}, "CIFAR-10, tf32"), ({"data": COPY}, f"{COPY.name}, fp32")):
        verdict = the_claim(both, *near, *records(TABLE1, UNSCALED, BAD, **how))
        assert verdict.standing == "supported"
        assert verdict.basis == f"CIFAR-10, fp32, numerics 1; {basis}, numerics 1"
    verdict = the_claim(diverges(PLAIN), *near, *records(TABLE1, PLAIN, GOOD, precision="tf32"))
    assert (verdict.standing, verdict.basis) == ("supported", "CIFAR-10, fp32, numerics 1")
    fewer = the_claim(diverges(PLAIN), *near[:1], *records(TABLE1, PLAIN, GOOD, precision="tf32"))
    assert (fewer.standing, fewer.basis) == ("contradicted", "CIFAR-10, tf32, numerics 1")


@pytest.mark.parametrize("kind", ["diverges", "converges"])
def test_one_sure_counterexample_is_enough_whatever_lacks(kind: str) -> None:
    both = with_claim(TABLE1, kind, PLAIN, UNSCALED)
    right, wrong = (BAD, GOOD) if kind == "diverges" else (GOOD, BAD)
    verdict = the_claim(both, *records(TABLE1, UNSCALED, wrong))
    assert (verdict.standing, verdict.reason) == ("contradicted", "")
    assert len(verdict.findings) == 1
    verdict = the_claim(both, *records(TABLE1, UNSCALED, right))
    assert (verdict.standing, verdict.reason) == ("undecided", f"no run of our own of {PLAIN}")


def test_results_from_elsewhere_do_not_make_a_net_fail() -> None:
    entered = [external(TABLE1, PLAIN, None, seed=seed) for seed in range(5)]
    assert the_claim(diverges(PLAIN), externals=entered).standing == "not run"


def test_several_nets_diverge_if_every_one_does() -> None:
    other, bad, good = UNSCALED, BAD, GOOD
    both = diverges(PLAIN, other)
    assert the_claim(both, *runs_of(TABLE1, {PLAIN: bad, other: bad})).standing == "supported"
    verdict = the_claim(both, *runs_of(TABLE1, {PLAIN: bad, other: good}))
    assert verdict.standing == "contradicted"
    assert verdict.findings == (f"{PLAIN}: 5 of 5 failed", f"{other}: 0 of 5 failed")
    verdict = the_claim(both, *runs_of(TABLE1, {PLAIN: bad[:2], other: good}))
    assert verdict.standing == "contradicted"
    assert the_claim(both, *runs_of(TABLE1, {PLAIN: bad[:2], other: bad})).standing == "undecided"


def test_every_setting_of_a_sweep_must_diverge() -> None:
    labels = [f"gate_bias={bias}" for bias in (0, -1, -2, -3, -4, -5)]
    runs = {label: records(TABLE1, SWEEP, [90.0] * 5, setting=label) for label in labels}
    verdict = the_claim(diverges(SWEEP), *(run for found in runs.values() for run in found))
    assert verdict.standing == "supported"
    assert verdict.findings == tuple(f"{SWEEP} ({label}): 5 of 5 failed" for label in labels)
    runs[labels[4]] = records(TABLE1, SWEEP, [12.0] * 5, setting=labels[4])
    verdict = the_claim(diverges(SWEEP), *(run for found in runs.values() for run in found))
    assert verdict.standing == "contradicted"
    del runs[labels[2]]
    verdict = the_claim(diverges(SWEEP), *(run for found in runs.values() for run in found))
    assert verdict.standing == "contradicted"
    runs[labels[4]] = records(TABLE1, SWEEP, [90.0] * 5, setting=labels[4])
    verdict = the_claim(diverges(SWEEP), *(run for found in runs.values() for run in found))
    assert (verdict.standing, verdict.reason) == ("undecided", f"no run of our own of {SWEEP} (gate_bias=-2)")


@pytest.mark.parametrize("kind", ["diverges", "converges"])
@pytest.mark.parametrize("error", [90.0, 6.0])
def test_on_other_images_than_cifar10_a_net_that_has_not_diverged_is_undecided(kind: str, error: float) -> None:
    runs = records(TABLE1, PLAIN, [error] * 3, profile="smoke")
    verdict = the_claim(with_claim(TABLE1, kind, PLAIN), *runs, profile="smoke", seeds=3)
    assert verdict.standing == "undecided"
    title = "scikit-learn's handwritten digits at 32x32"
    assert verdict.reason == f"the paper does not say above which error a net has failed on {title}"
    hundred = "cifar100_resnet164/preact"
    verdict = the_claim(with_claim(TABLE3, kind, hundred), *records(TABLE3, hundred, [error] * 5))
    assert verdict.standing == "undecided"
    assert verdict.reason == "the paper does not say above which error a net has failed on CIFAR-100"
    assert verdict.findings == (f"{hundred}: 0 of 5 failed",)


@pytest.mark.parametrize(("kind", "standing"), [("diverges", "supported"), ("converges", "contradicted")])
def test_on_any_images_a_diverged_net_has_failed(kind: str, standing: str) -> None:
    runs = records(TABLE1, PLAIN, [math.inf] * 3, profile="smoke")
    verdict = the_claim(with_claim(TABLE1, kind, PLAIN), *runs, profile="smoke", seeds=3)
    assert verdict.standing == standing
    assert verdict.basis.endswith(", profile smoke")
    hundred = "cifar100_resnet164/preact"
    runs = records(TABLE3, hundred, [math.inf, 25.0, math.inf, math.inf])
    assert the_claim(with_claim(TABLE3, kind, hundred), *runs).standing == standing


# Literature


def test_a_published_number_is_taken_as_exact() -> None:
    table = a_table("table4")
    cell, highway = "preact_resnet164/cifar10", "highway/cifar10"
    errors = [7.5, 7.4, 7.9, 7.6, 7.55]
    verdict = the_claim(with_claim(table, "lower", cell, highway), *records(table, cell, errors))
    p = float(stats.ttest_1samp(errors, 7.72, alternative="less").pvalue)
    low, high = stats.ttest_1samp(errors, 7.72).confidence_interval(0.9)
    text = interval_text(float(np.mean(errors)) - 7.72, low - 7.72, high - 7.72)
    assert verdict.findings == (f"{cell} - {highway} = {text} points in test error, {p_text(p)}",)
    assert verdict.standing == ("supported" if p <= 0.05 else "undecided")
    assert verdict.basis == "5 runs per net, CIFAR-10, fp32, numerics 1, and published numbers taken as exact"
    far = the_claim(with_claim(table, "lower", cell, highway), *records(table, cell, [x + 1 for x in errors]))
    assert far.standing == "contradicted"


def test_a_published_number_is_held_against_original_pixels_only() -> None:
    table = a_table("table4")
    cell, highway = "preact_resnet164/cifar10", "highway/cifar10"
    claim = with_claim(table, "lower", cell, highway)
    copies = records(table, cell, [5.0, 5.1, 5.2, 5.1, 5.0], data=COPY)
    assert the_claim(claim, *copies).standing == "not run"
    few = records(table, cell, [5.0, 5.1])
    verdict = the_claim(claim, *copies, *few)
    assert (verdict.standing, verdict.reason) == ("undecided", f"{cell}: 2 of 5 runs have ended")
    faster = records(table, cell, [5.0, 5.1, 5.2, 5.1, 5.0], precision="bf16")
    assert the_claim(claim, *copies, *faster).standing == "supported"


@pytest.mark.parametrize("profile", ["smoke", "shallow"])
def test_a_published_number_says_nothing_in_a_reduced_profile(profile: str) -> None:
    table = a_table("table4")
    cell, highway = "preact_resnet164/cifar10", "highway/cifar10"
    claim = with_claim(table, "lower", cell, highway)
    for runs in ([], records(table, cell, [5.0, 5.1, 5.2, 5.1, 5.0], profile=profile)):
        verdict = the_claim(claim, *runs, profile=profile, seeds=5)
        assert verdict.standing == "undecided"
        assert verdict.reason == f"published numbers are not comparable with profile {profile}"
        assert verdict.findings == ()


# One training under two names


@pytest.mark.parametrize("profile", ["smoke", "shallow"])
def test_two_cells_that_are_one_training_are_not_compared(profile: str) -> None:
    deep, less = "cifar10_resnet1001/preact", "cifar10_resnet164/preact"
    reason = f"in profile {profile} {deep} and {less} are one training"
    runs = runs_of(TABLE3, {deep: LOW}, profile=profile)
    pairs = ((deep, "cifar10_resnet1001/original"), (less, "cifar10_resnet164/original"))
    for table in (
        with_claim(TABLE3, "lower", deep, less),
        with_claim(TABLE3, "close", deep, less, within=0.5),
        with_claim(TABLE3, "early", deep, "cifar10_resnet110/preact", less, measure="train_loss", iteration=10),
        with_claim(TABLE3, "largest_gain", pairs=pairs),
    ):
        for found in ([], runs):
            verdict = the_claim(table, *found, profile=profile)
            assert verdict.standing == "undecided"
            assert verdict.reason.startswith(f"in profile {profile} {deep} and ")
            assert verdict.reason.endswith(" are one training")
        assert the_claim(table).standing == "not run"
    assert the_claim(with_claim(TABLE3, "lower", deep, less), *runs, profile=profile).reason == reason


def test_nets_that_are_one_training_can_fail_together() -> None:
    deep, less = "cifar10_resnet1001/original", "cifar10_resnet164/original"
    runs = runs_of(TABLE3, {deep: [math.inf] * 3}, profile="smoke")
    verdict = the_claim(with_claim(TABLE3, "diverges", deep, less), *runs, profile="smoke", seeds=3)
    assert verdict.standing == "supported"
    assert len(verdict.findings) == 2


def test_recipe_and_data_make_two_trainings_of_one_net() -> None:
    cell, without = "cifar10_resnet164/preact", "cifar10_resnet164_no_warm_up/preact"
    hundred = "cifar100_resnet164/preact"
    for profile in ("paper", "shallow", "smoke"):
        runs = runs_of(TABLE3, {cell: LOW, without: HIGH}, profile=profile)
        verdict = the_claim(with_claim(TABLE3, "lower", cell, without), *runs, profile=profile, seeds=5)
        assert verdict.standing == "supported", profile
        verdict = the_claim(with_claim(TABLE3, "lower", cell, hundred), profile=profile)
        assert (verdict.standing == "not run") == (profile != "smoke"), profile  # both are on digits there


def test_without_published_numbers_none_are_spoken_of() -> None:
    assert "published" not in lower({A: LOW, B: HIGH}).basis


# Which runs


def test_runs_of_different_conditions_are_not_compared() -> None:
    table = with_claim(TABLE2, "lower", A, B)
    for how in ({"data": COPY}, {"precision": "tf32"}, {"numerics": 2}):
        verdict = the_claim(table, *records(TABLE2, A, LOW), *records(TABLE2, B, HIGH, **how))
        assert verdict.standing == "not run"
        assert verdict.reason == "its cells have no data, precision and numerics in common"


def test_claims_are_judged_on_any_data_and_say_on_which() -> None:
    runs = runs_of(TABLE2, {A: LOW, B: HIGH}, data=COPY, precision="bf16", numerics=3)
    verdict = the_claim(with_claim(TABLE2, "lower", A, B), *runs)
    assert verdict.standing == "supported"
    assert verdict.basis == "5 runs per net, CIFAR-10 (some copy), bf16, numerics 3"


@pytest.mark.parametrize("profile", ["smoke", "shallow"])
def test_claims_of_a_reduced_profile_say_so(profile: str) -> None:
    runs = runs_of(TABLE2, {A: LOW, B: HIGH}, profile=profile)
    verdict = the_claim(with_claim(TABLE2, "lower", A, B), *runs, profile=profile, seeds=5)
    assert verdict.standing == "supported"
    assert verdict.basis.endswith(f", profile {profile}")


def test_the_nearest_conditions_that_all_cells_have_in_common_are_taken() -> None:
    table = with_claim(TABLE2, "lower", A, B)
    near = records(TABLE2, A, LOW)
    far = runs_of(TABLE2, {A: HIGH, B: LOW}, precision="tf32")
    farther = runs_of(TABLE2, {A: LOW, B: HIGH}, precision="bf16")
    verdict = the_claim(table, *near, *far, *farther)
    assert (verdict.standing, verdict.basis) == ("contradicted", "5 runs per net, CIFAR-10, tf32, numerics 1")


def test_complete_conditions_come_before_nearer_ones_that_lack_runs() -> None:
    table = with_claim(TABLE2, "lower", A, B)
    near = runs_of(TABLE2, {A: HIGH, B: LOW[:4]})
    copies = runs_of(TABLE2, {A: LOW, B: HIGH}, data=COPY)
    verdict = the_claim(table, *near, *copies)
    assert verdict.standing == "supported"
    assert "some copy" in verdict.basis
    verdict = the_claim(table, *near, *copies, record(TABLE2, B, LOW[4], seed=4))
    assert verdict.standing == "contradicted"
    assert "some copy" not in verdict.basis


def test_of_incomplete_conditions_the_nearest_tells_what_is_lacking() -> None:
    table = with_claim(TABLE2, "lower", A, B)
    near = runs_of(TABLE2, {A: LOW[:1], B: LOW[:2]})
    copies = runs_of(TABLE2, {A: LOW, B: HIGH[:4]}, data=COPY)
    assert the_claim(table, *copies, *near).reason == f"{A}: 1 of 5 runs have ended"


def test_mixed_runs_come_last_of_the_complete() -> None:
    table = with_claim(TABLE2, "lower", A, B)
    odd = [mixed(run) for run in runs_of(TABLE2, {A: HIGH, B: LOW})]
    copies = runs_of(TABLE2, {A: LOW, B: HIGH}, data=COPY)
    assert the_claim(table, *odd, *copies).standing == "supported"
    alone = the_claim(table, *odd)
    assert alone.basis == "5 runs per net, CIFAR-10, fp32, numerics 1 and 2 (mixed)"


def test_results_from_elsewhere_are_never_part_of_a_claim() -> None:
    table = with_claim(TABLE2, "lower", A, B)
    entered = [external(TABLE2, cell, e, seed=i) for cell, es in ((A, LOW), (B, HIGH)) for i, e in enumerate(es)]
    verdict = the_claim(table, externals=entered)
    assert (verdict.standing, verdict.reason) == ("not run", f"no run of our own of {A}, {B}")
    half = the_claim(table, *records(TABLE2, A, LOW), externals=entered)
    assert (half.standing, half.reason) == ("not run", f"no run of our own of {B}")
    both = the_claim(table, *runs_of(TABLE2, {A: HIGH, B: LOW}), externals=entered)
    assert both.standing == "contradicted"


def test_claims_are_judged_if_all_their_cells_are_compared() -> None:
    table = with_claim(TABLE2, "lower", A, B)
    runs = runs_of(TABLE2, {A: LOW, B: HIGH})
    assert len(compare(table, table.cells("*/resnet110"), "paper", runs).claims) == 1
    assert compare(table, table.cells("preact"), "paper", runs).claims == ()
    table4 = a_table("table4")
    literature = with_claim(table4, "lower", "preact_resnet164/cifar10", "highway/cifar10")
    assert len(compare(literature, table4.cells("preact_resnet164"), "paper", []).claims) == 1


def test_all_claims_of_a_table_are_judged_in_order() -> None:
    verdicts = compared(TABLE2).claims
    assert [v.claim.id for v in verdicts] == [claim.id for claim in TABLE2.expected.claims]
    assert {v.standing for v in verdicts} == {"not run"}


def test_published_results_of_table_2_support_all_that_the_paper_says_of_them() -> None:
    """Runs that scatter by 0.05 around the printed medians, and losses as in Fig. 6."""
    histories, runs = Histories(), []
    for cell in TABLE2.cells():
        errors = [cell.number + d for d in (-0.06, 0.03, 0.0, -0.02, 0.05)]  # type: ignore[operator]
        found = records(TABLE2, cell.id, errors)
        start = {"preact": 0.5, "original": 0.6}.get(cell.row.id, 0.9)
        runs += histories.put(found, "train_loss", [start + d for d in (-0.01, 0.02, 0.0, 0.01, -0.02)])
    comparison = compared(TABLE2, *runs, training_mean=histories)
    assert {v.claim.id: v.standing for v in comparison.claims} == {
        claim.id: "supported" for claim in TABLE2.expected.claims
    }
    assert {c.verdict for c in comparison.cells} == {"reproduced"}
