"""Statistics behind the verdicts: estimates, intervals, p-values.

Errors, differences and standard deviations are in percentage points, and a positive difference means that our error
is higher.

Differences from published medians are judged by two one-sided t-tests (TOST), contrasts of means by Welch's test. Both
assume independent, roughly normal runs. An estimate and the standard deviation of the same few runs are dependent, so
their ratio does not exactly follow Student's t. The error rates of the verdicts are therefore verified by simulation
in the tests.

The simulation uses these functions: where a number is a `Number`, an array stands for many simulated tables.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special  # type: ignore[import-untyped]  # scipy.stats takes 0.8 s to import

from paperbench.compare.noise import NO_PRIOR, Floats, Noise, Number, Prior, plain, variance_of

Decision = Literal["reproduced", "worse", "better", "underpowered"]

# One-sided levels of the two analyses. Five runs at a noise of 0.16 detect a shift of one point with 95 % power only at
# 5 %, so the first analysis gets all of it. The second costs little: Student's t overstates the spread of a median of
# few runs, and both analyses share half of our runs and the published number. It adds 0.3 % instead of 1 % in the worst
# case.
FIRST_ALPHA = 0.05
SECOND_ALPHA = 0.01

ANALYSES = ((1, FIRST_ALPHA), (2, SECOND_ALPHA))
"""The two analyses: multiple of the planned runs, and level of the one-sided tests.

