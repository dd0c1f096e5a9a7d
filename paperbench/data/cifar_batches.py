"""CIFAR in the layout of its authors (and torchvision): pickled batches, read without trusting them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from paperbench.catalogue import DATASETS
from paperbench.data.batch_pickle import PickledArray, read_pickle
from paperbench.data.dataset import ImageDataset, Labels, Pixels
from paperbench.errors import PaperbenchError
from paperbench.reading import read_at_most

FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
MD5 = {
    "cifar10": (
        {
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        },
        {"test_batch": "40351d587109b95175f43aff81a1287e"},
    ),
    "cifar100": (
        {"train": "16019d7e3df5f24257cddd939b257f8d"},
        {"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    ),
}
"""Files of the original training and test sets with their published md5 sums."""
_LABELS = {"cifar10": "labels", "cifar100": "fine_labels"}
_MOST_BYTES = 256 * 2**20
"""Of one file; the largest original one has 155 million."""


def load_batches(key: str, folder: Path, name: str | None, origin: str | None) -> ImageDataset:
    """Read CIFAR-10 or CIFAR-100 from its batch files.

    Args:
        key: "cifar10" or "cifar100".
        folder: Holds the batch files.
        name, origin: What to call data that are not the original, if the user has said.

    Raises:
        PaperbenchError: A file is missing, truncated, or no CIFAR batch.
    """
    train_files, test_files = MD5[key]
    is_original = True
    parts: list[tuple[Pixels, Labels]] = []
    for file, md5 in (*train_files.items(), *test_files.items()):
        content = _read(folder / file)
        is_original &= hashlib.md5(content, usedforsecurity=False).hexdigest() == md5
        parts.append(_parse(key, folder / file, content))
    split = len(train_files)
    title = DATASETS[key].title
    return ImageDataset(
        key=key,
        name=title if is_original else name or f"{title} (altered copy)",
        origin="the original files, md5 as published"
        if is_original
        else origin or "unknown; files differ from the original",
        canonical=is_original,
        x_train=np.concatenate([x for x, _ in parts[:split]]),
        y_train=np.concatenate([y for _, y in parts[:split]]),
        x_test=np.concatenate([x for x, _ in parts[split:]]),
        y_test=np.concatenate([y for _, y in parts[split:]]),
    )


def _read(path: Path) -> bytes:
    try:
        return read_at_most(path, _MOST_BYTES)
    except FileNotFoundError as error:
        raise PaperbenchError(
            f"{path} is missing. The folder needs all batch files; unpack the archive again."
        ) from error
    except OSError as error:
        raise PaperbenchError(f"{path} cannot be read: {error.strerror}.") from error


def _parse(key: str, path: Path, content: bytes) -> tuple[Pixels, Labels]:
    try:
        batch = read_pickle(content)
        data = batch.get("data") if isinstance(batch, dict) else None
        if isinstance(data, PickledArray):
            data = data.to_numpy()
    except Exception as error:  # a damaged pickle can raise nearly anything
        reason = str(error) or type(error).__name__
        raise PaperbenchError(
            f"{path} is damaged or no CIFAR batch ({reason:.300}). Unpack or download it again."
        ) from error
    labels = batch.get(_LABELS[key]) if isinstance(batch, dict) else None
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
        found = f"{data.dtype} of shape {data.shape}" if isinstance(data, np.ndarray) else type(data).__name__
        raise PaperbenchError(
            f"{path} must hold uint8 images of shape (N, 3072) under `data`, not {found}. Unpack or download it again."
        )
    if len(data) == 0:
        raise PaperbenchError(f"{path} holds no image. Unpack or download it again.")
    classes = DATASETS[key].num_classes
    if (
        not isinstance(labels, list)
        or len(labels) != len(data)
        or not all(type(label) is int and 0 <= label < classes for label in labels)
    ):
        raise PaperbenchError(
            f"{path} must hold under `{_LABELS[key]}` a list with a whole number from 0 to {classes - 1} for each of "
            f"its {len(data)} images. Unpack or download it again."
        )
    images = data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), np.asarray(labels, dtype=np.int64)
