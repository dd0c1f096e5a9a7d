"""How a net is trained: every value, none implied but the absence of a warm-up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from paperbench.specs.run_spec import Precision
from paperbench.typed import Count, Positive, Problem, Text, check, set_values, typed

Share = Annotated[float, Field(gt=0, le=1)]


@typed
class WarmUp:
    """A constant lower learning rate for the first iterations (Appendix of the paper: 0.01 for 400)."""

    learning_rate: Positive
    iterations: Count


@typed
class Drops:
    """Iterations, counted from 0, from which the learning rate is multiplied by `factor` once more."""

    at: tuple[Annotated[int, Field(ge=0)], ...]
    factor: Share

    def __post_init__(self) -> None:
        if list(self.at) != sorted(set(self.at)):
            check([Problem(("at",), "must rise from drop to drop.")])


@typed
class BatchNormSettings:
    """Batch normalisation in training and testing.

    Attributes:
        group: Images that share training statistics; the paper's two GPUs saw 64 each of a batch of 128.
        eps: Added to variances.
        moving_average: Weight of the newest statistics in the moving average.
        at_test: Which statistics the reported error uses. "reestimated": averaged anew over the training set once
            training has ended, as the authors describe for v1; "moving_average": those gathered along the way.
    """

    group: Annotated[int, Field(ge=2)]
    eps: Positive
    moving_average: Share
    at_test: Literal["reestimated", "moving_average"]


@typed
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

    padding: Annotated[int, Field(ge=0)]
    flip: bool
    shorter_side: tuple[Count, Count] | None = None
    crop: Count | None = None
    area: tuple[Share, Share] | None = None
    aspect_ratio: tuple[Positive, Positive] | None = None
    jitter: Positive | None = None
    lighting: Positive | None = None

    def __post_init__(self) -> None:
        check(self._problems())

    def _problems(self) -> Iterator[Problem]:
        for name in ("shorter_side", "area", "aspect_ratio"):
            bounds = getattr(self, name)
            if bounds is not None and bounds[0] > bounds[1]:
                yield Problem((name,), "must have the lesser number first.")
        if self.shorter_side and self.area:
            yield Problem(
                ("area",), "a crop is of a fixed size (shorter_side) or of a share of the image (area), not both."
            )
        if (self.shorter_side or self.area) and self.crop is None:
            yield Problem(("crop",), "large images need a crop.")
        if self.shorter_side and self.crop and self.crop > self.shorter_side[0]:
            yield Problem(("crop",), f"a crop of {self.crop} does not fit a shorter side of {self.shorter_side[0]}.")
        if self.padding and self.is_for_large_images:
            yield Problem(("padding",), "padding is for small images that are not resized; write 0 here.")

    @property
    def is_for_large_images(self) -> bool:
        """Whether images are resized or recoloured."""
        return bool(set(set_values(self)) - {"padding", "flip"})


@typed
class Authors:
    """What those whose numbers are published trained with.

    Attributes:
        framework: Its name.
        images_per_gpu: Images that shared batch-norm statistics.
        precision: Arithmetic.
    """

    framework: Text
    images_per_gpu: Count
    precision: Precision


@typed
class Monitoring:
    """How often a run is looked at, in iterations. No value here changes what is trained, so digests leave it out.

    Attributes:
        checkpoint_share: Share of the time that checkpoints may take; one that would come too soon is left out.
    """

    log_every: Count
    test_every: Count
    checkpoint_every: Count
    checkpoint_share: Share


@typed
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
    recipe: Text
    source: Text
    batch_size: Count
    iterations: Count
    learning_rate: Positive
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
    silent: tuple[Text, ...]

    def __post_init__(self) -> None:
        check(self._problems())

    def _problems(self) -> Iterator[Problem]:
        for i, name in enumerate(self.silent):
            try:
                _ = self.value_of(name)
            except KeyError:
                yield Problem(("silent", i), f"a recipe has no value {name!r}.")
        if self.momentum_form == "nesterov" and not self.momentum:
            yield Problem(("momentum",), "nesterov needs a momentum above 0.")
        if self.batch_size % self.batch_norm.group:
            yield Problem(("batch_norm", "group"), f"must divide batch_size, which is {self.batch_size}.")
        if self.drops.at and self.drops.at[-1] >= self.iterations:
            last = self.drops.at[-1]
            yield Problem(("drops", "at"), f"the drop at {last} comes after the last of {self.iterations} iterations.")
        if self.drops.at and self.warm_up and self.drops.at[0] < self.warm_up.iterations:
            message = f"the first drop must not come before the warm-up ends, at {self.warm_up.iterations}."
            yield Problem(("drops", "at"), message)

    def rate_at(self, iteration: int) -> float:
        """Learning rate of an iteration, counted from 0."""
        if self.warm_up and iteration < self.warm_up.iterations:
            return self.warm_up.learning_rate
        drops = sum(iteration >= start for start in self.drops.at)
        return float(self.learning_rate * self.drops.factor**drops)

    def defining_values(self) -> dict[str, Any]:
        """What enters a digest, as JSON values: all that is set but names, sources and monitoring."""
        values = set_values(self)
        for key in ("schema", "recipe", "source", "monitoring", "authors", "silent"):
            del values[key]
        return values

    def value_of(self, name: str) -> Any:
        """A defining value by its dotted name.

        Raises:
            KeyError: There is no such value.
        """
        value: Any = self.defining_values()
        for part in name.split("."):
            if not isinstance(value, dict):
                raise KeyError(name)
            value = value[part]
        return value


def format_value(value: Any) -> str:
    """A recipe's value as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {format_value(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return " and ".join(format_value(item) for item in value) or "none"
    return "none" if value is None else str(value)
