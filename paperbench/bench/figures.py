"""Results of `paperbench bench`, as its JSON stores them, and ratios with noise. Does not import torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

from paperbench.runs.record import Environment
from paperbench.typed import Count, Text, typed

Kind = Literal["plain", "plain-on-device", "paperbench"]
"""plain: the loop that public repositories ship, with a DataLoader; plain-on-device: the same step, fed with batches
that are already on the device; paperbench: our trainer."""

Status = Literal["measured", "wrong step", "out of memory", "failed", "skipped"]
"""wrong step: the first losses are not eager's or not finite, or trainings at once differ. skipped: the time was up."""


@typed
class Machine:
    """Code, libraries and hardware of a measurement.

    Attributes:
        version, commit, source: Of paperbench, as in records.
        environment: As in records.
        gpu: Output of nvidia-smi right after the measurement, clocks included; None if nvidia-smi fails.
    """

    date: str
    version: str
    commit: str | None
    source: str
    environment: Environment
    gpu: dict[str, str] | None


@typed
class Ratio:
    """Speed of one variant relative to another.

    Attributes:
        median: Median of the ratios within each round.
        is_difference: Whether the median is farther from 1 than the noise.
    """

    median: float
    is_difference: bool


@typed
class Variant:
    """One way to train a net, or several at once that take turns. The engine of plain loops is "eager"."""

    kind: Kind
    engine: str
    precision: str
    at_once: Count = 1

    @property
    def label(self) -> str:
        """Name for reports."""
        names = {"plain": "plain loop", "plain-on-device": "on-device loop", "paperbench": self.engine}
        return f"{names[self.kind]} {self.precision}" + f", {self.at_once} at once" * (self.at_once > 1)


@typed
class VariantFigures:
    """Measurements of one variant. Times are in seconds, memory in bytes; None means not measured.

    Attributes:
        detail: Explanation of the status.
        first_step_seconds: Time to build the net and the loop and to make the first step, including capture,
            excluding the creation of the images; for trainings at once, of all.
        step_seconds: Time per step in each round; for trainings at once, that of a step of each over their number.
        control: Time per step of a second measurement in each round, from which the noise is computed; two variants
            have one.
        images_per_second: Median over the rounds.
        over_plain: Ratio to the plain loop as shipped.
        over_plain_same_precision: Ratio to the plain loop at the variant's precision.
        over_on_device: Ratio to the on-device loop at the variant's precision.
        peak_memory: Peak of the memory that torch takes from the GPU before the rounds.
        losses: Training loss of each of our first steps; None if one is not finite.
        update_norm: No longer measured.
    """

    variant: Variant
    status: Status
    detail: Text | None = None
    first_step_seconds: float | None = None
    step_seconds: tuple[float, ...] = ()
    control: tuple[float, ...] = ()
    images_per_second: float | None = None
    over_plain: Ratio | None = None
    over_plain_same_precision: Ratio | None = None
    over_on_device: Ratio | None = None
    peak_memory: int | None = None
    losses: tuple[float, ...] | None = None
    update_norm: float | None = None


@typed
class NetFigures:
    """Measurements of one net.

    Attributes:
        bn_group: Images that share batch-norm statistics in our trainer; plain loops use the whole batch.
        images: Number of distinct training images.
        variants: Plain loops first.
        noise: Largest factor, minus 1, between two measurements of one variant in the same round.
    """

    net: str
    parameters: int
    batch_size: int
    bn_group: int
    images: int
    variants: tuple[VariantFigures, ...]
    noise: float | None

    @property
    def is_sound(self) -> bool:
        """Whether no variant failed or made a wrong step. Running out of memory or time is no failure."""
        return all(v.status in ("measured", "out of memory", "skipped") for v in self.variants)


@typed
class BenchReport:
    """Contents of the file that `paperbench bench --json` writes. An interrupted command leaves out nets."""

    schema: Literal[1]
    machine: Machine
    nets: tuple[NetFigures, ...]


@typed
class LoaderRow:
    """One way to decode or crop photographs.

    Attributes:
        name: For reports; with the recipe's name, unless the images are only decoded.
        threads: Threads of the stream; None without a stream.
        image_seconds: Seconds per image in each round.
    """

    name: Text
    threads: int | None
    image_seconds: tuple[float, ...]


@typed
class LoaderReport:
    """Contents of the file that `paperbench bench --loader --json` writes.

    Attributes:
        images: What was decoded.
        pixels, bytes: Means per image.
        cores: Processor cores that the command could use.
        decoding: Decoding files in memory, by decoder; Pillow first.
        recipes: For each recipe the plain loop, then the stream with 1, 2, ... threads.
    """

    schema: Literal[1]
    machine: Machine
    images: Text
    pixels: float
    bytes: float
    cores: int
    decoding: tuple[LoaderRow, ...]
    recipes: dict[str, tuple[LoaderRow, ...]]


@typed
class ScalingFigures:
    """Measurements of one net that several processes train together. All times are seconds per step, one per round.

    Attributes:
        threads: CPU threads of each process.
        is_equal: Whether the first steps of all processes gave the parameters of process 0 alone, bit for bit; None for
            engines that do not promise it.
        alone: A step by process 0 alone, on the whole batch, while the others wait.
        alone_all_threads: The same with the CPU threads of all processes. Empty on GPUs.
        together: A step by all processes.
        gradients: Its part that adds up the gradients of all processes.
        all_reduce: torch's sum of as many numbers, which a step does not use.
        statistics: Its part that gathers batch-norm statistics and losses.
        agreement: Its part in which processes agree to go on, and that all have succeeded.
    """

    net: str
    parameters: int
    batch_size: int
    bn_group: int
    engine: str
    precision: str
    processes: int
    threads: int
    is_equal: bool | None
    alone: tuple[float, ...]
    alone_all_threads: tuple[float, ...]
    together: tuple[float, ...]
    gradients: tuple[float, ...]
    all_reduce: tuple[float, ...]
    statistics: tuple[float, ...]
    agreement: tuple[float, ...]


@typed
class ScalingReport:
    """Contents of the file that `paperbench bench --scaling --json` writes. An interrupted command leaves out nets."""

    schema: Literal[1]
    machine: Machine
    nets: tuple[ScalingFigures, ...]


def median_ratio(ours: Sequence[float], others: Sequence[float], noise: float | None) -> Ratio | None:
    """Return how many times as fast `ours` is as `others`, or None if they share no round.

    Args:
        ours, others: Seconds per step in each round.
        noise: See `NetFigures`; if None, no ratio counts as a difference.
    """
    rounds = [other / our for our, other in zip(ours, others, strict=False)]
    if not rounds:
        return None
    median = statistics.median(rounds)
    return Ratio(median, noise is not None and abs(math.log(median)) > math.log1p(noise))


def measured_noise(variants: Sequence[VariantFigures]) -> float | None:
    """Return the largest factor, minus 1, between a measurement and its control; None without a control."""
    logs = [abs(math.log(a / b)) for v in variants for a, b in zip(v.step_seconds, v.control, strict=False)]
    return math.expm1(max(logs)) if logs else None
