"""Small batch files in torchvision's layout that pass for the published ones."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest

from paperbench.data.cifar_batches import FOLDERS, MD5


def publish(
    monkeypatch: pytest.MonkeyPatch, directory: Path, key: str, images: np.ndarray, labels: np.ndarray, label_key: str
) -> Path:
    """Write a data set in torchvision's layout, in files of like size, as if its authors had published these."""
    folder = directory / FOLDERS[key]
    folder.mkdir(parents=True)
    train, test = MD5[key]
    names = [*train, *test]
    for name, rows in zip(names, np.array_split(np.arange(len(images)), len(names)), strict=True):
        planes = [[image[:, :, channel].reshape(-1) for channel in range(3)] for image in images[rows]]
        batch = {"data": np.array(planes).reshape(-1, 3072), label_key: labels[rows].tolist(), "coarse_labels": []}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    declare_published(monkeypatch, key, folder)
    return folder


def declare_published(monkeypatch: pytest.MonkeyPatch, key: str, folder: Path) -> None:
    """Make the md5 sums of these files the published ones."""
    sums = [{name: hashlib.md5((folder / name).read_bytes()).hexdigest() for name in part} for part in MD5[key]]
    monkeypatch.setitem(MD5, key, tuple(sums))
