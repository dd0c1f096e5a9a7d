"""An engine carries out iterations; what they compute is `TrainingStep`'s, what they leave behind is the trainer's.

| engine    | how                                                                                         |
|-----------|---------------------------------------------------------------------------------------------|
| `eager`   | one operation after another, on CPUs and GPUs; what the others are held to                  |
| `graph`   | the same operations captured once as a CUDA graph and replayed: the same numbers bit by bit |
| `compile` | residual units compiled, all BN groups at once; on GPUs captured like `graph`               |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from paperbench.data.loader import BatchIndices, TrainingBatches

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
