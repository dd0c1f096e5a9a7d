"""What runs would decide: chances of verdicts and claims, simulated with the rules of the comparison.

Runs are independent normal numbers of one standard deviation; so are the errors of one run that several cells show,
such as top-1 and top-5. The published median is simulated, too, except where the runs at hand are compared with the
number that the paper prints.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from paperbench.compare.claims import decide_claim, p_values, parts
from paperbench.compare.comparison import Comparison
from paperbench.compare.evidence import errors_of
from paperbench.compare.noise import (
    MIN_RUNS_OF_NOISE,
    NO_PRIOR,
    Floats,
    Number,
    Prior,
    estimate_noise,
    prior_from_others,
    variance_of,
)
from paperbench.compare.statistics import ANALYSES, difference_interval, median_variance, outcomes
from paperbench.compare.verdicts import CellFacts
from paperbench.errors import PaperbenchError
from paperbench.specs.cell import Cell
from paperbench.specs.claim import Claim
from paperbench.typed import typed


class NotSimulatedError(PaperbenchError):
    """What these runs would decide cannot be simulated."""


Flags = NDArray[np.bool_]

TYPICAL_STD = 0.18
"""Root mean square of the standard deviations that the authors print: 0.16, 0.14, 0.20 and 0.22 points."""

MAX_RUNS = 50
"""Maximum number of runs per cell; the simulation of 1,000 would need 60 GB."""

WORSE_BY = 1.0
"""The shift, in percentage points, for which the chance of "worse" is given."""


@dataclass(frozen=True)
class Target:
    """What a cell's runs are compared with.

    Attributes:
        tolerance: In percentage points.
        published_runs: Number of runs behind the published median.
        published_std: Their standard deviation in percentage points, or None if not printed.
        resolution: Step to which errors are rounded, in percentage points.
        dataset, metric: Cells share their noise with others of the same data set and metric.
    """

    tolerance: float = 0.5
    published_runs: int = 5
    published_std: Number | None = None
    resolution: float = 0.01
    dataset: str = ""
    metric: str = "top1"

    @classmethod
    def of(cls, cell: Cell) -> Target:
        published = cell.published_runs, cell.expected.std, cell.resolution
        return cls(cell.tolerance, *published, cell.dataset, cell.column.metric)


def priors_of(samples: Sequence[Floats], targets: Sequence[Target]) -> list[Prior]:
    """Return the prior of each cell.

    Args:
        samples: Errors of each cell, of shape (tables, runs); the number of runs may differ.
    """
    found: list[Prior] = [NO_PRIOR] * len(samples)
    kinds = [(target.dataset, target.metric) for target in targets]
    for kind in set(kinds):
        cells = [i for i, sample in enumerate(samples) if kinds[i] == kind and sample.shape[-1] >= MIN_RUNS_OF_NOISE]
        if cells:
            variances = np.stack([variance_of(samples[i], targets[i].resolution) for i in cells], axis=-1)
            values: Any = prior_from_others(variances, np.array([samples[i].shape[-1] - 1.0 for i in cells]))
            for position, i in enumerate(cells):
                found[i] = Prior(*(value[:, position] for value in values))
    return found


def analyse(
    sample: Floats, published: Floats | float, target: Target, prior: Prior, level: float
) -> tuple[Floats, Floats]:
    """Return both ends of the interval of one analysis, of shape (tables,); infinite where there is none.

    Args:
        sample: Errors of shape (tables, runs).
        published: Published median, of shape (tables,) or one for all.
    """
    runs = sample.shape[-1]
    variance = variance_of(sample, target.resolution)
    own = estimate_noise(variance, runs, target.published_std)
    ends: Any = np.full(len(sample), -np.inf), np.full(len(sample), np.inf)
    if own is not None:
        interval = difference_interval(sample, published, target.published_runs, own, level)
        ends = interval.low, interval.high
    if np.any(prior.degrees > 0):
        noise = prior.moderate(variance, runs - 1)
        interval = difference_interval(sample, published, target.published_runs, noise, level, target.published_std)
        ends = np.where(prior.degrees > 0, (interval.low, interval.high), ends)
    return ends[0], ends[1]


def intervals(samples: Sequence[Floats], published: Sequence[Floats], targets: Sequence[Target]) -> Floats:
    """Return both ends of the intervals of both analyses, of shape (analyses, 2, cells, tables).

    Args:
        samples: Errors of each cell, of shape (tables, runs of both analyses).
        published: Published medians, each of shape (tables,).
    """
    found = []
    for number, level in ANALYSES:
        runs = [sample[:, : sample.shape[-1] * number // ANALYSES[-1][0]] for sample in samples]
        cells = zip(runs, published, targets, priors_of(runs, targets), strict=True)
        found.append(np.stack([np.stack(analyse(*one, level)) for one in cells], axis=1))
    return np.stack(found)


def decisions(ends: Floats, tolerances: Floats | float) -> Flags:
    """Return whether each cell is reproduced, worse and better, of shape (2, 3, cells, tables).

    The first axis is over the analyses: after the first one, and after both.

    Args:
        ends: What `intervals` returns.
        tolerances: Of shape (cells, 1), or one for all.
    """
    first, second = (np.stack(outcomes(low, high, tolerances)) for low, high in ends)
    return np.stack([first, first | second & ~first.any(axis=0)])


def verdicts(samples: Sequence[Floats], published: Sequence[Floats], targets: Sequence[Target]) -> Flags:
    """Return the `decisions` about the `intervals` of cells."""
    return decisions(intervals(samples, published, targets), np.array([[target.tolerance] for target in targets]))


@typed
class CellOutlook:
    """What runs would decide about cells that are judged alike.

    Attributes:
        cells: Their ids.
        dataset, metric, tolerance, published_std: Those of their `Target`.
        reproduced: Chance that a match is reproduced, after the first analysis and after both.
        worse: Chance that an error higher by `WORSE_BY` is called worse.
        false: Chance of a false verdict at a difference as large as the tolerance: reproduced, or worse or better,
            whichever is more frequent.
    """

    cells: tuple[str, ...]
    dataset: str
    metric: str
    tolerance: float
    published_std: float | None
    reproduced: tuple[float, float]
    worse: tuple[float, float]
    false: tuple[float, float]


@typed
class ClaimOutlook:
    """Chances of a claim, after the first analysis and after both, if the printed numbers are true."""

    claim: Claim
    supported: tuple[float, float]
    contradicted: tuple[float, float]


@typed
class NextRuns:
    """The runs of one net that cells need for their next analysis.

    Attributes:
        cells: Ids of the cells that show these runs.
        missing: Number of runs to train.
        total: Number of runs of that analysis.
        verdicts: Chance of each cell to get a verdict then, if it needs one and its runs can be compared.
        claims: Chance of each undecided claim about these runs to be decided, once all its cells have their runs.
        worth: Expected number of verdicts and claims decided per run; a claim counts for all runs that it still needs.
    """

    cells: tuple[str, ...]
    missing: int
    total: int
    verdicts: Mapping[str, float]
    claims: Mapping[str, float]
    worth: float


@typed
class Outlook:
    """What runs of a table would decide.

    Attributes:
        name: The table's number in the paper.
        planned: Runs per cell, fixed beforehand.
        std: Assumed standard deviation of a single run, in percentage points.
        source: Where it is from.
        unsimulated: Number of claims that the simulation does not cover, as they are not about mean test errors.
        unselected: Number of claims about cells that were not selected.
        next_runs: The runs that cells need, the most valuable first.
        left_out: Files, records and results that could not be used, one sentence each.
    """

    name: str
    planned: int
    std: float
    source: Literal["given", "seen", "published"]
    cells: tuple[CellOutlook, ...]
    claims: tuple[ClaimOutlook, ...]
    unsimulated: int
    unselected: int
    next_runs: tuple[NextRuns, ...]
    left_out: tuple[str, ...] = ()


def assess_outlook(
    comparison: Comparison, std: float | None = None, tables: int = 4000, cells: Collection[str] | None = None
) -> Outlook:
    """Simulate what the runs of a table would decide.

    Args:
        std: Standard deviation of a single run in percentage points. Default: that of the runs at hand, pooled over
            cells, or else `TYPICAL_STD`.
        tables: Number of simulated tables. The chances have a standard error of at most 0.8 points at 4,000.
        cells: Ids of the cells to plan; all by default. Others take part in their noise if they have all planned runs.
    """
    if comparison.planned > MAX_RUNS:
        raise NotSimulatedError(
            f"At most {MAX_RUNS} runs per cell can be simulated, not {comparison.planned}. Lower --seeds."
        )
    if std is not None and not 0 < std <= 100:
        raise PaperbenchError(f"A standard deviation must be a positive number of percentage points, not {std}.")
    planned = [c for c in comparison.cells if cells is None or c.id in cells]
    if not any(map(_is_simulated, planned)):
        raise NotSimulatedError(
            "Not simulated: these cells show no published error, or a run has failed. Rules decide then: see "
            "docs/verdicts.md."
        )
    seen = _pooled_std(comparison)
    simulation = _Simulation(comparison, std or seen or TYPICAL_STD, tables, {c.id for c in planned})
    claims = tuple(simulation.claims())
    selected = [claim for claim in comparison.table.expected.claims if simulation.selects(claim)]
    return Outlook(
        comparison.table.name,
        comparison.planned,
        simulation.std,
        "given" if std else "seen" if seen else "published",
        tuple(simulation.cells()),
        claims,
        len(selected) - len(claims),
        len(comparison.table.expected.claims) - len(selected),
        tuple(sorted(simulation.next_runs(), key=lambda runs: -runs.worth)),
    )


@dataclass
class _Simulation:
    """Simulated tables. All cells have the same true noise."""

    comparison: Comparison
    std: float
    tables: int
    chosen: set[str]
    _random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1603))

    def __post_init__(self) -> None:
        self._planned = self.comparison.planned
        self._compared = {
            c.id: c
            for c in self.comparison.cells
            if _is_simulated(c) and (c.id in self.chosen or len(_counted(c, self._planned)) == self._planned)
        }
        self._cells = [self.comparison.table.cell(cell) for cell in self._compared]
        self._targets = [Target.of(cell) for cell in self._cells]
        expected = self.comparison.table.expected
        self._constants = {f"{row.id}/{column}": e for row in expected.literature for column, e in row.cells.items()}
        self._claims = [claim for claim in expected.claims if self._covers(claim)]

    def selects(self, claim: Claim) -> bool:
        """Whether all cells of a claim are to be planned."""
        return {cell for cell in claim.all_cells if cell not in self._constants} <= self.chosen

    def _covers(self, claim: Claim) -> bool:
        """Whether a claim compares mean test errors of simulated cells, and of published numbers."""
        is_simulated = self.selects(claim) and set(claim.all_cells) <= {*self._compared, *self._constants}
        is_about_errors = claim.kind in ("lower", "close", "largest_gain") and claim.measure == "test_error"
        return is_simulated and is_about_errors and self._planned > 1

    def cells(self) -> Iterator[CellOutlook]:
        """Yield the outlook of each kind of cell."""
        targets = self._targets
        match = self._rates([0.0] * len(targets))
        worse = self._rates([WORSE_BY] * len(targets))
        at_tolerance = self._rates([target.tolerance for target in targets])
        chosen = [i for i, cell in enumerate(self._compared) if cell in self.chosen]
        for target in dict.fromkeys(targets[i] for i in chosen):
            alike = [i for i in chosen if targets[i] == target]
            cells = tuple(list(self._compared)[i] for i in alike)
            false, *is_beyond = at_tolerance[:, :, alike].mean(axis=2).T
            false = np.maximum(false, np.sum(is_beyond, axis=0))
            reproduced, is_worse = match[:, 0, alike].mean(axis=1), worse[:, 1, alike].mean(axis=1)
            std = cast(float | None, target.published_std)  # of cells of a table
            of_target = target.dataset, target.metric, target.tolerance, std
            yield CellOutlook(cells, *of_target, _pair(reproduced), _pair(is_worse), _pair(false))

    def _rates(self, shifts: Sequence[float]) -> Floats:
        """Return how often each verdict is given, of shape (2, 3, cells)."""
        samples = [self._runs(2 * self._planned) + shift for shift in shifts]
        published = [np.median(self._runs(target.published_runs), axis=-1) for target in self._targets]
        rates: Floats = verdicts(samples, published, self._targets).mean(axis=-1)
        return rates

    def claims(self) -> Iterator[ClaimOutlook]:
        """Yield the outlook of each claim about mean test errors."""
        samples = [self._runs(2 * self._planned) + (cell.number or 0.0) for cell in self._cells]
        first, both = (
            self._decide([sample[:, : number * self._planned] for sample in samples], level)
            for number, level in ANALYSES
        )
        for claim in self._claims:
            is_open = ~np.logical_or(*first[claim.id])
            finally_ = [now | then & is_open for now, then in zip(first[claim.id], both[claim.id], strict=True)]
            chances = zip(first[claim.id], finally_, strict=True)
            yield ClaimOutlook(claim, *((float(now.mean()), float(then.mean())) for now, then in chances))

    def _decide(self, samples: Sequence[Floats], level: float) -> dict[str, tuple[Flags, Flags]]:
        """Return whether each claim is supported and contradicted, each of shape (tables,)."""
        by_cell = dict(zip(self._compared, samples, strict=True))
        priors = dict(zip(self._compared, priors_of(samples, self._targets), strict=True))
        found = {}
        for claim in self._claims:
            constants = {cell: number for cell, number in self._constants.items() if cell in claim.all_cells}
            contrasts = [part.contrast(by_cell, constants, priors) for part in parts(claim)]
            found[claim.id] = decide_claim([p_values(claim, contrast) for contrast in contrasts], level)
        return found

    def next_runs(self) -> Iterator[NextRuns]:
        """Yield the runs that cells need for their next analysis."""
        compared, planned = self._compared, self._planned
        profile = self.comparison.table.profiles.named(self.comparison.profile)
        training: dict[str, object] = {
            cell.id: (cell.net_in(profile), cell.recipe, cell.dataset_in(profile)) for cell in self._cells
        }
        number = {cell: 1 if len(_counted(c, planned)) < planned else 2 for cell, c in compared.items()}
        continued = [
            self._continued(_counted(compared[cell.id], number[cell.id] * planned), cell) for cell in self._cells
        ]
        verdict: dict[str, float] = {}
        claims: dict[str, tuple[dict[object, int], float]] = {}  # missing runs by training, and chance
        standing = {one.claim.id: one.standing for one in self.comparison.claims}
        for analysis, level in ANALYSES:
            missing = {cell: analysis * planned - len(_counted(c, analysis * planned)) for cell, c in compared.items()}
            samples = [s[:, : min(analysis, n) * planned] for s, n in zip(continued, number.values(), strict=True)]
            priors = priors_of(samples, self._targets)
            for cell, sample, target, prior in zip(self._cells, samples, self._targets, priors, strict=True):
                is_open = compared[cell.id].verdict in ("not run", "underpowered")
                if number[cell.id] == analysis and missing[cell.id] and is_open:
                    ends = analyse(sample, cell.number or 0.0, target, prior, level)
                    verdict[cell.id] = float(np.any(outcomes(*ends, target.tolerance), axis=0).mean())
            flags_of = self._decide([sample[:, : analysis * planned] for sample in continued], level)
            for claim in self._claims:
                lacking = {training[cell]: missing[cell] for cell in claim.all_cells if missing.get(cell)}
                if lacking and claim.id not in claims and standing.get(claim.id) in ("undecided", "not run"):
                    supported, contradicted = flags_of[claim.id]
                    claims[claim.id] = lacking, float((supported | contradicted).mean())
        for one in dict.fromkeys(training.values()):
            cells = tuple(cell for cell in compared if training[cell] == one and cell in self.chosen)
            verdicts = {cell: verdict[cell] for cell in cells if cell in verdict}
            its = {claim: chance for claim, (lacking, chance) in claims.items() if one in lacking}
            if cells and (verdicts or its):
                needed = number[cells[0]] * planned
                lacking_runs = needed - len(_counted(compared[cells[0]], needed))
                worth = sum(verdicts.values()) / lacking_runs
                worth += sum(chance / sum(claims[claim][0].values()) for claim, chance in its.items())
                yield NextRuns(cells, lacking_runs, needed, verdicts, its, worth)

    def _continued(self, errors: Sequence[float], cell: Cell) -> Floats:
        """Return the errors at hand, continued to both analyses.

        Their true mean is uncertain as they are few. Without any, the paper's is taken, as uncertain as its median.
        """
        if errors:
            mean = np.mean(errors) + self._runs(1)[:, 0] / math.sqrt(len(errors))
        else:
            scale = math.sqrt(median_variance(cell.published_runs))
            mean = (cell.number or 0.0) + scale * self._runs(1)[:, 0]
        further = mean[:, None] + self._runs(2 * self._planned - len(errors))
        return np.concatenate([np.broadcast_to(np.array(errors), (self.tables, len(errors))), further], axis=1)

    def _runs(self, number: int) -> Floats:
        """Return runs around 0, of shape (tables, number)."""
        return self.std * self._random.standard_normal((self.tables, number))


def _is_simulated(compared: CellFacts) -> bool:
    """Whether a cell has one net and a printed error, and no run of ours has failed."""
    fails = compared.failures is not None and compared.failures.failed > 0
    return isinstance(compared.published.value, float) and len(compared.nets) == 1 and not fails


def _counted(compared: CellFacts, number: int) -> list[float]:
    """Return the errors of our own runs among the first `number`, from the group that is closest to the paper."""
    groups = (group for net in compared.nets for group in net.groups)
    ours = next((group for group in groups if group.conditions.source is None), None)
    return errors_of(ours.first(number)) if ours else []


def _pooled_std(comparison: Comparison) -> float | None:
    """Return the standard deviation of the runs at hand, pooled over cells; None if no cell has two."""
    samples = [
        errors for c in comparison.cells if _is_simulated(c) and len(errors := _counted(c, 2 * comparison.planned)) > 1
    ]
    if not samples:
        return None
    squares = sum((len(errors) - 1) * float(np.var(errors, ddof=1)) for errors in samples)
    return math.sqrt(squares / sum(len(errors) - 1 for errors in samples)) or None


def _pair(values: Floats) -> tuple[float, float]:
    first, both = map(float, values)
    return first, both
