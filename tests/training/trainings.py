"""Small trainings that differ only in the engine, and their states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paperbench.catalogue import AnyNet, is_function, own_net, resolve
from paperbench.data.dataset import Dataset
from paperbench.specs.recipe import BatchNormSettings, Drops, Recipe, WarmUp
from paperbench.tensor_file import read_tensor_file, tensor_file_bytes
from paperbench.training.graph import CudaCapture
from paperbench.training.metrics import TrainingMetrics
from paperbench.training.trainer import Trainer
from tests.training.tape import Tape

TESTS = Path(__file__).parents[1]
MORE = {
    "warm_up": WarmUp(0.01, 2, "linear"),
    "drops": None,
    "schedule": "cosine",
    "clip_norm": 0.1,
    "label_smoothing": 0.1,
    "initialisation": "orthogonal",
}
"""What a recipe may have that the paper's does not. The rate changes at every iteration."""


def recipe_of(paper_recipe: Recipe, iterations: int) -> Recipe:
    """Batches of six in two groups of three, so that epochs of 100 images end inside a batch, and two rate changes."""
    return replace(
        paper_recipe,
        batch_size=6,
        iterations=iterations,
        warm_up=WarmUp(0.01, iterations // 10),
        drops=Drops((iterations * 3 // 4,), 0.1),
        batch_norm=BatchNormSettings(3, 1e-5, 0.1, "reestimated"),
    )


@dataclass
class Runs:
    """Makes trainers that differ only in the engine. On a CPU, a tape replaces the CUDA graph."""

    recipe: Recipe
    dataset: Dataset
    device: torch.device
    net: str = "preact_resnet20"
    precision: str = "fp32"
    depth: int = 8
    recompute: bool = False
    residual_dropout: float = 0.0
    capture: Callable[[torch.device], Any] | None = None

    def new(self, engine: str) -> Trainer:
        if is_function(self.net):
            net: AnyNet = own_net(self.net, {}, 10, 32, TESTS)
        else:
            net = resolve(self.net, depth=self.depth, residual_dropout=self.residual_dropout)
        settings = self.recipe, self.dataset, 3, self.precision, self.device, engine
        capture = self.capture or (CudaCapture if self.device.type == "cuda" else lambda _: Tape())
        return Trainer(net, *settings, recompute=self.recompute, capture=capture)

    def eager_states(self) -> list[dict[str, Tensor]]:
        """The states of an eager training before the first iteration and after each iteration."""
        trainer = self.new("eager")
        states = [state_of(trainer)]
        for _ in range(self.recipe.iterations):
            trainer.step()
            states.append(state_of(trainer))
        return states


def advance(trainer: Trainer, iteration: int) -> Trainer:
    while trainer.iteration < iteration:
        trainer.step()
    return trainer


def state_of(trainer: Trainer) -> dict[str, Tensor]:
    """A copy of the trainer's state."""
    return {name: tensor.clone() for name, tensor in trainer.state_dict().items()}


def differences(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> list[str]:
    """Names of the tensors that are not equal bit for bit."""
    assert ours.keys() == theirs.keys()
    return [n for n, ours in ours.items() if ours.dtype != theirs[n].dtype or not torch.equal(ours, theirs[n])]


def take_metrics(trainer: Trainer) -> TrainingMetrics:
    """The training metrics, which are then reset."""
    metrics = trainer.metrics.compute()
    trainer.metrics.reset()
    return metrics


def through_a_file(trainer: Trainer) -> dict[str, Tensor]:
    """The state after writing and reading it."""
    return read_tensor_file(tensor_file_bytes(trainer.state_dict(), {}))[0]
