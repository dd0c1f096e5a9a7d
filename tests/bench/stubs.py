"""A training without a net, for tests of the measurement around it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from paperbench.bench import throughput
from paperbench.bench.setup import Training
from paperbench.specs.recipe import Recipe
from paperbench.training.metrics import TrainingMetrics
from paperbench.training.processes import ALONE


class StubTrainer:
    """Halves its three parameters in each step, until memory is out after `lasts` steps.

    The loss of a window is the mean of their sums before each step.
    """

    precision = "fp32"

    def __init__(self, recipe: Recipe | None = None, engine: str = "eager") -> None:
        self.recipe, self.engine, self.iteration, self.lasts = recipe, engine, 0, math.inf
        self.model = nn.Linear(3, 1, bias=False)
        with torch.no_grad():
            self.model.weight.copy_(torch.tensor([[2.0, 3.0, 6.0]]))
        self.window: list[float] = []
        self.processes, self.between_batches = ALONE, lambda: None

    def step(self, _: float | None = None) -> None:
        if self.iteration == self.lasts:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        self.iteration += 1
        with torch.no_grad():
            self.window.append(float(self.model.weight.double().sum()))
            self.model.weight.mul_(0.5)

    def close(self) -> None:
        pass

    @property
    def metrics(self) -> StubTrainer:
        return self

    def reset(self) -> None:
        self.window = []

    def compute(self) -> TrainingMetrics:
        return TrainingMetrics(sum(self.window) / len(self.window), 0.0)


def stub_training(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[StubTrainer], None] | None = None, precision: str = "fp32"
) -> None:
    """Replace nets, trainers and DataLoaders.

    Args:
        change: Applied to the trainers of the precision.
    """

    def trainer(self: Training, engine: str, trainer_precision: str) -> StubTrainer:
        made = StubTrainer(self.recipe, engine)
        if change and precision == trainer_precision:
            change(made)
        return made

    class Classifier(nn.Linear):
        def __init__(self, net: object) -> None:
            super().__init__(3072, 10)

        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images.flatten(1))

    monkeypatch.setattr(Training, "trainer", trainer)
    monkeypatch.setattr(throughput, "ResidualNet", Classifier)
    monkeypatch.setattr(throughput, "release_memory", lambda device: None)  # collecting garbage takes long
    monkeypatch.setattr(throughput, "make_loader", throughput.on_device_batches)
