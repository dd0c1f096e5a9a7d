"""The noise between runs: of one cell alone, or moderated by the other cells of its table.

Five runs say little about their own standard deviation: with 4 degrees of freedom the 95 % quantile of Student's t is
2.13. The cells of a table share data, recipe and most of the net, so their noise is similar. `prior_from_others` turns
the variances of the other cells into prior information about a cell's variance, as in the moderated t-test of Smyth
(2004), with three changes that hold the error rates for few and for unequal cells:

- A cell's prior comes from the other cells only, so that it is independent of the cell's own variance.
- The prior variance is the pooled variance of the others, which errs on the high side if they differ.
- It counts for at most half of their degrees of freedom. A cell that is far noisier than the others does not borrow
  from them and, if its noise is greater still, does not contribute.

The error rates are in docs/verdicts.md; tests/compare/test_power.py simulates them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field
from scipy.special import digamma, polygamma  # type: ignore[import-untyped]  # scipy.stats takes 0.8 s to import

Floats = NDArray[np.float64]
Number = float | Floats
"""A float, or an array with an element for each simulated table. Such arrays may also be in fields that are floats."""

MIN_RUNS_OF_NOISE = 3
"""Minimum number of runs of a cell that contributes its noise or borrows that of others."""

MIN_OTHERS = 3
"""Minimum number of other cells from whose variances the degrees of freedom of a prior are estimated."""

MAX_RATIO_TO_CONTRIBUTE = 4.0
"""A cell does not contribute if its standard deviation exceeds this multiple of the median one.

A run that half diverges would otherwise widen the intervals of all its neighbours.
"""

MAX_RATIO_TO_BORROW = 2.5
"""A cell does not borrow from the others if its standard deviation exceeds this multiple of theirs.

If one cell of ten is three times as noisy, a difference as large as the tolerance would otherwise look reproduced there
in 17 % of cases, and not in 11 %. Where cells are equal, this costs hardly any power.
"""

MAX_SHARE = 0.5
"""Maximum share of the other cells' degrees of freedom that counts."""

# Pooling of a published standard deviation with the cell's own; see `estimate_noise`.
PUBLISHED_DEGREES = 2
PUBLISHED_FACTOR = 1.4
SINGLE_RUN_FACTOR = 1.55


@dataclass(frozen=True)
class Noise:
    """Spread between the runs of one net.

    Attributes:
        std: Standard deviation of a single run, with its safety factor.
        degrees: Degrees of freedom; null if the deviation is taken as known.
        rests_on: The runs that it was estimated from: the cell's own, the published ones, both, or those of all cells
            of the table.
        published_weight: Weight of the published variance in the pooled one, from 0 to 1.
        table_weight: Weight of the other cells' variance in the pooled one, from 0 to 1.
    """

    std: float
    degrees: float | None
    rests_on: Literal["ours", "published", "both", "table"]
    published_weight: Annotated[float, Field(ge=0, le=1)]
    table_weight: Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class Prior:
    """What the other cells of a table say about the variance between the runs of a cell.

    Attributes:
        variance: In squared percentage points.
        degrees: The degrees of freedom that it counts for; 0 if there is no such information.
    """

    variance: float
    degrees: float

    def moderate(self, variance: float, degrees: int) -> Noise:
        """Return the noise of a cell from its own variance and this prior."""
        total = self.degrees + degrees
        pooled = (self.degrees * self.variance + degrees * variance) / total
        return Noise(pooled**0.5, total, "table", 0.0, self.degrees / total)


NO_PRIOR = Prior(0.0, 0.0)


def estimate_noise(variance: float, runs: int, published_std: Any) -> Noise | None:
    """Estimate the spread between the runs of a cell by itself.

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
        variance: Variance of our test errors, in squared percentage points; ignored for a single run.
        runs: Number of our runs.
        published_std: Standard deviation of the published runs in percentage points, or None if not printed.

    Returns:
        None without runs, or with fewer than three and no published standard deviation.
    """
    if published_std is None:
        return Noise(variance**0.5, runs - 1.0, "ours", 0.0, 0.0) if runs >= MIN_RUNS_OF_NOISE else None
    if runs < 2:
        return Noise(SINGLE_RUN_FACTOR * published_std, None, "published", 1.0, 0.0) if runs else None
    degrees = runs - 1.0 + PUBLISHED_DEGREES
    weight = PUBLISHED_DEGREES / degrees
    pooled = (1 - weight) * variance + weight * (PUBLISHED_FACTOR * published_std) ** 2
    return Noise(pooled**0.5, degrees, "both", weight, 0.0)


