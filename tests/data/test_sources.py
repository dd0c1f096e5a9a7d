from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paperbench.data.dataset import ImageDataset
from paperbench.data.sources import ENVIRONMENT_VARIABLE, data_directory, load_dataset
from paperbench.errors import PaperbenchError
from paperbench.specs.yaml_file import SpecError
from tests.helpers import random_images, write_cifar10_folder

PER_FILE = 4


def write_npz(directory: Path) -> tuple[np.ndarray, np.ndarray]:
    images, labels = random_images(6 * PER_FILE)
    n = 5 * PER_FILE
    directory.mkdir(exist_ok=True)
    np.savez(directory / "cifar10.npz", x_train=images[:n], y_train=labels[:n], x_test=images[n:], y_test=labels[n:])
    return images, labels


def test_the_same_images_from_either_container_have_the_same_fingerprint(tmp_path: Path) -> None:
    images, labels = write_npz(tmp_path / "npz")
    write_cifar10_folder(tmp_path / "batches", images, labels, PER_FILE)
    both = [load_dataset("cifar10", tmp_path / name) for name in ("npz", "batches")]
    assert both[0].fingerprint == both[1].fingerprint
    assert both[0].name != both[1].name


def test_the_fingerprint_is_sha256_over_shapes_pixels_and_labels(small_dataset: ImageDataset) -> None:
    d, digest = small_dataset, hashlib.sha256()
    for images, labels in ((d.x_train, d.y_train), (d.x_test, d.y_test)):
        n = len(images)
        digest.update(f"({n}, 32, 32, 3)".encode())
        digest.update(images.tobytes())
        digest.update(b"".join(int(label).to_bytes(8, "little") for label in labels))
    assert d.fingerprint == digest.hexdigest()


def changed(array: np.ndarray, *place: int) -> np.ndarray:
    copy = array.copy()
    copy[place] ^= 1
    return copy


def swapped(array: np.ndarray) -> np.ndarray:
    return array[[1, 0, *range(2, len(array))]]


@pytest.mark.parametrize(
    "change",
    [
        lambda d: {"x_train": changed(d.x_train, 99, 31, 31, 2)},
        lambda d: {"x_test": changed(d.x_test, 0, 0, 0, 0)},
        lambda d: {"y_train": changed(d.y_train, 5)},
        lambda d: {"y_test": changed(d.y_test, 39)},
        lambda d: {"x_train": swapped(d.x_train), "y_train": swapped(d.y_train)},
        lambda d: {"x_train": d.x_train[:-1], "y_train": d.y_train[:-1]},
        lambda d: {"x_train": d.x_test, "x_test": d.x_train, "y_train": d.y_test, "y_test": d.y_train},
    ],
    ids=["pixel", "test pixel", "label", "test label", "order", "one less", "parts exchanged"],
)
def test_any_change_of_the_data_changes_the_fingerprint(small_dataset: ImageDataset, change: Any) -> None:
    assert replace(small_dataset, **change(small_dataset)).fingerprint != small_dataset.fingerprint


def test_names_do_not_enter_the_fingerprint(small_dataset: ImageDataset) -> None:
    renamed = replace(small_dataset, name="other", origin="elsewhere", canonical=True)
    assert renamed.fingerprint == small_dataset.fingerprint


def test_missing_data_are_told_with_every_way_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(PaperbenchError) as caught:
        load_dataset("cifar10", tmp_path / "nowhere")
    told = str(caught.value)
    assert f"CIFAR-10 is not in {tmp_path / 'nowhere'}." in told
    assert f"paperbench data download cifar10 --data {tmp_path / 'nowhere'}" in told
    assert "cifar-10-batches-py/" in told
    assert "cifar10.npz" in told
    assert "--data DIR" in told
    assert ENVIRONMENT_VARIABLE == "PAPERBENCH_DATA"
    assert "PAPERBENCH_DATA" in told


def test_naming_the_inner_folder_is_put_right(tmp_path: Path) -> None:
    write_cifar10_folder(tmp_path, *random_images(6), 1)
    with pytest.raises(PaperbenchError, match=f"Name the folder around cifar-10-batches-py/.*: {tmp_path}$"):
        load_dataset("cifar10", tmp_path / "cifar-10-batches-py")


def test_cifar100_is_not_found_in_cifar10(tmp_path: Path) -> None:
    write_npz(tmp_path)
    with pytest.raises(PaperbenchError, match="CIFAR-100 is not in"):
        load_dataset("cifar100", tmp_path)


def test_an_unknown_data_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PaperbenchError, match=r"Unknown data set 'cifra10'\. Did you mean 'cifar10'"):
        load_dataset("cifra10", tmp_path)


def test_the_folder_goes_before_the_file(tmp_path: Path) -> None:
    write_npz(tmp_path)
    write_cifar10_folder(tmp_path, *random_images(6, seed=5), 1)
    assert len(load_dataset("cifar10", tmp_path).x_train) == 5


def test_digits_need_no_folder(tmp_path: Path) -> None:
    assert load_dataset("digits", tmp_path / "nowhere").key == "digits"


@pytest.mark.parametrize("container", ["npz", "batches"])
def test_the_name_in_dataset_yaml_is_used(tmp_path: Path, container: str) -> None:
    if container == "npz":
        write_npz(tmp_path)
    else:
        write_cifar10_folder(tmp_path, *random_images(6), 1)
    (tmp_path / "dataset.yaml").write_text("name: CIFAR-10 from JPEG\norigin: a mirror\ncanonical: false\n")
    dataset = load_dataset("cifar10", tmp_path)
    assert (dataset.name, dataset.origin, dataset.canonical) == ("CIFAR-10 from JPEG", "a mirror", False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: a\norigin: b\ncanonical: true", "3: canonical: cannot be declared true; only the original files are"),
        ("name: a\norigni: b", r"2: origni: unknown key\. Did you mean 'origin'\?"),
        ("name: a", "1: origin: is missing"),
        ("name: 7\norigin: b", "1: name: must be text"),
        ("name: a\norigin: b\ncanonical: 0", "3: canonical: must be true or false"),
    ],
)
def test_a_dataset_yaml_that_says_something_else_is_refused(tmp_path: Path, text: str, message: str) -> None:
    write_npz(tmp_path)
    (tmp_path / "dataset.yaml").write_text(text)
    with pytest.raises(SpecError, match=f"{re.escape(str(tmp_path / 'dataset.yaml'))}:{message}"):
        load_dataset("cifar10", tmp_path)


def test_the_folder_is_the_users_choice_then_the_environments_then_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAPERBENCH_DATA", "/from/environment")
    assert data_directory(Path("chosen")) == Path("chosen")
    assert data_directory() == Path("/from/environment")
    monkeypatch.setenv("PAPERBENCH_DATA", "")
    assert data_directory() == Path("data")
    monkeypatch.delenv("PAPERBENCH_DATA")
    assert data_directory() == Path("data")


def test_a_folder_that_cannot_be_searched_is_told() -> None:
    with pytest.raises(PaperbenchError, match=r"cannot be searched: File name too long\. Choose another folder"):
        load_dataset("cifar10", Path("x" * 300))


def test_real_cifar10(cifar10: ImageDataset) -> None:
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
