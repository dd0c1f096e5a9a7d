from __future__ import annotations

import hashlib
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision.datasets

from paperbench.data import cifar_batches
from paperbench.data.cifar_batches import MD5, load_batches
from paperbench.errors import PaperbenchError
from tests.helpers import CIFAR10_FILES, random_images, write_batch, write_cifar10_folder

PER_FILE = 4


@pytest.fixture
def images() -> tuple[np.ndarray, np.ndarray]:
    return random_images(6 * PER_FILE)


@pytest.fixture
def folder(tmp_path: Path, images: tuple[np.ndarray, np.ndarray]) -> Path:
    return write_cifar10_folder(tmp_path, *images, PER_FILE)


def complaint(folder: Path) -> str:
    with pytest.raises(PaperbenchError) as caught:
        load_batches("cifar10", folder, None, None)
    return str(caught.value)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_images_and_labels_come_back_in_order(
    tmp_path: Path, images: tuple[np.ndarray, np.ndarray], protocol: int
) -> None:
    folder = write_cifar10_folder(tmp_path, *images, PER_FILE, protocol=protocol)
    dataset = load_batches("cifar10", folder, None, None)
    x, y = images
    np.testing.assert_array_equal(dataset.x_train, x[: 5 * PER_FILE])
    np.testing.assert_array_equal(dataset.y_train, y[: 5 * PER_FILE])
    np.testing.assert_array_equal(dataset.x_test, x[5 * PER_FILE :])
    np.testing.assert_array_equal(dataset.y_test, y[5 * PER_FILE :])
    assert dataset.x_train.dtype == np.uint8
    assert dataset.y_train.dtype == np.int64


def test_a_row_of_a_batch_is_red_then_green_then_blue(folder: Path) -> None:
    row = np.zeros((1, 3072), dtype=np.uint8)
    row[0, 1] = 11  # red, first line, second pixel
    row[0, 1024 + 32] = 22  # green, second line, first pixel
    row[0, 3071] = 33  # blue, last pixel
    with open(folder / "test_batch", "wb") as stream:
        pickle.dump({"data": row, "labels": [7]}, stream)
    (image,) = load_batches("cifar10", folder, None, None).x_test
    assert (image[0, 1, 0], image[1, 0, 1], image[31, 31, 2]) == (11, 22, 33)
    assert image.sum() == 66


def test_cifar100_is_read_by_its_fine_labels(tmp_path: Path) -> None:
    images, labels = random_images(6, classes=100)
    for name, part in (("train", slice(0, 4)), ("test", slice(4, 6))):
        write_batch(tmp_path / name, images[part], labels[part], key="fine_labels")
    dataset = load_batches("cifar100", tmp_path, None, None)
    np.testing.assert_array_equal(dataset.y_train, labels[:4])
    np.testing.assert_array_equal(dataset.x_test, images[4:])
    write_batch(tmp_path / "train", images[:4], labels[:4], key="labels")
    with pytest.raises(PaperbenchError, match="fine_labels"):
        load_batches("cifar100", tmp_path, None, None)


def test_other_files_are_not_canonical_and_bear_the_users_name(folder: Path) -> None:
    unnamed = load_batches("cifar10", folder, None, None)
    assert not unnamed.canonical
    assert unnamed.name == "CIFAR-10 (altered copy)"
    assert "unknown" in unnamed.origin
    named = load_batches("cifar10", folder, "CIFAR-10 from JPEG", "a mirror")
    assert (named.name, named.origin, named.canonical) == ("CIFAR-10 from JPEG", "a mirror", False)


def md5_list(folder: Path) -> Any:
    sums = {name: hashlib.md5((folder / name).read_bytes()).hexdigest() for name in CIFAR10_FILES}
    test = {"test_batch": sums.pop("test_batch")}
    return {"cifar10": (sums, test)}


def test_files_with_the_published_md5_are_canonical_whatever_the_user_calls_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cifar_batches, "MD5", md5_list(folder))
    dataset = load_batches("cifar10", folder, "mine", "me")
    assert dataset.canonical
    assert dataset.name == "CIFAR-10"
    assert "md5" in dataset.origin


