"""Training loss and error, accumulated on the device between two history lines."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paperbench.training.processes import Processes


@dataclass(frozen=True)
class TrainingMetrics:
    """Means over the training images since the last reset.

    Attributes:
        loss: Cross-entropy.
        error: Percentage of images misclassified at the time of their step.
    """

    loss: float
    error: float


class MetricAccumulator:
    """Sums of loss and errors over the training images since the last reset, kept on the device."""

    def __init__(self, device: torch.device) -> None:
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._wrong = torch.zeros((), dtype=torch.int64, device=device)
        self._images = 0

    def add(self, loss: Tensor, wrong: Tensor) -> None:
        """Add the summed loss and the number of errors of some images. Runs on the device, so it can be captured."""
        self._loss += loss
        self._wrong += wrong.long()

    def count(self, images: int) -> None:
        """Add the number of these images, which the host knows."""
        self._images += images

    def compute(self) -> TrainingMetrics:
        """Return the means since the last reset, of at least one image. Waits for the device."""
        return TrainingMetrics(self._loss.item() / self._images, 100 * self._wrong.item() / self._images)

    def reset(self) -> None:
        """Set all sums to zero."""
        self._loss.zero_()
        self._wrong.zero_()
        self._images = 0

    def tensors(self) -> list[Tensor]:
        """Return the tensors that `add` changes in place."""
        return [self._loss, self._wrong]

    def state_dict(self) -> dict[str, Tensor]:
        """Return the sums and the number of images."""
        return {"loss": self._loss, "wrong": self._wrong, "images": torch.tensor(self._images)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Copy the sums from a state dict."""
        self._loss.copy_(state["loss"])
        self._wrong.copy_(state["wrong"])
        self._images = int(state["images"])

    def take_over(self, processes: Processes) -> None:
        """Take over the sums of process 0, in all processes."""
        for one in self.tensors():
            processes.broadcast([one])
        self._images, *_ = processes.numbers(self._images)
