"""Training recipes. Every value of a training is explicit, except that a missing warm-up means none."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import FailFast, Field

from paperbench.specs.run_spec import Precision
from paperbench.typed import Count, Id, Line, Natural, Positive, Problem, Text, dump_set_fields, typed, unknown_words

Fraction = Annotated[float, Field(gt=0, le=1)]
Side = Annotated[int, Field(ge=1, le=16_384)]
"""Length in pixels."""
Rate = Annotated[float, Field(gt=0, le=1e30)]
"""A learning rate; every one is a number in float32."""
Initialisation = Literal["fan_out", "fan_in", "orthogonal"]


@typed
class WarmUp:
    """A lower learning rate for the first iterations (Appendix of the paper: 0.01 for 400).

    Attributes:
        form: "linear": from `learning_rate` at iteration 0, the rate rises by the same amount at every iteration, and
            is the recipe's at the first one after the warm-up. None: it is constant.
    """

    learning_rate: Rate
    iterations: Count
    form: Literal["linear"] | None = None


@typed
class Drops:
    """Iterations, counted from 0, at which the learning rate is multiplied by `factor`."""

    at: Annotated[tuple[Natural, ...], FailFast(), Field(max_length=1_000)]
    factor: Fraction

    def problems(self) -> Iterator[Problem]:
        if list(self.at) != sorted(set(self.at)):
            yield Problem(("at",), "must be in increasing order.")


DROPS_OR_SCHEDULE = Problem(("drops",), "must be given, or a schedule (cosine) in their place, but not both.")


@typed
class BatchNormSettings:
    """Batch normalisation in training and testing.

    Attributes:
        group: Images per group of training statistics; each of the paper's two GPUs saw 64 of a batch of 128.
        eps: Added to variances.
        moving_average: Weight of the newest statistics in the moving average.
        at_test: The statistics behind the reported error. "reestimated": averaged over the training set after the
            last iteration, as the authors describe for v1. "moving_average": those collected in training.
    """

    group: Annotated[int, Field(ge=2)]
    eps: Positive
    moving_average: Fraction
    at_test: Literal["reestimated", "moving_average"]


@typed
class Augmentation:
    """Random crop after zero padding of `padding` pixels per side; mirrored with probability 0.5 if `flip`."""

    padding: Annotated[int, Field(ge=0, le=64)]
    flip: bool


Triple = tuple[float, float, float]
"""One value per channel: red, green, blue."""

Decoder = Literal["pillow", "torchcodec"]
Interpolation = Literal["bilinear", "torch_bicubic"]


@typed
class Lighting:
    """Noise along the principal components of the colours (Krizhevsky et al., 2012): sum of a_i l_i e_i over i.

    Attributes:
        std: Standard deviation of the factors a_i, drawn once per image.
        eigenvalues: l_1 to l_3, for pixels in [0, 1].
        eigenvectors: One row per channel; e_i is column i.
    """

    std: Positive
    eigenvalues: Triple
    eigenvectors: tuple[Triple, Triple, Triple]


@typed
class Photographs:
    """How files with photographs of any size become the net's square input.

    Training crops are either of `crop` pixels from an image whose shorter side is resized to a random length
    (`shorter_side`), or of random area and aspect ratio, resized to `crop` pixels (`area`, `aspect_ratio`).

    Attributes:
        decoder: Decoders may differ by a grey level.
        interpolation: "bilinear": Pillow's, which averages when it shrinks. "torch_bicubic": that of Torch7's image
            package, which does not; corners stay at corners.
        crop: Side of the training crops, in pixels.
        shorter_side: Minimum and maximum length, in pixels, of the shorter side; a whole number, drawn uniformly.
        area: Minimum and maximum share of the image; drawn uniformly.
        aspect_ratio: Minimum and maximum ratio of width to height; drawn uniformly, and inverted with probability 0.5.
        jitter: Maximum relative change of brightness, contrast and saturation. Nothing is clamped, so that their order
            makes no difference.
        lighting: Noise of the colours.
        mean_image_scale: For the input `per_pixel_mean`: the mean image is that of the central crops of all training
            images, with their shorter side resized to this length. Other crops in a test have the mean image of the
            training images' same crops.
    """

    decoder: Decoder
    interpolation: Interpolation
    crop: Annotated[int, Field(ge=1, le=4_096)]
    shorter_side: tuple[Side, Side] | None = None
    area: tuple[Fraction, Fraction] | None = None
    aspect_ratio: tuple[Positive, Positive] | None = None
    jitter: Annotated[float, Field(gt=0, le=1)] | None = None
    lighting: Lighting | None = None
    mean_image_scale: Side | None = None

    def problems(self) -> Iterator[Problem]:
        for name in ("shorter_side", "area", "aspect_ratio"):
            bounds = getattr(self, name)
            if bounds is not None and bounds[0] > bounds[1]:
                yield Problem((name,), "must have the smaller number first.")
        if (self.shorter_side is None) == (self.area is None):
            yield Problem(("shorter_side",), "must be given, or area and aspect_ratio, but not both.")
        if (self.area is None) != (self.aspect_ratio is None):
            yield Problem(("aspect_ratio",), "and area must be given together.")
        shortest = self.shorter_side[0] if self.shorter_side else None
        for name, least in (("shorter_side", shortest), ("mean_image_scale", self.mean_image_scale)):
            if least is not None and least < self.crop:
                yield Problem((name,), f"must be at least {self.crop}, the side of the crop.")


@typed
class Evaluation:
    """Testing on one central crop of an image whose shorter side is resized to `scale`; both in pixels.

    It is not part of a run, because one trained net can be tested in several ways.
    """

    crop: Side
    scale: Side

    def __post_init__(self) -> None:
        if self.crop > self.scale:
            raise ValueError(f"the crop ({self.crop} pixels) must not exceed the scale ({self.scale} pixels).")

    def __str__(self) -> str:
        return f"{self.crop}x{self.crop} crop of a shorter side of {self.scale}"


@typed
class ChannelValues:
    """Given means and standard deviations of the channels, for pixels in [0, 1]."""

    mean: Triple
    std: tuple[Positive, Positive, Positive]


@typed
class Authors:
    """The authors' setup behind the published numbers.

    Attributes:
        images_per_gpu: Images that shared batch-norm statistics.
        weight_decay_on: What their weight decay was applied to, if a source says so.
    """

    framework: Line
    images_per_gpu: Count
    precision: Precision
    weight_decay_on: Literal["all", "convolutions"] | None = None


@typed
class Monitoring:
    """Intervals between log lines, tests and checkpoints, in iterations. They do not affect training or digests.

    Attributes:
        checkpoint_share: Maximum share of the time spent on checkpoints; those that would exceed it are skipped.
    """

    log_every: Count
    test_every: Count
    checkpoint_every: Count
    checkpoint_share: Fraction


@typed
class Recipe:
    """A training recipe.

    Attributes:
        recipe: Its name, which is the file name.
        source: Sources of its values.
        batch_size: Images per iteration.
        iterations: Length of the training.
        learning_rate: Rate after the warm-up and before the first drop.
        schedule: In place of drops. "cosine": of the n iterations after the warm-up, iteration i, counted from 0, has
            the rate learning_rate (1 + cos(pi i / n)) / 2, which would be 0 only after the last.
        drops: Required without a schedule.
        momentum_form: "caffe": v <- m v + lr g, w <- w - v, as in the paper's framework. "pytorch": v <- m v + g,
            w <- w - lr v. "nesterov": PyTorch's Nesterov form. The first two differ when the rate changes.
        weight_decay: Applied to every parameter, including BN's and biases, unless `weight_decay_on` is "convolutions".
        clip_norm: Maximum norm of the gradient of all parameters together, summed over the batch and before weight
            decay; a longer one is scaled. None: no maximum.
        label_smoothing: Share of the target in the training loss that is spread evenly over all classes (torch's
            `cross_entropy`). Tests have none. None: the target is the label.
        initialisation: Of convolutions. "fan_out" or "fan_in": He's normal initialisation with this fan of a filter.
            "orthogonal": orthogonal matrices (outputs, inputs x kernel^2) times sqrt(2).
        input: "per_pixel_mean": pixels/255 minus the mean image of the training set (v1, Sec. 4.2).
            "channel_mean_std": each channel normalised to mean 0 and standard deviation 1 over the training set.
            Or given values per channel.
        photographs: Required for images of any size; None for images that are all as large as the net's input.
        evaluations: How nets are tested on photographs, by the names that tables use; the first one in training, too.
            They do not affect training or digests. Empty for other images, which are tested whole.
        epoch_end: "short_batch": the last batch of an epoch has the images that are left. None: batches run on into
            the next epoch.
        authors: The authors' setup behind the published numbers, if there are any.
        silent: Dotted names of values that the sources do not give, so that they are our choice.
    """

    schema: Literal[1]
    recipe: Line
    source: Text | None = field(default=None, kw_only=True)
    batch_size: Annotated[int, Field(ge=1, le=65_536)]
    iterations: Count
    learning_rate: Rate
    warm_up: WarmUp | None
    schedule: Literal["cosine"] | None = field(default=None, kw_only=True)
    drops: Drops | None = field(default=None, kw_only=True)
    momentum: Annotated[float, Field(ge=0, lt=1)]
    momentum_form: Literal["caffe", "pytorch", "nesterov"]
    weight_decay: Annotated[float, Field(ge=0)]
    initialisation: Initialisation
    input: Literal["per_pixel_mean", "channel_mean_std"] | ChannelValues
    augmentation: Augmentation
    batch_norm: BatchNormSettings
    monitoring: Monitoring
    authors: Authors | None = None
    silent: tuple[Line, ...] = ()
    photographs: Photographs | None = None
    evaluations: Mapping[Id, Evaluation] = field(default_factory=dict)
    epoch_end: Literal["short_batch"] | None = None
    weight_decay_on: Literal["convolutions"] | None = None
    clip_norm: Annotated[float, Field(ge=1e-30, le=1e30)] | None = None
    label_smoothing: Annotated[float, Field(gt=0, lt=1)] | None = None

    def problems(self) -> Iterator[Problem]:
        silent = ((("silent", i), name) for i, name in enumerate(self.silent))
        yield from unknown_words("recipe value", silent, self.values_by_name())
        if self.photographs:
            if self.augmentation.padding:
                yield Problem(("augmentation", "padding"), "must be 0 for photographs, whose crops are never padded.")
            if (self.photographs.mean_image_scale is not None) != (self.input == "per_pixel_mean"):
                message = "is required with the input per_pixel_mean, and only then."
                yield Problem(("photographs", "mean_image_scale"), message)
            if self.input == "channel_mean_std":
                yield Problem(("input",), "must be per_pixel_mean or given values for photographs.")
        if bool(self.photographs) != bool(self.evaluations):
            yield Problem(("evaluations",), "are required with photographs, and only then.")
        if not self.photographs and self.epoch_end:
            yield Problem(("epoch_end",), "is only possible with photographs.")
        if self.momentum_form == "nesterov" and not self.momentum:
            yield Problem(("momentum",), "must be above 0 with nesterov.")
        if self.batch_size % self.batch_norm.group:
            yield Problem(("batch_norm", "group"), f"must divide batch_size ({self.batch_size}).")
        yield from self._rate_problems(self.warm_up.iterations if self.warm_up else 0)

    def _rate_problems(self, begin: int) -> Iterator[Problem]:
        drops = self.drops.at if self.drops else ()
        if (self.drops is None) == (self.schedule is None):
            yield DROPS_OR_SCHEDULE
        if self.schedule and begin >= self.iterations:
            message = f"must be below {self.iterations}: the schedule begins after the warm-up."
            yield Problem(("warm_up", "iterations"), message)
        elif self.rate_at(self.iterations - 1) < 1e-30:
            message = "must leave a learning rate of at least 1e-30."
            yield Problem(("schedule" if self.schedule else "drops",), message)
        if drops and drops[-1] >= self.iterations:
            message = f"the drop at {drops[-1]} is not before the end at {self.iterations} iterations."
            yield Problem(("drops", "at"), message)
        if drops and drops[0] < begin:
            yield Problem(("drops", "at"), f"the first drop is before the end of the warm-up at {begin}.")

    def rate_at(self, iteration: int) -> float:
        """Return the learning rate of an iteration, counted from 0."""
        warm_up, begin = self.warm_up, self.warm_up.iterations if self.warm_up else 0
        if warm_up and iteration < begin:
            rise = (self.learning_rate - warm_up.learning_rate) * iteration / begin if warm_up.form else 0.0
            return warm_up.learning_rate + rise
        if self.drops:
            return float(self.learning_rate * self.drops.factor ** bisect_right(self.drops.at, iteration))
        left = (self.iterations - iteration) / (self.iterations - begin)
        return float(self.learning_rate * math.sin(math.pi / 2 * left) ** 2)  # (1 + cos) / 2, also exact near 0

    def images_before(self, iteration: int, images: int) -> int:
        """Return the number of images in all batches before an iteration, from 0, of a training set of this size."""
        if self.epoch_end != "short_batch":
            return iteration * self.batch_size
        epochs, batches = divmod(iteration, -(-images // self.batch_size))
        return epochs * images + batches * self.batch_size

    def epochs_before(self, iteration: int, images: int) -> float:
        """Return the number of passes over a training set of this size before an iteration, counted from 0."""
        return round(self.images_before(iteration, images) / images, 4)

    @property
    def groups(self) -> int:
        """Number of batch-norm groups of a whole batch."""
        return self.batch_size // self.batch_norm.group

    def group_sizes(self, images: int) -> tuple[int, ...]:
        """Return the sizes of the batch-norm groups of a batch.

        A short batch has as many groups as a whole one, as equal as possible and the larger ones first: so does the
        authors' code divide a batch among GPUs (DataParallelTable of github.com/torch/cunn). Empty groups are left out.
        """
        size, larger = divmod(images, self.groups)
        return tuple(n for n in (size + (index < larger) for index in range(self.groups)) if n)

    def defining_values(self) -> dict[str, Any]:
        """Return the values that enter a digest, as JSON values: those that are set and affect training."""
        values = dump_set_fields(self)
        for key in ("schema", "recipe", "source", "monitoring", "authors", "silent", "evaluations"):
            values.pop(key, None)
        return values

    def values_by_name(self) -> dict[str, Any]:
        """Return the defining values by their dotted names: mappings, and what is in them."""
        return dict(_named(self.defining_values()))


def _named(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        yield f"{path}{key}", value
        if isinstance(value, dict):
            yield from _named(value, f"{path}{key}.")


def format_value(value: Any) -> str:
    """Return a recipe's value as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {format_value(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        items = [f"({format_value(item)})" if isinstance(item, (list, tuple)) else format_value(item) for item in value]
        return " and ".join(filter(None, [", ".join(items[:-1]), *items[-1:]])) or "none"
    return "none" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
