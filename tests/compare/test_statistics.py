"""Statistics against scipy.stats, numerical integrals and published numbers."""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from scipy import integrate, stats

from paperbench.compare.noise import Noise, Prior, estimate_noise, variance_of
from paperbench.compare.statistics import (
    FIRST_ALPHA,
    Contrast,
    Interval,
    binomial_standard_error,
    compute_contrast,
    decide,
    difference_interval,
    hodges_lehmann,
    hodges_lehmann_variance,
    holm,
    median_variance,
    p_beyond_tolerance,
)

A = [6.31, 6.52, 6.18, 6.77, 6.40]
B = [5.51, 5.46, 5.93]
C = [4.9, 5.3, 5.0, 5.2]
TOLERANCE = 0.5


def welch(a: Sequence[float], b: Sequence[float]) -> Contrast:
    return compute_contrast([a, b], [1, -1])


def against(a: Sequence[float], constant: float) -> Contrast:
    return compute_contrast([a], [1], constant)


# Medians


def density(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def below(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def median_variance_by_quadrature(n: int) -> float:
    """The density of the middle one of n, or of the middle two, straight from its definition."""
    half = n // 2
    if n % 2:
        factor = math.factorial(n) / math.factorial(half) ** 2
        return integrate.quad(
            lambda x: factor * x * x * (below(x) * below(-x)) ** half * density(x), -9, 9, epsabs=1e-12, limit=200
        )[0]
    factor = math.factorial(n) / math.factorial(half - 1) ** 2
    return integrate.dblquad(
        lambda y, x: (
            factor * ((x + y) / 2) ** 2 * (below(x) * below(-y)) ** (half - 1) * density(x) * density(y)
        ),
        -8,
        8,
        lambda x: x,
        8,
        epsabs=1e-11,
        epsrel=1e-11,
    )[0]  # fmt: skip


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 10, 11, 20, 25, 40, 41])
def test_median_variance_matches_quadrature(n: int) -> None:
    assert median_variance(n) == pytest.approx(median_variance_by_quadrature(n), abs=1e-10)


def test_median_variance_matches_the_literature() -> None:
    assert median_variance(1) == pytest.approx(1, abs=1e-12)
    assert median_variance(2) == pytest.approx(0.5, abs=1e-12)
    assert median_variance(3) == pytest.approx(1 - math.sqrt(3) / math.pi, abs=1e-12)
    # Sarhan and Greenberg, Contributions to Order Statistics (1962): covariances of normal order statistics
    assert median_variance(4) == pytest.approx((0.3604553434 + 0.2359438935) / 2, abs=1e-9)
    assert median_variance(5) == pytest.approx(0.2868336616, abs=1e-9)
    assert median_variance(7) == pytest.approx(0.2104468615, abs=1e-9)


@pytest.mark.parametrize("n", [300, 301, 5000, 5001])
def test_median_variance_approaches_its_limit(n: int) -> None:
    """Laplace: pi / 2n, with a correction that is smaller by one order of n."""
    assert n * median_variance(n) == pytest.approx(math.pi / 2, rel=3 / n)


# Hodges-Lehmann estimates


DEPRESSION = [0.952, -0.147, 1.022, 0.430, 0.620, 0.590, 0.490, -0.080, 0.010]
"""Changes of the Hamilton depression scale in nine patients (Hollander and Wolfe, Nonparametric Statistical Methods,
1973), as in the help of R's wilcox.test, which estimates 0.46."""


def test_estimate_of_the_depression_data() -> None:
    assert hodges_lehmann(DEPRESSION) == pytest.approx(0.46, abs=1e-12)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 10])
def test_estimate_matches_its_definition(n: int) -> None:
    samples = np.random.default_rng(n).standard_normal((5, n))
    by_hand = [statistics.median([(x[i] + x[j]) / 2 for i in range(n) for j in range(i + 1)]) for x in samples]
    assert hodges_lehmann(samples) == pytest.approx(np.array(by_hand), abs=1e-12)
    if n == 3:
        low, middle, high = np.sort(samples).T
        assert hodges_lehmann(samples) == pytest.approx((low + 2 * middle + high) / 4, abs=1e-12)
    assert hodges_lehmann(6 - 3 * samples) == pytest.approx(6 - 3 * hodges_lehmann(samples), abs=1e-12)


