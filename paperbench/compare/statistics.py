"""Statistics behind the verdicts: noise, intervals, p-values.

Errors, differences and standard deviations are in percentage points, and a positive difference means that our error
is higher.

Medians are compared by two one-sided t-tests (TOST), contrasts of means by Welch's test. Both assume independent,
roughly normal runs. The median and the standard deviation of the same few runs are dependent, so their ratio does not
exactly follow Student's t. The error rates of the verdicts are therefore verified by simulation in the tests.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import (  # type: ignore[import-untyped]  # scipy.stats takes 0.8 s to import
    log_ndtr,
    ndtr,
    ndtri,
    stdtr,
    stdtrit,
)

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

# Pooling of a published standard deviation with ours; see `estimate_noise`.
PUBLISHED_DEGREES = 2
PUBLISHED_FACTOR = 1.4
SINGLE_RUN_FACTOR = 1.55

_NEGLIGIBLE = 45.0  # exp(-45) vanishes in a double-precision sum
_NODES = 60


@functools.cache
def median_variance(n: int) -> float:
    """Return the variance of the median of n independent standard normal numbers, exact to about 1e-12.

    Raises:
        ValueError: n is less than 1.
    """
    if n < 1:
        raise ValueError(f"a median needs at least one number, not {n}")
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


def _log_both_sides(low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log(4 P(X < low) P(X > high)); the factor 4 prevents underflow."""
    result: NDArray[np.float64] = log_ndtr(low) + log_ndtr(-high) + math.log(4)
    return result


@dataclass(frozen=True)
class Noise:
    """Estimated spread between runs of one cell.

    Attributes:
        std: Standard deviation of a single run in percentage points, safety factor included.
        degrees: Degrees of freedom; infinite if std is treated as known.
        rests_on: Whose runs the estimate uses.
        published_weight: Weight of the published variance in the pooled variance, from 0 to 1.
    """

    std: float
    degrees: float
    rests_on: Literal["ours", "published", "both"]
    published_weight: float


def estimate_noise(
    errors: Sequence[float], published_std: float | None, published_runs: int, resolution: float = 0.0
) -> Noise | None:
    """Estimate the spread between runs.

    Our runs may be noisier than the published ones, because software and hardware differ and five runs estimate a
    standard deviation poorly. Error rates must hold for up to 1.5 times the published noise. With naive pooling they
    would not: 7 % of the shifts as large as the tolerance would count as reproduced. Therefore:

    - The published variance is pooled with 2 degrees of freedom instead of 4, so that our runs outweigh it from the
      fourth on, and with 1.4 times its standard deviation. The factor is below 1.5 because the t quantile also allows
      for chance in this part, which is a fixed number. With less weight two runs would be less informative than one;
      with more weight ten runs would lose power.
    - A single run has no spread: its noise is 1.55 times the published standard deviation, treated as known. A factor
      of exactly 1.5 would use up all 5 % at the first analysis.
    - Without a published standard deviation at least three of our runs are needed.

    Args:
        errors: Our test errors in percent.
        published_std: Standard deviation of the published runs in percentage points, or None if not printed.
        published_runs: Number of runs behind it.
        resolution: Step to which errors are rounded, in percentage points. It bounds the noise from below, as runs can
            agree to the last digit by chance.

    Returns:
        None without runs, or with fewer than three and no published standard deviation.

    Raises:
        ValueError: An error is not finite, or the published standard deviation is not positive or not of several runs.
    """
    n = len(errors)
    _, variance = _moments(errors)
    if published_std is None:
        floor = resolution**2 / 12
        return Noise(math.sqrt(max(variance, floor)), n - 1, "ours", 0.0) if n >= 3 else None
    if not (0 < published_std < math.inf and published_runs >= 2):
        raise ValueError(f"not a standard deviation of {published_runs} runs: {published_std}")
    if n < 2:
        return Noise(SINGLE_RUN_FACTOR * published_std, math.inf, "published", 1.0) if n else None
    degrees = n - 1 + PUBLISHED_DEGREES
    weight = PUBLISHED_DEGREES / degrees
    pooled = (1 - weight) * variance + weight * (PUBLISHED_FACTOR * published_std) ** 2
    return Noise(math.sqrt(pooled), degrees, "both", weight)


