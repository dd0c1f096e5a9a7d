"""The numbers behind a verdict: noise, intervals, p-values.

Errors, differences and standard deviations are in percentage points throughout, and a positive difference means that
our error is the higher one.

Two medians are compared by two one-sided t-tests, contrasts of means by Welch's. Both take runs to be independent and
roughly normal. A median and the deviation of the same few runs are not independent, so that Student's t is not quite
their distribution: the tests simulate the verdicts' error rates instead of trusting it.
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

# One-sided levels: of the runs fixed beforehand, and of the one extension to twice as many. Five runs at a noise of
# 0.16 find a shift of one point 95 % of the time only at 5 %, so nothing can be taken off the first look. The second
# fits in all the same: Student's t overstates the spread of a median of few, and the looks share half of our runs and
# the published number, so that the second adds not 1 % but 0.3 % where t leaves that much, and less elsewhere.
FIRST_LOOK = 0.05
SECOND_LOOK = 0.01

LOOKS = ((1, FIRST_LOOK), (2, SECOND_LOOK))
"""When results are analysed: how many times the planned runs each look takes, and the level of its one-sided tests.

Analysing after every run and stopping at a welcome verdict would be optional stopping. So runs between the two looks
change nothing, and neither do runs beyond the second.
"""

# How a published standard deviation is pooled with ours, see `noise`.
PUBLISHED_DEGREES = 2
PUBLISHED_FACTOR = 1.4
SINGLE_RUN_FACTOR = 1.55

_NEGLIGIBLE = 45.0  # exp(-45) is below what a sum in double precision can show
_NODES = 60


@functools.cache
def median_variance(n: int) -> float:
    """Variance of the median of n independent standard normal numbers, exact to about 1e-12.

    Args:
        n: How many; of an even number, the median is the mean of the middle two.

    Raises:
        ValueError: If n is less than one.
    """
    if n < 1:
        raise ValueError(f"a median takes at least one number, not {n}")
    beside = (n - 1) // 2  # numbers on either side of the middle one or two
    # Normalised by its own sum, a density needs no factorials. Trapezoids converge exponentially on these, as they are
    # analytic and vanish at both ends; the bound that sets the ends is 4 ndtr(x) ndtr(-x) <= exp(-x^2 / 2).
    end = math.sqrt(2 * _NEGLIGIBLE / (beside + 1))
    middle = np.linspace(-end, end, 2 * _NODES + 1)
    if n % 2:
        density = np.exp(beside * _log_both_sides(middle, middle) - middle**2 / 2)
    else:  # the middle two at (middle - half, middle + half): integrate over half their distance
        slope = 0.8 * (n - 2)  # 2 ndtr(-x) <= exp(-0.8 x)
        farthest = (math.sqrt(slope**2 + 4 * _NEGLIGIBLE) - slope) / 2
        nodes, weights = np.polynomial.legendre.leggauss(_NODES)
        half = farthest * (nodes + 1) / 2
        low, high = middle[:, None] - half, middle[:, None] + half
        density = np.exp(beside * _log_both_sides(low, high) - (low**2 + high**2) / 2) @ weights
    return float(density @ middle**2 / density.sum())


def _log_both_sides(low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log of 4 P(X < low) P(X > high), the factor 4 against underflow."""
    result: NDArray[np.float64] = log_ndtr(low) + log_ndtr(-high) + math.log(4)
    return result


@dataclass(frozen=True)
class Noise:
    """What is known of the spread between runs of one cell.

    Attributes:
        std: Standard deviation of a single run in percentage points, with the safety factor in it.
        degrees: Of freedom, infinite where std is taken as a known number.
        rests_on: Whose runs it was estimated from.
        published_weight: Share of the published variance in the pooled one, from 0 to 1.
    """

    std: float
    degrees: float
    rests_on: Literal["ours", "published", "both"]
    published_weight: float


