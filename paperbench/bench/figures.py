"""What a measurement found, as plain values, and the rules by which medians, ratios and differences come out of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paperbench.bench.variants import Kind

Status = Literal["measured", "wrong loss", "not checked", "out of memory", "failed", "left out"]
"""measured: has a figure. wrong loss: its losses are not the reference's. not checked: the reference could not be
computed. left out: there was no time."""


@dataclass(frozen=True)
class Spread:
    """A median with the least and greatest value."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Ratio:
    """How many times faster one variant was than another.

    Attributes:
        rounds: The ratio in each round, both measured within it.
        median: Of these.
        low, high: Least and greatest of these.
        is_difference: Whether the median is farther from 1 than a variant was from itself in any round.
    """

    rounds: tuple[float, ...]
    median: float
    low: float
    high: float
    is_difference: bool


@dataclass(frozen=True)
class Control:
    """The same variant measured twice in each round: what ratios come out where there is no difference.

    Attributes:
        label: Of the variant.
        subset: Of variants, counted from 0, that it was measured among.
        rounds: Second over first, round by round.
    """

    label: str
    subset: int
    rounds: tuple[float, ...]


@dataclass(frozen=True)
class VariantFigures:
    """What is known of one variant. Times in seconds, memory in bytes; None where there is no figure.

    Attributes:
        kind, engine, precision: See `variants.Variant`.
        label: The same for people.
        status: Whether there is a figure, and why not.
        detail: More on the status, in words.
        subset: Variants that fit into memory together are measured together; the number of that subset, from 0.
        construction_seconds: To build net and loop; images are in memory already, those of ours not on the device.
        first_step_seconds: From there to the end of the first step, compilation and capture included.
        steps: Of each round.
        seconds: Each round's time.
        images_per_second: Over the rounds.
        over_plain: Ratio to the plain loop as shipped.
        over_plain_same_precision: Ratio to the plain loop at the variant's precision.
        over_on_device: Ratio to the plain loop on batches already on the device, at the variant's precision.
        peak_allocated, peak_reserved: What the allocator handed out, and held, at most until the end of the warm-up,
            beyond what was there before. GPUs only.
        losses: Training loss of each of the first steps, of ours; None for one that is not finite.
        displacement: How far its first steps have moved the parameters, over how far eager float32's have.
        flags: torch's switches as they were read back while the variant was running.
    """

    kind: Kind
    engine: str
    precision: str
    label: str
    status: Status
    detail: str | None = None
    subset: int = 0
    construction_seconds: float | None = None
    first_step_seconds: float | None = None
    steps: int | None = None
    seconds: tuple[float, ...] = ()
    images_per_second: Spread | None = None
    over_plain: Ratio | None = None
    over_plain_same_precision: Ratio | None = None
    over_on_device: Ratio | None = None
    peak_allocated: int | None = None
    peak_reserved: int | None = None
    losses: tuple[float | None, ...] | None = None
    displacement: float | None = None
    flags: dict[str, str | bool] | None = None


@dataclass(frozen=True)
class NetFigures:
    """All that was measured of one net.

    Attributes:
        net: Its name.
        parameters: How many it has.
        batch_size: Images a step.
        bn_group: Images that share batch-norm statistics in ours; in the plain loops the whole batch does.
        images: Distinct training images.
        rounds: How many were asked for.
        seconds: Least length of a round that was asked for.
        compared_steps: First steps of ours whose losses were compared with eager float32's.
        variants: Plain loops first.
        controls: What noise there was.
        noise: Greatest distance of any control's round from ratio 1, as a factor minus 1; None without a control.
        clocks: Of the GPU right after the last round, in MHz.
    """

    net: str
    parameters: int
    batch_size: int
    bn_group: int
    images: int
    rounds: int
    seconds: float
    compared_steps: int
    variants: tuple[VariantFigures, ...]
    controls: tuple[Control, ...]
    noise: float | None
    clocks: dict[str, int] | None

    @property
    def has_figures(self) -> bool:
        """Whether anything was measured."""
        return any(v.status == "measured" for v in self.variants)

    @property
    def is_sound(self) -> bool:
        """Whether every variant computed what it should; lack of memory or time is no fault."""
        return all(v.status in ("measured", "out of memory", "left out") for v in self.variants)


def spread(values: Sequence[float]) -> Spread:
    """Median, least and greatest."""
    return Spread(statistics.median(values), min(values), max(values))


def rates(images: int, seconds: Sequence[float]) -> tuple[float, ...]:
    """Images per second of rounds of so many images."""
    return tuple(images / s for s in seconds)


def per_round(ours: Sequence[float], others: Sequence[float]) -> tuple[float, ...]:
    """Ratios of rates, round by round; rounds that only one of them has are left out."""
    return tuple(a / b for a, b in zip(ours, others, strict=False))


def noise_of(controls: Sequence[Control]) -> float | None:
    """The greatest factor, minus 1, by which a variant differed from itself in a round; None if none was asked."""
    logs = [abs(math.log(ratio)) for control in controls for ratio in control.rounds]
    return math.expm1(max(logs)) if logs else None


def ratio(ours: Sequence[float], others: Sequence[float], noise: float | None) -> Ratio | None:
    """How many times faster, by rates of the same rounds.

    Args:
        ours, others: Images per second, a value a round.
        noise: See `noise_of`; without it nothing is called a difference.
    """
    rounds = per_round(ours, others)
    if not rounds:
        return None
    found = spread(rounds)
    return Ratio(rounds, found.median, found.low, found.high, is_difference(found.median, noise))


def is_difference(ratio: float, noise: float | None) -> bool:
    """Whether a ratio is farther from 1 than `noise`, without which nothing is called a difference."""
    return noise is not None and abs(math.log(ratio)) > math.log1p(noise)
