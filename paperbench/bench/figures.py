"""What `paperbench bench --json` writes, and how ratios come out of rounds. Nothing here imports torch."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from typing import Literal

from paperbench.errors import PaperbenchError
from paperbench.runs.record import Environment
from paperbench.typed import Text, typed

Kind = Literal["plain", "plain-on-device", "paperbench"]
"""plain: as public repositories ship it, with a DataLoader; plain-on-device: the same step on batches that are on the
device already; paperbench: our trainer."""

Status = Literal["measured", "wrong step", "out of memory", "failed", "skipped"]
"""wrong step: its first steps are not the reference's. skipped: there was no time."""


@typed
class Machine:
    """What was measured where, and when.

    Attributes:
        version, commit, source: Of paperbench, as in records.
        environment: As in records.
        gpu: What nvidia-smi reports right after the measurement, clocks included; None where it does not work.
    """

    date: str
    version: str
    commit: str | None
    source: str
    environment: Environment
    gpu: dict[str, str] | None


@typed
class Ratio:
    """How many times faster one variant was than another: the median of the ratios within each round.

    Attributes:
        is_difference: Whether that is farther from 1 than any variant was from itself.
    """

    median: float
    is_difference: bool


@typed
class Variant:
    """One way to train a net. The engine of plain loops is "eager"."""

    kind: Kind
    engine: str
    precision: str

    @property
    def label(self) -> str:
        """Name for reports."""
        names = {"plain": "plain loop", "plain-on-device": "plain loop, on-device", "paperbench": self.engine}
        return f"{names[self.kind]} {self.precision}"


@typed
class VariantFigures:
    """What was measured of a variant. Times are in seconds, memory in bytes; None where there is no figure.

    Attributes:
        detail: More on the status.
        first_step_seconds: To build net and loop, and for the first step, compilation and capture included; the images
            are in memory already.
        step_seconds: Time of a step in each round.
        control: The same of another turn in each round, which shows the noise; of two variants.
        images_per_second: Median of the rounds.
        over_plain: Ratio to the plain loop as shipped.
        over_plain_same_precision: Ratio to the plain loop at the variant's precision.
        over_on_device: Ratio to the plain loop on the device, at the variant's precision.
        peak_memory: What torch's allocator gave out, at most, until the rounds. GPUs only.
        losses: Training loss of each of our first steps; None if one is not finite.
        update_norm: Length of the first updates of the parameters together, relative to eager float32's; likewise.
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
    """All that was measured of one net.

    Attributes:
        bn_group: Images that share batch-norm statistics in our trainer; in the plain loops the whole batch does.
        images: Distinct training images.
        variants: Plain loops first.
        noise: Greatest factor, minus 1, between two measurements of the same variant in a round.
    """

    net: str
    parameters: int
    batch_size: int
    bn_group: int
    images: int
    variants: tuple[VariantFigures, ...]
    noise: float | None

    @property
    def has_figures(self) -> bool:
        """Whether anything was measured."""
        return any(v.status == "measured" for v in self.variants)

    @property
    def is_sound(self) -> bool:
        """Whether every variant computed what it should; lack of memory or time is no fault."""
        return all(v.status in ("measured", "out of memory", "skipped") for v in self.variants)


@typed
class BenchReport:
    """What `paperbench bench --json` writes. `nets` are fewer than asked for if the command was ended early."""

    schema: Literal[1]
    machine: Machine
    nets: tuple[NetFigures, ...]


def ratio(ours: Sequence[float], others: Sequence[float], noise: float | None) -> Ratio | None:
    """How many times faster, round by round; rounds that only one of them has do not count.

    Args:
        ours, others: Seconds of a step, a value per round.
        noise: See `noise_of`; without it nothing is called a difference.
    """
    rounds = [other / our for our, other in zip(ours, others, strict=False)]
    if not rounds:
        return None
    median = statistics.median(rounds)
    return Ratio(median, noise is not None and abs(math.log(median)) > math.log1p(noise))


def noise_of(variants: Sequence[VariantFigures]) -> float | None:
    """The greatest factor, minus 1, by which a variant differed from itself in a round; None without a control."""
    logs = [abs(math.log(a / b)) for v in variants for a, b in zip(v.step_seconds, v.control, strict=False)]
    return math.expm1(max(logs)) if logs else None


def summarize_error(error: BaseException) -> str:
    """First line of an error, without file paths, which are nobody's business in a published file; type if not ours."""
    first = next(iter(str(error).strip().splitlines()), "")
    text = re.sub(r"\S*[/\\]\S*", "[path]", first)[:200]
    return text if isinstance(error, PaperbenchError) else ": ".join(filter(None, (type(error).__name__, text)))
