"""Feeds: all images of a training, batch by batch on its device, for any kind of data set."""

from __future__ import annotations

from collections.abc import Callable

import torch

from paperbench.data.dataset import Dataset, ImageDataset
from paperbench.data.imagenet.feed import PhotoFeed
from paperbench.data.imagenet.index import PhotoDataset
from paperbench.data.loader import ImageFeed
from paperbench.specs.recipe import Recipe

Feed = ImageFeed | PhotoFeed
"""The images of one run: its training batches, and passes over the test or training set. `ImageFeed` says what all
have."""


def make_feed(
    dataset: Dataset,
    recipe: Recipe,
    seed: int,
    device: torch.device,
    between_batches: Callable[[], None],
    announce: Callable[[str], None],
) -> Feed:
    """Return the feed of a run; the arguments are those of `Trainer`."""
    if isinstance(dataset, PhotoDataset):
        return PhotoFeed(dataset, recipe, seed, device, between_batches, announce)
    assert isinstance(dataset, ImageDataset)  # noqa: S101  (missing data are not trained on)
    return ImageFeed(dataset, recipe, seed, device)
