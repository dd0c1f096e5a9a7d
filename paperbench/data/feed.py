"""Feeds: all images of a training, batch by batch on its device, for any kind of data set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from paperbench.data.dataset import Dataset, ImageDataset
from paperbench.data.imagenet.feed import PhotoFeed
from paperbench.data.imagenet.index import PhotoDataset
from paperbench.data.loader import (
    Batch,
    BatchIndices,
    Choices,
    InputTransform,
    TrainingBatches,
)
from paperbench.data.share import WHOLE, Share
from paperbench.specs.recipe import Evaluation, Recipe

Item = TypeVar("Item")


class Feed(Protocol):
    """The images of one run: its training batches, and passes over the test or training set.

    Attributes:
        device: Where batches are.
        mean, std: The net's input is (pixels - mean) / std for pixels in [0, 1]; channels first.
        test_batch: Number of images in a test that go through the net at once. It affects only memory and speed.
        share: This process's part of every batch, and of the batches of a test and the groups of a re-estimation: every
            n-th.
    """

    device: torch.device
    mean: Tensor
    std: Tensor
    test_batch: int
    share: Share

    def choices(self, iteration: int) -> Choices:
        """Return this process's choices of an iteration, from 0. Those of another iteration may be overwritten."""

    def make(self, choices: Choices) -> Batch:
        """Return the training batch with these choices. Runs on the device only."""

    def schedule(self, iterations: int) -> Choices | None:
        """Return this process's choices of all iterations, stacked; None if they do not fit on a device."""

    def test(self, evaluation: Evaluation | None, batch_size: int) -> Iterator[Batch]:
        """Yield this process's batches of the test set, in order; they have at most `batch_size` images.

        Args:
            evaluation: How photographs are tested; None for small images.
        """

    def reestimation(self) -> Iterator[Tensor]:
        """Yield this process's BN groups of one pass of augmented training images, without an incomplete last one."""

    def advice(self) -> str | None:
        """Return what would feed a training that waits for its images; None if it hardly waits, or has just begun."""

    def close(self) -> None:
        """Free the memory and threads of training batches."""


def make_feed(
    dataset: Dataset,
    recipe: Recipe,
    seed: int,
    device: torch.device,
    between_batches: Callable[[], None],
    announce: Callable[[str], None],
) -> Feed:
    """Return the feed of a run.

    Args:
        between_batches: Called regularly in passes over photographs; may raise to abort.
        announce: Called with the progress of long passes over the training images, in words.
    """
    if isinstance(dataset, PhotoDataset):
        return PhotoFeed(dataset, recipe, seed, device, between_batches, announce)
    assert isinstance(dataset, ImageDataset)  # noqa: S101  (missing data are not trained on)
    return ImageFeed(dataset, recipe, seed, device)


class ImageFeed(TrainingBatches):
    """The feed of small images, which all stay on the device."""

    def __init__(self, dataset: ImageDataset, recipe: Recipe, seed: int, device: torch.device) -> None:
        transform = InputTransform(dataset.x_train, recipe.input)
        padding, flip = recipe.augmentation.padding, recipe.augmentation.flip
        options: Any = {"padding": padding, "flip": flip, "seed": seed, "device": device}
        super().__init__(dataset, transform, batch_size=recipe.batch_size, **options)
        self._batches = partial(TrainingBatches, dataset, transform, **options)
        self._recipe, self.share = recipe, WHOLE
        self.mean, self.std = transform.mean, transform.std
        self.test_batch = 100 if device.type == "cpu" else 2000
        self._test = torch.from_numpy(dataset.x_test).to(device), torch.from_numpy(dataset.y_test).to(device)

    def choices(self, iteration: int) -> BatchIndices:
        return BatchIndices(*(part[self._rows] for part in super().choices(iteration)))

    def schedule(self, iterations: int) -> BatchIndices:
        return BatchIndices(*(part[:, self._rows].contiguous() for part in super().schedule(iterations)))

    @property
    def _rows(self) -> slice:
        return self.share.rows(self._recipe, self.batch_size)

    def test(self, evaluation: Evaluation | None, batch_size: int) -> Iterator[Batch]:  # noqa: ARG002  (whole images)
        for pixels, labels in self._own(zip(*(part.split(batch_size) for part in self._test), strict=True)):
            images = self._transform(pixels, self._transform.shift).permute(0, 3, 1, 2)
            yield Batch(images.contiguous(memory_format=torch.channels_last), labels)

    def reestimation(self) -> Iterator[Tensor]:
        stream = self._batches(batch_size=self._recipe.batch_norm.group, purpose="batch-norm")
        for number in self._own(range(stream.num_images // stream.batch_size)):
            yield stream.make(stream.choices(number)).images

    def _own(self, batches: Iterable[Item]) -> Iterator[Item]:
        return islice(batches, self.share.rank, None, self.share.processes)

    def advice(self) -> None:
        return None

    def close(self) -> None:
        pass
