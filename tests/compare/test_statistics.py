"""Statistics against scipy.stats, numerical integrals and published numbers."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import integrate, special, stats

from paperbench.compare.noise import Noise, Prior
from paperbench.compare.statistics import (
    Contrast,
    Interval,
    compute_contrast,
    decide,
    difference_interval,
    hodges_lehmann,
    hodges_lehmann_variance,
    holm,
    median_variance,
    outcomes,
)
from tests.compare.judging import contrast_by_definition, walsh_median

NUMBERS = st.floats(-50, 50).map(lambda x: round(x, 6))
SHIFTS = st.floats(-3, 3).map(lambda x: round(x, 6))


def samples(least: int = 1, most: int = 9) -> Any:
    return st.lists(NUMBERS, min_size=least, max_size=most)


def welch(a: Sequence[float], b: Sequence[float]) -> Contrast:
    return compute_contrast([a, b], [1, -1])


def against(a: Sequence[float], constant: float) -> Contrast:
    return compute_contrast([a], [1], constant)


# Estimates and their variances


def median_variance_by_quadrature(n: int) -> float:
    """From the density of the middle one of n, or of the middle two."""
    half = n // 2
    if n % 2:  # a uniform number's middle one follows a beta distribution
        return float(stats.beta(half + 1, half + 1).expect(lambda u: special.ndtri(u) ** 2, epsabs=1e-12))
    factor = math.factorial(n) / math.factorial(half - 1) ** 2 / (2 * math.pi) / 4 ** (half - 1)

    def density(y: float, x: float) -> float:
        both_sides = math.erfc(-x / math.sqrt(2)) * math.erfc(y / math.sqrt(2))
        return factor * ((x + y) / 2) ** 2 * both_sides ** (half - 1) * math.exp(-(x * x + y * y) / 2)

    return float(integrate.dblquad(density, -8, 8, lambda x: x, 8, epsabs=1e-10, epsrel=1e-10)[0])


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 10, 11, 20, 41])
def test_median_variance_matches_quadrature(n: int) -> None:
    assert median_variance(n) == pytest.approx(median_variance_by_quadrature(n), abs=1e-9)


@pytest.mark.parametrize("n", [300, 301, 5000, 5001])
def test_median_variance_approaches_its_limit(n: int) -> None:
    """Laplace: pi / 2n, with a correction that is smaller by one order of n."""
    assert n * median_variance(n) == pytest.approx(math.pi / 2, rel=3 / n)


@given(samples(), NUMBERS, st.randoms())
def test_hodges_lehmann_estimate_matches_its_definition(sample: list[float], shift: float, random: Any) -> None:
    estimate = hodges_lehmann(sample)
    assert estimate == pytest.approx(walsh_median(sample), abs=1e-9)
    mixed = random.sample(sample, len(sample))
    assert hodges_lehmann([mixed, [shift - 3 * x for x in mixed]]) == pytest.approx(
        np.array([estimate, shift - 3 * estimate]), abs=1e-9
    )
    if len(sample) >= 4:  # one bad run hardly moves it
        assert hodges_lehmann([*sample[1:], 1e6]) <= max(sample[1:])


# n times the variance for n = 3 ... 10, by 10 million samples each: the R package rQCC of Park, Kim and Wang, 2022
# (Investigation of finite-sample properties of robust location and scale estimators), n.times.eVar.of.HL2
RQCC = (1.02210, 1.09488, 1.07541, 1.07589, 1.08135, 1.07278, 1.07557, 1.07429)


def test_hodges_lehmann_variance_of_few_matches_the_literature() -> None:
    found = [n * hodges_lehmann_variance(n) for n in range(1, 11)]
    assert found[:2] == [1, 1]
    assert found[2:] == pytest.approx(RQCC, rel=3 * math.sqrt(2 / 1e7))


@pytest.mark.parametrize("n", [11, 15, 25, 40])
def test_hodges_lehmann_variance_of_many_matches_a_simulation(n: int) -> None:
    """n Var(estimate) = 1 + n Var(estimate - mean), as mean and deviations from it are independent (Basu)."""
    rng, repetitions = np.random.default_rng(n), 20_000
    drawn = (rng.standard_normal((1000, n)) for _ in range(repetitions // 1000))
    squares = np.concatenate([(hodges_lehmann(x) - x.mean(axis=-1)) ** 2 for x in drawn])
    chance = 4 * n * squares.std() / math.sqrt(repetitions)
    assert n * hodges_lehmann_variance(n) == pytest.approx(1 + n * squares.mean(), abs=0.003 + chance)
    assert chance < 0.005


# Intervals and decisions


@given(
    samples(),
    NUMBERS,
    st.sampled_from([1, 3, 5, 8]),
    st.floats(0.01, 3),
    st.sampled_from([None, 2.0, 4.0, 12.5]),
    st.sampled_from([0.01, 0.03, 0.05, 0.3]),
    st.sampled_from([None, 0.5, 1.5]),
)
def test_interval_of_two_one_sided_tests(
    errors: list[float], published: float, runs: int, std: float, degrees: Any, level: float, ratio: Any
) -> None:
    """By a cell's own noise, and by the table's; a printed std that exceeds the table's noise widens the interval."""
    own, table = Noise(std, degrees, "ours", 0.0, 0.0), Noise(std, degrees or math.inf, "table", 0.0, 0.5)
    assume(runs > 1 or ratio is None)
    printed = ratio and ratio * std
    found = {n.rests_on: difference_interval(errors, published, runs, n, level, printed) for n in (own, table)}
    for rests_on, interval in found.items():
        of_ours = median_variance(len(errors)) if rests_on == "ours" else hodges_lehmann_variance(len(errors))
        estimate = np.median(errors) if rests_on == "ours" else walsh_median(errors)
        ours, theirs, expected = std**2 * of_ours, std**2 * median_variance(runs), degrees or math.inf
        if rests_on == "table" and printed and printed > std:
            theirs *= (printed / std) ** 2
            expected = (ours + theirs) ** 2 / (ours**2 / expected + theirs**2 / (runs - 1))
        error = math.sqrt(ours + theirs)
        reach = (stats.norm.isf(level) if expected == math.inf else stats.t.isf(level, expected)) * error
        of_interval = math.inf if interval.degrees is None else interval.degrees
        assert interval.difference == pytest.approx(estimate - published, abs=1e-8)
        assert (interval.standard_error, of_interval) == pytest.approx((error, expected))
        assert (interval.high - interval.difference, interval.difference - interval.low) == pytest.approx([reach] * 2)
    # our runs' mirror image, and one more run
    noise = Noise(std, degrees or math.inf, "table", 0.0, 0.5)
    mirrored = difference_interval([-x for x in errors], -published, runs, noise, level, printed)
    assert (mirrored.low, mirrored.high) == pytest.approx((-found["table"].high, -found["table"].low), abs=1e-8)
    more = difference_interval([*errors, 0.0], published, runs, own, level)
    assert more.standard_error <= found["ours"].standard_error