Testing after every run until the verdict is welcome would be optional stopping. So runs between the two analyses, and
beyond the second, do not count.
"""

_NEGLIGIBLE = 45.0  # exp(-45) vanishes in a double-precision sum
_NODES = 60


@functools.cache
def median_variance(n: int) -> float:
    """Return the variance of the median of n independent standard normal numbers, exact to about 1e-12."""
    beside = (n - 1) // 2  # numbers on either side of the middle one or two
    # Normalising by the sum avoids factorials. The trapezoidal rule converges exponentially, because the integrands
    # are analytic and vanish at both ends. The ends follow from 4 ndtr(x) ndtr(-x) <= exp(-x^2 / 2).
    end = math.sqrt(2 * _NEGLIGIBLE / (beside + 1))
    middle = np.linspace(-end, end, 2 * _NODES + 1)
    if n % 2:
        density = np.exp(beside * _log_both_sides(middle, middle) - middle**2 / 2)
    else:  # the middle two are middle - half and middle + half; integrate over half
        slope = 0.8 * (n - 2)  # 2 ndtr(-x) <= exp(-0.8 x)
        farthest = (math.sqrt(slope**2 + 4 * _NEGLIGIBLE) - slope) / 2
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        half = farthest * (nodes + 1) / 2
        low, high = middle[:, None] - half, middle[:, None] + half
        density = np.exp(beside * _log_both_sides(low, high) - (low**2 + high**2) / 2) @ weights
    return float(density @ middle**2 / density.sum())


def _log_both_sides(low: Floats, high: Floats) -> Floats:
    """Return log(4 P(X < low) P(X > high)); the factor 4 prevents underflow."""
    result: Floats = special.log_ndtr(low) + special.log_ndtr(-high) + math.log(4)
    return result


def hodges_lehmann(sample: ArrayLike) -> Number:
    """Return the median of the means of all pairs, each number paired with itself, too, over the last axis.

    For normal numbers it is almost as precise as the mean, yet one bad run of four or more cannot move it far (Hodges
    and Lehmann, Estimates of location based on rank tests, 1963).
    """
    numbers = np.asarray(sample, np.float64)
    first, second = np.triu_indices(numbers.shape[-1])
    return np.median((numbers[..., first] + numbers[..., second]) / 2, axis=-1)


def hodges_lehmann_variance(n: int) -> float:
    """Return the variance of the Hodges-Lehmann estimate of n independent standard normal numbers, within 0.3 %."""
    scaled = _HODGES_LEHMANN[n - 1] if n <= len(_HODGES_LEHMANN) else math.pi / 3 * (1 + 0.26 / n)
    return scaled / n


# n times the variance for n = 1, 2, ..., by simulation of 5 million samples each (standard error 1e-4); exact up to 3.
# Its limit is pi / 3.
_HODGES_LEHMANN = (
    1.0,
    1.0,
    9 / 8 - 3 * math.sqrt(3) / (16 * math.pi),
    1.0950,
    1.0760,
    1.0755,
    1.0814,
    1.0729,
    1.0748,
    1.0740,
)


@dataclass(frozen=True)
class Interval:
    """Confidence interval of our error minus the published number, by two one-sided tests; see also `Number`.

    Attributes:
        level: Error level of each side, as a probability.
        difference: Our Hodges-Lehmann estimate minus the published number if the noise rests on the table; else our
            median minus the published number.
        degrees: Degrees of freedom of the t distribution; null for the normal distribution.
    """

    low: float
    high: float
    level: float
    difference: float
    standard_error: float
    degrees: float | None

    def p_beyond(self, tolerance: float) -> Any:
        """Return the p-value of the null hypothesis that the true difference is within the tolerance.

        It is below the interval's level only if `decide` returns worse or better.
        """
        degrees: Any = math.inf if self.degrees is None else self.degrees
        return Contrast(self.difference, self.standard_error, degrees).p_beyond(tolerance)


def difference_interval(
    errors: ArrayLike,
    published: Number,
    published_runs: int,
    noise: Noise,
    level: float,
    published_std: Number | None = None,
) -> Interval:
    """Return the interval of two one-sided tests for our errors minus the published median.

    With a cell's own noise our estimate is the median, with the table's the Hodges-Lehmann estimate. The published runs
    are assumed to be as noisy as ours or, with the table's noise, as the paper prints if that is more. The printed
    standard deviation then counts with its own degrees of freedom. It never narrows the interval, as ours may be the
    noisier runs.

    Args:
        errors: Our test errors in percent, over the last axis.
        published: Published median in percent.
        published_runs: Number of runs behind it.
        noise: Spread of a single run.
        level: One-sided error level.
        published_std: Standard deviation of the published runs in percentage points, or None if not printed.

    Raises:
        ValueError: A number is not finite.
    """
    runs = np.asarray(errors, np.float64)
    n = runs.shape[-1]
    if not (np.isfinite(runs).all() and np.isfinite(published).all()):
        raise ValueError("numbers must be finite: handle diverged runs first")
    is_shared = noise.rests_on == "table"
    of_ours = hodges_lehmann_variance(n) if is_shared else median_variance(n)
    estimate = hodges_lehmann(runs) if is_shared else np.median(runs, axis=-1)
    ours = of_ours * noise.std**2
    theirs: Any = median_variance(published_runs) * noise.std**2
    degrees: Any = noise.degrees
    if is_shared and published_std is not None:
        is_noisier = published_std > noise.std
        theirs = np.where(is_noisier, median_variance(published_runs) * published_std**2, theirs)
        satterthwaite = (ours + theirs) ** 2 / (ours**2 / degrees + theirs**2 / (published_runs - 1))
        degrees = plain(np.where(is_noisier, satterthwaite, degrees))
    # round: 16.17 - 15.67 must not exceed a tolerance of 0.5
    difference = plain(np.round(estimate - published, 9))
    standard_error = plain(np.sqrt(ours + theirs))
    of_t = Contrast(difference, standard_error, math.inf if degrees is None else degrees)
    return Interval(*of_t.interval(level), level, difference, standard_error, degrees)


def decide(interval: Interval, tolerance: float) -> Decision:
    """Return the verdict of two one-sided tests against a tolerance in percentage points."""
    decisions: tuple[Decision, ...] = ("reproduced", "worse", "better")
    found = zip(decisions, outcomes(interval.low, interval.high, tolerance), strict=True)
    return next((one for one, holds in found if holds), "underpowered")


def outcomes(low: Number, high: Number, tolerance: Number) -> tuple[Any, Any, Any]:
    """Return whether the interval with these ends is within the tolerance, above it and below it."""
    is_within = (-tolerance <= low) & (high <= tolerance)
    return is_within, low > tolerance, high < -tolerance


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of means of independent samples, with Satterthwaite's degrees of freedom; see also `Number`.

    Attributes:
        estimate: In the samples' unit.
        standard_error: In the samples' unit; 0 if every sample is constant.
        degrees: Degrees of freedom; infinite if every sample is constant.
    """

    estimate: float
    standard_error: float
    degrees: float

    def p_less(self, bound: float) -> Any:
        """Return the one-sided p-value for the alternative that the true contrast is less than `bound`."""
        return self._tail(bound - self.estimate)

    def p_greater(self, bound: float) -> Any:
        """Return the one-sided p-value for the alternative that the true contrast is greater than `bound`."""
        return self._tail(self.estimate - bound)

    def interval(self, level: float) -> tuple[Any, Any]:
        """Return both ends of the confidence interval with one-sided error level `level`."""
        quantile = np.where(np.isinf(self.degrees), -special.ndtri(level), -special.stdtrit(self.degrees, level))
        reach = plain(quantile) * self.standard_error
        return self.estimate - reach, self.estimate + reach

    def p_beyond(self, margin: float) -> Any:
        """Return the p-value for the alternative that the true contrast is more than `margin` away from 0.

        It is the supremum over all values that are not, which is attained at the margin.
        """
        away = abs(self.estimate)
        return plain(np.minimum(1.0, self._tail(away - margin) + self._tail(away + margin)))

    def p_equivalent(self, margin: float) -> Any:
        """Return the p-value of two one-sided tests (TOST) for a true contrast less than `margin` away from 0."""
        return self._tail(margin - abs(self.estimate))

    def _tail(self, distance: float) -> Any:
        """Return the probability that t exceeds distance / standard_error; 0 or 1 without any spread."""
        has_spread = np.asarray(self.standard_error) > 0
        t = distance / np.where(has_spread, self.standard_error, 1.0)
        probability = np.where(np.isinf(self.degrees), special.ndtr(-t), special.stdtr(self.degrees, -t))
        return plain(np.where(has_spread, probability, np.where(distance > 0, 0.0, 1.0)))


