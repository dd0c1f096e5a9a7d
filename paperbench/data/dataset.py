"""Labelled images, and their fingerprint."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from paperbench.catalogue import DATASETS
from paperbench.errors import PaperbenchError, listing

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Dataset:
    """What a data set is, whatever form its images have.

    Attributes:
        key: A key of `catalogue.DATASETS`.
        name: Name that reports print with every number from these data.
        origin: Source of the pixels.
        canonical: Whether these are the pixels of the paper's data set.
        unverified: Whether they may be: the numbers of images and the classes are right, but the images have not been
            compared with the original files.
    """

    key: str
    name: str
    origin: str
    canonical: bool = field(kw_only=True)
    unverified: bool = field(default=False, kw_only=True)

    @property
    def fingerprint(self) -> str:
        """Digest of the images and labels in order. Equal fingerprints mean equal images."""
        raise NotImplementedError

    @property
    def num_train(self) -> int:
        """Number of images to train on."""
        raise NotImplementedError

    @property
    def num_test(self) -> int:
        """Number of images to test on."""
        raise NotImplementedError


@dataclass(frozen=True)
class MissingDataset(Dataset):
    """Stands in for a data set that cannot be loaded, so that runs on it can be listed. Their ids are wrong.

    Attributes:
        error: Why it cannot be loaded, and what to do.
    """

    error: str

    @property
    def fingerprint(self) -> str:
        return f"missing {self.key}"

    @property
    def num_train(self) -> int:
        return DATASETS[self.key].train_images

    @property
    def num_test(self) -> int:
        return DATASETS[self.key].test_images


@dataclass(frozen=True)
class ImageDataset(Dataset):
    """Small images of one size, in memory.

    Attributes:
        x_train, x_test: uint8 images of shape (N, H, W, 3), channels in the order red, green, blue.
        y_train, y_test: int64 labels of shape (N,), from 0.
    """

    x_train: Pixels
    y_train: Labels
    x_test: Pixels
    y_test: Labels

    @property
    def num_train(self) -> int:
        return len(self.x_train)

    @property
    def num_test(self) -> int:
        return len(self.x_test)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of shapes, pixels and labels in order, independent of the file format."""
        digest = hashlib.sha256()
        for images, labels in ((self.x_train, self.y_train), (self.x_test, self.y_test)):
            digest.update(repr(images.shape).encode())
            digest.update(np.ascontiguousarray(images).data)
            digest.update(np.ascontiguousarray(labels, dtype="<i8").data)
        return digest.hexdigest()

    def require_all_classes(self) -> None:
        """Raise a PaperbenchError if a class has no image to train on, or none to test."""
        for part, labels in (("training", self.y_train), ("test", self.y_test)):
            if absent := sorted({*range(DATASETS[self.key].num_classes)} - {*labels.tolist()}):
                is_coarse = self.key == "cifar100" and labels.max() < 20
                remedy = "These seem to be the 20 coarse labels: take the 100 fine ones" if is_coarse else "Add images"
                classes = f"classes without {part} images ({len(absent)}): {listing([*map(str, absent)])}"
                raise PaperbenchError(f"{self.name} has {classes}. {remedy}.")
