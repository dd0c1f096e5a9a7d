"""Statistics against scipy.stats and numerical integrals, and error rates by simulation."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate, stats

from paperbench.compare.statistics import (
    FIRST_ALPHA,
    PUBLISHED_DEGREES,
    PUBLISHED_FACTOR,
    SECOND_ALPHA,
    SINGLE_RUN_FACTOR,
    Contrast,
    Interval,
    Noise,
    binomial_standard_error,
    compute_contrast,
    decide,
    estimate_noise,
    holm,
    median_interval,
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


# Noise


def test_noise_without_a_published_std() -> None:
    for resolution in (0.0, 0.1):
        assert estimate_noise(A, None, 5, resolution) == Noise(pytest.approx(np.std(A, ddof=1)), 4, "ours", 0.0)
        assert [estimate_noise(A[:n], None, 5, resolution) for n in range(3)] == [None] * 3
    rounding = math.sqrt(integrate.quad(lambda x: x**2 / 0.1, -0.05, 0.05)[0])
    assert estimate_noise([6.4] * 3, None, 5, 0.1) == Noise(pytest.approx(rounding), 2, "ours", 0.0)
    assert estimate_noise([6.4, 6.41, 6.4], None, 5, 0.1) == estimate_noise([6.4] * 3, None, 5, 0.1)


def test_noise_with_a_published_std() -> None:
    weight = PUBLISHED_DEGREES / (4 + PUBLISHED_DEGREES)
    pooled = math.sqrt((1 - weight) * np.var(A, ddof=1) + weight * (PUBLISHED_FACTOR * 0.16) ** 2)
    expected = Noise(pytest.approx(pooled), 4 + PUBLISHED_DEGREES, "both", pytest.approx(weight))
    assert estimate_noise(A, 0.16, 5) == estimate_noise(A, 0.16, 5, 0.1) == expected
    assert estimate_noise([6.4], 0.16, 5) == Noise(SINGLE_RUN_FACTOR * 0.16, math.inf, "published", 1.0)
    assert estimate_noise([], 0.16, 5) is None


# Intervals and decisions


def interval_of(errors: Sequence[float], published: float, std: float | None = None) -> Interval:
    known = estimate_noise(errors, std, 5)
    assert known
    return median_interval(errors, published, 5, known, FIRST_ALPHA)


@pytest.mark.parametrize("std", [None, 0.16])
def test_interval_of_two_one_sided_tests(std: float | None) -> None:
    known = estimate_noise(A, std, 5)
    assert known
    interval = median_interval(A, 6.37, 5, known, 0.03)
    assert interval.difference == pytest.approx(6.40 - 6.37, abs=1e-9)
    error = known.std * math.sqrt(2 * median_variance_by_quadrature(5))
    reach = stats.t.ppf(0.97, known.degrees) * error
    assert interval.standard_error == pytest.approx(error, abs=1e-9)
    assert (interval.low, interval.high) == pytest.approx((0.03 - reach, 0.03 + reach), abs=1e-9)
    assert (interval.level, interval.degrees) == (0.03, known.degrees)


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
    assert decide(Interval((low + high) / 2, low, high, 0.05, 0.1, 4), TOLERANCE) == decision


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


KNOWN = Noise(0.16, 4, "ours", 0.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: median_variance(0), "at least one"),
        (lambda: median_interval([], 6.37, 5, KNOWN, 0.05), "at least one"),
        *((lambda std=std: estimate_noise(A, std, 5), "not a standard deviation") for std in (0.0, math.nan, math.inf)),
        (lambda: estimate_noise(A, 0.16, 1), "not a standard deviation"),
        *((lambda x=x: estimate_noise([*A, x], None, 5), "finite") for x in (math.inf, math.nan)),
        (lambda: median_interval([*A, math.nan], 6.4, 5, KNOWN, 0.05), "finite"),
        (lambda: against(A, math.nan), "finite"),
        (lambda: compute_contrast([A, B], [1, math.nan]), "finite"),
        *((lambda x=x: median_interval(A, 6.37, 5, KNOWN, x), "level") for x in (0, 0.5, 1, -0.1, math.nan)),
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


# Error rates
#
# Verdicts at a tolerance of 0.5 compare our median of n runs with a published median of 5 equally noisy runs.
# A published std is a fixed number, and the true noise a multiple of it.


@dataclass(frozen=True)
class Rates:
    """Verdicts by repetition."""

    reproduced: NDArray[np.bool_]
    worse: NDArray[np.bool_]
    better: NDArray[np.bool_]

    def then(self, second: Rates) -> Rates:
        """The rates if underpowered cells get a second analysis."""
        open_ = ~(self.reproduced | self.worse | self.better)
        return Rates(
            self.reproduced | open_ & second.reproduced,
            self.worse | open_ & second.worse,
            self.better | open_ & second.better,
        )

    @property
    def false_alarms(self) -> float:
        return float((self.worse | self.better).mean())


class Simulation:
    """Standard normal runs, which are scaled and shifted for each case."""

    def __init__(self, repetitions: int, runs: int = 10) -> None:
        rng = np.random.default_rng(20160716)
        self.ours = rng.standard_normal((repetitions, runs))
        self.published = np.median(rng.standard_normal((repetitions, 5)), axis=1)
        self._of: dict[int, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}

    @property
    def slack(self) -> float:
        """Four standard errors of a rate of 5 %."""
        return 4 * math.sqrt(0.05 * 0.95 / len(self.published))

    def rates(self, n: int, std: float, shift: float, published_std: float | None, level: float) -> Rates:
        """`estimate_noise`, `median_interval` and `decide`, vectorised over repetitions."""
        if n not in self._of:
            first = self.ours[:, :n]
            self._of[n] = np.median(first, axis=1), first.var(axis=1, ddof=1) if n > 1 else first[:, 0] * 0
        medians, variances = self._of[n]
        quantile = stats.t.ppf(1 - level, n - 1) if n > 1 else stats.norm.ppf(1 - level)
        variance = std**2 * variances
        if published_std is not None:
            if n == 1:
                variance = np.full_like(variances, (SINGLE_RUN_FACTOR * published_std) ** 2)
            else:
                degrees = n - 1 + PUBLISHED_DEGREES
                prior = PUBLISHED_DEGREES * (PUBLISHED_FACTOR * published_std) ** 2
                variance = ((n - 1) * variance + prior) / degrees
                quantile = stats.t.ppf(1 - level, degrees)
        difference = std * (medians - self.published) + shift
        reach = quantile * np.sqrt(variance * (median_variance(n) + median_variance(5)))
        low, high = difference - reach, difference + reach
        return Rates((low >= -TOLERANCE) & (high <= TOLERANCE), low > TOLERANCE, high < -TOLERANCE)

    def analyses(self, number: int, n: int, std: float, shift: float, published_std: float | None) -> Rates:
        """The rates after one analysis of n runs, or after a second of 2n runs too."""
        first = self.rates(n, std, shift, published_std, FIRST_ALPHA)
        return first.then(self.rates(2 * n, std, shift, published_std, SECOND_ALPHA)) if number == 2 else first


@pytest.fixture(scope="module")
def simulation(full: bool) -> Simulation:
    return Simulation(1_000_000 if full else 200_000)


@pytest.mark.parametrize("level", [FIRST_ALPHA, SECOND_ALPHA])
@pytest.mark.parametrize(
    ("n", "published_std"), [(1, 0.16), (2, 0.2), (3, 0.14), (5, 0.16), (10, 0.22), (3, None), (4, None), (5, None)]
)
def test_simulation_agrees_with_the_functions(n: int, published_std: float | None, level: float) -> None:
    few = Simulation(100)
    seen = set()
    for shift in (0.0, -0.3, 0.5, -0.8, 1.0):
        rates = few.rates(n, 0.2, shift, published_std, level)
        for i in range(100):
            errors = 6.0 + shift + 0.2 * few.ours[i, :n]
            known = estimate_noise(errors.tolist(), published_std, 5)
            assert known
            interval = median_interval(errors.tolist(), 6.0 + 0.2 * few.published[i], 5, known, level)
            decision = decide(interval, TOLERANCE)
            seen.add(decision)
            expected = (decision == "reproduced", decision == "worse", decision == "better")
            assert (rates.reproduced[i], rates.worse[i], rates.better[i]) == expected
    assert len(seen) > 1


@pytest.mark.parametrize("published_std", [None, 0.16])
def test_power_of_five_runs(simulation: Simulation, published_std: float | None) -> None:
    assert simulation.rates(5, 0.16, 0, published_std, FIRST_ALPHA).reproduced.mean() >= 0.85
    # true rates: 95.15 % without, 96.06 % with the published std
    shifted = simulation.rates(5, 0.16, 1, published_std, FIRST_ALPHA).worse.mean()
    assert shifted >= 0.95 - simulation.slack


QUICK_RATIOS, RATIOS = (0.3, 1.0, 1.5), (0.3, 0.5, 0.7, 0.85, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
QUICK_STDS, STDS = (0.1, 0.3, 1.0), (0.1, 0.16, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@pytest.mark.parametrize(
    ("n", "analyses"), [*((n, 1) for n in (1, 2, 3, 4, 5, 10)), *((n, 2) for n in (1, 2, 3, 4, 5))]
)
def test_both_error_rates_are_at_most_five_percent(simulation: Simulation, full: bool, n: int, analyses: int) -> None:
    """At any noise without a published std (at least 3 runs), else up to 1.5 times the published noise."""
    cases: list[tuple[float, float | None]] = [(std, None) for std in (STDS if full else QUICK_STDS) if n >= 3]
    for published_std in (0.14, 0.16, 0.20, 0.22) if full else (0.14, 0.22):
        cases += [(ratio * published_std, published_std) for ratio in (RATIOS if full else QUICK_RATIOS)]
    for std, published_std in cases:
        assert simulation.analyses(analyses, n, std, 0, published_std).false_alarms <= 0.05 + simulation.slack
        for shift in (0.5, 0.6, 1.0, -0.5) if full else (0.5, 0.6):
            missed = simulation.analyses(analyses, n, std, shift, published_std).reproduced.mean()
            assert missed <= 0.05 + simulation.slack
