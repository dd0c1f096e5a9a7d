"""What an analysis of a net found, as a file of a results directory. Does without torch.

results/analysis/<digest, 12 hex>-s<seed>.json
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import AfterValidator, Field

from paperbench.files import Writer, refuse_links
from paperbench.options import Measure
from paperbench.runs.hashed import HashedJson
from paperbench.runs.record import Code, DataFacts, Environment
from paperbench.specs.run_spec import canonical_json
from paperbench.typed import Count, Line, Natural, Percent, Seconds, typed

ALL = "all parameters"

_DIRECTORY = "analysis"

Number = Annotated[float, Field(ge=-1e300, le=1e300), AfterValidator(lambda value: float(f"{value:.6g}"))]
Numbers = tuple[Number, ...]


@typed
class Signal:
    """A signal over a batch: Euclidean norm, mean and standard deviation of all its values."""

    norm: Number
    mean: Number
    std: Number


class Columns:
    """Columns of the same length, a row for each unit or layer."""

    def __post_init__(self) -> None:
        lengths = {len(values) for values in vars(self).values()}
        if len(lengths) > 1:
            raise ValueError("its columns have different lengths.")
        if lengths == {0}:
            raise ValueError("it has no units.")

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Self:
        """Return the columns of the values of each row by name."""
        found = list(rows)
        return cls(**{field.name: tuple(row.get(field.name) for row in found) for field in fields(cast(Any, cls))})

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the values of each row by name."""
        for values in zip(*vars(self).values(), strict=True):
            yield dict(zip(vars(self), values, strict=True))


@typed
class Passes(Columns):
    """What a pass forward and one back measured. Each column has one value per residual unit l, in order.

    "By shortcuts alone" means with everything else held fixed: gates, noise, statistics of batch norm, and which values
    ReLU lets pass. Shares are parts of a squared norm: that of a is <a, x> / <x, x> if x is the sum of a and others.
    They add up to 1. That of a term which points against the sum is below 0, and that of the others then above 1.

    "An identity" changes dimensions where the unit does, by option A or by the convolution of option B without BN. What
    is measured as a factor of its result b is <a, b> / <b, b>: the number if a is a multiple of b, and about 0, of
    either sign, if both have nothing in common, as after convolutions in all shortcuts.

    Attributes:
        signal_norm, signal_mean, signal_std: x_l.
        residual_norm, residual_mean, residual_std: F(x_l) as it is added, with its factor or gate.
        input_share: The share of x_l that is x_0, carried by shortcuts alone, and changed as they change it.
        sum_error: Distance of x_{l+1} from the sum of Eqs. (4) and (7), relative to the norm of x_{l+1}: x_0 and all F
            up to F(x_l), each multiplied by the factors of the shortcuts after it. Where the pre-activation comes
            before the split, the sum up to there takes the place of x_0. ReLU and BN after additions are what is left.
        negative: The part of the values of y_l, Eq. (1), that are below zero.
        cut: The part of the values that the ReLU after the addition sets to zero; None without such a ReLU. Equal to
            `negative` unless BN comes between.
        identity_error: With F = 0 in all units, distance of x_{l+1} from an identity's output, relative to its norm.
            Begins anew after units that share their pre-activation or project: there the paper's derivations "do not
            hold strictly" (footnote 1).
        identity_kept: With F = 0, the factor that is left of the identity's output in x_{l+1}.
        factor: Mean of what the shortcut is multiplied by: lambda of Eq. (6), 1 - g, or the mask of dropout.
        gradient_norm: dE/dx_l.
        direct_norm: Its first term in Eqs. (5) and (8), which arrives by shortcuts alone.
        through_norm: Its other term, which has passed weight layers, gates, or the statistics of BN.
        direct_share: The share of dE/dx_l that is the first term.
        cosine: Of the angle between both terms; None if one of them is zero.
        predicted: The product of the factors from this unit on, as in Eq. (8); None for 1x1 convolutions.
        measured: The factor by which the first term is what identities would let through. ReLU after additions, BN on
            shortcuts and shared pre-activations change it, too; `predicted` leaves them out.
    """

    signal_norm: Numbers
    signal_mean: Numbers
    signal_std: Numbers
    residual_norm: Numbers
    residual_mean: Numbers
    residual_std: Numbers
    input_share: Numbers
    sum_error: Numbers
    negative: Numbers
    cut: tuple[Number | None, ...]
    identity_error: Numbers
    identity_kept: Numbers
    factor: Numbers
    gradient_norm: Numbers
    direct_norm: Numbers
    through_norm: Numbers
    direct_share: Numbers
    cosine: tuple[Number | None, ...]
    predicted: tuple[Number | None, ...]
    measured: Numbers

    @property
    def negative_share(self) -> float:
        """The mean of `negative` over the units."""
        return sum(self.negative) / len(self.negative)


