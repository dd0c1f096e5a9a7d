from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest

from paperbench.catalogue import DATASETS
from paperbench.data.dataset import ImageDataset
from paperbench.data.sources import data_directory, load_dataset
from paperbench.errors import PaperbenchError
from paperbench.specs.yaml_file import SpecError
from tests.data.batches import write_batches
from tests.helpers import random_images

IMAGES, LABELS = random_images(60)[0], np.arange(60) % 10


def write_npz(directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    arrays = {"x_train": IMAGES[:50], "y_train": LABELS[:50], "x_test": IMAGES[50:], "y_test": LABELS[50:]}
    np.savez(directory / "cifar10.npz", **arrays)


def test_fingerprint_is_sha256_of_shapes_pixels_and_labels(small_dataset: ImageDataset) -> None:
    d, digest = small_dataset, hashlib.sha256()
    for images, labels in ((d.x_train, d.y_train), (d.x_test, d.y_test)):
        n = len(images)
        digest.update(f"({n}, 32, 32, 3)".encode())
        digest.update(images.tobytes())
        digest.update(b"".join(int(label).to_bytes(8, "little") for label in labels))
    assert d.fingerprint == digest.hexdigest()


@pytest.mark.parametrize(
    ("key", "labels", "message"),
    [
        ("cifar100", np.arange(100) % 20, r"\(80\): 20, 21, .* the 20 coarse labels: take the 100 fine ones\."),
        ("cifar100", np.minimum(np.arange(100), 98), r"\(1\): 99\. Add images\."),
    ],
)
@pytest.mark.parametrize("part", ["train", "test"])
def test_class_without_images_in_one_part_is_an_error(
    key: str, labels: np.ndarray, message: str, part: str, tmp_path: Path
) -> None:
    images, whole = random_images(100)[0], np.arange(100) % DATASETS[key].num_classes
    parts = {"x_train": images, "y_train": whole, "x_test": images, "y_test": whole, f"y_{part}": labels}
    np.savez(tmp_path / f"{key}.npz", **parts)
    with pytest.raises(PaperbenchError, match=f"{key}.npz.* classes without .* images {message}"):
        load_dataset(key, tmp_path)


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    empty, inner = tmp_path / "nowhere", tmp_path / "cifar-10-batches-py"
    inner.mkdir()
    write_npz(tmp_path)
    ways = [f"`paperbench data download cifar10 --data {empty}`", "torchvision's directory cifar-10-batches-py/"]
    ways += [f"`paperbench data convert IMAGES {empty / 'cifar10.npz'}`", "`--data DIR`", "PAPERBENCH_DATA"]
    for key, directory, parts in (
        ("cifar10", empty, [f"CIFAR-10 not found in the directory {empty}.", *ways]),
        ("cifar10", inner, [f"contains cifar-10-batches-py: {tmp_path}"]),
        ("cifar100", tmp_path, ["CIFAR-100 not found in"]),
        ("cifra10", tmp_path, ["Unknown data set 'cifra10'. Did you mean 'cifar10'"]),
        ("cifar10", Path("x" * 300), ["cannot read: File name too long. Choose another directory"]),
    ):
        with pytest.raises(PaperbenchError) as caught:
            load_dataset(key, directory)
        assert all(part in str(caught.value) for part in parts)


def test_original_files_precede_the_npz_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_npz(tmp_path)
    (tmp_path / "dataset.yaml").write_text("name: mine\norigin: me\n")
    directory = write_batches(monkeypatch, tmp_path, "cifar10", IMAGES, LABELS[::-1], "labels")
    dataset = load_dataset("cifar10", tmp_path)
    assert (len(dataset.x_train), dataset.name, dataset.canonical) == (50, "CIFAR-10", True)
    (directory / "test_batch").unlink()
    with pytest.raises(PaperbenchError, match="test_batch is missing"):
        load_dataset("cifar10", tmp_path)


def test_dataset_yaml_gives_name_and_origin(tmp_path: Path) -> None:
    write_npz(tmp_path)
    (tmp_path / "dataset.yaml").write_text("name: CIFAR-10 from JPEG\norigin: a mirror\ncanonical: false\n")
    dataset = load_dataset("cifar10", tmp_path)
    assert (dataset.name, dataset.origin, dataset.canonical) == ("CIFAR-10 from JPEG", "a mirror", False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\norigin: b\ncanonical: true", "3: canonical: cannot be set to true; only the original files are"),
        ('name: "a\\n## b"\norigin: b', "1: name: must be one line of text"),
        ("name: a\norigni: b", r"2: origni: unknown key\. Did you mean 'origin'\?"),
    ],
)
def test_invalid_dataset_yaml_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    write_npz(tmp_path)
    (tmp_path / "dataset.yaml").write_text(text)
    with pytest.raises(SpecError, match=f"{re.escape(str(tmp_path / 'dataset.yaml'))}:{message}"):
        load_dataset("cifar10", tmp_path)


def test_data_directory_is_the_option_then_the_environment_then_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAPERBENCH_DATA", "/from/environment")
    assert data_directory(Path("chosen")) == Path("chosen")
    assert data_directory() == Path("/from/environment")
    monkeypatch.setenv("PAPERBENCH_DATA", "")
    assert data_directory() == Path("data")
    monkeypatch.delenv("PAPERBENCH_DATA")
    assert data_directory() == Path("data")


def test_real_cifar10_has_the_published_sizes_and_means(cifar10: ImageDataset) -> None:
    dataset = cifar10
    for images, labels, number in (
        (dataset.x_train, dataset.y_train, 50_000),
        (dataset.x_test, dataset.y_test, 10_000),
    ):
        assert images.shape == (number, 32, 32, 3)
        assert (images.dtype, labels.dtype) == (np.uint8, np.int64)
        assert np.bincount(labels).tolist() == [number // 10] * 10
    mean = dataset.x_train.mean(axis=(0, 1, 2))
    np.testing.assert_allclose(mean, [125.3, 123.0, 113.9], atol=0.5, err_msg="published channel means")
