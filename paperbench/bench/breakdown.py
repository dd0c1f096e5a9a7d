"""Results of `paperbench bench --breakdown`, as its JSON stores them. Does not import torch."""

from __future__ import annotations

from typing import Literal

from paperbench.bench.figures import Machine
from paperbench.typed import Text, typed

NOT_DETERMINISTIC, TIMED, COMBO_KERNELS = "not deterministic", "not deterministic, timed", "combo kernels"
"""Names of settings. "timed": in each process, cuDNN times its algorithms and takes the fastest."""


@typed
class Floors:
    """Minimum milliseconds for counted work at the measured ceilings: one limit each, in the order of `Ceilings`."""

    bytes: float
    arithmetic: float
    launches: float


@typed
class Row:
    """Time per step of one kind of kernel (on a CPU: operator), or of a whole step in one setting.

    Attributes:
        name: Kind from `profiling.classify`, name of an unrecognised kernel, or setting.
        milliseconds: Of a kind: as profiled. Of a step: the median without the profiler, or None if it failed.
        number: Kernels of this kind per step.
        floors: None for kinds that a step could do without.
    """

    name: Text
    milliseconds: float | None
    number: float | None = None
    floors: Floors | None = None
    problem: Text | None = None


@typed
class Ceilings:
    """Measured limits of the machine.

    Attributes:
        bytes_per_second: Copying a large tensor, reads plus writes.
        flops_per_second: Multiplying large matrices in the precision.
        launches_per_second: A long chain of the smallest kernel, in a CUDA graph unless the engine is eager.
    """

    bytes_per_second: float
    flops_per_second: float
    launches_per_second: float


@typed
class Breakdown:
    """Contents of the file that `paperbench bench --breakdown NET --json` writes.

    Attributes:
        kinds: Breakdown of the first of the steps, longest kind first; empty if that step failed.
        steps: As trained, then with one setting changed.
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
