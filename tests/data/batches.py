"""Small batch files in torchvision's layout whose md5 sums count as the published ones."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest

from paperbench.data.cifar_batches import DIRECTORIES, MD5


def write_batches(
    monkeypatch: pytest.MonkeyPatch, parent: Path, key: str, images: np.ndarray, labels: np.ndarray, label_key: str
) -> Path:
    """Write a data set in torchvision's layout, and make its md5 sums the published ones."""
    directory = parent / DIRECTORIES[key]
    directory.mkdir(parents=True)
    train, test = MD5[key]
    names = [*train, *test]
    for name, rows in zip(names, np.array_split(np.arange(len(images)), len(names)), strict=True):
        planes = [[image[:, :, channel].reshape(-1) for channel in range(3)] for image in images[rows]]
        batch = {"data": np.array(planes).reshape(-1, 3072), label_key: labels[rows].tolist(), "coarse_labels": []}
        (directory / name).write_bytes(pickle.dumps(batch, protocol=2))
    set_published_md5(monkeypatch, key, directory)
    return directory


def set_published_md5(monkeypatch: pytest.MonkeyPatch, key: str, directory: Path) -> None:
    """Make the md5 sums of these files the published ones."""
    sums = [{name: hashlib.md5((directory / name).read_bytes()).hexdigest() for name in part} for part in MD5[key]]
    monkeypatch.setitem(MD5, key, tuple(sums))
