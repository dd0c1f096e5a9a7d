"""The loop that public CIFAR repositories ship: what a paperbench engine is compared with.

Eager, in torch's default memory layout; a DataLoader whose workers augment PIL images with torchvision's transforms;
SGD; the loss read after every step; cuDNN choosing by time; all other switches as torch has them, so convolutions use
TF32 where there is. Batch norm takes its statistics over the whole batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
import torchvision.transforms as tv
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from paperbench.data.dataset import ImageDataset
from paperbench.errors import PaperbenchError
from paperbench.training.precision import set_arithmetic

WORKERS = {"cpu": 2, "cuda": 4}
PREFETCH = 2
"""Batches that each worker prepares ahead; torch's default."""

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)

SETTLING_SECONDS = 0.5
"""Untimed steps that empty a DataLoader's queue end here: if they take longer, the queue is full in every step."""

REST_SECONDS = 0.25
"""Time for a DataLoader's workers to fill their queues, which is all that they do while others are timed."""

Batch = tuple[Tensor, Tensor]
"""Images (N, 3, 32, 32) float32, labels (N,) int64."""


class PilImages(Dataset[tuple[Tensor, int]]):
    """Images as torchvision's CIFAR10 hands them out: arrays that become PIL images, cropped and mirrored at random."""

    def __init__(self, dataset: ImageDataset) -> None:
        self._images, self._labels = dataset.x_train, dataset.y_train
        self._transform = tv.Compose(
            [tv.RandomCrop(32, padding=4), tv.RandomHorizontalFlip(), tv.ToTensor(), tv.Normalize(MEAN, STD)]
        )

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._transform(Image.fromarray(self._images[index])), int(self._labels[index])


def loader(dataset: ImageDataset, batch_size: int, device: torch.device) -> DataLoader[tuple[Tensor, int]]:
    """Shuffled batches from worker processes, which end with the last reference to it and its iterator."""
    return DataLoader(
        PilImages(dataset),
        batch_size,
        shuffle=True,
        num_workers=WORKERS[device.type],
        prefetch_factor=PREFETCH,
        drop_last=True,
        pin_memory=device.type == "cuda",
        persistent_workers=True,
    )


def on_device_batches(dataset: ImageDataset, batch_size: int, device: torch.device) -> list[Batch]:
    """All full batches of the images, normalised, unaugmented, in the default layout, on the device."""
    mean, std = (torch.tensor(values, device=device).view(1, 3, 1, 1) for values in (MEAN, STD))
    pixels = torch.from_numpy(dataset.x_train).to(device).permute(0, 3, 1, 2)
    images = ((pixels / 255 - mean) / std).contiguous()
    labels = torch.from_numpy(dataset.y_train).to(device)
    full = len(labels) // batch_size
    return list(zip(images.split(batch_size)[:full], labels.split(batch_size)[:full], strict=True))


def endless(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """The batches on the device, again and again."""
    while True:
        for images, labels in batches:
            yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def set_plain_arithmetic(precision: str) -> None:
    """Switch as torch does by default, but for `cudnn.benchmark`, and TF32 off if fp32 is asked for."""
    set_arithmetic("fp32" if precision == "fp32" else "tf32")
    torch.backends.cudnn.deterministic = False
    torch.backends.cudnn.benchmark = True


class PlainLoop:
    """The step of such a repository.

    Args:
        model: The net, on the device; it is put into training mode.
        batches: On the device.
        precision: "fp32", "tf32" or "bf16" (autocast).
        rate: Learning rate.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Iterator[Batch],
        precision: str,
        *,
        rate: float,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
    ) -> None:
        self._model, self._batches, self._precision = model.train(), batches, precision
        self._sgd = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum, weight_decay=weight_decay)

    def prepare(self) -> None:
        """Set torch's switches, and empty the queue of batches that were made while others were timed."""
        set_plain_arithmetic(self._precision)
        end = time.perf_counter() + SETTLING_SECONDS
        for _ in range(PREFETCH * max(WORKERS.values()) + 1):
            self.step()
            if time.perf_counter() > end:
                break

    def step(self) -> float:
        """One step; returns the batch's mean loss, for which the device is waited for."""
        images, labels = next(self._batches)
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=self._precision == "bf16"):
            logits = self._model(images)
        loss = F.cross_entropy(logits.float(), labels)
        self._sgd.zero_grad()
        loss.backward()
        self._sgd.step()
        if not (value := loss.item()) < float("inf"):
            raise PaperbenchError(f"its loss is {value}, so its step is not that of a training")
        return value

    def rest(self) -> None:
        """Let the workers come to rest, before another variant is timed."""
        time.sleep(REST_SECONDS)