@given(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=7), st.sampled_from([None, 0.2]))
def test_arrays_give_the_intervals_of_each_table(errors: list[tuple[float, ...]], printed: float | None) -> None:
    published, stds, degrees = np.array([6.37, 6.0, 6.2]), np.array([0.1, 0.2, 0.3]), np.array([8.0, 12.0, math.inf])
    together = difference_interval(
        np.transpose(errors), published, 5, Noise(stds, degrees, "table", 0, 1), 0.05, printed
    )
    for i, sample in enumerate(zip(*errors, strict=True)):
        alone = Noise(float(stds[i]), float(degrees[i]), "table", 0.0, 1.0)
        one = difference_interval(sample, float(published[i]), 5, alone, 0.05, printed)
        assert (one.low, one.high) == pytest.approx((together.low[i], together.high[i]), rel=1e-12)


@given(SHIFTS, st.just(0.0) | st.floats(1e-3, 2), st.floats(0, 2), st.sampled_from([4.0, None]), st.floats(-1, 1))
def test_decision_and_p_value(middle: float, error: float, tolerance: float, degrees: Any, closer: float) -> None:
    """At most one verdict holds, a mirror image has its opposite, and what is nearer is not less reproduced."""
    opposite = {"worse": "better", "better": "worse"}
    t: Any = stats.norm if degrees is None else stats.t(degrees)

    def judged(difference: float, level: float = 0.05) -> tuple[str, float]:
        reach = t.isf(level) * error
        one = Interval(difference - reach, difference + reach, level, difference, error, degrees)
        assert sum(map(bool, outcomes(one.low, one.high, tolerance))) <= 1
        p = one.p_beyond(tolerance)
        assert p >= level - 1e-9 or decide(one, tolerance) in opposite
        return decide(one, tolerance), p

    verdict, p = judged(middle)
    assert judged(-middle) == (opposite.get(verdict, verdict), p)
    nearer, p_nearer = judged(closer * middle)
    assert p_nearer >= p - 1e-12
    assert verdict != "reproduced" or nearer == "reproduced"
    assert (nearer == verdict) or nearer not in opposite or closer < 0
    if error:
        beyond = t.sf((abs(middle) - tolerance) / error) + t.sf((abs(middle) + tolerance) / error)
        assert p == pytest.approx(min(1.0, beyond), abs=1e-12)
    assert verdict in ("underpowered", judged(middle, 0.3)[0])  # more doubt turns no verdict into another


