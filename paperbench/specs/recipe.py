"""How a net is trained: every value, none implied."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from paperbench.specs.run_spec import Precision
from paperbench.specs.strict_yaml import FieldError


@dataclass(frozen=True)
class WarmUp:
    """A constant lower learning rate for the first iterations (Appendix of the paper: 0.01 for 400)."""

    learning_rate: float
    iterations: int


@dataclass(frozen=True)
class Drops:
    """Iterations, counted from 0, from which the learning rate is multiplied by `factor` once more."""

    at: tuple[int, ...]
    factor: float


@dataclass(frozen=True)
class BatchNormSettings:
    """Batch normalisation in training and testing.

    Attributes:
        group: Images that share training statistics; the paper's two GPUs saw 64 each of a batch of 128.
        eps: Added to variances.
        moving_average: Weight of the newest statistics in the moving average.
        at_test: Which statistics the reported error uses. "reestimated": averaged anew over the training set once
            training has ended, as the authors describe for v1; "moving_average": those gathered along the way.
    """

    group: int
    eps: float
    moving_average: float
    at_test: Literal["reestimated", "moving_average"]


@dataclass(frozen=True)
class Augmentation:
    """Random crop after zero padding of `padding` pixels a side; mirrored with probability 0.5 if `flip`.

    The rest is for large images, which are brought to one size first. This version cannot train on them yet.

    Attributes:
        shorter_side: Least and greatest length of the shorter side, in pixels, drawn anew for each image.
        crop: Side of the square that is cut out, in pixels.
        area: Least and greatest share of the image that a crop covers.
        aspect_ratio: Least and greatest ratio of a crop's sides.
        jitter: Greatest change of brightness, contrast and saturation.
        lighting: Standard deviation of the noise along the principal components of the colours.
    """

    padding: int
    flip: bool
    shorter_side: tuple[int, ...] | None = None
    crop: int | None = None
    area: tuple[float, ...] | None = None
    aspect_ratio: tuple[float, ...] | None = None
    jitter: float | None = None
    lighting: float | None = None

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise FieldError("padding", f"padding must not be negative, as {self.padding} is.")
        for name in ("shorter_side", "area", "aspect_ratio"):
            bounds = getattr(self, name)
            if bounds is not None and (len(bounds) != 2 or not 0 < bounds[0] <= bounds[1]):
                raise FieldError(name, f"{name} must be two positive numbers, the lesser first.")
        if self.shorter_side and self.area:
            raise FieldError(
                "area", "a crop is of a fixed size (shorter_side) or of a share of the image (area), not both."
            )
        if (self.shorter_side or self.area) and self.crop is None:
            raise FieldError("crop", "large images need a crop.")
        if self.shorter_side and self.crop and self.crop > self.shorter_side[0]:
            raise FieldError("crop", f"a crop of {self.crop} does not fit a shorter side of {self.shorter_side[0]}.")
        if self.area and self.area[1] > 1:
            raise FieldError("area", f"area is a share of the image, at most 1, not {self.area[1]}.")
        for name in ("crop", "jitter", "lighting"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise FieldError(name, f"{name} must be positive, not {value}.")
        if self.padding and self.is_for_large_images:
            raise FieldError("padding", "padding is for small images that are not resized; write 0 here.")

    @property
    def is_for_large_images(self) -> bool:
        """Whether images are resized or recoloured."""
        return any(getattr(self, name) is not None for name in _FOR_LARGE_IMAGES)


_FOR_LARGE_IMAGES = ("shorter_side", "crop", "area", "aspect_ratio", "jitter", "lighting")


@dataclass(frozen=True)
class Authors:
    """What those whose numbers are published trained with.

    Attributes:
        framework: Its name.
        images_per_gpu: Images that shared batch-norm statistics.
        precision: Arithmetic.
    """

    framework: str
    images_per_gpu: int
    precision: Precision

    def __post_init__(self) -> None:
        if self.images_per_gpu < 1:
            raise FieldError("images_per_gpu", f"images_per_gpu must be at least 1, not {self.images_per_gpu}.")


@dataclass(frozen=True)
class Monitoring:
    """How often a run is looked at, in iterations. No value here changes what is trained, so digests leave it out.

    Attributes:
        checkpoint_share: Share of the time that checkpoints may take; one that would come too soon is left out.
    """

    log_every: int
    test_every: int
    checkpoint_every: int
    checkpoint_share: float

    def __post_init__(self) -> None:
        for name in ("log_every", "test_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise FieldError(name, f"{name} must be at least 1, not {getattr(self, name)}.")
        if not 0 < self.checkpoint_share <= 1:
            raise FieldError("checkpoint_share", f"checkpoint_share must be in (0, 1], not {self.checkpoint_share}.")


@dataclass(frozen=True)
class Recipe:
    """One training recipe. Iterations drive everything; epochs only name passes over the training set.

    Attributes:
        recipe: Its name, that of the file.
        source: Where its values come from.
        batch_size: Images an iteration.
        iterations: Length of the training.
        learning_rate: Rate after the warm-up and before the first drop.
        momentum_form: "caffe": v <- m v + lr g, w <- w - v, as the paper's framework does. "pytorch": v <- m v + g,
            w <- w - lr v. "nesterov": PyTorch's Nesterov form. The first two differ when the rate changes.
        weight_decay: On every parameter, BN's and biases included.
        initialisation: Whether He's normal counts a filter's outputs or inputs.
        input: "per_pixel_mean": pixels/255 minus the mean image of the training set (v1, Sec. 4.2).
            "channel_mean_std": each channel brought to mean 0 and standard deviation 1 over the training set.
        authors: What the published numbers were computed with.
        silent: Names of values, dotted within groups, that the sources do not give and that are therefore ours.
    """

    schema: Literal[1]
    recipe: str
    source: str
    batch_size: int
    iterations: int
    learning_rate: float
    warm_up: WarmUp | None
    drops: Drops
    momentum: float
    momentum_form: Literal["caffe", "pytorch", "nesterov"]
    weight_decay: float
    initialisation: Literal["fan_out", "fan_in"]
    input: Literal["per_pixel_mean", "channel_mean_std"]
    augmentation: Augmentation
    batch_norm: BatchNormSettings
    monitoring: Monitoring
    authors: Authors
    silent: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in self.silent:
            _ = self.value_of(name)
        for name in ("batch_size", "iterations"):
            if getattr(self, name) < 1:
                raise FieldError(name, f"{name} must be at least 1, not {getattr(self, name)}.")
        if self.learning_rate <= 0:
            raise FieldError("learning_rate", f"learning_rate must be positive, not {self.learning_rate}.")
        if not 0 <= self.momentum < 1:
            raise FieldError("momentum", f"momentum must be in [0, 1), not {self.momentum}.")
        if self.momentum_form == "nesterov" and not self.momentum:
            raise FieldError("momentum", "nesterov needs a momentum above 0.")
        if self.weight_decay < 0:
            raise FieldError("weight_decay", f"weight_decay must not be negative, as {self.weight_decay} is.")
        if self.batch_norm.group < 2 or self.batch_size % self.batch_norm.group:
            raise FieldError(
                "batch_norm",
                f"group must be at least 2 and divide batch_size {self.batch_size}, not {self.batch_norm.group}.",
            )
        if not 0 < self.batch_norm.moving_average <= 1 or self.batch_norm.eps <= 0:
            raise FieldError("batch_norm", "moving_average must be in (0, 1] and eps positive.")
        if list(self.drops.at) != sorted(set(self.drops.at)) or not 0 < self.drops.factor <= 1:
            raise FieldError("drops", "`at` must rise from drop to drop, and factor be in (0, 1].")
        if self.drops.at and self.drops.at[-1] >= self.iterations:
            raise FieldError(
                "drops", f"the drop at {self.drops.at[-1]} comes after the last of {self.iterations} iterations."
            )
        warm_up_end = self.warm_up.iterations if self.warm_up else 0
        if self.drops.at and self.drops.at[0] < warm_up_end:
            raise FieldError("drops", f"the first drop must not come before the warm-up ends, at {warm_up_end}.")
        if self.warm_up and (self.warm_up.iterations < 1 or self.warm_up.learning_rate <= 0):
            raise FieldError("warm_up", "iterations and learning_rate must be positive; leave out warm-up by `null`.")

    def rate_at(self, iteration: int) -> float:
        """Learning rate of an iteration, counted from 0."""
        if self.warm_up and iteration < self.warm_up.iterations:
            return self.warm_up.learning_rate
        drops = sum(iteration >= start for start in self.drops.at)
        return float(self.learning_rate * self.drops.factor**drops)

    def defining_values(self) -> dict[str, Any]:
        """What enters a digest, as plain JSON values: all but names, sources and monitoring."""
        values = asdict(self)
        for key in ("schema", "recipe", "source", "monitoring", "authors", "silent"):
            del values[key]
        values["drops"]["at"] = list(self.drops.at)
        augmentation = values["augmentation"]
        for key in _FOR_LARGE_IMAGES:  # younger than the digests of CIFAR runs, which must not change
            if augmentation[key] is None:
                del augmentation[key]
            elif isinstance(augmentation[key], tuple):
                augmentation[key] = list(augmentation[key])
        return values

    def value_of(self, name: str) -> Any:
        """A defining value by its dotted name.

        Raises:
            FieldError: There is no such value.
        """
        value: Any = self.defining_values()
        for part in name.split("."):
            if not isinstance(value, dict) or part not in value:
                raise FieldError("silent", f"a recipe has no value {name!r}.")
            value = value[part]
        return value


def in_words(value: Any) -> str:
    """A recipe's value as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {in_words(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return " and ".join(in_words(item) for item in value) or "none"
    return "none" if value is None else str(value)