@dataclass(frozen=True)
class Interval:
    """Confidence interval of the difference of two medians.

    Attributes:
        difference: Our median minus the published median, in percentage points.
        low, high: Ends; the true difference is below `low`, or above `high`, with probability of at most `level` each.
        level: One-sided error level.
        standard_error: Standard error of the difference in percentage points; 0 if all runs agree.
        degrees: Degrees of freedom, possibly infinite.
    """

    difference: float
    low: float
    high: float
    level: float
    standard_error: float
    degrees: float


def median_interval(
    errors: Sequence[float], published: float, published_runs: int, noise: Noise, level: float
) -> Interval:
    """Return the interval of two one-sided tests for our median minus the published median.

    Args:
        errors: Our test errors in percent.
        published: Published median in percent.
        published_runs: Number of runs behind it.
        noise: Spread of a single run, assumed equal for ours and theirs.
        level: One-sided error level.

    Raises:
        ValueError: `errors` is empty, a number is not finite, or the level is not between 0 and 0.5.
    """
    _check_finite([*errors, published])
    if not errors:
        raise ValueError("a median needs at least one run")
    # round: 16.17 - 15.67 must not exceed a tolerance of 0.5
    difference = round(float(np.median(errors)) - published, 9)
    standard_error = noise.std * math.sqrt(median_variance(len(errors)) + median_variance(published_runs))
    reach = _quantile(level, noise.degrees) * standard_error
    return Interval(difference, difference - reach, difference + reach, level, standard_error, noise.degrees)


def decide(interval: Interval, tolerance: float) -> Decision:
    """Return the verdict of two one-sided tests against a tolerance in percentage points."""
    if -tolerance <= interval.low and interval.high <= tolerance:
        return "reproduced"
    if interval.low > tolerance:
        return "worse"
    if interval.high < -tolerance:
        return "better"
    return "underpowered"


