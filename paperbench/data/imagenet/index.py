"""The index of ImageNet's files: where each image is, its label, and the hash of its bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paperbench.data.dataset import Dataset, Labels
from paperbench.data.imagenet.containers import read_image
from paperbench.errors import DataError


@dataclass(frozen=True)
class ImageFiles:
    """The encoded images of a training or test set, in canonical order: by label, then by sha256.

    So the order does not depend on names and containers, and neither do the batches.

    Attributes:
        root: Directory of the containers.
        labels: (N,).
        hashes: sha256 of each image's bytes, (N, 32) uint8.
        paths: The containers, below `root`: files with one image each, or uncompressed tar files.
        container: Index in `paths` of each image's container, (N,).
        offsets, lengths: Where the image is in its container, in bytes, (N,).
    """

    root: Path
    labels: Labels
    hashes: npt.NDArray[np.uint8]
    paths: Sequence[str]
    container: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, rows: npt.NDArray[np.generic]) -> ImageFiles:
        """Return the images with these numbers, or where an array of N is true."""
        columns = ("labels", "hashes", "container", "offsets", "lengths")
        return replace(self, **{name: getattr(self, name)[rows] for name in columns})

    def read(self, number: int) -> bytes:
        """Return the bytes of an image. Threads may call this at the same time."""
        path = self.root / self.paths[self.container[number]]
        try:
            data = read_image(path, int(self.offsets[number]), int(self.lengths[number]))
        except OSError as error:
            raise DataError(
                f"{path} cannot be read: {error.strerror or error}. Make the directory of the images available again, "
                "or index the one where they are now with `paperbench data index`."
            ) from error
        if hashlib.sha256(data).digest() != self.hashes[number].tobytes():
            raise DataError(
                f"{path} has changed since it was indexed (image at byte {self.offsets[number]:,}). Restore it; or "
                "`touch` it, then repeat `paperbench data index`. Other images make other runs."
            )
        return data


def fingerprint(*parts: ImageFiles) -> str:
    """Return the sha256 of labels and hashes of all images in order, independent of names and containers."""
    digest = hashlib.sha256()
    for files in parts:
        digest.update(f"{len(files)} images\n".encode())
        digest.update(np.ascontiguousarray(files.labels, dtype="<i8").data)
        digest.update(np.ascontiguousarray(files.hashes).data)
    return digest.hexdigest()


@dataclass(frozen=True)
class PhotoDataset(Dataset):
    """Image files for training and testing.

    Attributes:
        classes: Names of the classes by label; on ImageNet the synsets in alphabetical order.
        directory: Where files that are computed from the images are kept.
    """

    classes: tuple[str, ...]
    train: ImageFiles
    test: ImageFiles
    directory: Path

    @property
    def num_train(self) -> int:
        return len(self.train)

    @property
    def num_test(self) -> int:
        return len(self.test)

    @cached_property
    def fingerprint(self) -> str:
        """That of the images to train on, then to test."""
        return fingerprint(self.train, self.test)
