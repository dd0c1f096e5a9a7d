"""Batches of photographs: their images and crops. Each batch is a function of the seed and its number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from paperbench.data.dataset import Pixels
from paperbench.data.imagenet.colours import ColourChoices, draw_colours
from paperbench.data.imagenet.crops import View, central_view, random_view, render
from paperbench.data.imagenet.decode import ImageError, decode
from paperbench.data.imagenet.draws import NO_WORDS, Words, permutation, words
from paperbench.data.imagenet.index import ImageFiles
from paperbench.data.loader import parts_of_batch
from paperbench.errors import DataError, PaperbenchError
from paperbench.specs.recipe import Decoder, Evaluation, Photographs


class Crops(NamedTuple):
    """A batch before the transforms on the device.

    Attributes:
        pixels: (N, crop, crop, 3) uint8.
        labels: (N,) int64.
        colours: None in a test.
    """

    pixels: Tensor
    labels: Tensor
    colours: ColourChoices | None


@dataclass(frozen=True)
class BatchPlan:
    """The images of a batch and their random words.

    Attributes:
        images: Numbers of the images in `ImageFiles`, (N,).
        words: (N, WORDS_PER_IMAGE); (N, 0) for central crops.
    """

    images: npt.NDArray[np.int64]
    words: Words


def require_images(files: ImageFiles) -> None:
    """Raise a PaperbenchError if there are no images."""
    if not len(files):
        raise PaperbenchError(
            f"The index of {files.root} lacks all training or all test images, which are needed here. Index a "
            "directory that has both with `paperbench data index`."
        )


def read_and_decode(files: ImageFiles, number: int, decoder: Decoder = "pillow") -> Image.Image:
    """Return an image. Threads may call this at the same time."""
    data = files.read(number)
    try:
        return decode(data, decoder)
    except ImageError as error:
        path = files.root / files.paths[files.container[number]]
        raise DataError(f"{path}: the image at byte {files.offsets[number]:,} {error}.") from error


class CropSource:
    """Makes crops of some image files, and knows which of them are in a batch.

    Attributes:
        crop: Side of the crops, in pixels.
        batch_size: Maximum number of images of a batch.
    """

    batch_size: int

    def __init__(self, files: ImageFiles, settings: Photographs, crop: int) -> None:
        require_images(files)
        self.files, self.settings, self.crop = files, settings, crop

    def plan(self, number: int) -> BatchPlan:
        """Return the plan of a batch, counted from 0; after the last it has no images."""
        raise NotImplementedError

    def view(self, words: Words, width: int, height: int) -> View:
        """Return the view of an image with these words, (WORDS_PER_IMAGE,), and this size."""
        raise NotImplementedError

    def colours(self, words: Words) -> ColourChoices | None:  # noqa: ARG002
        """Return the colours of a batch with these words, (N, WORDS_PER_IMAGE); None in a test."""
        return None

    def render(self, plan: BatchPlan, row: int, out: Pixels) -> None:
        """Read, decode and crop the image of a row into `out`, (crop, crop, 3). Threads may do so at once."""
        image = read_and_decode(self.files, int(plan.images[row]), self.settings.decoder)
        out[:] = self.cropped(image, plan.words[row])

    def cropped(self, image: Image.Image, words: Words) -> Pixels:
        """Return the crop of an image with these words, (crop, crop, 3)."""
        return render(image, self.view(words, *image.size), self.crop, self.settings.interpolation)

    def assemble(self, plan: BatchPlan, pixels: Tensor) -> Crops:
        """Return the batch of a plan whose crops have been rendered."""
        return Crops(pixels, torch.from_numpy(self.files.labels[plan.images]), self.colours(plan.words))


class TrainingCrops(CropSource):
    """Random crops, in a new order in each epoch.

    Args:
        flip: Whether to mirror half of the crops.
        has_short_batches: Whether the last batch of an epoch has the images that are left; else batches span epochs.
        purpose: Name of the random stream.
        rows: Returns which images of a batch of this size to make.
    """

    def __init__(
        self,
        files: ImageFiles,
        settings: Photographs,
        *,
        batch_size: int,
        flip: bool,
        has_short_batches: bool,
        seed: int,
        purpose: str = "training",
        rows: Callable[[int], slice] = slice,
    ) -> None:
        super().__init__(files, settings, settings.crop)
        self.batch_size, self.seed, self._purpose = batch_size, seed, purpose
        self._flip, self._has_short_batches, self._rows = flip, has_short_batches, rows
        self._order = lru_cache(2)(lambda epoch: permutation(seed, purpose, epoch, len(files)))

    def plan(self, number: int) -> BatchPlan:
        parts = [
            (self._order(epoch)[first:last], words(self.seed, self._purpose, epoch, first, last))
            for epoch, first, last in self._slices(number)
        ]
        images, random = (np.concatenate(part) for part in zip(*parts, strict=True))
        rows = self._rows(len(images))
        return BatchPlan(images[rows], random[rows])

    def _slices(self, number: int) -> Iterator[tuple[int, int, int]]:
        """Yield the epoch and the first and last (exclusive) position of each part of a batch."""
        total = len(self.files)
        if self._has_short_batches:
            epoch, index = divmod(number, -(-total // self.batch_size))
            yield epoch, index * self.batch_size, min((index + 1) * self.batch_size, total)
        else:
            yield from parts_of_batch(number, self.batch_size, total)

    def view(self, words: Words, width: int, height: int) -> View:
        return random_view(self.settings, words, width, height)

    def colours(self, words: Words) -> ColourChoices:
        return draw_colours(self.settings, words, flip=self._flip)


class CentralCrops(CropSource):
    """The central crops of all images in order, in batches of at most `batch_size`."""

    def __init__(self, files: ImageFiles, settings: Photographs, evaluation: Evaluation, *, batch_size: int) -> None:
        super().__init__(files, settings, evaluation.crop)
        self.scale, self.batch_size = evaluation.scale, batch_size

    def plan(self, number: int) -> BatchPlan:
        first = number * self.batch_size
        images = np.arange(first, min(first + self.batch_size, len(self.files)))
        return BatchPlan(images, np.broadcast_to(NO_WORDS, (len(images), 0)))

    def view(self, words: Words, width: int, height: int) -> View:  # noqa: ARG002  (the same for all)
        return central_view(self.settings.interpolation, self.crop, self.scale, width, height)