def noise(
    errors: Sequence[float], published_std: float | None, published_runs: int, resolution: float = 0.0
) -> Noise | None:
    """Estimate the spread between runs.

    Our runs may be noisier than the published ones: other software, other hardware, and five runs do not tell a
    standard deviation well. Verdicts are to hold up to 1.5 times the published one, which naive pooling does not
    survive: it would call 7 % of the shifts as large as the tolerance reproduced. Hence:

    - The published variance is pooled with the weight of 2 degrees of freedom instead of its 4, so that our own runs
      outweigh it from the fourth on, and at 1.4 times its standard deviation. That is less than 1.5 because the
      quantile of t allows for chance in this part too, though here it is a fixed number. With a smaller weight two runs
      would say less than one; with a larger one ten runs would lose power.
    - A single run says nothing about spread: 1.55 times the published standard deviation, as if known. Exactly 1.5
      would spend all 5 % at the first look.
    - Without a published one, ours alone, from three runs on.

    At more than 1.5 times the published noise nothing is promised.

    Args:
        errors: Our test errors in percent.
        published_std: Standard deviation of the published runs in percentage points, if the paper prints it.
        published_runs: How many runs that is from.
        resolution: What the errors are rounded to, in percentage points. Runs that happen to agree to the last digit
            are not without noise: it is at least that of rounding.

    Returns:
        None if there is no run, or no published standard deviation and fewer than three.

    Raises:
        ValueError: If an error is not finite, or the published deviation is not positive and from two runs or more.
    """
    n = len(errors)
    _, variance = _moments(errors)
    if published_std is None:
        floor = resolution**2 / 12
        return Noise(math.sqrt(max(variance, floor)), n - 1, "ours", 0.0) if n >= 3 else None
    if not (0 < published_std < math.inf and published_runs >= 2):
        raise ValueError(f"no standard deviation of {published_runs} runs: {published_std}")
    if n < 2:
        return Noise(SINGLE_RUN_FACTOR * published_std, math.inf, "published", 1.0) if n else None
    degrees = n - 1 + PUBLISHED_DEGREES
    weight = PUBLISHED_DEGREES / degrees
    pooled = (1 - weight) * variance + weight * (PUBLISHED_FACTOR * published_std) ** 2
    return Noise(math.sqrt(pooled), degrees, "both", weight)