@pytest.mark.parametrize("changed", ["data_batch_3", "test_batch"])
def test_one_file_that_differs_makes_the_whole_not_canonical(
    folder: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    monkeypatch.setattr(cifar_batches, "MD5", md5_list(folder))
    write_batch(folder / changed, *random_images(PER_FILE, seed=9))
    assert not load_batches("cifar10", folder, None, None).canonical


@pytest.mark.parametrize(
    ("key", "source"), [("cifar10", torchvision.datasets.CIFAR10), ("cifar100", torchvision.datasets.CIFAR100)]
)
def test_the_files_and_md5_sums_are_torchvisions(key: str, source: Any) -> None:
    train, test = MD5[key]
    assert list(train.items()) == [tuple(entry) for entry in source.train_list]
    assert list(test.items()) == [tuple(entry) for entry in source.test_list]


@pytest.mark.parametrize("name", CIFAR10_FILES)
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert f"{folder / name} is missing" in complaint(folder)


def test_a_file_that_cannot_be_read_is_named(folder: Path) -> None:
    (folder / "test_batch").unlink()
    (folder / "test_batch").mkdir()
    assert f"{folder / 'test_batch'} cannot be read: Is a directory." in complaint(folder)


def test_a_pipe_or_a_file_of_absurd_size_is_not_read(folder: Path) -> None:
    os.truncate(folder / "test_batch", 2**40)
    assert f"{folder / 'test_batch'} cannot be read: its 1,099,511,627,776 bytes are more than" in complaint(folder)
    (folder / "test_batch").unlink()
    os.mkfifo(folder / "test_batch")
    assert f"{folder / 'test_batch'} cannot be read: it is no ordinary file." in complaint(folder)


@pytest.mark.parametrize("kept", [0, 1, 100, -1])
def test_a_truncated_file_is_damaged(folder: Path, kept: int) -> None:
    content = (folder / "data_batch_2").read_bytes()
    (folder / "data_batch_2").write_bytes(content[:kept])
    assert f"{folder / 'data_batch_2'} is damaged or no CIFAR batch" in complaint(folder)


@pytest.mark.parametrize("content", [b"<html>not found</html>", b"\x80\x02}.", b"\x80\x02]q\x01.", bytes(100)])
def test_files_that_are_no_batch_are_refused(folder: Path, content: bytes) -> None:
    (folder / "data_batch_1").write_bytes(content)
    assert str(folder / "data_batch_1") in complaint(folder)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"labels": [1]}, "must hold uint8 images of shape (N, 3072) under `data`, not NoneType"),
        ({"data": [1, 2], "labels": [1]}, "under `data`, not list"),
        ({"data": np.zeros((1, 3072)), "labels": [1]}, "not float64 of shape (1, 3072)"),
        ({"data": np.zeros((1, 3072), np.int8), "labels": [1]}, "not int8 of shape (1, 3072)"),
        ({"data": np.zeros((1, 3071), np.uint8), "labels": [1]}, "not uint8 of shape (1, 3071)"),
        ({"data": np.zeros((1, 3, 32, 32), np.uint8), "labels": [1]}, "not uint8 of shape (1, 3, 32, 32)"),
        ({"data": np.zeros((0, 3072), np.uint8), "labels": []}, "holds no image"),
        ({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}, "from 0 to 9 for each of its 2 images"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [10]}, "a whole number from 0 to 9"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [-1]}, "a whole number from 0 to 9"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [1.0]}, "a whole number from 0 to 9"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": [True]}, "a whole number from 0 to 9"),
        ({"data": np.zeros((1, 3072), np.uint8), "labels": np.array([1])}, "must hold under `labels` a list"),
        ({"data": np.zeros((1, 3072), np.uint8)}, "must hold under `labels` a list"),
    ],
)
def test_arrays_of_another_shape_or_kind_are_refused(folder: Path, batch: dict[str, Any], message: str) -> None:
    with open(folder / "data_batch_5", "wb") as stream:
        pickle.dump(batch, stream, protocol=4)
    told = complaint(folder)
    assert str(folder / "data_batch_5") in told
    assert message in told


class Malicious:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("function", [os.system, eval, exec, __import__, getattr, np.save, np.load, Path.touch])
@pytest.mark.parametrize("place", ["whole", "value", "key"])
def test_a_pickle_that_would_run_code_is_refused_and_not_run(
    folder: Path, tmp_path: Path, function: Any, place: str
) -> None:
    trace = tmp_path / "trace"
    evil = Malicious(function, f"touch {trace}")
    batch = {"whole": evil, "value": {"data": evil}, "key": {"data": [1], "labels": [evil]}}[place]
    with open(folder / "data_batch_1", "wb") as stream:
        pickle.dump(batch, stream, protocol=2)
    assert "which a CIFAR batch never needs" in complaint(folder)
    assert not trace.exists()


def test_the_malicious_pickle_of_these_tests_would_run_if_it_were_trusted(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Malicious(os.system, f"touch {tmp_path / 'trace'}")))
    assert (tmp_path / "trace").exists()
