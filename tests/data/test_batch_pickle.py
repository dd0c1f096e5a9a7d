from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paperbench.data.batch_pickle import PickledArray, read_pickle
from paperbench.data.cifar_batches import load_batches
from paperbench.errors import PaperbenchError
from tests.helpers import random_images, write_batch
from tests.limits import frugal

RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
UINT8 = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
OBJECT = b"cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x3ftb"


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def number(value: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", value)


def array(shape: bytes, dtype: bytes, data: bytes, is_fortran: bytes = b"\x89") -> bytes:
    return RECONSTRUCT + b"(K\x01" + shape + dtype + is_fortran + data + b"tb"


def batch(data: bytes) -> bytes:
    return b"\x80\x02}(U\x04data" + data + b"U\x06labels]K\x07au."


def complaint(directory: Path, content: bytes) -> str:
    for name in ("train", "test"):
        write_batch(directory / name, *random_images(2), key="fine_labels")
    (directory / "train").write_bytes(content)
    with frugal(), pytest.raises(PaperbenchError) as caught:
        load_batches("cifar100", directory, None, None)
    assert str(caught.value).startswith(f"{directory / 'train'} ")
    return str(caught.value)


def test_a_batch_is_read_as_python_2_wrote_it() -> None:
    pixels = bytes(range(256)) * 12
    content = batch(array(b"K\x01M\x00\x0c\x86", UINT8, b"T" + struct.pack("<I", 3072) + pixels))
    read = read_pickle(content)
    assert read["labels"] == [7]
    np.testing.assert_array_equal(read["data"].to_numpy(), np.frombuffer(pixels, np.uint8)[None])
    assert pickle.loads(content, encoding="latin1")["data"].tobytes() == pixels  # so is the test's pickle


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("dtype", ["u1", ">i2", "<i8", "f4", "c16", "bool"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_comes_back_from_every_protocol(protocol: int, dtype: str, order: Any) -> None:
    written = np.arange(6).reshape(2, 3).astype(dtype, order)
    read = read_pickle(pickle.dumps(written, protocol))
    assert isinstance(read, PickledArray)
    np.testing.assert_array_equal(read.to_numpy(), written)
    assert read.to_numpy().dtype == written.dtype


def test_as_many_values_as_the_original_training_set_of_cifar100_has_are_read() -> None:
    n = 50_000
    columns = {"filenames": [f"bos_taurus_s_{i:06}.png" for i in range(n)], "fine_labels": [i % 100 for i in range(n)]}
    written = {**columns, "coarse_labels": [i % 20 for i in range(n)]}
    assert read_pickle(pickle.dumps(written, protocol=2)) == written


NEVER = "which a CIFAR batch never needs"


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00exit\x85R.",
        b"(S'exit'\nios\nsystem\n.",
        b"(cos\nsystem\nS'exit'\no.",
        b"\x80\x02cbuiltins\neval\nU\x011\x85R.",
        b"\x80\x04" + b"\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.",
        b"\x80\x04" + b"\x8c\x05numpy\x8c\x11ndarray.__class__\x93.",
        b"\x80\x04" + b"\x8c\x05numpy\x8c\x10f2py.subprocess.\x93.",
        b"\x80\x02ccopyreg\n_reconstructor\nccollections\nOrderedDict\nc__builtin__\nobject\nN\x87R.",
        b"\x80\x02ccopyreg\nadd_extension\n.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02U\x01aQ.",
        b"Pa\n.",
        b"\x80\x02cnumpy\nndarray\n)\x81.",
        b"\x80\x04cnumpy\nndarray\n)}\x92.",
    ],
)
def test_a_pickle_that_asks_for_code_is_refused(tmp_path: Path, content: bytes) -> None:
    assert NEVER in complaint(tmp_path, content)


HUGE = number(2**40)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02cnumpy\nndarray\n" + HUGE + b"\x85\x85R.",
        b"\x80\x02cnumpy\nndarray\nM\x00\x0c\x85" + UINT8 + b"U\x01aK\x00K\x00\x85tR.",
        b"\x80\x02cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R.",
        b"\x80\x02cnumpy\ndtype\n" + text("(999999,999999)u1") + b"K\x00K\x01\x87R.",
        b"\x80\x02cnumpy\ndtype\n]U\x01aU\x02O8\x86aK\x00K\x01\x87R.",
        b"\x80\x02c_codecs\nencode\nU\x01aU\x03zip\x86R.",
        b"\x80\x02c_codecs\nencode\nU\x01aU\x05rot13\x86R.",
        b"\x80\x02c_codecs\nencode\nK\x01U\x06latin1\x86R.",
        batch(array(b"K\x01\x85", OBJECT, b"U\x08AAAAAAAA")),
        batch(array(b"K\x01\x85", OBJECT, b"]N]ea")),
        batch(array(b"K\x01M\x00\x0c\x86", UINT8, b"U\x01a")),
        batch(array(HUGE + b"M\x00\x0c\x86", UINT8, b"U\x01a")),
        batch(array(HUGE + b"K\x00\x86", UINT8, b"U\x00")),
        batch(array(number(-1) + number(-1) + b"\x86", UINT8, b"U\x01a")),
        batch(array(b"U\x01a", UINT8, b"U\x01a")),
        batch(array(b"K\x01\x85", b"N", b"U\x01a")),
        batch(array(b"K\x01\x85", UINT8, b"N")),
        batch(array(b"K\x02\x85", UINT8.replace(b"u1", b"u7"), b"U\x01a")),
        batch(RECONSTRUCT + b"(K\x01K\x02tb"),
        batch(UINT8 + b"(K\x03U\x01|U\x01aU\x01bU\x01cK\x01K\x01K\x00tb"),
    ],
)
def test_an_array_that_cannot_be_is_refused(tmp_path: Path, content: bytes) -> None:
    assert "is damaged or no CIFAR batch" in complaint(tmp_path, content)


