"""The engines that run training steps: their protocol, the eager engine, and the choice of an engine for a run.

| engine  | how it runs a step                                                                            |
|---------|-----------------------------------------------------------------------------------------------|
| `eager` | one operation after another, on CPUs and GPUs; the reference for the other                    |
| `graph` | the same operations, captured once as a CUDA graph, with CIFAR's batch-norm groups side by side |

Both give the same numbers, bit for bit. An engine only decides how a step runs. `training.step.TrainingStep` defines
the computation, and the trainer owns all state, so any engine can resume a run that another one started.
`training.graph` holds the graph engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, get_args

import torch

from paperbench.data.feed import Feed
from paperbench.data.loader import Choices
from paperbench.data.share import Share
from paperbench.errors import PaperbenchError, RunError, nearest
from paperbench.specs.recipe import Recipe

if TYPE_CHECKING:
    from paperbench.training.processes import Processes

EngineName = Literal["eager", "graph"]

ENGINES: tuple[EngineName, ...] = get_args(EngineName)
"""All engines, the slowest on a GPU first."""

_REMOVED = {"streams": "it is now called graph", "compile": "it rounded differently"}
"""Engines of older records, and why they are gone."""

BIT_EQUAL: frozenset[str] = frozenset({*ENGINES, "streams"})
"""Engines of records whose numbers are equal bit for bit: all but the former `compile`."""


class EngineError(RunError):
    """An engine that cannot be built here, or computes other steps than eager.

    Attributes:
        reason: What is wrong, without the advice.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}. A run takes the fastest engine that works with `--engine auto`, and can use `--engine eager`."
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
    return {"eager": None, "graph": None if device.type == "cuda" else "CUDA graphs need an NVIDIA GPU"}


def engine_candidates(wanted: str, device: torch.device, earlier: str | None = None) -> list[EngineChoice]:
    """Return the engines to try for a run, best first. Only "auto" on a GPU gives more than one.

    Args:
        wanted: "auto" or the name of an engine.
        device: The device of the run.
        earlier: The engine of the last session, if the run is resumed.
    """
    if wanted != "auto":
        if wanted in _REMOVED:
            raise PaperbenchError(f"Engine {wanted} was removed: {_REMOVED[wanted]}. Use `--engine auto`.")
        if wanted not in ENGINES:
            raise PaperbenchError(f"Unknown engine {wanted!r}. {nearest(wanted, ['auto', *ENGINES])}")
        if why_not := available_engines(device)[wanted]:
            raise PaperbenchError(f"Engine {wanted}: {why_not}. Use `--engine auto`.")
        return [EngineChoice(wanted, "as requested")]
    if earlier is not None and earlier not in BIT_EQUAL:
        raise RunError(
            f"The run was last trained with engine {earlier}, which this version does not have: others round "
            "differently. To continue it with another engine, name one, such as `--engine eager`; the record will list "
            "both."
        )
    if device.type != "cuda":
        return [EngineChoice("eager", "the fastest on a CPU")]
    return [EngineChoice("graph", "the fastest on a GPU"), EngineChoice("eager", "the faster engine failed")]


def groups_at_once(engine: EngineName, recipe: Recipe, share: Share) -> int:
    """Return how many of a process's batch-norm groups run side by side: all, but one with `eager`.

    Those of photographs fill a GPU one by one, and its memory at once.
    """
    groups = len(share.group_sizes(recipe, recipe.batch_size))
    return groups if engine != "eager" and not recipe.photographs else 1
