"""CIFAR in torchvision's layout: pickled batches, unpickled only if their md5 sums match the published files.

Unpickling a file can run arbitrary code.
"""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from paperbench.catalogue import DATASETS
from paperbench.data.dataset import ImageDataset, Labels, Pixels
from paperbench.errors import PaperbenchError
from paperbench.files import read_at_most

DIRECTORIES = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
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
    "cifar100": ({"train": "16019d7e3df5f24257cddd939b257f8d"}, {"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"}),
}
"""Published md5 sums of the original training and test files, as in torchvision."""
_LABELS = {"cifar10": "labels", "cifar100": "fine_labels"}
_MAX_BYTES = 256 * 2**20
"""Maximum size of a file; the largest original one is 155 MB."""


def load_batches(key: str, directory: Path) -> ImageDataset:
    """Load the original CIFAR-10 or CIFAR-100 from the directory of its batch files."""
    batches = [pickle.loads(content, encoding="latin1") for content in read_verified(key, directory)]  # noqa: S301
    split = len(MD5[key][0])
    train, test = (_images_and_labels(part, _LABELS[key]) for part in (batches[:split], batches[split:]))
    origin = "the original files, md5 as published"
    return ImageDataset(key, DATASETS[key].title, origin, *train, *test, canonical=True)


def read_verified(key: str, directory: Path) -> list[bytes]:
    """Read the batch files, training set first, and check their md5 sums."""
    train, test = MD5[key]
    contents, problems, altered = [], [], []
    for name, md5 in {**train, **test}.items():
        try:
            content = read_at_most(directory / name, _MAX_BYTES)
        except FileNotFoundError:
            problems.append(f"{name} is missing")
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror}")
        else:
            contents.append(content)
            if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
                altered.append(name)
    if altered:
        problems.append(f"md5 mismatch: {', '.join(altered)}")
    if problems:
        raise PaperbenchError(
            f"{directory}: not the original {DATASETS[key].title}: {'; '.join(problems)}. Only the original files are "
            "loaded, as pickles can run arbitrary code. Move this directory away, then run "
            f"`paperbench data download {key}`. For other data, make {key}.npz with `paperbench data convert`."
        )
    return contents


def _images_and_labels(batches: list[dict[str, Any]], label_key: str) -> tuple[Pixels, Labels]:
    rows = np.concatenate([batch["data"] for batch in batches])  # each row: red, green, blue plane
    images = np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return images, np.concatenate([batch[label_key] for batch in batches]).astype(np.int64)