def test_a_pickle_does_not_change_the_functions_that_it_names(tmp_path: Path) -> None:
    from numpy._core import numeric

    before = numeric._frombuffer.__defaults__
    setting = b"N}" + text("__defaults__") + b"K\x01\x85s\x86b."
    assert "values that none can have" in complaint(tmp_path, b"\x80\x02cnumpy.core.numeric\n_frombuffer\n" + setting)
    assert numeric._frombuffer.__defaults__ == before


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02Nr\xff\xff\xff\x7f.",  # Python's memo would have 2^32 entries
        b"p99999999999\n.",
        b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"a.",
        b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"a.",
        b"\x80\x04\x8d" + struct.pack("<Q", 2**63) + b"a.",
        b"\x80\x04\x95" + struct.pack("<Q", 2**63) + b"N.",
        b"\x80\x02\x8b\xff\xff\xff\x7f.",
        b"\x80\x02})" + b"2\x86" * 40 + b"K\x01s.",  # its hash takes 2^40 steps
        b"\x80\x02})q\x00" + b"h\x00h\x00\x86q\x00" * 60 + b"K\x01s.",
        b"\x80\x02})" + b"\x85" * 100_000 + b"K\x01s.",  # its hash is a crash
        b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
        b"\x80\x02" + b"(" * 100_000 + b"l" * 100_000 + b".",
        b"\x80\x02" + b"N0" * 3_000_000 + b".",
        b"I" + b"9" * 100_000 + b"\n.",
        b"L" + b"9" * 100_000 + b"L\n.",
        b"\x80\x04](" + b"]" * 500 + b"e" + b"h\x00U\x01a\x93.",
    ],
    ids=range(16),
)
def test_a_pickle_made_to_crash_to_hang_or_to_fill_the_memory_is_refused(tmp_path: Path, content: bytes) -> None:
    complaint(tmp_path, content)


def test_a_large_array_taken_many_times_is_not_copied_many_times(tmp_path: Path) -> None:
    data = b"T" + struct.pack("<I", 2**20) + bytes(2**20) + b"q\x00"
    again = array(number(2**20) + b"\x85", UINT8, b"h\x00")
    content = b"\x80\x02}U\x04data](" + array(number(2**20) + b"\x85", UINT8, data) + again * 2_000 + b"es."
    assert "not list" in complaint(tmp_path, content)


@pytest.mark.parametrize(
    "content", [b".", b"0.", b"e.", b"}a.", b"]K\x01K\x02s.", b"h\x00.", b"R.", b"b.", b"\x94.", b"t."]
)
def test_operations_without_what_they_need_are_refused(tmp_path: Path, content: bytes) -> None:
    assert "is damaged or no CIFAR batch" in complaint(tmp_path, content)
