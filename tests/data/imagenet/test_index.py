from __future__ import annotations

import hashlib
import io
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from paperbench.data.imagenet.build import PARTIAL, index_images
from paperbench.data.imagenet.index import ImageFiles, fingerprint
from paperbench.data.imagenet.index_file import FILE_NAME, Index
from paperbench.data.sources import load_dataset, load_index
from paperbench.errors import PaperbenchError
from tests.data.imagenet.miniature import examples, write, write_folders
from tests.limits import limit_memory, limit_seconds


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("indexed")
    make(write_folders(data / "images"), data)
    return data


@pytest.fixture
def data(indexed: Path, tmp_path: Path) -> Path:
    """A data directory with an index of the miniature, whose images are in it."""
    return shutil.copytree(indexed, tmp_path / "my data")


def make(images: Path, data: Path) -> Index:
    return index_images(images, data, io.StringIO(), threads=1, accepts_subset=True)


def change(file: Path, script: str) -> None:
    with closing(sqlite3.connect(file)) as database:
        database.executescript(script)


def files_of(labels: list[int], hashes: list[bytes]) -> ImageFiles:
    numbers = np.zeros(len(labels), np.int64)
    digests = np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, 32)
    return ImageFiles(Path(), np.array(labels), digests, ("a",), numbers, numbers, numbers)


def test_fingerprint_is_sha256_of_numbers_labels_and_hashes() -> None:
    one, two, three = (hashlib.sha256(bytes([i])).digest() for i in range(3))
    expected = hashlib.sha256(b"2 images\n" + bytes([3] + [0] * 7 + [0, 1] + [0] * 6) + one + two)
    expected.update(b"1 images\n" + bytes([7] + [0] * 7) + three)
    assert fingerprint(files_of([3, 256], [one, two]), files_of([7], [three])) == expected.hexdigest()


def test_index_keeps_any_file_name(tmp_path: Path) -> None:
    names = ["a b", "100%", "tab\tand\nline", "Füchse", os.fsdecode(b"\xff\xfe"), "x" * 200, " "]
    root = tmp_path / os.fsdecode(b"? %20 \xff")
    for name, example in zip(names, examples(), strict=False):
        write(root / "val" / "n01440764" / f"{name}.JPEG", example.data)
    make(root, tmp_path / "data")
    files = load_index(tmp_path / "data").images.files
    assert {files.read(number) for number in range(len(files))} == {
        example.data for example in examples()[: len(names)]
    }


