"""The figures of a benchmark: what `bench --json` writes, and how medians, ratios and differences come out of rounds.

Nothing here imports torch.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from typing import Any, Literal

from paperbench.runs.record import Code, Environment
from paperbench.typed import Text, to_json, typed

Kind = Literal["plain", "plain-on-device", "paperbench"]
"""plain: as public repositories ship it, with a DataLoader; plain-on-device: the same step on batches that are on the
device already; paperbench: our trainer."""

Status = Literal["measured", "wrong step", "not checked", "out of memory", "failed", "skipped"]
"""wrong step: its first steps are not the reference's. not checked: the reference could not be computed. skipped: there
was no time."""


Layout = Literal["channels_last", "contiguous"]
"""Of images and activations in memory."""


@typed
class Flags:
    """torch's global switches of arithmetic.

    Attributes:
        convolution, product: "ieee", "tf32", or "none" where torch leaves it to a broader switch, which is off.
        benchmark: Whether cuDNN chooses algorithms by timing them.
        deterministic: Whether it may choose only algorithms that repeat themselves bit for bit.
    """

    convolution: str
    product: str
    benchmark: bool
    deterministic: bool


@typed
class Spread:
    """A median with the least and greatest value."""

    median: float
    low: float
    high: float


@typed
class Ratio:
    """How many times faster one variant was than another.

    Attributes:
        rounds: The ratio in each round, both measured within it.
        median, low, high: Of these.
        is_difference: Whether the median is farther from 1 than any variant was from itself.
    """

    rounds: tuple[float, ...]
    median: float
    low: float
    high: float
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
        construction_seconds: To build net and loop; the images are in memory already.
        first_step_seconds: The first step, compilation and capture included.
        steps: Per round.
        seconds: Time of each round.
        over_plain: Ratio to the plain loop as shipped.
        over_plain_same_precision: Ratio to the plain loop at the variant's precision.
        over_on_device: Ratio to the plain loop on the device, at the variant's precision.
        peak_memory: What torch's allocator gave out, at most, until the end of the warm-up. GPUs only.
        losses: Training loss of each of our first steps; None for one that is not finite.
        update_norm: Length of the first updates of the parameters together, relative to eager float32's.
        flags: torch's switches as read back while the variant ran.
    """

    variant: Variant
    status: Status
    detail: Text | None = None
    construction_seconds: float | None = None
    first_step_seconds: float | None = None
    steps: int | None = None
    seconds: tuple[float, ...] = ()
    images_per_second: Spread | None = None
    over_plain: Ratio | None = None
    over_plain_same_precision: Ratio | None = None
    over_on_device: Ratio | None = None
    peak_memory: int | None = None
    losses: tuple[float | None, ...] | None = None
    update_norm: float | None = None
    flags: Flags | None = None

    def __post_init__(self) -> None:
        if (self.status == "measured") != (self.images_per_second is not None and len(self.seconds) > 0):
            raise ValueError("a variant has a speed if and only if its status is 'measured'")


@typed
class Control:
    """A variant measured twice in each round: the second over the first speed, round by round."""

    variant: Variant
    rounds: tuple[float, ...]


@typed
class NetFigures:
    """All that was measured of one net.

    Attributes:
        bn_group: Images that share batch-norm statistics in our trainer; in the plain loops the whole batch does.
        images: Distinct training images.
        compared_steps: Number of first steps whose losses were compared with eager float32's.
        variants: Plain loops first.
        noise: Greatest factor, minus 1, between two measurements of the same variant in a round.
        clocks: Of the GPU right after the last round, as nvidia-smi reports them.
    """

    net: str
    parameters: int
    bn_group: int
    images: int
    compared_steps: int
    variants: tuple[VariantFigures, ...]
    controls: tuple[Control, ...]
    noise: float | None
    clocks: dict[str, str] | None

    @property
    def has_figures(self) -> bool:
        """Whether anything was measured."""
        return any(v.status == "measured" for v in self.variants)

    @property
    def is_sound(self) -> bool:
        """Whether every variant computed what it should; lack of memory or time is no fault."""
        return all(v.status in ("measured", "out of memory", "skipped") for v in self.variants)


@typed
class Machine:
    """What speed depends on beside the code.

    Attributes:
        environment: As in records.
        cpus: That this process may use.
        openmp: Environment variables that say how OpenMP's threads wait.
        memory_bytes: Of the GPU, or of the machine without one.
        gpu: What nvidia-smi reports; None where it does not work.
    """

    environment: Environment
    cpus: int | None
    cpu_features: tuple[str, ...]
    interop_threads: int
    openmp: dict[str, str]
    memory_bytes: int | None
    gpu: dict[str, str] | None


