"""Where the time of a training step goes: the figures of `bench --breakdown`, and their table. Does without torch."""

from __future__ import annotations

from typing import Literal

from tabulate import tabulate

from paperbench.bench.figures import Machine
from paperbench.typed import Text, typed


@typed
class Floors:
    """The least milliseconds that measured ceilings allow for counted work, each by itself, in `Ceilings`' order."""

    bytes: float
    arithmetic: float
    launches: float


@typed
class Row:
    """Time of one kind of kernels (of operators on a CPU) in a step, or of a whole step in one setting.

    Attributes:
        name: A kind as `profiling.classify` names it, a kernel that it does not know, or the setting.
        milliseconds: Of a kind, as profiled, which slows operators on a CPU down; of a step the median without the
            profiler, None if it has a problem.
        number: How many kernels of the kind ran.
        floors: None for kinds that no step needs.
    """

    name: Text
    milliseconds: float | None
    number: float | None = None
    floors: Floors | None = None
    problem: Text | None = None


@typed
class Ceilings:
    """What the machine can do, as measured.

    Attributes:
        bytes_per_second: Of a large copy, read and written.
        flops_per_second: Of a large matrix product in the precision.
        launches_per_second: Of the smallest kernel in a long chain, which is a CUDA graph if the engine makes one.
    """

    bytes_per_second: float
    flops_per_second: float
    launches_per_second: float


@typed
class Breakdown:
    """What `paperbench bench --breakdown NET --json` writes.

    Attributes:
        kinds: Of the first of the steps, the longest first; empty if it has a problem.
        steps: As trained first, then with one setting changed.
    """

    schema: Literal[1]
    machine: Machine
    net: str
    engine: str
    precision: str
    batch_size: int
    bn_group: int
    ceilings: Ceilings
    kinds: tuple[Row, ...]
    steps: tuple[Row, ...]


_NOTES = """\
step: median of whole steps without the profiler. Kinds: as profiled; share: of all kernels' time.
floors: the least ms for the counted bytes, arithmetic and launches at the measured ceilings, each by itself. Bytes are
    counted without caches, so small tensors may take less."""

_ON_A_CPU = """
On a CPU there is no cuDNN, so no row without determinism; operators take the place of kernels, profiling slows them
    down, and the backward pass of a convolution is one operator."""


def render_breakdown(found: Breakdown) -> str:
    """The table, at most 120 columns wide."""
    on_gpu = found.machine.environment.cuda is not None
    total, as_trained = sum(kind.milliseconds or 0 for kind in found.kinds), found.steps[0].milliseconds
    idle = [Row("no kernel running", max(0.0, as_trained - total))] if on_gpu and as_trained else []
    rows = [
        [
            row.name,
            "-" if row.milliseconds is None else f"{row.milliseconds:.2f}",
            "" if row.number is None else f"{(row.milliseconds or 0) / total:.1%}",
            "" if row.number is None else f"{row.number:,.0f}",
            *([f"{value:.2f}" for value in vars(row.floors).values()] if row.floors else []),
        ]
        for row in (*found.kinds, *idle, *found.steps)
    ]
    ceilings = found.ceilings
    headings = ["kind", "ms", "share", "number", "floor:\nbytes", "arith-\nmetic", "launches"]
    lines = [
        f"{found.net}: engine {found.engine}, {found.precision}, batches of {found.batch_size}, batch norm over "
        f"{found.bn_group}",
        f"ceilings: copies {ceilings.bytes_per_second / 1e9:,.0f} GB/s, products "
        f"{ceilings.flops_per_second / 1e12:.2f} TFLOP/s, smallest kernel {1e6 / ceilings.launches_per_second:.2f} us",
        "",
        tabulate(rows, headings, disable_numparse=True, colalign=("left", *["right"] * 6)),
        *(f"{step.name}: {step.problem}" for step in found.steps if step.problem),
        "",
        _NOTES + ("" if on_gpu else _ON_A_CPU),
    ]
    return "\n".join(lines)