CHANGES = {
    "hash": ("UPDATE image SET sha256 = zeroblob(32) WHERE rowid = 3", "not those of its fingerprint"),
    "label": ("UPDATE image SET label = label + 1 WHERE rowid = 3", "not those of its fingerprint"),
    "label beyond the classes": ("UPDATE image SET label = 1000 WHERE rowid = 3", "a row is damaged"),
    "part": ("UPDATE image SET is_train = 1 - is_train WHERE rowid = 3", "not those of its fingerprint"),
    "type of a number": ("UPDATE image SET offset = 'x'", "a row is damaged"),
    "place beyond the file": ("UPDATE image SET offset = 1", "a row is damaged"),
    "absolute path": ("UPDATE image SET path = '/etc/passwd'", "a row is damaged"),
    "path that leaves the root": ("UPDATE image SET path = 'train/../../x'", "a row is damaged"),
    "path with NUL": ("UPDATE image SET path = x'6100'", "a row is damaged"),
    "long path": ("UPDATE image SET path = zeroblob(9999)", "too big"),
    "lost row": ("DELETE FROM image WHERE rowid = 3", "not those of its fingerprint"),
    "repeated row": ("INSERT INTO image SELECT * FROM image", "not those of its fingerprint"),
    "no rows": ("DELETE FROM image", "it lists no images"),
    "root with NUL": ("UPDATE header SET root = x'6100'", "it has no header"),
    "no header": ("DELETE FROM header", "it has no header"),
    "two headers": ("INSERT INTO header SELECT * FROM header", "it has no header"),
    "damaged header": ("UPDATE header SET facts = substr(facts, 9)", "is not JSON"),
    "unknown key": ("""UPDATE header SET facts = '{"x":1,' || substr(facts, 2)""", "x: unknown key"),
    "another table": ("CREATE TABLE other (x)", "it has other tables"),
    "table that is a view": (
        "DROP TABLE image; CREATE VIEW image AS WITH n(i) AS (SELECT 1 UNION ALL SELECT 1 FROM n) SELECT * FROM n",
        "it has other tables",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_index_is_refused_with_what_to_do(name: str, data: Path) -> None:
    script, reason = CHANGES[name]
    change(data / FILE_NAME, script)
    refused(data, reason)


DAMAGES = {
    "cut off": (lambda content: content[:6000], "malformed"),
    "nothing": (lambda _: b"", "it has other tables"),
    "text": (lambda _: b"\xff\xfe\n" * 99, "not a database"),
    "earlier version": (
        lambda _: b'{"schema":"paperbench.imagenet/1"}\n' * 99,
        "an earlier version of paperbench wrote it",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_index_is_refused_with_what_to_do(name: str, data: Path) -> None:
    damage, reason = DAMAGES[name]
    content = (data / FILE_NAME).read_bytes()
    (data / FILE_NAME).write_bytes(damage(content))
    refused(data, reason)


def refused(data: Path, reason: str) -> None:
    with pytest.raises(PaperbenchError, match=f"(?s)cannot be used: .*{reason}") as caught, limit_memory(100):
        load_dataset("imagenet", data)
    assert f"`paperbench data index imagenet DIR --data '{data}'`" in str(caught.value)


def test_pages_without_end_are_left_unread(data: Path) -> None:
    """Of a table in which every page lists one page a hundred times: of a few kB, it has 10 to the 20th rows."""
    file = data / FILE_NAME
    change(file, "CREATE TABLE t (x); DROP TABLE t; VACUUM")
    with closing(sqlite3.connect(file)) as database:
        ((root,),) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'image'").fetchall()
        ((size,),) = database.execute("PRAGMA page_size").fetchall()
    content = file.read_bytes()
    first = len(content) // size + 1
    pages = [content[(root - 1) * size : root * size]]
    for depth in range(12):
        target = first + depth
        cells = b"".join(target.to_bytes(4, "big") + bytes([1]) for _ in range(100))
        start = size - len(cells)
        head = (
            bytes([5, 0, 0]) + (100).to_bytes(2, "big") + start.to_bytes(2, "big") + b"\0" + target.to_bytes(4, "big")
        )
        pointers = b"".join((start + 5 * cell).to_bytes(2, "big") for cell in range(100))
        pages.append((head + pointers).ljust(start, b"\0") + cells)
    changed = content[: (root - 1) * size] + pages[-1] + content[root * size :] + b"".join(pages[:-1])
    count = (len(changed) // size).to_bytes(4, "big")
    file.write_bytes(changed[:28] + count + changed[32:])
    with limit_seconds():
        refused(data, "interrupted")


@pytest.mark.parametrize("suffix", ["", PARTIAL])
def test_sparse_file_is_read_quickly(suffix: str, data: Path) -> None:
    file = data / (FILE_NAME + suffix)
    (data / FILE_NAME).rename(file)
    os.truncate(file, 2**31)
    with limit_seconds(), limit_memory(50):
        index = make(data / "images", data) if suffix else load_index(data)
    assert len(index.images.files) == len(examples())


def test_error_without_an_index_says_how_to_make_one(data: Path, tmp_path: Path) -> None:
    with pytest.raises(PaperbenchError, match=rf"`paperbench data index imagenet DIR --data {tmp_path}`, where DIR"):
        load_dataset("imagenet", tmp_path)
    images = data / "images"
    with pytest.raises(PaperbenchError, match=f"`paperbench data index imagenet '{images}' --data '{images}'`"):
        load_dataset("imagenet", images)
