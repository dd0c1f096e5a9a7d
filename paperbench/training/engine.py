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

from paperbench.data.loader import Batch
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
    """Carries out training steps on a net that it shares with its owner."""

    def step(self, batch: Batch, rate: float) -> None:
        """One iteration, which may still be under way on the device when this returns."""

    def metrics(self) -> WindowMetrics:
        """Means since the last `reset_metrics`. Waits for the device."""

    def reset_metrics(self) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on besides the net's parameters and buffers."""

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class EagerEngine:
    """One operation after another.

    The batch is worked off in groups of `batch_norm.group` images, each with its own BN statistics, and the gradients
    are summed: what the paper's GPUs did side by side. BN's moving averages take in every group.
    """

    def __init__(self, model: nn.Module, recipe: Recipe, precision: str, device: torch.device) -> None:
        self._model = model
        self._group = recipe.batch_norm.group
        self._precision, self._device = precision, device
        self._optimiser = MomentumSGD(model.parameters(), recipe)
        self._sums = torch.zeros(2, dtype=torch.float64, device=device)  # of the loss and of misclassified images
        self._images = 0

    def step(self, batch: Batch, rate: float) -> None:
        self._model.train()
        self._optimiser.set_rate(rate)
        self._optimiser.zero_grad()
        images = len(batch.labels)
        for group in zip(batch.images.split(self._group), batch.labels.split(self._group), strict=True):
            loss, wrong = self._forward(Batch(*group))
            (loss / images).backward()
            self._sums += torch.stack((loss.detach().double(), wrong.double()))
        self._optimiser.step()
        self._images += images

    def _forward(self, group: Batch) -> tuple[Tensor, Tensor]:
        """Summed loss, and number of misclassified images."""
        with autocast(self._precision, self._device):
            logits = self._model(group.images).float()
        loss = F.cross_entropy(logits, group.labels, reduction="sum")
        return loss, (logits.detach().argmax(1) != group.labels).sum()

    def metrics(self) -> WindowMetrics:
        loss, wrong = self._sums.tolist()
        return WindowMetrics(loss / self._images, 100 * wrong / self._images)

    def reset_metrics(self) -> None:
        self._sums.zero_()
        self._images = 0

    def state_dict(self) -> dict[str, Any]:
        return {"optimiser": self._optimiser.state_dict(), "sums": self._sums, "images": self._images}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._optimiser.load_state_dict(state["optimiser"])
        self._sums.copy_(state["sums"])
        self._images = state["images"]
