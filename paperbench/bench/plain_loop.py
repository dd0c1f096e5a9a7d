"""The loop that public CIFAR repositories ship: what a paperbench engine is compared with.

Eager, in torch's default memory layout; a DataLoader whose workers augment PIL images with torchvision's transforms;
SGD; the loss read after every step; cuDNN choosing by time; all other switches as torch has them, so convolutions use
TF32 where there is. Batch norm takes its statistics over the whole batch.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

import torch
import torch.nn.functional as F
import torchvision.transforms as tv
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from paperbench.bench.figures import Flags
from paperbench.data.dataset import ImageDataset

WORKERS = {"cpu": 2, "cuda": 4}
PREFETCH = 2
"""Batches that each worker prepares ahead; torch's default."""

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)

Batch = tuple[Tensor, Tensor]
"""Images (N, 3, 32, 32) float32, labels (N,) int64."""


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


def endless(batches: Iterable[Batch], device: torch.device) -> Generator[Batch]:
    """The batches on the device, again and again. `close` it to end a loader's workers."""
    while True:
        for images, labels in batches:
            yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


class PlainLoop:
    """The step of such a repository.

    Args:
        model: The net, on the device; it is put into training mode.
        batches: On the device.
        precision: "fp32", "tf32" or "bf16" (autocast). Set `plain_flags` of it before stepping.
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
        self._model, self._batches, self._is_bf16 = model.train(), batches, precision == "bf16"
        self._sgd = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum, weight_decay=weight_decay)

    def step(self) -> float:
        """One step; returns the batch's mean loss, for which the device is waited for."""
        images, labels = next(self._batches)
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=self._is_bf16):
            logits = self._model(images)
        loss = F.cross_entropy(logits.float(), labels)
        self._sgd.zero_grad()
        loss.backward()
        self._sgd.step()
        return loss.item()
