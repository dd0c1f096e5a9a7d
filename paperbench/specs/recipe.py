"""Training recipes. Every value is explicit, except that a missing warm-up means none."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import FailFast, Field

from paperbench.errors import nearest
from paperbench.specs.run_spec import Precision
from paperbench.typed import Count, Line, Natural, Positive, Problem, Text, dump_set_fields, raise_problems, typed

Share = Annotated[float, Field(gt=0, le=1)]
Rate = Annotated[float, Field(gt=0, le=1e30)]
"""A learning rate; every one is a number in float32."""


@typed
class WarmUp:
    """A constant lower learning rate for the first iterations (Appendix of the paper: 0.01 for 400)."""

    learning_rate: Rate
    iterations: Count


@typed
class Drops:
    """Iterations, counted from 0, at which the learning rate is multiplied by `factor`."""

    at: Annotated[tuple[Natural, ...], FailFast(), Field(max_length=1_000)]
    factor: Share

    def __post_init__(self) -> None:
        if list(self.at) != sorted(set(self.at)):
            raise_problems([Problem(("at",), "must be in increasing order.")])


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
    moving_average: Share
    at_test: Literal["reestimated", "moving_average"]


@typed
class Augmentation:
    """Random crop after zero padding of `padding` pixels per side; mirrored with probability 0.5 if `flip`.

    The other values are for large images, which this version cannot train on yet.

    Attributes:
        shorter_side: Minimum and maximum length of the shorter side after resizing, in pixels, drawn per image.
        crop: Side of the square crop, in pixels.
        area: Minimum and maximum share of the image that a crop covers.
        aspect_ratio: Minimum and maximum ratio of a crop's sides.
        jitter: Maximum change of brightness, contrast and saturation.
        lighting: Standard deviation of the noise along the principal components of the colours.
    """

    padding: Annotated[int, Field(ge=0, le=64)]
    flip: bool
    shorter_side: tuple[Count, Count] | None = None
    crop: Count | None = None
    area: tuple[Share, Share] | None = None
    aspect_ratio: tuple[Positive, Positive] | None = None
    jitter: Positive | None = None
    lighting: Positive | None = None

    def __post_init__(self) -> None:
        raise_problems(self._problems())

    def _problems(self) -> Iterator[Problem]:
        for name in ("shorter_side", "area", "aspect_ratio"):
            bounds = getattr(self, name)
            if bounds is not None and bounds[0] > bounds[1]:
                yield Problem((name,), "must have the smaller number first.")
        if self.shorter_side and self.area:
            yield Problem(("area",), "cannot be combined with shorter_side; remove one of them.")
        if (self.shorter_side or self.area) and self.crop is None:
            yield Problem(("crop",), "is required with shorter_side or area.")
        if self.shorter_side and self.crop and self.crop > self.shorter_side[0]:
            yield Problem(("crop",), f"must be at most {self.shorter_side[0]}, the minimum of shorter_side.")
        if self.padding and self.is_for_large_images:
            yield Problem(("padding",), "must be 0 for images that are resized or recoloured.")

    @property
    def is_for_large_images(self) -> bool:
        """Whether images are resized or recoloured."""
        return bool(set(dump_set_fields(self)) - {"padding", "flip"})


@typed
class Authors:
    """The authors' setup behind the published numbers.

    Attributes:
        images_per_gpu: Images that shared batch-norm statistics.
    """

    framework: Line
    images_per_gpu: Count
    precision: Precision


@typed
class Monitoring:
    """Intervals between log lines, tests and checkpoints, in iterations. They do not affect training or digests.

    Attributes:
        checkpoint_share: Maximum share of the time spent on checkpoints; those that would exceed it are skipped.
    """

    log_every: Count
    test_every: Count
    checkpoint_every: Count
    checkpoint_share: Share


@typed
class Recipe:
    """A training recipe.

    Attributes:
        recipe: Its name, which is the file name.
        source: Sources of its values.
        batch_size: Images per iteration.
        iterations: Length of the training.
        learning_rate: Rate after the warm-up and before the first drop.
        momentum_form: "caffe": v <- m v + lr g, w <- w - v, as in the paper's framework. "pytorch": v <- m v + g,
            w <- w - lr v. "nesterov": PyTorch's Nesterov form. The first two differ when the rate changes.
        weight_decay: Applied to every parameter, including BN's and biases.
        initialisation: Whether He's normal initialisation uses a filter's fan-out or fan-in.
        input: "per_pixel_mean": pixels/255 minus the mean image of the training set (v1, Sec. 4.2).
            "channel_mean_std": each channel normalised to mean 0 and standard deviation 1 over the training set.
        authors: The authors' setup behind the published numbers.
        silent: Dotted names of values that the sources do not give, so that they are our choice.
    """

    schema: Literal[1]
    recipe: Line
    source: Text
    batch_size: Annotated[int, Field(ge=1, le=65_536)]
    iterations: Count
    learning_rate: Rate
    warm_up: WarmUp | None
    drops: Drops
    momentum: Annotated[float, Field(ge=0, lt=1)]
    momentum_form: Literal["caffe", "pytorch", "nesterov"]
    weight_decay: Annotated[float, Field(ge=0)]
    initialisation: Literal["fan_out", "fan_in"]
    input: Literal["per_pixel_mean", "channel_mean_std"]
    augmentation: Augmentation
    batch_norm: BatchNormSettings
    monitoring: Monitoring
    authors: Authors
    silent: tuple[Line, ...]

    def __post_init__(self) -> None:
        raise_problems(self._problems())

    def _problems(self) -> Iterator[Problem]:
        for i, name in enumerate(self.silent):
            try:
                _ = self.value_of(name)
            except KeyError:
                yield Problem(("silent", i), f"unknown recipe value {name!r}. {nearest(name, self._value_names())}")
        if self.momentum_form == "nesterov" and not self.momentum:
            yield Problem(("momentum",), "must be above 0 with nesterov.")
        if self.batch_size % self.batch_norm.group:
            yield Problem(("batch_norm", "group"), f"must divide batch_size ({self.batch_size}).")
        if self.rate_at(self.iterations) < 1e-30:
            yield Problem(("drops",), "must leave a learning rate of at least 1e-30.")
        if self.drops.at and self.drops.at[-1] >= self.iterations:
            message = f"the drop at {self.drops.at[-1]} is not before the end at {self.iterations} iterations."
            yield Problem(("drops", "at"), message)
        if self.drops.at and self.warm_up and self.drops.at[0] < self.warm_up.iterations:
            message = f"the first drop is before the end of the warm-up at {self.warm_up.iterations}."
            yield Problem(("drops", "at"), message)

    def _value_names(self) -> Iterator[str]:
        for name, value in self.defining_values().items():
            yield name
            if isinstance(value, dict):
                yield from (f"{name}.{key}" for key in value)

    def rate_at(self, iteration: int) -> float:
        """Return the learning rate of an iteration, counted from 0."""
        if self.warm_up and iteration < self.warm_up.iterations:
            return self.warm_up.learning_rate
        return float(self.learning_rate * self.drops.factor ** bisect_right(self.drops.at, iteration))

    def defining_values(self) -> dict[str, Any]:
        """Return the values that enter a digest, as JSON values: those that are set and affect training."""
        values = dump_set_fields(self)
        for key in ("schema", "recipe", "source", "monitoring", "authors", "silent"):
            del values[key]
        return values

    def value_of(self, name: str) -> Any:
        """Return a defining value by its dotted name.

        Raises:
            KeyError: The recipe has no such value.
        """
        value: Any = self.defining_values()
        for part in name.split("."):
            if not isinstance(value, dict):
                raise KeyError(name)
            value = value[part]
        return value


def format_value(value: Any) -> str:
    """Return a recipe's value as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {format_value(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return " and ".join(format_value(item) for item in value) or "none"
    return "none" if value is None else str(value)