def test_one_bad_run_of_four_hardly_moves_the_estimate() -> None:
    good = [6.2, 6.3, 6.5]
    assert hodges_lehmann([*good, 90.0]) <= max(good)


# n times the variance for n = 3 ... 10, by 10 million samples each: the R package rQCC of Park, Kim and Wang, 2022
# (Investigation of finite-sample properties of robust location and scale estimators), n.times.eVar.of.HL2
RQCC = (1.02210, 1.09488, 1.07541, 1.07589, 1.08135, 1.07278, 1.07557, 1.07429)


@pytest.mark.parametrize(("n", "published"), list(enumerate(RQCC, 3)))
def test_variance_of_few_matches_the_literature(n: int, published: float) -> None:
    standard_error = published * math.sqrt(2 / 1e7)
    assert n * hodges_lehmann_variance(n) == pytest.approx(published, abs=3 * standard_error)


def test_variance_of_three_has_a_closed_form() -> None:
    """Moments of normal order statistics: E(x1^2) = 1 + sqrt(3) / (2 pi) and so on."""
    extreme, middle = 1 + math.sqrt(3) / (2 * math.pi), 1 - math.sqrt(3) / math.pi
    neighbours, ends = math.sqrt(3) / (2 * math.pi), -math.sqrt(3) / math.pi
    raw = (2 * extreme + 4 * middle + 2 * ends + 8 * neighbours) / 16
    assert hodges_lehmann_variance(3) == pytest.approx(raw, rel=1e-12)
    assert [hodges_lehmann_variance(n) for n in (1, 2)] == [1.0, 0.5]