def p_beyond_tolerance(interval: Interval, tolerance: float) -> float:
    """Return the p-value of the null hypothesis that the true difference is within the tolerance.

    It is below the interval's level only if `decide` returns worse or better.

    Args:
        tolerance: In percentage points.
    """
    return _p_beyond(interval.difference, tolerance, interval.standard_error, interval.degrees)


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of means of independent samples, with Satterthwaite's degrees of freedom.

    Attributes:
        estimate: In the samples' unit.
        standard_error: In the samples' unit; 0 if every sample is constant.
        degrees: Degrees of freedom; infinite if every sample is constant.
    """

    estimate: float
    standard_error: float
    degrees: float

    def p_less(self, bound: float) -> float:
        """Return the one-sided p-value for the alternative that the true contrast is less than `bound`."""
        return _tail(bound - self.estimate, self.standard_error, self.degrees)

    def p_greater(self, bound: float) -> float:
        """Return the one-sided p-value for the alternative that the true contrast is greater than `bound`."""
        return _tail(self.estimate - bound, self.standard_error, self.degrees)

    def interval(self, level: float) -> tuple[float, float]:
        """Return both ends of the confidence interval with one-sided error level `level`.

        Raises:
            ValueError: The level is not between 0 and 0.5.
        """
        reach = _quantile(level, self.degrees) * self.standard_error
        return self.estimate - reach, self.estimate + reach

    def p_beyond(self, margin: float) -> float:
        """Return the p-value for the alternative that the true contrast is more than `margin` away from 0."""
        return _p_beyond(self.estimate, margin, self.standard_error, self.degrees)

    def p_equivalent(self, margin: float) -> float:
        """Return the p-value of two one-sided tests (TOST) for a true contrast less than `margin` away from 0."""
        return _tail(margin - abs(self.estimate), self.standard_error, self.degrees)


def compute_contrast(samples: Sequence[Sequence[float]], weights: Sequence[float], constant: float = 0.0) -> Contrast:
    """Return the weighted sum of the samples' means minus an exactly known constant.

    `[a, b]` with weights `[1, -1]` is Welch's test, `[a]` with `[1]` and a constant is the one-sample t-test, and
    `[a, b, c, d]` with `[1, -1, -1, 1]` is a difference of differences. The samples must be independent: pass a sample
    that occurs twice once, with its weights added.

    Raises:
        ValueError: A sample has fewer than two numbers, a number is not finite, or the weights do not match the
            samples.
    """
    if len(samples) != len(weights) or not samples:
        raise ValueError(f"{len(samples)} samples and {len(weights)} weights")
    if any(len(sample) < 2 for sample in samples):
        raise ValueError("a sample needs at least two numbers")
    _check_finite([*weights, constant])
    moments = [_moments(sample) for sample in samples]
    estimate = math.fsum([w * mean for w, (mean, _) in zip(weights, moments, strict=True)] + [-constant])
    parts = [w**2 * moments[i][1] / len(samples[i]) for i, w in enumerate(weights)]
    variance = math.fsum(parts)
    if variance == 0:
        return Contrast(round(estimate, 9), 0.0, math.inf)  # ignore rounding errors
    shares = [part / variance for part in parts]
    degrees = 1 / math.fsum(share**2 / (len(sample) - 1) for share, sample in zip(shares, samples, strict=True))
    return Contrast(estimate, math.sqrt(variance), degrees)


def holm(p_values: Sequence[float], level: float) -> list[bool]:
    """Return which null hypotheses Holm's procedure rejects at a family-wise error rate of `level`.

    Raises:
        ValueError: A p-value is not between 0 and 1.
    """
    if not all(0 <= p <= 1 for p in p_values):
        raise ValueError("p-values must be between 0 and 1")
    rejected = [False] * len(p_values)
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if (len(p_values) - rank) * p_values[i] > level:
            break
        rejected[i] = True
    return rejected


def binomial_standard_error(error_percent: float, images: int) -> float:
    """Return the standard error of a test error, in percentage points, due to the finite test set.

    Args:
        error_percent: Test error in percent.
        images: Size of the test set.

    Raises:
        ValueError: The error is not between 0 and 100, or `images` is not positive.
    """
    if not (0 <= error_percent <= 100 and images > 0):
        raise ValueError(f"not a test error: {error_percent} % of {images} images")
    return math.sqrt(error_percent * (100 - error_percent) / images)


def _check_finite(numbers: Sequence[float]) -> None:
    if not all(map(math.isfinite, numbers)):
        raise ValueError("numbers must be finite: handle diverged runs first")


def _moments(sample: Sequence[float]) -> tuple[float, float]:
    """Return mean and unbiased variance; the variance is 0 for fewer than two numbers."""
    _check_finite(sample)
    if len(set(sample)) < 2:  # numpy returns a variance of 1e-34 for three times 0.1
        return (float(sample[0]) if sample else math.nan), 0.0
    return float(np.mean(sample)), float(np.var(sample, ddof=1))


def _quantile(level: float, degrees: float) -> float:
    """Return the t that is exceeded with probability `level`."""
    if not 0 < level < 0.5:
        raise ValueError(f"the level must be between 0 and 0.5, not {level}")
    return -float(ndtri(level) if math.isinf(degrees) else stdtrit(degrees, level))


def _tail(distance: float, standard_error: float, degrees: float) -> float:
    """Return the probability that t exceeds distance / standard_error; 0 or 1 without any spread."""
    if standard_error == 0:
        return 0.0 if distance > 0 else 1.0
    t = distance / standard_error
    return float(ndtr(-t) if math.isinf(degrees) else stdtr(degrees, -t))


def _p_beyond(estimate: float, margin: float, standard_error: float, degrees: float) -> float:
    """Return the p-value of the null hypothesis that the true value is at most `margin` away from 0.

    It is the supremum over all such values, which is attained at the margin.
    """
    return min(1.0, sum(_tail(abs(estimate) + m, standard_error, degrees) for m in (-margin, margin)))
