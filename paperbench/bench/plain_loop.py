"""The training loop that public CIFAR repositories ship, as a baseline.

Eager, in torch's default memory layout; a DataLoader whose workers augment PIL images with torchvision's transforms;
SGD; the loss read after every step; `cudnn.benchmark`; torch's defaults otherwise, so convolutions use TF32 where
available. Batch norm takes its statistics over the whole batch.
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

DRAIN_SECONDS = 0.5
"""Time limit of the untimed steps that drain a DataLoader's queue: a loop slower than that always finds it full."""

PAUSE_SECONDS = 0.25
"""Pause in which a DataLoader's workers fill their queue, so that they are idle while other variants are timed."""

Batch = tuple[Tensor, Tensor]
"""Images (N, 3, 32, 32) float32, labels (N,) int64."""


class PilImages(Dataset[tuple[Tensor, int]]):
    """Training images in the manner of torchvision's CIFAR10: PIL images, randomly cropped and mirrored."""

    def __init__(self, dataset: ImageDataset) -> None:
        self._images, self._labels = dataset.x_train, dataset.y_train
        self._transform = tv.Compose(
            [tv.RandomCrop(32, padding=4), tv.RandomHorizontalFlip(), tv.ToTensor(), tv.Normalize(MEAN, STD)]
        )

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._transform(Image.fromarray(self._images[index])), int(self._labels[index])


def make_loader(dataset: ImageDataset, batch_size: int, device: torch.device) -> DataLoader[tuple[Tensor, int]]:
    """Return shuffled batches from worker processes, which exit once the loader and its iterator are unreferenced."""
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
    """Return all full batches on the device: normalised, unaugmented, in the default layout."""
    mean, std = (torch.tensor(values, device=device).view(1, 3, 1, 1) for values in (MEAN, STD))
    pixels = torch.from_numpy(dataset.x_train).to(device).permute(0, 3, 1, 2)
    images = ((pixels / 255 - mean) / std).contiguous()
    labels = torch.from_numpy(dataset.y_train).to(device)
    full = len(labels) // batch_size
    return list(zip(images.split(batch_size)[:full], labels.split(batch_size)[:full], strict=True))


def cycle_batches(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield the batches on the device, epoch after epoch."""
    while True:
        for images, labels in batches:
            yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


def set_plain_arithmetic(precision: str) -> None:
    """Set torch's defaults plus `cudnn.benchmark`; "fp32" also turns TF32 off."""
    set_arithmetic("fp32" if precision == "fp32" else "tf32")
    torch.backends.cudnn.deterministic = False
    torch.backends.cudnn.benchmark = True


class PlainLoop:
    """A plain training loop of a net on the device, at a constant rate; bf16 is by autocast."""

    def __init__(self, model: nn.Module, batches: Iterator[Batch], precision: str, *, learning_rate: float) -> None:
        self._model, self._batches, self._precision = model.train(), batches, precision
        self._sgd = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9, weight_decay=1e-4)

    def prepare(self) -> None:
        """Set torch's switches, and use up the batches that were loaded while other variants were timed."""
        set_plain_arithmetic(self._precision)
        end = time.perf_counter() + DRAIN_SECONDS
        for _ in range(PREFETCH * max(WORKERS.values()) + 1):
            self.step()
            if time.perf_counter() > end:
                break

    def step(self) -> float:
        """Make a step and return the batch's mean loss, which waits for the device."""
        images, labels = next(self._batches)
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=self._precision == "bf16"):
            logits = self._model(images)
        loss = F.cross_entropy(logits.float(), labels)
        self._sgd.zero_grad()
        loss.backward()
        self._sgd.step()
        if not (value := loss.item()) < float("inf"):
            raise PaperbenchError(f"the loss is {value}")
        return value

    def pause(self) -> None:
        """Let the workers fill their queue before another variant is timed."""
        time.sleep(PAUSE_SECONDS)