@typed
class Settings:
    """What was asked for; `minutes` is None if there was no limit."""

    models: tuple[str, ...]
    engines: tuple[str, ...]
    precisions: tuple[str, ...]
    batch_size: int
    rounds: int
    seconds: float
    minutes: float | None


@typed
class BenchReport:
    """What `paperbench bench --json` writes. `nets` are fewer than asked for if the command was ended early."""

    schema: Literal[1]
    date: str
    paperbench: Code
    machine: Machine
    settings: Settings
    nets: tuple[NetFigures, ...]


@typed
class Floors:
    """The least time that measured ceilings allow for counted work, in milliseconds, each ceiling by itself."""

    bytes: float
    arithmetic: float
    launches: float


@typed
class KindTime:
    """Time of one kind of kernels, or of operators on a CPU, in a step.

    Attributes:
        kind: See `kernels.Kind`.
        milliseconds: As profiled; profiling slows operators on a CPU down.
        number: How many ran.
        floors: None for work that is not counted.
    """

    kind: str
    milliseconds: float
    number: float
    floors: Floors | None


@typed
class StepTime:
    """Time of a whole step, measured without the profiler.

    Attributes:
        deterministic: Whether cuDNN was held to deterministic algorithms; None on a CPU.
        milliseconds: None if it could not be measured.
        problem: What went wrong.
    """

    layout: Layout
    deterministic: bool | None
    milliseconds: Spread | None
    problem: Text | None


@typed
class Ceilings:
    """What the machine can do, as measured.

    Attributes:
        bytes_per_second: Of a large copy, read and written.
        flops_per_second: Of a large matrix product in the precision.
        launch_seconds: Of the smallest kernel in a long chain.
        in_graph: Whether that chain was one CUDA graph, as the engine's kernels are.
    """

    bytes_per_second: float
    flops_per_second: float
    launch_seconds: float
    in_graph: bool


@typed
class Breakdown:
    """What `paperbench bench --breakdown NET --json` writes.

    Attributes:
        steps: As trained first, then with one setting changed.
        kinds: Of the first of these, the longest first; empty if it has a problem.
        floors: Of the whole step; None for nets whose work is not counted.
        unknown: Names of kind "other" that take more than 1 % of the time.
    """

    schema: Literal[1]
    date: str
    paperbench: Code
    machine: Machine
    net: str
    engine: str
    precision: str
    batch_size: int
    bn_group: int
    ceilings: Ceilings
    steps: tuple[StepTime, ...]
    kinds: tuple[KindTime, ...]
    floors: Floors | None
    unknown: tuple[Text, ...]


def json_text(report: Any) -> str:
    """The JSON of a report, with lists of plain values on one line."""
    text = to_json(report, indent=1)
    # A raw line break is never part of a JSON string.
    return re.sub(r"\[\n([^][{}]*)\n\s*]", lambda found: f"[{' '.join(found[1].split())}]", text) + "\n"


def spread(values: Sequence[float]) -> Spread:
    """Median, least and greatest."""
    return Spread(statistics.median(values), min(values), max(values))


def ratio(ours: Sequence[float], others: Sequence[float], noise: float | None) -> Ratio | None:
    """How many times faster, round by round; rounds that only one of them has do not count.

    Args:
        ours, others: Images per second, a value per round.
        noise: See `noise_of`; without it nothing is called a difference.
    """
    rounds = tuple(a / b for a, b in zip(ours, others, strict=False))
    if not rounds:
        return None
    found = spread(rounds)
    is_difference = noise is not None and abs(math.log(found.median)) > math.log1p(noise)
    return Ratio(rounds, found.median, found.low, found.high, is_difference)


def noise_of(controls: Sequence[Control]) -> float | None:
    """The greatest factor, minus 1, by which a variant differed from itself in a round; None without a control."""
    logs = [abs(math.log(value)) for control in controls for value in control.rounds]
    return math.expm1(max(logs)) if logs else None


def summarize_error(error: BaseException) -> str:
    """Type and first line of an error, without file paths, which are nobody's business in a published file."""
    first = next(iter(str(error).strip().splitlines()), "")
    text = re.sub(r"\S*[/\\]\S*", "[path]", first)[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
