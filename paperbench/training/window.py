"""Training loss and error, summed on the device and read when somebody wants to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

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


class PendingMetrics(Protocol):
    """Metrics that the device may still be working on."""

    @property
    def is_ready(self) -> bool:
        """Whether `get` would return at once."""

    def get(self) -> WindowMetrics:
        """The metrics; waits for the device if they are not ready."""


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
        return self._pending().get()

    def close(self) -> PendingMetrics:
        """The means so far, to be read later; a new window begins. Waits for nothing."""
        pending = self._pending()
        self.begin()
        return pending

    def begin(self) -> None:
        """Forget what was summed."""
        self._loss.zero_()
        self._wrong.zero_()
        self._images = 0

    def _pending(self) -> PendingMetrics:
        return _Pending(torch.stack((self._loss, self._wrong.double())), self._images)

    def tensors(self) -> list[Tensor]:
        """The sums, as the device changes them."""
        return [self._loss, self._wrong]

    def state_dict(self) -> dict[str, Any]:
        """The sums."""
        return {"loss": self._loss, "wrong": self._wrong, "images": self._images}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from such sums; they are copied."""
        self._loss.copy_(state["loss"])
        self._wrong.copy_(state["wrong"])
        self._images = state["images"]


class _Pending:
    """Sums on their way to the host.

    Args:
        sums: Loss and number of errors, float64 of shape (2,).
        images: Over how many images.
    """

    def __init__(self, sums: Tensor, images: int) -> None:
        self._images, self._arrived = images, None
        if sums.device.type == "cuda":
            self._sums = torch.empty(2, dtype=torch.float64, pin_memory=True)
            self._sums.copy_(sums, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record(torch.cuda.current_stream(sums.device))
        else:
            self._sums = sums

    @property
    def is_ready(self) -> bool:
        return self._arrived is None or bool(self._arrived.query())

    def get(self) -> WindowMetrics:
        if self._arrived is not None:
            self._arrived.synchronize()
        loss, wrong = self._sums.tolist()
        return WindowMetrics(loss / self._images, 100 * wrong / self._images)
