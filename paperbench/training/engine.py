"""The training step. An engine is how the step is carried out; what it computes is the recipe's.

`EagerEngine` runs every operation as it comes, on CPU and CUDA. Faster engines (a captured CUDA graph, fused kernels)
belong beside it, behind the same protocol, and must compute the same step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paperbench.data.loader import Batch, TrainingBatches
from paperbench.specs.recipe import Recipe
from paperbench.training.optimiser import MomentumSGD
from paperbench.training.precision import autocast


@dataclass(frozen=True)
class WindowMetrics:
    """Means over the training images since the metrics were last reset.

    Attributes:
        loss: Cross-entropy.
        error: Percentage of images misclassified at the time of their step.
    """

    loss: float
    error: float


class Engine(Protocol):
    """Carries out training steps on a net that it shares with its owner.

    Attributes:
        name: What records call it.
    """

    name: str

    def step(self, iteration: int) -> None:
        """The iteration of that number, counted from 0. It may still be under way on the device on return."""

    def metrics(self) -> WindowMetrics:
        """Means since the last `reset_metrics`. Waits for the device."""

    def reset_metrics(self) -> None:
        """Begin a new window."""

    @property
    def is_window_empty(self) -> bool:
        """Whether there was no step since; there are no metrics then."""

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on besides the net's parameters and buffers.

        The same for every engine, so that one can go on where another stopped.
        """

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from such a state."""


class EagerEngine:
    """One operation after another.

    The batch is worked off in groups of `batch_norm.group` images, each with its own BN statistics, and the gradients
    are summed: what the paper's GPUs did side by side. BN's moving averages take in every group.

    Args:
        model: The net, on the device.
        recipe: What a step is.
        batches: Where its images come from.
        precision: "fp32", "tf32" or "bf16".
        device: Where it runs.
    """

    name = "eager"

    def __init__(
        self, model: nn.Module, recipe: Recipe, batches: TrainingBatches, precision: str, device: torch.device
    ) -> None:
        self._model, self._recipe, self._batches = model, recipe, batches
        self._precision, self._device = precision, device
        self._parameters = list(model.parameters())
        self._optimiser = MomentumSGD(self._parameters, recipe)
        self._share = torch.tensor(1 / recipe.batch_size, device=device)  # of one image in the mean loss
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._wrong = torch.zeros((), dtype=torch.int64, device=device)
        self._images = 0

    def step(self, iteration: int) -> None:
        if not self._model.training:
            self._model.train()
        batch = self._batches.batch(iteration)
        size = self._recipe.batch_norm.group
        self._optimiser.set_rate(self._recipe.rate_at(iteration))
        sums: list[Tensor] | None = None
        for group in zip(batch.images.split(size), batch.labels.split(size), strict=True):
            # Gradients start from None in each group and are added in one go: autograd would add one by one.
            self._optimiser.zero_grad()
            self._backward(Batch(*group))
            gradients = [p.grad for p in self._parameters if p.grad is not None]
            if sums is not None:
                torch._foreach_add_(gradients, sums)
            sums = gradients
        self._optimiser.step()
        self._images += len(batch.labels)

    def _backward(self, group: Batch) -> None:
        """Gradients of the group's share in the batch's mean loss."""
        with autocast(self._precision, self._device):
            logits = self._model(group.images).float()
        loss = F.cross_entropy(logits, group.labels, reduction="sum")
        loss.backward(self._share)
        self._loss += loss.detach()
        self._wrong += (logits.detach().argmax(1) != group.labels).sum()

    def metrics(self) -> WindowMetrics:
        return WindowMetrics(self._loss.item() / self._images, 100 * self._wrong.item() / self._images)

    def reset_metrics(self) -> None:
        self._loss.zero_()
        self._wrong.zero_()
        self._images = 0

    @property
    def is_window_empty(self) -> bool:
        return self._images == 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "optimiser": self._optimiser.state_dict(),
            "loss": self._loss,
            "wrong": self._wrong,
            "images": self._images,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._optimiser.load_state_dict(state["optimiser"])
        self._loss.copy_(state["loss"])
        self._wrong.copy_(state["wrong"])
        self._images = state["images"]
