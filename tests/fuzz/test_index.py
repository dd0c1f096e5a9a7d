from __future__ import annotations

import io
import os
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paperbench.data.imagenet.build import PARTIAL, index_images
from paperbench.data.imagenet.index import PhotoDataset
from paperbench.data.imagenet.index_file import FILE_NAME
from paperbench.data.sources import load_dataset
from paperbench.errors import PaperbenchError
from tests.data.imagenet.miniature import write_folders
from tests.fuzz.strategies import damaged, is_refused, share_of_examples
from tests.limits import limit_memory, limit_seconds

TOKENS = (
    *(b"train", b"\n", b"%00", b"../", b"/", b"\0", b"\xff", b"\x7f" * 8, b"\x80" * 9, b"\x05", b"\x0d", b"\0" * 512),
    *(b"CREATE TABLE", b"CREATE VIEW", b"VIRTUAL", b"null", b"true", b'"proven":', b"1e9", b"[" * 5_000, b"x" * 5_000),
)
VALUES = (
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.binary(max_size=40) | st.text("/.\0a", max_size=9)
)
COLUMNS = ("is_train", "label", "sha256", "path", "offset", "length", "size", "modified")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("data")
    make(write_folders(data / "images"), data)
    return data


def make(images: Path, data: Path) -> None:
    index_images(images, data, io.StringIO(), threads=1, accepts_subset=True)


@pytest.fixture(scope="module")
def original(data: Path) -> bytes:
    return (data / FILE_NAME).read_bytes()


def check(data: Path) -> None:
    """Load the index, and check what batches rely on."""
    with limit_seconds(), limit_memory(100):
        dataset = load_dataset("imagenet", data)
    assert isinstance(dataset, PhotoDataset)
    for files in (dataset.train, dataset.test):
        assert all(0 <= label < 1_000 for label in files.labels)
        assert all(0 <= container < len(files.paths) for container in files.container)
        assert (files.offsets >= 0).all()
        assert (files.lengths > 0).all()
        for number in range(min(len(files), 3)):
            is_refused(PaperbenchError, files.read, number)


@given(draw=st.data())
def test_damaged_index_loads_or_is_an_error(data: Path, original: bytes, draw: st.DataObject) -> None:
    (data / FILE_NAME).write_bytes(draw.draw(damaged(original, TOKENS)))
    is_refused(PaperbenchError, check, data)


@given(column=st.sampled_from(COLUMNS), row=st.integers(1, 30), value=VALUES)
def test_index_with_any_value_loads_or_is_an_error(
    column: str, row: int, value: object, data: Path, original: bytes
) -> None:
    (data / FILE_NAME).write_bytes(original)
    with closing(sqlite3.connect(data / FILE_NAME)) as database, database:
        database.execute(f"UPDATE image SET {column} = ? WHERE rowid = ?", (value, row))
    is_refused(PaperbenchError, check, data)


@share_of_examples(4)
@given(draw=st.data())
def test_damaged_partial_index_never_makes_a_wrong_one(data: Path, original: bytes, draw: st.DataObject) -> None:
    for suffix in ("", PARTIAL, f"{PARTIAL}-journal"):
        (data / f"{FILE_NAME}{suffix}").unlink(missing_ok=True)
    (data / f"{FILE_NAME}{PARTIAL}").write_bytes(draw.draw(damaged(original, TOKENS)))
    make(data / "images", data)
    dataset = load_dataset("imagenet", data)
    assert isinstance(dataset, PhotoDataset)
    assert (len(dataset.train), len(dataset.test)) == (20, 10)


def test_index_with_many_tables_is_refused_at_once(data: Path, original: bytes) -> None:
    """SQLite reads their descriptions in quadratic time."""
    (data / FILE_NAME).write_bytes(original)
    with closing(sqlite3.connect(data / FILE_NAME)) as database, database:
        database.execute("PRAGMA writable_schema = ON")
        tables = ((f"t{n}", f"t{n}", 2, f"CREATE TABLE t{n}(a, b, c, d, e, f, g, h)") for n in range(50_000))
        database.executemany("INSERT INTO sqlite_master VALUES ('table', ?, ?, ?, ?)", tables)
    with limit_seconds(1), pytest.raises(PaperbenchError, match="other tables"):
        load_dataset("imagenet", data)


def test_journal_that_names_another_file_deletes_nothing(data: Path, original: bytes, tmp_path: Path) -> None:
    """SQLite deletes the file whose name ends a journal, once that is rolled back."""
    victim, magic = tmp_path / "victim", bytes.fromhex("d9d505f920a163d7")
    victim.write_text("mine")
    name = os.fsencode(victim)
    checksum = sum(byte if byte < 128 else byte - 256 for byte in name) % 2**32
    journal = (magic + struct.pack(">iIIII", 0, 0, len(original) // 4096, 512, 4096)).ljust(512, b"\0")
    journal += struct.pack(">I", 2**30 // 4096 + 1) + name + struct.pack(">II", len(name), checksum) + magic
    (data / f"{FILE_NAME}{PARTIAL}").write_bytes(original)
    (data / f"{FILE_NAME}{PARTIAL}-journal").write_bytes(journal)
    make(data / "images", data)
    assert victim.read_text() == "mine"
