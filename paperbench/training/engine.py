"""The engines that run training steps: their protocol, the eager engine, and the choice of an engine for a run.

| engine    | how it runs a step                                                                           |
|-----------|----------------------------------------------------------------------------------------------|
| `eager`   | one operation after another, on CPUs and GPUs; the reference for the others                  |
| `graph`   | the same operations, captured once as a CUDA graph and replayed: bit-identical to `eager`    |
| `streams` | like `graph`, but the batch-norm groups of a step side by side: bit-identical to `eager`     |
| `compile` | compiled residual units, all batch-norm groups at once; on GPUs also captured like `graph`   |

An engine only decides how a step runs. `training.step.TrainingStep` defines the computation, and the trainer owns all
state, so any engine can resume a run that another one started. `training.graph` holds the graph engine,
`training.compiling` compiles the units.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, get_args

import torch

from paperbench.data.feed import Feed
from paperbench.data.loader import Choices
from paperbench.data.share import Share
from paperbench.errors import PaperbenchError, RunError, nearest, summarize_error
from paperbench.specs.recipe import Recipe
from paperbench.training.device import ELSEWHERE

if TYPE_CHECKING:
    from paperbench.training.processes import Processes

EngineName = Literal["eager", "graph", "streams", "compile"]

ENGINES: tuple[EngineName, ...] = get_args(EngineName)
"""All engines, the slowest on a GPU first."""

BIT_EQUAL: frozenset[str] = frozenset({"eager", "graph", "streams"})
"""Engines whose results are equal bit for bit."""

COMPILE_MIN_ITERATIONS = 10_000
"""Training length from which "auto" compiles on a GPU. Shorter runs do not save the minute that compiling takes."""


class EngineError(RunError):
    """An engine that cannot be built here, or computes other steps than eager.

    Attributes:
        reason: What is wrong, without the advice.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}. A new run takes the fastest engine that works with `--engine auto`; every run can use "
            "`--engine eager`."
        )
        self.reason = reason


class Engine(Protocol):
    """Runs training steps. Holds no state of the training: net, optimiser, metrics and noise belong to the trainer."""

    def step(self, iteration: int) -> None:
        """Run one iteration, counted from 0. The device may still be working on it on return."""


class Step(Protocol):
    """A training step in two parts; see `training.step.TrainingStep`."""

    def compute(self, choices: Choices, images: int | None = None) -> None: ...
    def update(self) -> None: ...
    def clear_gradients(self) -> None: ...


class EagerEngine:
    """Runs a step one operation after another.

    Args:
        batch_size: Returns the number of images of an iteration.
    """

    def __init__(self, step: Step, batches: Feed, batch_size: Callable[[int], int], processes: Processes) -> None:
        self._step, self._batches, self._batch_size, self._processes = step, batches, batch_size, processes

    def step(self, iteration: int) -> None:
        self._processes.agreed(
            lambda: self._step.compute(self._batches.choices(iteration), self._batch_size(iteration))
        )
        self._step.update()


class ShortBatchEngine:
    """Leaves whole batches to one engine, and shorter ones, for which that was not made, to eager."""

    def __init__(self, engine: Engine, eager: Engine, is_whole: Callable[[int], bool]) -> None:
        self._engine, self._eager, self._is_whole = engine, eager, is_whole

    def step(self, iteration: int) -> None:
        (self._engine if self._is_whole(iteration) else self._eager).step(iteration)


@dataclass(frozen=True)
class EngineChoice:
    """An engine and the reason for its choice."""

    name: EngineName
    reason: str


def available_engines(device: torch.device) -> dict[EngineName, str | None]:
    """Return for every engine None if it works on the device, else the reason why it does not."""
    on_gpu = device.type == "cuda"
    no_graph = None if on_gpu else "CUDA graphs need an NVIDIA GPU"
    return {
        "eager": None,
        "graph": no_graph,
        "streams": no_graph,
        "compile": _why_no_triton(device) if on_gpu else _why_no_cpp_compiler(),
    }


def engine_candidates(
    wanted: str, device: torch.device, iterations: int, *, has_dropout: bool = False, earlier: str | None = None
) -> list[EngineChoice]:
    """Return the engines to try for a run, best first. Only "auto" for a new run on a GPU gives more than one.

    Args:
        wanted: "auto" or the name of an engine.
        device: The device of the run.
        iterations: Length of the whole training, not of the part that is left.
        has_dropout: Whether the net has dropout. Compiled, it draws other values, so nothing shows that its steps are
            right.
        earlier: The engine that started the run, if it is resumed; "auto" keeps it.
    """
    available = available_engines(device)
    if has_dropout and earlier != "compile":
        available["compile"] = "compiled dropout draws other values, so its steps cannot be compared with eager's"
    if wanted != "auto":
        if wanted not in ENGINES:
            raise PaperbenchError(f"Unknown engine {wanted!r}. {nearest(wanted, ['auto', *ENGINES])}")
        if why_not := available[wanted]:
            raise PaperbenchError(f"Engine {wanted}: {why_not}. Use `--engine auto`.")
        return [EngineChoice(wanted, "as requested")]
    if earlier is not None:
        name = next((name for name in ENGINES if name == earlier), None)
        why_not = available[name] if name else "this version has no such engine"
        if name and why_not is None:
            return [EngineChoice(name, "the run started with it")]
        raise RunError(
            f"The run started with engine {earlier}: {why_not}. To continue it with another engine, name one, such as "
            "`--engine eager`; the record will list both."
        )
    if device.type != "cuda":
        return [EngineChoice("eager", "the fastest on a CPU, where compiling takes longer than it saves")]
    if iterations < COMPILE_MIN_ITERATIONS:
        best = EngineChoice("graph", f"compiling does not pay off below {COMPILE_MIN_ITERATIONS:,} iterations")
    elif why_not := available["compile"]:
        best = EngineChoice("graph", f"compiling is not available: {why_not}")
    else:
        best = EngineChoice("compile", f"compiling is expected to pay off over {iterations:,} iterations")
    slower = [name for name in ENGINES[: ENGINES.index(best.name)] if name != "streams"]  # which nobody has measured
    return [best, *(EngineChoice(name, "the faster engines failed") for name in reversed(slower))]


def groups_at_once(engine: str, recipe: Recipe, share: Share) -> int:
    """Return how many of a process's batch-norm groups run side by side on streams: one, but for `streams`.

    Those of photographs fill a GPU one by one, and its memory at once.
    """
    groups = len(share.group_sizes(recipe, recipe.batch_size))
    return groups if engine == "streams" and not recipe.photographs else 1


def _why_no_triton(device: torch.device) -> str | None:
    if device == ELSEWHERE:
        return None
    from torch.utils._triton import has_triton

    try:
        with torch.cuda.device(device):
            if not has_triton():
                return "torch.compile needs Triton and a GPU of the Volta generation or later"
            from triton.runtime import driver

            driver.active.get_current_target()  # compiles C code: needs a compiler, Python's headers, the GPU driver
    except Exception as error:  # its failures have no common type
        return f"Triton does not work here ({summarize_error(error)})"
    return None


def _why_no_cpp_compiler() -> str | None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, OSError):
        return "torch.compile needs a C++ compiler on a CPU"
    return None
