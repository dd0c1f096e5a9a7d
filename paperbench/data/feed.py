"""Feeds: all images of a training, batch by batch on its device, for any kind of data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor

from paperbench.data.dataset import Dataset, ImageDataset
from paperbench.data.imagenet.feed import PhotoFeed
from paperbench.data.imagenet.index import PhotoDataset
from paperbench.data.loader import Batch, Choices, ImageFeed
from paperbench.data.share import Share
from paperbench.specs.recipe import Evaluation, Recipe


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