@pytest.mark.parametrize("n", [11, 15, 25, 40])
def test_variance_of_many_matches_a_simulation(n: int) -> None:
    """n Var(estimate) = 1 + n Var(estimate - mean), as mean and deviations from it are independent (Basu)."""
    rng, repetitions = np.random.default_rng(n), 20_000
    samples = (rng.standard_normal((1000, n)) for _ in range(repetitions // 1000))
    squares = np.concatenate([(hodges_lehmann(x) - x.mean(axis=-1)) ** 2 for x in samples])
    chance = 4 * n * squares.std() / math.sqrt(repetitions)
    assert n * hodges_lehmann_variance(n) == pytest.approx(1 + n * squares.mean(), abs=0.003 + chance)
    assert chance < 0.005


# Intervals and decisions


def noise_of(errors: Sequence[float], std: float | None) -> Noise:
    noise = estimate_noise(variance_of(errors, 0.0), len(errors), std, 5)
    assert noise
    return noise


def interval_of(errors: Sequence[float], published: float) -> Interval:
    known = noise_of(errors, None)
    return difference_interval(errors, published, 5, known, FIRST_ALPHA)


@pytest.mark.parametrize("std", [None, 0.16])
def test_interval_of_two_one_sided_tests(std: float | None) -> None:
    known = noise_of(A, std)
    interval = difference_interval(A, 6.37, 5, known, 0.03)
    assert interval.difference == pytest.approx(6.40 - 6.37, abs=1e-9)
    error = known.std * math.sqrt(2 * median_variance_by_quadrature(5))
    reach = stats.t.ppf(0.97, known.degrees) * error
    assert interval.standard_error == pytest.approx(error, abs=1e-9)
    assert (interval.low, interval.high) == pytest.approx((0.03 - reach, 0.03 + reach), abs=1e-9)
    assert (interval.level, interval.degrees) == (0.03, known.degrees)


SHARED = Noise(0.2, 12.0, "table", 0.0, 0.5)


def test_interval_with_the_tables_noise_is_around_the_hodges_lehmann_estimate() -> None:
    interval = difference_interval(A, 6.37, 5, SHARED, 0.03)
    error = 0.2 * math.sqrt(hodges_lehmann_variance(5) + median_variance_by_quadrature(5))
    difference = np.median([(x + y) / 2 for i, x in enumerate(A) for y in A[: i + 1]]) - 6.37
    reach = stats.t.ppf(0.97, 12) * error
    assert (interval.difference, interval.standard_error) == pytest.approx((difference, error), abs=1e-9)
    assert (interval.low, interval.high) == pytest.approx((difference - reach, difference + reach), abs=1e-9)


def test_published_std_widens_an_interval_with_the_tables_noise() -> None:
    """By the variance of the published median, with its 4 degrees of freedom (Satterthwaite)."""
    without = difference_interval(A, 6.37, 5, SHARED, 0.05)
    assert difference_interval(A, 6.37, 5, SHARED, 0.05, 0.19) == without
    ours, theirs = 0.2**2 * hodges_lehmann_variance(5), 0.3**2 * median_variance_by_quadrature(5)
    wider = difference_interval(A, 6.37, 5, SHARED, 0.05, 0.3)
    degrees = (ours + theirs) ** 2 / (ours**2 / 12 + theirs**2 / 4)
    assert (wider.degrees, wider.standard_error) == pytest.approx((degrees, math.sqrt(ours + theirs)), abs=1e-9)
    assert wider.high - wider.difference == pytest.approx(stats.t.isf(0.05, degrees) * wider.standard_error, abs=1e-9)
    assert wider.high - wider.low > without.high - without.low


def test_arrays_give_the_intervals_of_each_table() -> None:
    samples, published = np.array([A, A[::-1], [x + 0.1 for x in A]]), np.array([6.37, 6.0, 6.2])
    noise = Noise(np.array([0.1, 0.2, 0.3]), np.array([8.0, 12.0, math.inf]), "table", 0.0, np.ones(3))
    together = difference_interval(samples, published, 5, noise, 0.05, 0.15)
    for i, sample in enumerate(samples):
        alone = Noise(float(noise.std[i]), float(noise.degrees[i]), "table", 0.0, 1.0)
        one = difference_interval(sample, float(published[i]), 5, alone, 0.05, 0.15)
        for field in ("difference", "low", "high", "standard_error", "degrees"):
            assert getattr(together, field)[i] == pytest.approx(getattr(one, field), rel=1e-12)


def test_identical_runs_have_a_point_interval() -> None:
    interval = interval_of([16.17, 16.17, 16.17], 15.67)
    assert (interval.low, interval.high, interval.standard_error) == (0.5, 0.5, 0)
    assert (decide(interval, 0.5), p_beyond_tolerance(interval, 0.5)) == ("reproduced", 1)
    assert (decide(interval, 0.49), p_beyond_tolerance(interval, 0.49)) == ("worse", 0)
    equal = interval_of([0.1, 0.1, 0.1], 0.1)
    assert (decide(equal, 0.0), p_beyond_tolerance(equal, 0.0)) == ("reproduced", 1)


@pytest.mark.parametrize(
    ("low", "high", "decision"),
    [
        (-0.2, 0.3, "reproduced"),
        (-0.5, 0.5, "reproduced"),
        (0.51, 1.2, "worse"),
        (0.5, 1.2, "underpowered"),
        (-1.2, -0.51, "better"),
    ],
)
def test_decision(low: float, high: float, decision: str) -> None:
    assert decide(Interval(low, high, 0.05, (low + high) / 2, 0.1, 4), TOLERANCE) == decision


# Contrasts of means


@pytest.mark.parametrize(("a", "b"), [(A, B), (B, A), (A, C), (A, [x + 0.9 for x in A])])
def test_welch_matches_scipy(a: list[float], b: list[float]) -> None:
    ours = welch(a, b)
    less = stats.ttest_ind(a, b, equal_var=False, alternative="less")
    both = stats.ttest_ind(a, b, equal_var=False)
    assert ours.estimate / ours.standard_error == pytest.approx(less.statistic, abs=1e-9)
    assert ours.degrees == pytest.approx(less.df, abs=1e-9)
    assert (ours.p_less(0), ours.p_greater(0)) == pytest.approx((less.pvalue, 1 - less.pvalue), abs=1e-9)
    assert ours.interval(0.05) == pytest.approx(tuple(both.confidence_interval(0.9)), abs=1e-9)


def test_one_sample_test_matches_scipy() -> None:
    constant = 6.6
    ours, theirs = against(A, constant), stats.ttest_1samp(A, constant, alternative="less")
    assert ours.estimate / ours.standard_error == pytest.approx(theirs.statistic, abs=1e-9)
    assert (ours.degrees, ours.p_less(0)) == pytest.approx((4, theirs.pvalue), abs=1e-9)
    interval = stats.ttest_1samp(A, constant).confidence_interval(0.9)
    assert ours.interval(0.05) == pytest.approx((interval.low - constant, interval.high - constant), abs=1e-9)


@pytest.mark.parametrize("margin", [0.05, 0.2, 0.9, 2.0])
def test_tost_is_the_larger_of_two_one_sided_p_values(margin: float) -> None:
    for a, b in ((A, B), (B, A), (A, [x + 0.01 for x in A])):
        shifted = [[x + shift for x in a] for shift in (margin, -margin)]
        above = stats.ttest_ind(shifted[0], b, equal_var=False, alternative="greater").pvalue
        under = stats.ttest_ind(shifted[1], b, equal_var=False, alternative="less").pvalue
        ours = welch(a, b)
        assert ours.p_equivalent(margin) == pytest.approx(max(above, under), abs=1e-9)
        low, high = ours.interval(0.05)
        assert (ours.p_equivalent(margin) < 0.05) == (-margin < low and high < margin)


@pytest.mark.parametrize("margin", [0.05, 0.2, 0.9, 2.0])
def test_p_beyond_is_the_supremum_within_the_margin(margin: float) -> None:
    for ours in (welch(A, B), welch(B, A), welch(A, [x + 0.01 for x in A]), against(A, 5.0)):
        true, t = np.linspace(-margin, margin, 1001), stats.t(ours.degrees)
        size, error = abs(ours.estimate), ours.standard_error
        probabilities = t.sf((size - true) / error) + t.cdf((-size - true) / error)
        assert ours.p_beyond(margin) == pytest.approx(min(1, probabilities.max()), abs=1e-9)
    assert [welch([a] * 3, [0.3] * 4).p_beyond(0.25) for a in (0.3, 0.5, 0.6)] == [1, 1, 0]


def test_difference_of_differences() -> None:
    d = [5.1, 4.7, 5.6]
    ours = compute_contrast([A, B, C, d], [1, -1, -1, 1])
    parts = [np.var(s, ddof=1) / len(s) for s in (A, B, C, d)]
    degrees = sum(parts) ** 2 / sum(p**2 / (len(s) - 1) for p, s in zip(parts, (A, B, C, d), strict=True))
    assert ours.estimate == pytest.approx((np.mean(A) - np.mean(B)) - (np.mean(C) - np.mean(d)))
    assert ours.standard_error == pytest.approx(math.sqrt(sum(parts)))
    assert ours.degrees == pytest.approx(degrees)
    assert compute_contrast([A], [-2], 1.0).estimate == pytest.approx(-2 * np.mean(A) - 1)
    assert compute_contrast([A], [-2]).standard_error == pytest.approx(2 * stats.sem(A))


def test_contrast_with_priors() -> None:
    """Moderated variances (Smyth, 2004); the parts from priors rest on the same cells, so their errors add up."""
    priors = [Prior(0.05, 7.0), Prior(0.04, 12.0), Prior(0.3, 0.0)]
    weights = [1, -2, 1]
    ours = compute_contrast([A, B, C], weights, 0.5, priors)
    total, shared, squares = 0.0, 0.0, 0.0
    for sample, weight, prior in zip((A, B, C), weights, priors, strict=True):
        n = len(sample)
        of_prior = weight**2 * prior.degrees * prior.variance / (prior.degrees + n - 1) / n
        of_sample = weight**2 * (n - 1) * statistics.variance(sample) / (prior.degrees + n - 1) / n
        total += of_prior + of_sample
        shared += of_prior * math.sqrt(2 / prior.degrees) if prior.degrees else 0  # std of the variance estimate
        squares += of_sample**2 * 2 / (n - 1)
    assert ours.estimate == pytest.approx(np.mean(A) - 2 * np.mean(B) + np.mean(C) - 0.5)
    assert ours.standard_error == pytest.approx(math.sqrt(total))
    assert ours.degrees == pytest.approx(2 * total**2 / (shared**2 + squares))
    assert compute_contrast([A, B, C], weights, 0.5, [Prior(0.0, 0.0)] * 3) == compute_contrast([A, B, C], weights, 0.5)


@pytest.mark.parametrize(("a", "p"), [(0.1, 0.0), (0.3, 1.0), (0.5, 1.0)])
def test_constant_samples_have_no_uncertainty(a: float, p: float) -> None:
    for ours in (welch([a] * 3, [0.3] * 4), against([a] * 3, 0.3)):
        assert (ours.standard_error, ours.degrees, ours.p_less(0)) == (0, math.inf, p)
        assert ours.interval(0.05) == (ours.estimate, ours.estimate)
        assert ours.p_equivalent(0.25) == 0
        assert ours.p_equivalent(0.1) == (a != 0.3)


def test_rounding_errors_of_constants_are_ignored() -> None:
    assert 0.3 - 0.2 - 0.1 < 0
    assert compute_contrast([[0.3] * 3, [0.2] * 3, [0.1] * 3], [1, -1, -1]).p_less(0) == 1


# Many hypotheses


def test_holm_by_hand() -> None:
    """0.005 * 4 = 0.02 and 0.015 * 3 = 0.045 are rejected, 0.03 * 2 = 0.06 is not, so neither is 0.04."""
    assert holm([0.015, 0.04, 0.03, 0.005], 0.05) == [True, False, False, True]
    assert (holm([0.05], 0.05), holm([], 0.05)) == ([True], [])


def test_binomial_standard_error() -> None:
    assert binomial_standard_error(6.37, 10_000) == pytest.approx(100 * stats.binom.std(10_000, 0.0637) / 10_000)
    assert binomial_standard_error(0, 10_000) == 0


# What is refused


KNOWN = Noise(0.16, 4, "ours", 0.0, 0.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: median_variance(0), "at least one"),
        (lambda: difference_interval([], 6.37, 5, KNOWN, 0.05), "at least one"),
        (lambda: hodges_lehmann_variance(0), "at least one"),
        (lambda: difference_interval([*A, math.nan], 6.4, 5, KNOWN, 0.05), "finite"),
        (lambda: against(A, math.nan), "finite"),
        (lambda: compute_contrast([A, B], [1, math.nan]), "finite"),
        *((lambda x=x: difference_interval(A, 6.37, 5, KNOWN, x), "level") for x in (0, 0.5, 1, -0.1, math.nan)),
        (lambda: welch(A, [5.0]), "at least two"),
        (lambda: compute_contrast([A, B], [1]), "2 samples and 1 weights"),
        *((lambda p=p: holm([0.1, p], 0.05), "between 0 and 1") for p in (-0.1, 1.1, math.nan)),
        *((lambda x=x: binomial_standard_error(x, 10), "not a test error") for x in (-1, 101, math.nan)),
        (lambda: binomial_standard_error(5, 0), "not a test error"),
    ],
)
def test_invalid_arguments_are_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_slow_modules_are_not_imported() -> None:
    code = "import sys, paperbench.compare.statistics; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"scipy.stats", "scipy.integrate", "scipy.optimize", "torch", "timm"} & set(done.stdout.split())
