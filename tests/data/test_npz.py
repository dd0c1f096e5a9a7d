from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paperbench.data.npz import load_npz
from paperbench.errors import PaperbenchError
from tests.helpers import random_images
from tests.limits import limit_memory

(X_TRAIN, Y_TRAIN), (X_TEST, Y_TEST) = random_images(8), random_images(3, seed=1)
ARRAYS = {"x_train": X_TRAIN, "y_train": Y_TRAIN, "x_test": X_TEST, "y_test": Y_TEST}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cifar10.npz"


def error_message(file: Path) -> str:
    with pytest.raises(PaperbenchError) as caught:
        load_npz("cifar10", file)
    assert str(caught.value).startswith(str(file))
    return str(caught.value)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_load_unchanged_and_others_are_ignored(file: Path, save: Any) -> None:
    save(file, **ARRAYS, notes=np.array(["ignored", "here"]))
    dataset = load_npz("cifar10", file)
    for name, values in ARRAYS.items():
        np.testing.assert_array_equal(getattr(dataset, name), values)
    assert dataset.y_train.dtype == dataset.y_test.dtype == np.int64
    assert dataset.x_test.flags.writeable, "torch warns about read-only arrays"
    assert (dataset.key, dataset.canonical) == ("cifar10", False)
    assert dataset.name == "CIFAR-10 (unverified cifar10.npz)"


def test_labels_may_be_integers_of_any_size(file: Path) -> None:
    np.savez(file, **{**ARRAYS, "y_train": Y_TRAIN.astype(">i2")})
    loaded = load_npz("cifar10", file).y_train
    assert loaded.dtype == np.int64
    np.testing.assert_array_equal(loaded, Y_TRAIN)


def test_fingerprint_ignores_memory_order(file: Path) -> None:
    np.savez(file, **ARRAYS)
    before = load_npz("cifar10", file).fingerprint
    np.savez(file, **{**ARRAYS, "x_train": np.asfortranarray(X_TRAIN)})
    assert load_npz("cifar10", file).fingerprint == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.zeros((8, 32, 32, 3))}, "x_train must be uint8 of shape (N, 32, 32, 3) with N from 1 to 200,0"),
        ({"x_train": np.zeros((8, 3, 32, 32), np.uint8)}, "not uint8 of shape (8, 3, 32, 32)."),
        ({"x_test": np.zeros((0, 32, 32, 3), np.uint8), "y_test": np.zeros(0, int)}, "x_test must be uint8 of shape"),
        ({"y_train": np.zeros((8, 1), int)}, "y_train must be integers of shape (8,), one per image, not"),
        ({"y_train": np.arange(8) + 3}, "y_train has labels 3 to 10; CIFAR-10 has 0 to 9."),
        ({"y_train": np.arange(8) - 1}, "y_train has labels -1 to 6;"),
        ({"y_train": np.array([*range(7), object()], dtype=object)}, "not object of shape (8,)"),
    ],
)
def test_wrong_shape_type_or_labels_are_an_error(file: Path, changes: dict[str, Any], message: str) -> None:
    np.savez(file, **{**ARRAYS, **changes})
    assert message in error_message(file)


def test_error_names_missing_arrays(file: Path) -> None:
    np.savez(file, y_train=Y_TRAIN, x_test=X_TEST)
    assert "missing arrays: x_train, y_test." in error_message(file)


def test_only_cifar100_may_have_a_hundred_classes(tmp_path: Path) -> None:
    file = tmp_path / "cifar100.npz"
    np.savez(file, **{**ARRAYS, "y_train": np.arange(8) + 92})
    assert load_npz("cifar100", file).y_train.max() == 99
    with pytest.raises(PaperbenchError, match="CIFAR-10 has 0 to 9"):
        load_npz("cifar10", file)


def test_damaged_or_other_file_is_an_error(file: Path) -> None:
    np.savez_compressed(file, **ARRAYS)
    content = file.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 3] ^= 0xFF
    cut = [content[: int(len(content) * share)] for share in (0.0, 0.01, 0.5, 0.999)]
    for damaged in (flipped, *cut, b"<html>not found</html>", b"PK\x03\x04", b"\x93NUMPY\x01\x00"):
        file.write_bytes(damaged)
        assert "damaged or not a .npz file" in error_message(file)
        assert "Copy it again, or make it with numpy.savez or `paperbench data convert`." in error_message(file)


def test_pipe_is_not_read(file: Path) -> None:
    os.mkfifo(file)
    assert "it is not a regular file" in error_message(file)


def write_members(file: Path, compression: int = zipfile.ZIP_DEFLATED, **members: bytes) -> None:
    """Write `ARRAYS`, with some replaced by other bytes."""
    np.savez(file, **ARRAYS)
    with zipfile.ZipFile(file) as archive:
        whole = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in {**whole, **{f"{key}.npy": content for key, content in members.items()}}.items():
            archive.writestr(name, content)


def header(shape: str, descr: str = "'|u1'", version: tuple[int, int] = (1, 0), spaces: int = 0) -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}".encode() + b" " * spaces
    return np.lib.format.magic(*version) + len(text).to_bytes(2 if version == (1, 0) else 4, "little") + text


@pytest.mark.parametrize(
    ("name", "member", "message"),
    [
        ("x_train", header("(200_001, 32, 32, 3)"), "N from 1 to 200,000, not uint8 of shape (200001, 32, 32, 3)"),
        ("x_train", header("(8, 32, 32, 3)") + bytes(40 * 2**20), "too few or too many values"),
        ("x_train", header("(8, 32, 32, 3)", "[('a', '|O')]"), "not [('a', 'O')] of shape"),
        ("x_train", header("(8, 32, 32, 3)", version=(2, 0), spaces=40 * 2**20), "has format version (2, 0)"),
        ("y_train", header("(8,)", "'|O'") + b"\x80\x02cos\nsystem\nX\x01\x00\x00\x00:\x85R.", "not object of shape"),
    ],
)
def test_false_header_is_an_error_before_values_are_read(file: Path, name: str, member: bytes, message: str) -> None:
    write_members(file, **{name: member})
    with limit_memory(megabytes=20):
        assert message in error_message(file)


def test_unbounded_compression_is_an_error(file: Path) -> None:
    write_members(file, zipfile.ZIP_BZIP2, x_train=header("(8, 32, 32, 3)") + bytes(40 * 2**20))
    with limit_memory(megabytes=20):
        assert "compressed with a method that numpy does not use" in error_message(file)