def test_identical_runs_have_a_point_interval() -> None:
    """Which is as exact as what is printed, though 16.17 - 15.67 is not 0.5 in floating point."""
    interval = difference_interval([16.17] * 3, 15.67, 5, Noise(0.0, 2.0, "ours", 0.0, 0.0), 0.05)
    assert (interval.low, interval.high, interval.standard_error) == (0.5, 0.5, 0)
    assert (decide(interval, 0.5), interval.p_beyond(0.5)) == ("reproduced", 1)
    assert (decide(interval, 0.49), interval.p_beyond(0.49)) == ("worse", 0)


# Contrasts of means


@given(a=samples(2), b=samples(2), margin=st.floats(0.01, 5), shift=SHIFTS)
def test_contrasts_match_scipy(a: list[float], b: list[float], margin: float, shift: float) -> None:
    assume(np.ptp(a) > 1e-3 and np.ptp(b) > 1e-3)
    constant = float(np.mean(a)) + shift
    for ours, test, *arguments in (
        (welch(a, b), stats.ttest_ind, b, True),
        (against(a, constant), stats.ttest_1samp, constant, False),
    ):
        other, is_welch = arguments
        how: dict[str, Any] = {"equal_var": False} if is_welch else {}
        less = test(a, other, alternative="less", **how)
        assert (ours.estimate / ours.standard_error, ours.degrees) == pytest.approx((less.statistic, less.df), abs=1e-6)
        assert (ours.p_less(0), ours.p_greater(0)) == pytest.approx((less.pvalue, 1 - less.pvalue), abs=1e-7)
        low, high = np.array(test(a, other, **how).confidence_interval(0.9)) - (0 if is_welch else constant)
        assert ours.interval(0.05) == pytest.approx((low, high), rel=1e-6, abs=1e-6)
        above, below = (
            test(np.add(a, move), other, alternative=one, **how).pvalue
            for move, one in ((margin, "greater"), (-margin, "less"))
        )
        assert ours.p_equivalent(margin) == pytest.approx(max(above, below), abs=1e-7)
        true, t = np.linspace(-margin, margin, 1001), stats.t(ours.degrees)
        size, error = abs(ours.estimate), ours.standard_error
        supremum = (t.sf((size - true) / error) + t.cdf((-size - true) / error)).max()
        assert ours.p_beyond(margin) == pytest.approx(min(1, supremum), abs=1e-9)
        assert not (ours.p_equivalent(margin) < 0.05 and ours.p_beyond(margin) < 0.05)