def prior_from_others(variances: ArrayLike, degrees: ArrayLike) -> tuple[Floats, Floats]:
    """Return variance and degrees of freedom of the prior of each cell of a table.

    How much the variances of the others differ decides what they are worth: their degrees of freedom are estimated
    from the variance of their logarithms (Smyth, Linear models and empirical Bayes methods for assessing differential
    expression in microarray experiments, 2004, Sec. 6.2), which takes three cells. The limit, half of their degrees of
    freedom less one cell's share, allows for the chance in that estimate.

    Args:
        variances: Variances between runs; the last axis is over cells, any others over simulated tables.
        degrees: Their degrees of freedom, of the same shape.

    Returns:
        Variances in the unit of `variances`, and degrees of freedom: 0 for a cell without others or far noisier than
        they are. Cells with a standard deviation above `MAX_RATIO_TO_CONTRIBUTE` times the lower median of all do not
        count among the others.
    """
    own, df = (np.asarray(a, np.float64) for a in np.broadcast_arrays(variances, degrees))
    cells = own.shape[-1]
    gives = own <= MAX_RATIO_TO_CONTRIBUTE**2 * np.sort(own, axis=-1)[..., (cells - 1) // 2, None]
    # [..., i, j]: cell j as one of the others of cell i
    other = gives[..., None, :] & ~np.eye(cells, dtype=bool)
    n_others = np.maximum(other.sum(-1), 1)
    degrees_of_others = (other * df[..., None, :]).sum(-1)
    variance = (other * (df * own)[..., None, :]).sum(-1) / np.maximum(degrees_of_others, 1)

    logs = np.log(np.maximum(own, np.finfo(float).tiny)) - digamma(df / 2) + np.log(df / 2)  # unbiased for log variance
    mean = (other * logs[..., None, :]).sum(-1) / n_others
    scatter = (other * (logs[..., None, :] - mean[..., None]) ** 2).sum(-1) / np.maximum(n_others - 1, 1)
    by_chance = (other * polygamma(1, df / 2)[..., None, :]).sum(-1) / n_others
    estimated = np.where(n_others >= MIN_OTHERS, prior_degrees(scatter - by_chance), np.inf)

    limit = MAX_SHARE * degrees_of_others * (n_others - 1) / n_others
    return variance, np.where(own <= MAX_RATIO_TO_BORROW**2 * variance, np.minimum(estimated, limit), 0.0)


def prior_degrees(excess: ArrayLike) -> Floats:
    """Return the degrees of freedom d that solve trigamma(d / 2) = `excess`; infinite where it is not positive.

    Args:
        excess: Variance of the cells' log variances beyond what chance explains.
    """
    wanted = np.asarray(excess, np.float64)
    target = np.where(wanted > 0, wanted, 1.0)
    half = np.where(target < 1, 0.5 + 1 / target, target**-0.5)
    for _ in range(6):  # Newton's steps on 1 / trigamma, which is convex and almost linear
        value = polygamma(1, half)
        half = half + value * (1 - value / target) / polygamma(2, half)
    return np.where(wanted > 0, 2 * half, np.inf)


def variance_of(errors: ArrayLike, resolution: float = 0.0) -> Any:
    """Return the unbiased variance of finite numbers over the last axis, 0 of a single run.

    It is at least that of rounding to `resolution`, as runs can agree by chance.
    """
    runs = np.asarray(errors, np.float64)
    is_constant = (runs == runs[..., :1]).all(axis=-1)  # numpy returns a variance of 1e-34 for three times 0.1
    variance = np.where(is_constant, 0.0, runs.var(axis=-1, ddof=min(1, runs.shape[-1] - 1)))
    return plain(np.maximum(variance, resolution**2 / 12))


def plain(value: Any) -> Any:
    """Return a float for an array without axes."""
    return float(value) if np.ndim(value) == 0 else value
