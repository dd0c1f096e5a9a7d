from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torchvision.datasets

from paperbench.data.cifar_batches import MD5, load_batches
from paperbench.errors import PaperbenchError
from tests.data.batches import set_published_md5, write_batches
from tests.helpers import random_images

IMAGES, LABELS = random_images(24)


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four images in each of CIFAR-10's six files."""
    return write_batches(monkeypatch, tmp_path, "cifar10", IMAGES, LABELS, "labels")


def error_message(directory: Path) -> str:
    with pytest.raises(PaperbenchError) as caught:
        load_batches("cifar10", directory)
    assert str(caught.value).startswith(f"{directory}: not the original CIFAR-10: ")
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "source"), [("cifar10", torchvision.datasets.CIFAR10), ("cifar100", torchvision.datasets.CIFAR100)]
)
def test_files_and_md5_sums_equal_torchvisions(key: str, source: Any) -> None:
    train, test = MD5[key]
    assert list(train.items()) == [tuple(entry) for entry in source.train_list]
    assert list(test.items()) == [tuple(entry) for entry in source.test_list]


@pytest.mark.parametrize(("key", "label_key", "split"), [("cifar10", "labels", 20), ("cifar100", "fine_labels", 12)])
def test_published_files_load_in_order_as_canonical(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, label_key: str, split: int
) -> None:
    dataset = load_batches(key, write_batches(monkeypatch, tmp_path, key, IMAGES, LABELS, label_key))
    np.testing.assert_array_equal(dataset.x_train, IMAGES[:split])
    np.testing.assert_array_equal(dataset.y_train, LABELS[:split])
    np.testing.assert_array_equal(dataset.x_test, IMAGES[split:])
    np.testing.assert_array_equal(dataset.y_test, LABELS[split:])
    assert (dataset.x_train.dtype, dataset.y_train.dtype) == (np.uint8, np.int64)
    assert dataset.canonical
    assert dataset.name == {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}[key]
    assert "md5" in dataset.origin


def test_row_is_red_then_green_then_blue(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = np.zeros((1, 3072), dtype=np.uint8)
    row[0, 1] = 11  # red, first line, second pixel
    row[0, 1024 + 32] = 22  # green, second line, first pixel
    row[0, 3071] = 33  # blue, last pixel
    (directory / "test_batch").write_bytes(pickle.dumps({"data": row, "labels": [7]}))
    set_published_md5(monkeypatch, "cifar10", directory)
    (image,) = load_batches("cifar10", directory).x_test
    assert (image[0, 1, 0], image[1, 0, 1], image[31, 31, 2]) == (11, 22, 33)
    assert image.sum() == 66


def test_python_2_pickle_loads(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The published files are pickles of Python 2, with pixels as strings without an encoding."""
    pixels = bytes(range(256)) * 12
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    uint8 = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    data = array + b"(K\x01K\x01M\x00\x0c\x86" + uint8 + b"\x89T" + struct.pack("<I", 3072) + pixels + b"tb"
    (directory / "test_batch").write_bytes(b"\x80\x02}(U\x04data" + data + b"U\x06labels]K\x07au.")
    set_published_md5(monkeypatch, "cifar10", directory)
    dataset = load_batches("cifar10", directory)
    assert dataset.x_test.transpose(0, 3, 1, 2).tobytes() == pixels
    assert dataset.y_test.tolist() == [7]


class Malicious:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def test_pickle_with_wrong_md5_is_not_loaded(directory: Path, tmp_path: Path) -> None:
    evil = pickle.dumps(Malicious(os.system, f"touch {tmp_path / 'trace'}"), protocol=2)
    for changed in MD5["cifar10"]:
        for name in changed:
            original = (directory / name).read_bytes()
            (directory / name).write_bytes(evil)
            assert f"md5 mismatch: {name}. " in error_message(directory)
            (directory / name).write_bytes(original)
    assert not (tmp_path / "trace").exists()
    pickle.loads(evil)
    assert (tmp_path / "trace").exists(), "the pickle is harmful"


def test_error_names_all_wrong_files_and_the_remedy(directory: Path) -> None:
    for name in ("data_batch_1", "data_batch_4", "data_batch_5"):
        (directory / name).unlink()
    os.truncate(directory / "data_batch_2", 2**40)
    (directory / "data_batch_3").write_bytes((directory / "data_batch_3").read_bytes()[:-1])
    os.mkfifo(directory / "data_batch_4")
    (directory / "data_batch_5").mkdir()
    (directory / "test_batch").write_bytes(b"")
    message = error_message(directory)
    assert (
        "data_batch_4 cannot be read: it is not a regular file; data_batch_5 cannot be read: Is a directory; "
        "md5 mismatch: data_batch_3, test_batch. Only the original files are loaded"
    ) in message
    assert "data_batch_1 is missing; data_batch_2 cannot be read: its 1,099,511,627,776 bytes are more th" in message
    for advice in ("`paperbench data download cifar10`", "cifar10.npz", "`paperbench data convert`"):
        assert advice in message