@typed
class Spectrum:
    """Singular values of the Jacobian of a chain of units, whole batch in, whole batch out.

    Attributes:
        first, last: The chain's units.
        largest: The largest values, in descending order.
        residual: How far they have converged: the largest |J^T J v - s^2 v| / s^2 of a value s with its vector v, so
            that J has a singular value within about half that fraction of s. None if all values were computed.
        rms: Root mean square factor by which a random change of the input grows: of all values (of a Jacobian with more
            inputs than outputs with zeros), or of `Jacobians.block` random changes unless all values were computed.
        values: All values, in descending order, if the Jacobian is small.
        rank: How many of them are not zero to within rounding errors; None unless all were computed.
        condition: The largest value over the smallest; None if that is zero, or not all were computed.
    """

    first: Natural
    last: Natural
    largest: Numbers
    residual: Number | None
    rms: Number
    values: Numbers = ()
    rank: Natural | None = None
    condition: Number | None = None

    def __post_init__(self) -> None:
        if not self.largest:
            raise ValueError("it has no singular values.")


@typed
class Jacobians:
    """Singular values of units and of chains of units.

    Attributes:
        steps: How often each Jacobian and its transpose were applied to a block of vectors, where that was done.
        block: Vectors in a block.
        units: Of each unit.
        stages: Of each stage, all its units.
        chains: Of the last unit, the last 2, 4, 8, ..., and all.
    """

    steps: Count
    block: Count
    units: tuple[Spectrum, ...]
    stages: tuple[Spectrum, ...]
    chains: tuple[Spectrum, ...]


@typed
class Paths:
    """The gradient dE/dx_0 by length of path, a column each with one value per length, from 0 on.

    A path passes each of the L residual units by its shortcut alone, as in `Passes`, or through its weight layers:
    what the shortcut alone leaves of the gradient of the unit. Its length is the number of units that it passes
    through weight layers. Gradients of all paths of a length add up; those of all lengths are dE/dx_0.

    Attributes:
        number: How many paths have this length: L over length.
        norm: Of their summed gradient.
        share: The share of dE/dx_0 that it is, as in `Passes`.
        longer_norm, longer_share: Of the summed gradient of all longer paths; 0 if there are none.
    """

    number: Numbers
    norm: Numbers
    share: Numbers
    longer_norm: Number
    longer_share: Number

    def __post_init__(self) -> None:
        if not self.share or not len(self.number) == len(self.norm) == len(self.share):
            raise ValueError("its columns are empty, or have different lengths.")


@typed
class LeftOut:
    """Test errors in percent, on the images of the analysis.

    Attributes:
        whole: Of the net.
        without: Of the net with F = 0 in one residual unit, for each unit.
    """

    whole: Percent
    without: tuple[Percent, ...]


@typed
class Modules(Columns):
    """Convolutions and the classifier, ReLUs, residual units, and `ALL` parameters; None where a column is of others.

    Attributes:
        weight: Norm of the weights; only in `ALL` with biases, scales and shifts.
        gradient: Norm of the gradient of E with respect to them.
        update: Norm of their change in one step of training, see `Health`.
        mean, std: Of all values that a ReLU puts out.
        dead, channels: Its channels that are zero at every position of every image, and all.
        chi, chi_error: Mean of |Jv|^2 / |v|^2 over random v, where J is a unit's Jacobian, whole batch in, whole batch
            out, which is the mean squared singular value over all inputs; with its standard error.
        correlation: Mean cosine of the angle between the unit's inputs x_l of two images; None for one image.
    """

    name: tuple[Line, ...]
    weight: tuple[Number | None, ...]
    gradient: tuple[Number | None, ...]
    update: tuple[Number | None, ...]
    mean: tuple[Number | None, ...]
    std: tuple[Number | None, ...]
    dead: tuple[Natural | None, ...]
    channels: tuple[Count | None, ...]
    chi: tuple[Number | None, ...]
    chi_error: tuple[Number | None, ...]
    correlation: tuple[Number | None, ...]