PRIORS = st.tuples(st.floats(0.01, 10), st.sampled_from([0.0, 2.0, 7.5, 40.0]))


@given(
    st.lists(st.tuples(samples(2), st.sampled_from([-2.0, -1.0, 1.0, 1.5]), PRIORS), min_size=1, max_size=4), NUMBERS
)
def test_contrast_matches_its_definition(cells: list[Any], constant: float) -> None:
    """Moderated variances (Smyth, 2004); without priors, Satterthwaite's sum."""
    assume(all(np.ptp(sample) > 1e-3 for sample, *_ in cells))
    drawn, weights = ({str(i): cell[part] for i, cell in enumerate(cells)} for part in (0, 1))
    for priors in ({str(i): prior for i, (*_, prior) in enumerate(cells)}, {}):
        given_priors = [Prior(*priors[cell]) for cell in priors]
        ours = compute_contrast(list(drawn.values()), list(weights.values()), constant, given_priors)
        estimate, error, degrees = contrast_by_definition(drawn, weights, priors)
        assert (ours.estimate, ours.standard_error) == pytest.approx((estimate - constant, error), abs=1e-8)
        assert ours.degrees == pytest.approx(degrees, rel=1e-6)


@pytest.mark.parametrize(("a", "p"), [(0.1, 0.0), (0.3, 1.0), (0.5, 1.0)])
def test_constant_samples_have_no_uncertainty(a: float, p: float) -> None:
    for ours in (welch([a] * 3, [0.3] * 4), against([a] * 3, 0.3)):
        assert (ours.standard_error, ours.degrees, ours.p_less(0)) == (0, math.inf, p)
        assert ours.interval(0.05) == (ours.estimate, ours.estimate)
        assert ours.p_equivalent(0.25) == 0
        assert ours.p_equivalent(0.1) == (a != 0.3)
        assert (ours.p_beyond(0.19), ours.p_beyond(0.21)) == (a == 0.3, 1)
    assert 0.3 - 0.2 - 0.1 < 0  # an error of rounding
    assert compute_contrast([[0.3] * 3, [0.2] * 3, [0.1] * 3], [1, -1, -1]).p_less(0) == 1


# Many hypotheses


@given(st.lists(st.sampled_from([0.0, 0.004, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.04, 0.05, 0.3, 1.0]), max_size=6))
def test_holm_rejects_what_every_larger_set_of_hypotheses_rejects(p_values: list[float]) -> None:
    """The closed procedure: Bonferroni's test of every set of hypotheses that contains the one."""
    number, expected = len(p_values), []
    for i in range(number):
        sets = ([j for j in range(number) if bits >> j & 1] for bits in range(2**number) if bits >> i & 1)
        expected.append(all(min(p_values[j] for j in one) * len(one) <= 0.05 for one in sets))
    assert holm(p_values, 0.05) == expected


KNOWN = Noise(0.16, 4, "ours", 0.0, 0.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: difference_interval([6.3, math.nan], 6.4, 5, KNOWN, 0.05),
        lambda: against([6.3, 6.5], math.nan),
        lambda: compute_contrast([[6.3, 6.5], [5.5, 5.9]], [1, math.nan]),
    ],
)
def test_numbers_that_are_not_finite_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="finite"):
        call()


def test_slow_modules_are_not_imported() -> None:
    code = "import sys, paperbench.compare.statistics; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"scipy.stats", "scipy.integrate", "scipy.optimize", "torch", "timm"} & set(done.stdout.split())
