"""An engine carries out iterations; what they compute is `TrainingStep`'s, what they leave behind is the trainer's.

| engine    | how                                                                                         |
|-----------|---------------------------------------------------------------------------------------------|
| `eager`   | one operation after another, on CPUs and GPUs; what the others are held to                  |
| `graph`   | the same operations captured once as a CUDA graph and replayed: the same numbers bit by bit |
| `compile` | residual units compiled, all BN groups at once; on GPUs captured like `graph`               |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch

from paperbench.data.loader import BatchIndices, TrainingBatches
from paperbench.errors import PaperbenchError, nearest

EngineName = Literal["eager", "graph", "compile"]


class Engine(Protocol):
    """Carries out training steps. All that the next one depends on is the trainer's: net, optimiser, window, noise."""

    def step(self, iteration: int) -> None:
        """The iteration of that number, counted from 0. It may still be under way on the device on return."""


class EagerEngine:
    """One operation after another.

    Args:
        step: What to do.
        batches: Says which images are whose turn.
    """

    def __init__(self, step: Callable[[BatchIndices], None], batches: TrainingBatches) -> None:
        self._step, self._batches = step, batches

    def step(self, iteration: int) -> None:
        self._step(self._batches.choices(iteration))


ENGINES: tuple[EngineName, ...] = get_args(EngineName)

BIT_EQUAL: frozenset[str] = frozenset({"eager", "graph"})
"""Engines that train the same numbers, bit for bit."""

COMPILE_MIN_ITERATIONS = 10_000
"""Iterations from which compiling, a minute or less, is expected to be won back on a GPU."""


@dataclass(frozen=True)
class EngineChoice:
    """An engine, and why it was chosen."""

    name: EngineName
    reason: str


def available_engines(device: torch.device) -> dict[EngineName, str | None]:
    """Every engine; None if it can be used on the device, else why not."""
    on_gpu = device.type == "cuda"
    return {
        "eager": None,
        "graph": None if on_gpu else "CUDA graphs need an NVIDIA GPU",
        "compile": _no_triton() if on_gpu else _no_cpp_compiler(),
    }


def choose_engine(wanted: str, device: torch.device, iterations: int, earlier: str | None = None) -> EngineChoice:
    """The engine for a training.

    Args:
        wanted: "auto" or an engine's name.
        device: Where it trains.
        iterations: Of the whole training; how far it goes this time does not matter, so that it stays with its engine.
        earlier: The engine that has begun it, if it goes on.

    Raises:
        PaperbenchError: There is no such engine, or the device cannot run it.
    """
    available = available_engines(device)
    if wanted != "auto":
        if wanted not in ENGINES:
            raise PaperbenchError(f"Unknown engine {wanted!r}. {nearest(wanted, ['auto', *ENGINES])}")
        if why := available[wanted]:
            raise PaperbenchError(f"Engine {wanted}: {why}. Use `--engine auto`.")
        return EngineChoice(wanted, "as asked for")
    for name in ENGINES:
        if name == earlier and available[name] is None:
            return EngineChoice(name, "the run was begun with it")
    if device.type != "cuda":
        return EngineChoice("eager", "the fastest on a CPU, where compiled units take longer than they save")
    if iterations < COMPILE_MIN_ITERATIONS:
        return EngineChoice("graph", f"compiling does not pay below {COMPILE_MIN_ITERATIONS:,} iterations")
    if why := available["compile"]:
        return EngineChoice("graph", f"nothing can be compiled here: {why}")
    return EngineChoice("compile", f"{iterations:,} iterations win back the time to compile")


def _no_triton() -> str | None:
    from torch.utils._triton import has_triton

    if not has_triton():
        return "torch.compile needs Triton and a GPU of the Volta generation or later"
    try:
        from triton.runtime import driver

        driver.active.get_current_target()  # compiles some C: needs a compiler, Python's headers, the GPU's driver
    except Exception as error:  # whatever a machine may lack
        return f"Triton does not work here ({next(iter(str(error).splitlines()), type(error).__name__)[:200]})"
    return None


def _no_cpp_compiler() -> str | None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, OSError):
        return "torch.compile needs a C++ compiler on a CPU"
    return None
