"""The loop that public CIFAR repositories ship: what a paperbench engine is compared with.

Eager, in torch's default memory layout; a DataLoader whose workers augment PIL images with torchvision's transforms;
SGD; the loss read after every step; cuDNN choosing by time; all other switches as torch has them. Batch norm takes its
statistics over the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
import torch.nn.functional as F
import torchvision.transforms as tv
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from paperbench.bench.flags import Flags
from paperbench.data.dataset import ImageDataset

WORKERS = {"cpu": 2, "cuda": 4}
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)


def shipped_precision(device: torch.device) -> str:
    """What the loop computes in if no switch is touched: torch lets cuDNN's convolutions use TF32 where there is."""
    has_tf32 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return "tf32" if has_tf32 else "fp32"


def plain_flags(precision: str) -> Flags:
    """Switches of torch for the loop: its defaults, but for `cudnn.benchmark`, and TF32 off if fp32 is asked for."""
    return Flags("ieee" if precision == "fp32" else "tf32", "ieee", benchmark=True, deterministic=False)


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


class Feed(Protocol):
    """Where batches come from: images (N, 3, 32, 32) float32, labels (N,) int64.

    Attributes:
        queue: Batches that may be ready before they are asked for.
    """

    queue: int

    def __next__(self) -> tuple[Tensor, Tensor]: ...

    def close(self) -> None:
        """End what works in the background."""


class LoaderFeed:
    """Endless batches of a DataLoader with worker processes, copied to the device."""

    def __init__(self, dataset: ImageDataset, batch_size: int, device: torch.device) -> None:
        self._device = device
        self._loader: DataLoader[tuple[Tensor, int]] | None = DataLoader(
            PilImages(dataset),
            batch_size,
            shuffle=True,
            num_workers=WORKERS[device.type],
            drop_last=True,
            pin_memory=device.type == "cuda",
            persistent_workers=True,
        )
        self.queue = self._loader.num_workers * (self._loader.prefetch_factor or 1)
        self._batches = self._endless(self._loader)

    @staticmethod
    def _endless(loader: DataLoader[tuple[Tensor, int]]) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from loader

    def __next__(self) -> tuple[Tensor, Tensor]:
        images, labels = next(self._batches)
        return images.to(self._device, non_blocking=True), labels.to(self._device, non_blocking=True)

    def close(self) -> None:
        self._batches = iter(())  # the workers end with the last reference to the loader and its iterator
        self._loader = None


class OnDeviceBatches:
    """All images normalised and on the device, unaugmented, in the default layout; several feeds may share them."""

    def __init__(self, dataset: ImageDataset, batch_size: int, device: torch.device) -> None:
        mean, std = (torch.tensor(values, device=device).view(1, 3, 1, 1) for values in (MEAN, STD))
        bytes_ = torch.from_numpy(dataset.x_train).to(device).permute(0, 3, 1, 2)
        self._images = ((bytes_ / 255 - mean) / std).contiguous()
        self._labels = torch.from_numpy(dataset.y_train).to(device)
        self._batch_size = batch_size

    def __len__(self) -> int:
        """Number of full batches."""
        return len(self._labels) // self._batch_size

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        first = number * self._batch_size
        return self._images[first : first + self._batch_size], self._labels[first : first + self._batch_size]


class DeviceFeed:
    """Endless batches that are on the device already."""

    queue = 0

    def __init__(self, batches: OnDeviceBatches) -> None:
        self._batches, self._next = batches, 0

    def __next__(self) -> tuple[Tensor, Tensor]:
        batch = self._batches[self._next]
        self._next = (self._next + 1) % len(self._batches)
        return batch

    def close(self) -> None:
        """There is nothing in the background."""


class PlainLoop:
    """The step of such a repository.

    Args:
        model: The net, on the device; it is put into training mode.
        feed: Its batches.
        precision: "fp32", "tf32" or "bf16" (autocast). Set `plain_flags` of it before stepping.
        device: Where it runs.
        rate: Learning rate.
        momentum, weight_decay: Of SGD.
    """

    def __init__(
        self,
        model: nn.Module,
        feed: Feed,
        precision: str,
        device: torch.device,
        *,
        rate: float,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
    ) -> None:
        self.model, self.feed = model.train(), feed
        self._device, self._is_bf16 = device, precision == "bf16"
        self._sgd = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum, weight_decay=weight_decay)

    def step(self) -> float:
        """One step; returns the batch's mean loss, for which the device is waited for."""
        images, labels = next(self.feed)
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._is_bf16):
            logits = self.model(images)
        loss = F.cross_entropy(logits.float(), labels)
        self._sgd.zero_grad()
        loss.backward()
        self._sgd.step()
        return loss.item()