@dataclass(frozen=True)
class Interval:
    """Where the true difference of two medians lies.

    Attributes:
        difference: Ours minus the published one, in percentage points.
        low: Lower end; the true difference is below it with probability `level` at most.
        high: Upper end, likewise.
        level: Error level of each side.
        standard_error: Of the difference, in percentage points; 0 if all runs agree and nothing else is known.
        degrees: Of freedom, possibly infinite.
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
    """The interval of two one-sided tests for our median minus the published one.

    Args:
        errors: Our test errors in percent, one or more.
        published: Published median in percent.
        published_runs: How many runs it is the median of; a single published number is the median of one.
        noise: Spread of a single run, the same for ours and for theirs.
        level: Error level of each side, `FIRST_LOOK` or `SECOND_LOOK`.

    Raises:
        ValueError: If there is no error, a number is not finite, or the level is not between 0 and 0.5.
    """
    _finite([*errors, published])
    if not errors:
        raise ValueError("a median takes at least one run")
    # rounded, as 16.17 - 15.67 should not be more than a tolerance of 0.5
    difference = round(float(np.median(errors)) - published, 9)
    standard_error = noise.std * math.sqrt(median_variance(len(errors)) + median_variance(published_runs))
    reach = _quantile(level, noise.degrees) * standard_error
    return Interval(difference, difference - reach, difference + reach, level, standard_error, noise.degrees)


def decide(interval: Interval, tolerance: float) -> Decision:
    """What the interval says, with differences of up to `tolerance` percentage points counted as none."""
    if -tolerance <= interval.low and interval.high <= tolerance:
        return "reproduced"
    if interval.low > tolerance:
        return "worse"
    if interval.high < -tolerance:
        return "better"
    return "underpowered"


def beyond_tolerance_p(interval: Interval, tolerance: float) -> float:
    """P-value of the hypothesis that the true difference is within the tolerance, on either side.

    It is the greatest probability, over all such differences, of one as large as was seen; the greatest is at the
    tolerance itself. Below the interval's level only if `decide` says worse or better.

    Args:
        tolerance: In percentage points.
    """
    size = abs(interval.difference)
    near, far = (_tail(size + t, interval.standard_error, interval.degrees) for t in (-tolerance, tolerance))
    return min(1.0, near + far)


@dataclass(frozen=True)
class Contrast:
    """A weighted sum of means of independent samples, with Satterthwaite's degrees of freedom.

    Attributes:
        estimate: In the samples' unit.
        standard_error: Likewise; 0 if every sample is constant.
        degrees: Of freedom; infinite if every sample is constant.
    """

    estimate: float
    standard_error: float
    degrees: float

    def below_p(self, bound: float) -> float:
        """One-sided p-value: small if the true contrast is below the bound."""
        return _tail(bound - self.estimate, self.standard_error, self.degrees)

    def above_p(self, bound: float) -> float:
        """One-sided p-value: small if the true contrast is above the bound."""
        return _tail(self.estimate - bound, self.standard_error, self.degrees)

    def interval(self, level: float) -> tuple[float, float]:
        """Both ends of the interval of two one-sided tests, each at `level`: within the margin, it shows equivalence.

        Raises:
            ValueError: If the level is not between 0 and 0.5.
        """
        reach = _quantile(level, self.degrees) * self.standard_error
        return self.estimate - reach, self.estimate + reach

    def beyond_p(self, margin: float) -> float:
        """P-value of the hypothesis that the true contrast is at most `margin` away from 0, on either side."""
        size = abs(self.estimate)
        return min(1.0, sum(_tail(size + m, self.standard_error, self.degrees) for m in (-margin, margin)))

    def equivalence_p(self, margin: float) -> float:
        """P-value of two one-sided tests: small if the true contrast is less than `margin` away from 0."""
        return _tail(margin - abs(self.estimate), self.standard_error, self.degrees)


def contrast(samples: Sequence[Sequence[float]], weights: Sequence[float], constant: float = 0.0) -> Contrast:
    """Weighted sum of the samples' means, minus a constant that is known exactly.

    `[a, b]` with weights `[1, -1]` is Welch's test, `[a]` with `[1]` and a constant the t-test of one sample, and
    `[a, b, c, d]` with `[1, -1, -1, 1]` the difference of two differences. The samples must be independent: one that
    occurs twice is given once, with its weights added.

    Raises:
        ValueError: If a sample has fewer than two numbers, a number is not finite, or the weights are not as many.
    """
    if len(samples) != len(weights) or not samples:
        raise ValueError(f"{len(samples)} samples and {len(weights)} weights")
    if any(len(sample) < 2 for sample in samples):
        raise ValueError("the spread of a sample takes at least two numbers")
    _finite([*weights, constant])
    moments = [_moments(sample) for sample in samples]
    estimate = math.fsum([w * mean for w, (mean, _) in zip(weights, moments, strict=True)] + [-constant])
    parts = [w**2 * moments[i][1] / len(samples[i]) for i, w in enumerate(weights)]
    variance = math.fsum(parts)
    if variance == 0:
        return Contrast(round(estimate, 9), 0.0, math.inf)  # not even rounding counts as a difference
    shares = [part / variance for part in parts]
    degrees = 1 / math.fsum(share**2 / (len(sample) - 1) for share, sample in zip(shares, samples, strict=True))
    return Contrast(estimate, math.sqrt(variance), degrees)


def holm(p_values: Sequence[float], level: float) -> list[bool]:
    """Which hypotheses Holm's procedure rejects: any false rejection among all has probability `level` at most.

    Raises:
        ValueError: If a p-value is not between 0 and 1.
    """
    if not all(0 <= p <= 1 for p in p_values):
        raise ValueError("p-values are between 0 and 1")
    rejected = [False] * len(p_values)
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if (len(p_values) - rank) * p_values[i] > level:
            break
        rejected[i] = True
    return rejected


def binomial_standard_error(error_percent: float, images: int) -> float:
    """How far, in percentage points, a test error may be off for other images of the same kind.

    Args:
        error_percent: Test error in percent.
        images: How many it was measured on.

    Raises:
        ValueError: If the error is not between 0 and 100, or there are no images.
    """
    if not (0 <= error_percent <= 100 and images > 0):
        raise ValueError(f"no test error: {error_percent} % of {images} images")
    return math.sqrt(error_percent * (100 - error_percent) / images)


def _finite(numbers: Sequence[float]) -> None:
    if not all(map(math.isfinite, numbers)):
        raise ValueError("only finite numbers can be compared: judge diverged runs beforehand")


def _moments(sample: Sequence[float]) -> tuple[float, float]:
    """Mean and unbiased variance, which is 0 for fewer than two numbers."""
    _finite(sample)
    if len(set(sample)) < 2:  # numpy leaves a variance of 1e-34 for three times 0.1
        return (float(sample[0]) if sample else math.nan), 0.0
    return float(np.mean(sample)), float(np.var(sample, ddof=1))


def _quantile(level: float, degrees: float) -> float:
    """The t that is exceeded with probability `level`."""
    if not 0 < level < 0.5:
        raise ValueError(f"an error level is between 0 and 0.5, not {level}")
    return -float(ndtri(level) if math.isinf(degrees) else stdtrit(degrees, level))


def _tail(distance: float, standard_error: float, degrees: float) -> float:
    """Probability that t exceeds distance / standard_error; without any spread, 0 or 1."""
    if standard_error == 0:
        return 0.0 if distance > 0 else 1.0
    t = distance / standard_error
    return float(ndtr(-t) if math.isinf(degrees) else stdtr(degrees, -t))
