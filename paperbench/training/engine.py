"""What an engine is, and the reference: it decides how a training step runs, not what the step computes.

`training.step.TrainingStep` defines the computation, and the trainer owns all state. So any engine can resume a run
that another one started. `training.engines` lists the engines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn

from paperbench.data.feed import Feed
from paperbench.specs.recipe import Recipe
from paperbench.training.metrics import MetricAccumulator
from paperbench.training.optimiser import MomentumSGD
from paperbench.training.processes import Processes
from paperbench.training.step import TrainingStep
from paperbench.training.working_copy import DirectModel

if TYPE_CHECKING:
    from paperbench.training.graph import CudaCapture


class Engine(Protocol):
    """Runs training steps. Holds no state of the training: net, optimiser, metrics and noise belong to the trainer."""

    def step(self, iteration: int) -> None:
        """Run one iteration, counted from 0. The device may still be working on it on return."""


@dataclass(frozen=True)
class Parts:
    """What an engine's steps use; it belongs to a trainer.

    Attributes:
        images: Size of the training set.
        processes: Those that share every batch.
        capture: Makes what captures CUDA graphs.
    """

    model: nn.Module
    optimiser: MomentumSGD
    metrics: MetricAccumulator
    recipe: Recipe
    feed: Feed
    images: int
    precision: str
    processes: Processes
    capture: Callable[[torch.device], CudaCapture]

    def batch_size(self, iteration: int) -> int:
        """Return the number of images of an iteration."""
        before = self.recipe.images_before
        return before(iteration + 1, self.images) - before(iteration, self.images)


class EagerEngine:
    """Runs a step one operation after another, on CPUs and GPUs. The reference for the others."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._step = parts, TrainingStep(parts, [DirectModel(parts.model)])

    def step(self, iteration: int) -> None:
        parts = self._parts
        parts.processes.agreed(lambda: self._step.compute(parts.feed.choices(iteration), parts.batch_size(iteration)))
        self._step.update()