def compute_contrast(
    samples: Sequence[ArrayLike],
    weights: Sequence[float],
    constant: float = 0.0,
    priors: Sequence[Prior] = (),
    resolution: float = 0.0,
) -> Contrast:
    """Return the weighted sum of the samples' means minus an exactly known constant.

    `[a, b]` with weights `[1, -1]` is Welch's test, `[a]` with `[1]` and a constant is the one-sample t-test, and
    `[a, b, c, d]` with `[1, -1, -1, 1]` is a difference of differences. The samples must be independent: pass a sample
    that occurs twice once, with its weights added.

    Args:
        samples: Numbers over the last axis, at least two.
        priors: What other cells say about the variance of each sample; by default nothing. The samples' priors come
            from almost the same cells, so their parts of the variance are treated as one estimate.
        resolution: Step to which the numbers are rounded, so that samples may be constant by chance.

    Raises:
        ValueError: A number is not finite.
    """
    arrays = [np.asarray(sample, np.float64) for sample in samples]
    if not all(np.isfinite(array).all() for array in (*arrays, np.array([*weights, constant]))):
        raise ValueError("numbers must be finite: handle diverged runs first")
    estimate: Any = -constant
    from_priors: Any = 0.0
    chance_of_priors: Any = 0.0
    from_samples, chance = [], []
    for array, weight, prior in zip(arrays, weights, priors or [NO_PRIOR] * len(arrays), strict=True):
        n = array.shape[-1]
        own = variance_of(array, resolution)
        estimate = estimate + weight * np.where(np.equal(own, 0), array[..., 0], array.mean(axis=-1))
        scale = weight**2 / n / (prior.degrees + n - 1)
        from_prior = scale * prior.degrees * prior.variance
        from_priors = from_priors + from_prior
        chance_of_priors = chance_of_priors + from_prior / np.sqrt(np.maximum(prior.degrees, 1e-9))
        from_samples.append(scale * (n - 1) * own)
        chance.append(from_samples[-1] ** 2 / (n - 1))
    variance = from_priors + sum(from_samples)
    doubt = chance_of_priors**2 + sum(chance)
    degrees = np.where(variance > 0, variance**2 / np.where(doubt > 0, doubt, 1.0), np.inf)
    estimate = np.where(variance > 0, estimate, np.round(estimate, 9))  # ignore rounding errors of constants
    return Contrast(plain(estimate), plain(np.sqrt(variance)), plain(degrees))


def holm(p_values: Sequence[float], level: float) -> list[bool]:
    """Return which null hypotheses Holm's procedure rejects at a family-wise error rate of `level`."""
    rejected = [False] * len(p_values)
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if not (len(p_values) - rank) * p_values[i] <= level:  # as it is for NaN, too
            break
        rejected[i] = True
    return rejected
