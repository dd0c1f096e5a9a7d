"""Batches of 32-pixel images, made on the training device.

All images stay on the device as bytes; one gather crops, pads and mirrors a batch. The random choices of an epoch are
drawn on the CPU, so that they are the same for every device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import islice
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from paperbench.data.dataset import ImageDataset, Pixels
from paperbench.data.share import WHOLE
from paperbench.seeds import derived_seed
from paperbench.specs.recipe import ChannelValues, Evaluation, Recipe


class Batch(NamedTuple):
    """Images of shape (N, 3, H, W), float32 in the layout of its source, and int64 labels of shape (N,)."""

    images: Tensor
    labels: Tensor


Choices = tuple[Tensor, ...]
"""What makes a batch: tensors on the device, such as numbers of images and crops, or decoded bytes and colours."""


def input_values(
    images: Pixels, kind: Literal["per_pixel_mean", "channel_mean_std"] | ChannelValues
) -> tuple[np.ndarray, np.ndarray]:
    """Return mean, (H, W, 3), and std, (3,), in float64; the net's input is (pixels / 255 - mean) / std.

    Args:
        images: Training images, (N, H, W, 3) uint8.
        kind: "per_pixel_mean": the mean image, std 1. "channel_mean_std": one mean and one std per channel. Or given
            values.
    """
    mean_image = images.mean(axis=0, dtype=np.float64) / 255
    if isinstance(kind, ChannelValues):
        return np.broadcast_to(kind.mean, mean_image.shape), np.array(kind.std)
    if kind == "per_pixel_mean":
        return mean_image, np.ones(3)
    mean = mean_image.mean(axis=(0, 1))
    mean_of_squares = np.array([np.square(images[..., c], dtype=np.float64).mean() for c in range(3)]) / 255**2
    return np.broadcast_to(mean, mean_image.shape), np.sqrt(mean_of_squares - mean**2)


def parts_of_batch(number: int, batch_size: int, num_images: int) -> Iterator[tuple[int, int, int]]:
    """Yield epoch, first and last (exclusive) position of each part of a batch, counted from 0, that spans epochs."""
    start, end = number * batch_size, (number + 1) * batch_size
    while start < end:
        epoch, first = divmod(start, num_images)
        last = min(first + end - start, num_images)
        yield epoch, first, last
        start += last - first


def draw_epoch(seed: int, images: int, variants: int, purpose: str, number: int) -> Choices:
    """Draw an epoch's order of the images, and the crop variant of each, on the CPU: (images,) int64."""
    order = torch.Generator().manual_seed(derived_seed(seed, purpose, "order", number))
    choice = torch.Generator().manual_seed(derived_seed(seed, purpose, "augmentation", number))
    return torch.randperm(images, generator=order), torch.randint(variants, (images,), generator=choice)