@typed
class Health:
    """What tells how a training goes.

    Attributes:
        update_is: Which step `Modules.update` is of, or why it is unavailable.
        probes: Random vectors behind `Modules.chi`.
        train_error, test_error: In percent, as the run last logged them up to here; None if it has not, or without one.
    """

    modules: Modules
    update_is: Line
    probes: Count
    train_error: float | None
    test_error: Percent | None


@typed
class AnalysisSpec:
    """Everything that defines the numbers of an analysis, but for the seed.

    Attributes:
        net: `catalogue.Net.canonical()`.
        recipe: `Recipe.defining_values()`: how the net is initialised, and what its images are.
        data: Fingerprint of the data set.
        run: Digest of the run's spec, if the net was trained by a run.
        iteration: Of that run; 0 is the initialisation.
        weights: sha256 of the file with the weights, if the net is from a file.
        initialisation: "he": as the recipe says, which is He's in the paper. "orthogonal": that in its place.
        images: Size of the batch.
        batch_norm: Whether BN uses the statistics of the "batch", as in training, or its "averages", as in tests.
        precision: Of the arithmetic.
        measures: What was measured besides `Passes`.
        size: Side of the images, if they were made smaller.
    """

    net: dict[str, Any]
    recipe: dict[str, Any]
    data: Line
    run: Line | None
    iteration: Natural
    weights: Line | None
    initialisation: Literal["he", "orthogonal"]
    images: Count
    batch_norm: Literal["batch", "averages"]
    precision: Literal["fp32", "fp64"]
    measures: tuple[Measure, ...] = ()
    size: Count | None = None

    @property
    def digest(self) -> str:
        """sha256 of the canonical JSON, in hex."""
        return hashlib.sha256(canonical_json(vars(self)).encode()).hexdigest()


@typed
class Analysis(HashedJson):
    """An analysis of one net. Numbers have six significant digits.

    Attributes:
        net: The model name and arguments for timm.
        seed: Of initialisation, images and noise.
        loss: E, the batch's mean cross-entropy, with the recipe's label smoothing.
        output: x_L, the output of the last unit.
        output_gradient: Norm of dE/dx_L.
        stages: The stage of each unit, counted from 0.
        channels: Standard deviation of each channel of x_l, for each unit; empty unless it was asked for.
        jacobians, paths, left_out, health: None unless they were asked for.
    """

    REMEDY = "Delete it; the same `paperbench analyze` makes it again."

    kind: Literal["analysis"]
    net: Line
    seed: Natural
    spec: AnalysisSpec
    data: DataFacts
    loss: Number
    output: Signal
    output_gradient: Number
    stages: tuple[Natural, ...]
    passes: Passes
    channels: tuple[Numbers, ...]
    seconds: Seconds
    code: Code
    environment: Environment
    jacobians: Jacobians | None = None
    paths: Paths | None = None
    left_out: LeftOut | None = None
    health: Health | None = None

    def __post_init__(self) -> None:
        by_unit: list[Sequence[object]] = [self.stages]
        by_unit += [self.channels] if self.channels else []
        by_unit += [self.jacobians.units] if self.jacobians else []
        by_unit += [self.left_out.without] if self.left_out else []
        if {len(part) for part in by_unit} != {len(self.passes.factor)}:
            raise ValueError("its parts have different numbers of units.")

    @property
    def file_name(self) -> str:
        """Unique for each spec and seed."""
        return f"{self.spec.digest[:12]}-s{self.seed}.json"


def write_analysis(root: Path, analysis: Analysis) -> Path:
    """Write an analysis into a results directory; return its file."""
    path = root / _DIRECTORY / analysis.file_name
    refuse_links(path.parent)
    Writer().write(path, analysis.to_json().encode())
    return path


def read_analyses(root: Path) -> tuple[list[Analysis], list[str]]:
    """Return the analyses in a results directory, and a complaint about each unreadable file."""
    return Analysis.read_all(root / _DIRECTORY)


def find_analysis(root: Path, spec: AnalysisSpec, seed: int) -> Analysis | None:
    """Return an analysis from a results directory; None if it is not there."""
    return Analysis.read(root / _DIRECTORY / f"{spec.digest[:12]}-s{seed}.json")
