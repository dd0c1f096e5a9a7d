"""Batches of 32-pixel images, made on the training device.

All images stay on the device as bytes; one gather crops, pads and mirrors a batch. The random choices of an epoch are
drawn on the CPU, so that they are the same for every device.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from paperbench.data.dataset import ImageDataset, Pixels
from paperbench.seeds import derived_seed
from paperbench.specs.recipe import ChannelValues


class Batch(NamedTuple):
    """Images of shape (N, 3, H, W), float32 in the layout of its source, and int64 labels of shape (N,)."""

    images: Tensor
    labels: Tensor


Choices = tuple[Tensor, ...]
"""What makes a batch: tensors on the device, such as numbers of images and crops, or decoded bytes and colours."""


class InputTransform:
    """Converts bytes to the net's input: (pixels / 255 - mean) / std, elementwise over (H, W, 3).

    Attributes:
        mean, std: In channels-first order, (3, H, W) and (3, 1, 1).
        scale: 255 * std, (3,).
        shift: mean / std, (H, W, 3).

    Args:
        images: Training images, (N, H, W, 3) uint8; their mean and standard deviation are computed in float64.
        kind: "per_pixel_mean": the mean image, std 1. "channel_mean_std": one mean and one std per channel. Or given
            values.
    """

    def __init__(self, images: Pixels, kind: Literal["per_pixel_mean", "channel_mean_std"] | ChannelValues) -> None:
        mean_image = images.mean(axis=0, dtype=np.float64) / 255
        std = np.ones(3)
        if isinstance(kind, ChannelValues):
            mean_image, std = np.broadcast_to(kind.mean, mean_image.shape), np.array(kind.std)
        elif kind == "channel_mean_std":
            mean = mean_image.mean(axis=(0, 1))
            mean_of_squares = np.array([np.square(images[..., c], dtype=np.float64).mean() for c in range(3)]) / 255**2
            std = np.sqrt(mean_of_squares - mean**2)
            mean_image = np.broadcast_to(mean, mean_image.shape)
        self.mean = torch.from_numpy(mean_image.astype(np.float32)).permute(2, 0, 1)
        self.std = torch.from_numpy(std.astype(np.float32)).view(3, 1, 1)
        self.scale = torch.from_numpy((255 * std).astype(np.float32))
        self.shift = torch.from_numpy((mean_image / std).astype(np.float32))

    def __call__(self, pixels: Tensor, shift: Tensor) -> Tensor:
        """Convert bytes (..., 3) to float32, given the part of `shift` for their positions in the image."""
        return pixels / self.scale - shift

    def to(self, device: torch.device) -> InputTransform:
        """Return a copy on the device."""
        copied = copy(self)
        copied.scale, copied.shift = self.scale.to(device), self.shift.to(device)
        return copied


class BatchIndices(NamedTuple):
    """Indices of the images in a batch or epoch, and the crop variant of each: int64, one entry per image."""

    order: Tensor
    variant: Tensor


def parts_of_batch(number: int, batch_size: int, num_images: int) -> Iterator[tuple[int, int, int]]:
    """Yield epoch, first and last (exclusive) position of each part of a batch, counted from 0, that spans epochs."""
    start, end = number * batch_size, (number + 1) * batch_size
    while start < end:
        epoch, first = divmod(start, num_images)
        last = min(first + end - start, num_images)
        yield epoch, first, last
        start += last - first


class TrainingBatches:
    """The training batches of one run. They span epoch boundaries, as 50,000 is not a multiple of 128.

    The image is padded with zeros after the mean has been subtracted, as in v1: a padded pixel is exactly 0.

    Args:
        padding: Width of the border of zeros from which crops of the original size are taken.
        flip: Whether to mirror half of the images.
        seed: The run's seed.
        device: Device of the images and batches.
        purpose: Name of the random stream.
    """

    def __init__(
        self,
        dataset: ImageDataset,
        transform: InputTransform,
        *,
        batch_size: int,
        padding: int,
        flip: bool,
        seed: int,
        device: torch.device,
        purpose: str = "training",
    ) -> None:
        self.batch_size, self.padding, self.flip = batch_size, padding, flip
        self.seed, self.device, self.purpose = seed, device, purpose
        self.num_images: int = len(dataset.x_train)
        self.height, self.width = dataset.x_train.shape[1:3]
        self.labels = torch.from_numpy(dataset.y_train).to(device)
        p = padding
        padded = np.pad(dataset.x_train, ((0, 0), (p, p), (p, p), (0, 0)))
        self._pixels_per_image = padded.shape[1] * padded.shape[2]
        self._pixels = torch.from_numpy(padded).to(device).view(-1, 3)
        self._offsets = self._variant_offsets().to(device)
        self._transform = transform.to(device)
        padded_shift = F.pad(self._transform.shift, (0, 0, p, p, p, p)).view(-1, 3)
        self._shifts = padded_shift[self._offsets]
        self._epochs: dict[int, BatchIndices] = {}

    @property
    def crops(self) -> int:
        """Number of crop positions along one side."""
        return 2 * self.padding + 1

    def _variant_offsets(self) -> Tensor:
        """Return the indices of each crop's pixels in a padded image, mirrored crops last: (variants, H * W) int64."""
        rows, columns = torch.arange(self.height), torch.arange(self.width)
        row_length = self.width + 2 * self.padding
        variants = []
        for mirrored in (columns, columns.flip(0)):
            for dy in range(self.crops):
                for dx in range(self.crops):
                    variants.append(((rows + dy)[:, None] * row_length + (mirrored + dx)).flatten())
        return torch.stack(variants)

    def epoch(self, number: int) -> BatchIndices:
        """Return the order of an epoch's images and their variants, (num_images,) each.

        A variant is `(mirrored * crops + dy) * crops + dx`, where dy and dx are offsets in the padded image.
        """
        if number not in self._epochs:
            drawn = self._draw_epoch(number)
            self._epochs[number] = BatchIndices(drawn.order.to(self.device), drawn.variant.to(self.device))
            while len(self._epochs) > 2:
                del self._epochs[next(iter(self._epochs))]  # the oldest
        return self._epochs[number]

    def _draw_epoch(self, number: int) -> BatchIndices:
        """Draw the choices of an epoch, on the CPU."""
        order = torch.Generator().manual_seed(derived_seed(self.seed, self.purpose, "order", number))
        choice = torch.Generator().manual_seed(derived_seed(self.seed, self.purpose, "augmentation", number))
        variants = self.crops**2 * (2 if self.flip else 1)
        return BatchIndices(
            torch.randperm(self.num_images, generator=order),
            torch.randint(variants, (self.num_images,), generator=choice),
        )

    def choices(self, iteration: int) -> BatchIndices:
        """Return the choices for an iteration, counted from 0: (batch_size,) each."""
        parts: list[BatchIndices] = []
        for number, first, last in parts_of_batch(iteration, self.batch_size, self.num_images):
            epoch = self.epoch(number)
            parts.append(BatchIndices(epoch.order[first:last], epoch.variant[first:last]))
        if len(parts) == 1:
            return parts[0]
        return BatchIndices(torch.cat([p.order for p in parts]), torch.cat([p.variant for p in parts]))

    def schedule(self, iterations: int) -> BatchIndices:
        """Return the choices for all iterations: (iterations, batch_size) int32 and int16, 49 MB for 64,000 x 128."""
        images = iterations * self.batch_size
        epochs = [self._draw_epoch(number) for number in range(-(-images // self.num_images))]
        order = torch.cat([epoch.order.int() for epoch in epochs])[:images]
        variant = torch.cat([epoch.variant.short() for epoch in epochs])[:images]
        shape = (iterations, self.batch_size)
        return BatchIndices(order.view(shape).to(self.device), variant.view(shape).to(self.device))

    def batch(self, iteration: int) -> Batch:
        """Return the augmented batch of an iteration, counted from 0."""
        return self.make(self.choices(iteration))

    def make(self, choices: Choices) -> Batch:
        """Return the batch with these choices; runs on the device only, with fixed shapes."""
        chosen, variant = choices
        positions = chosen[:, None] * self._pixels_per_image + self._offsets[variant]
        values = self._transform(self._pixels[positions], self._shifts[variant])
        images = values.view(len(chosen), self.height, self.width, 3).permute(0, 3, 1, 2)
        return Batch(images.contiguous(memory_format=torch.channels_last), self.labels[chosen])