class ImageFeed:
    """The feed of small images. Batches span epochs, as 50,000 is not a multiple of 128.

    The image is padded with zeros after the mean has been subtracted, as in v1: a padded pixel is exactly 0.

    Attributes:
        device: Where batches are.
        mean, std: The net's input is (pixels - mean) / std for pixels in [0, 1]; channels first.
        test_batch: Number of images in a test that go through the net at once. It affects only memory and speed.
        share: This process's part of every batch, and of the batches of a test and the groups of a re-estimation: every
            n-th.
    """

    def __init__(self, dataset: ImageDataset, recipe: Recipe, seed: int, device: torch.device) -> None:
        self._recipe, self.device, self.share = recipe, device, WHOLE
        self._num_images, *self._size, _ = dataset.x_train.shape
        mean, std = input_values(dataset.x_train, recipe.input)
        self.mean = torch.from_numpy(mean.astype(np.float32)).permute(2, 0, 1)
        self.std = torch.from_numpy(std.astype(np.float32)).view(3, 1, 1)
        self._scale = torch.from_numpy((255 * std).astype(np.float32)).to(device)
        self._shift = torch.from_numpy((mean / std).astype(np.float32)).to(device)
        self.test_batch = 100 if device.type == "cpu" else 2000
        self._test = torch.from_numpy(dataset.x_test).to(device), torch.from_numpy(dataset.y_test).to(device)
        self._labels = torch.from_numpy(dataset.y_train).to(device)
        p = recipe.augmentation.padding
        padded = np.pad(dataset.x_train, ((0, 0), (p, p), (p, p), (0, 0)))
        self._pixels_per_image = padded.shape[1] * padded.shape[2]
        self._pixels = torch.from_numpy(padded).to(device).view(-1, 3)
        self._offsets = self._variant_offsets().to(device)
        self._shifts = F.pad(self._shift, (0, 0, p, p, p, p)).view(-1, 3)[self._offsets]
        variants = len(self._offsets) // (1 if recipe.augmentation.flip else 2)
        self._draw = draw = partial(draw_epoch, seed, self._num_images, variants)
        self._epoch = lru_cache(2)(lambda *which: tuple(part.to(device) for part in draw(*which)))

    def _variant_offsets(self) -> Tensor:
        """Return the indices of each crop's pixels in a padded image: (variants, H * W) int64.

        A variant is `(mirrored * crops + dy) * crops + dx`, where dy and dx are offsets in the padded image, and
        `crops` is the number of either.
        """
        padding = self._recipe.augmentation.padding
        offsets = torch.arange(2 * padding + 1)[:, None]
        rows, columns = (torch.arange(length) + offsets for length in self._size)
        both = torch.stack([columns, columns.flip(1)])
        indices: Tensor = rows[:, None, :, None] * (self._size[1] + 2 * padding) + both[:, None, :, None, :]
        return indices.flatten(0, 2).flatten(1)

    def _whole_batch(self, purpose: str, number: int, batch_size: int) -> Choices:
        """Return the choices of all processes for a batch of a random stream, counted from 0."""
        parts = [
            [part[first:last] for part in self._epoch(purpose, epoch)]
            for epoch, first, last in parts_of_batch(number, batch_size, self._num_images)
        ]
        return tuple(parts[0]) if len(parts) == 1 else tuple(map(torch.cat, zip(*parts, strict=True)))

    @property
    def _rows(self) -> slice:
        return self.share.rows(self._recipe, self._recipe.batch_size)

    def choices(self, iteration: int) -> Choices:
        """Return this process's choices of an iteration, from 0. Those of another iteration may be overwritten."""
        whole = self._whole_batch("training", iteration, self._recipe.batch_size)
        return tuple(part[self._rows] for part in whole)

    def schedule(self, iterations: int) -> Choices:
        """Return this process's choices of all iterations, stacked; None if they do not fit on a device.

        Here they are int32 and int16: 49 MB for 64,000 x 128.
        """
        shape = (iterations, self._recipe.batch_size)
        epochs = (self._draw("training", number) for number in range(-(-math.prod(shape) // self._num_images)))
        parts = zip(*((order.int(), variant.short()) for order, variant in epochs), strict=True)
        whole = (torch.cat(part)[: math.prod(shape)].view(shape).to(self.device) for part in parts)
        return tuple(part[:, self._rows].contiguous() for part in whole)

    def make(self, choices: Choices) -> Batch:
        """Return the training batch with these choices. Runs on the device only, with fixed shapes."""
        chosen, variant = choices
        positions = chosen[:, None] * self._pixels_per_image + self._offsets[variant]
        values = self._pixels[positions] / self._scale - self._shifts[variant]
        images = values.view(len(chosen), *self._size, 3).permute(0, 3, 1, 2)
        return Batch(images.contiguous(memory_format=torch.channels_last), self._labels[chosen])

    def test(self, evaluation: Evaluation | None, batch_size: int) -> Iterator[Batch]:  # noqa: ARG002
        """Yield this process's batches of the test set, in order; they have at most `batch_size` images.

        Args:
            evaluation: How photographs are tested; None for small images.
        """
        batches = zip(*(part.split(batch_size) for part in self._test), strict=True)
        for pixels, labels in islice(batches, self.share.rank, None, self.share.processes):
            images = (pixels / self._scale - self._shift).permute(0, 3, 1, 2)
            yield Batch(images.contiguous(memory_format=torch.channels_last), labels)

    def reestimation(self) -> Iterator[Tensor]:
        """Yield this process's BN groups of one pass of augmented training images, without an incomplete last one."""
        group = self._recipe.batch_norm.group
        for number in range(self.share.rank, self._num_images // group, self.share.processes):
            yield self.make(self._whole_batch("batch-norm", number, group)).images

    def advice(self) -> None:
        """Return what would feed a training that waits for its images; None if it hardly waits, or has just begun."""

    def close(self) -> None:
        """Free the memory and threads of training batches."""
