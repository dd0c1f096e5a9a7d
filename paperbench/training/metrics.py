"""Training loss and error, summed on the device and read when somebody wants to know."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class WindowMetrics:
    """Means over the training images of a window.

    Attributes:
        loss: Cross-entropy.
        error: Percentage of images misclassified at the time of their step.
    """

    loss: float
    error: float


class Window:
    """Sums over the images trained on since the window began.

    Args:
        device: Where they are kept.
    """

    def __init__(self, device: torch.device) -> None:
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._wrong = torch.zeros((), dtype=torch.int64, device=device)
        self._images = 0

    def add(self, loss: Tensor, wrong: Tensor) -> None:
        """Take in summed loss and number of errors of some images. Work for the device alone."""
        self._loss += loss
        self._wrong += wrong

    def count(self, images: int) -> None:
        """Take in how many images these were."""
        self._images += images

    @property
    def is_empty(self) -> bool:
        """Whether there was no image since it began; there are no metrics then."""
        return self._images == 0

    def metrics(self) -> WindowMetrics:
        """The means so far. Waits for the device."""
        return WindowMetrics(self._loss.item() / self._images, 100 * self._wrong.item() / self._images)

    def begin(self) -> None:
        """Forget what was summed."""
        self._loss.zero_()
        self._wrong.zero_()
        self._images = 0

    def tensors(self) -> list[Tensor]:
        """The sums, as the device changes them."""
        return [self._loss, self._wrong]

    def state_dict(self) -> dict[str, Tensor]:
        """The sums, and the number of images."""
        return {"loss": self._loss, "wrong": self._wrong, "images": torch.tensor(self._images)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from such sums; they are copied."""
        self._loss.copy_(state["loss"])
        self._wrong.copy_(state["wrong"])
        self._images = int(state["images"])
