"""The file of an index: an SQLite database with a row for each image in canonical order, and a row about all of them.

It is replaced as a whole, never changed, so that it can be read while a new one is made.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pydantic

from paperbench.data.imagenet.index import ImageFiles, PhotoDataset, fingerprint
from paperbench.data.imagenet.synsets import synsets
from paperbench.errors import PaperbenchError
from paperbench.files import format_read_error, open_regular
from paperbench.typed import Line, from_json, typed

FILE_NAME = "imagenet.index"
"""Name of the index in the data directory."""
MAX_BYTES = 2**31
"""Maximum size of an index; ImageNet's has 0.2 GB."""
_MAX_ROW_BYTES = 2**12 + 2**9
"""Maximum size of a row; a path has at most 4,096 bytes."""
SCHEMA = {
    "image": "CREATE TABLE image (is_train INTEGER, label INTEGER, sha256 BLOB, path BLOB, offset INTEGER, "
    "length INTEGER, size INTEGER, modified INTEGER)",
    "header": "CREATE TABLE header (root BLOB, facts TEXT)",
}

Sha256 = Annotated[str, pydantic.StringConstraints(pattern=r"^[0-9a-f]{64}$")]


Place = tuple[bytes, int, int, int, int]
"""Path, offset, length, size and time of change, as `Row` has them."""


class Row(NamedTuple):
    """An image in an index: what it is, and where.

    Attributes:
        path: Its container, below the root.
        offset, length: Its bytes in the container.
        size, modified: Of the container: bytes, and the time of change in whole seconds.
    """

    is_train: bool
    label: int
    sha256: bytes
    path: bytes
    offset: int
    length: int
    size: int
    modified: int

    @property
    def key(self) -> tuple[bool, int, bytes]:
        return self[:3]


@typed
class Header:
    """What an index has of all images.

    Attributes:
        layout: Kind of the containers.
        fingerprint: That of the images.
        is_complete: Whether the numbers of images and classes are those of ImageNet.
        proven: The fingerprint of the original files, if it is known.
    """

    schema: Literal["paperbench.imagenet/2"]
    layout: Line
    fingerprint: Sha256
    is_complete: bool
    proven: Sha256 | None = None


class Images(NamedTuple):
    """The images of an index.

    Attributes:
        files: All images in canonical order.
        is_train: Whether each is in the training set.
        size, modified: Of its container, as `Row` has them.
    """

    files: ImageFiles
    is_train: npt.NDArray[np.bool_]
    size: npt.NDArray[np.int64]
    modified: npt.NDArray[np.int64]

    @property
    def train(self) -> ImageFiles:
        return self.files.select(self.is_train)

    @property
    def test(self) -> ImageFiles:
        return self.files.select(~self.is_train)

    def known(self) -> dict[Place, bytes]:
        """Return the sha256 of each image by its place."""
        files = self.files
        paths = map([os.fsencode(path) for path in files.paths].__getitem__, files.container)
        numbers = (column.tolist() for column in (files.offsets, files.lengths, self.size, self.modified))
        return dict(zip(zip(paths, *numbers, strict=True), map(bytes, files.hashes), strict=True))


@dataclass(frozen=True)
class Index:
    """An index that has been read.

    Attributes:
        directory: The data directory, in which the file is.
    """

    directory: Path
    header: Header
    images: Images

    def dataset(self) -> PhotoDataset:
        """Return the images as a data set."""
        header, train, test = self.header, self.images.train, self.images.test
        is_canonical = header.fingerprint == header.proven
        of_original = "the original files, by the md5 of their archives"
        other = "not compared with the original files"
        subset = f"ImageNet (subset: {len(train):,} + {len(test):,} images)"
        return PhotoDataset(
            key="imagenet",
            name="ImageNet (ILSVRC 2012)" if header.is_complete else subset,
            origin=f"{header.layout}; {of_original if is_canonical else other}",
            canonical=is_canonical,
            unverified=header.is_complete and not is_canonical,
            classes=synsets(),
            train=train,
            test=test,
            directory=self.directory,
        )


def open_database(path: Path, options: str) -> sqlite3.Connection:
    """Open a database with options of SQLite's addresses."""
    database = sqlite3.connect(f"{path.absolute().as_uri()}?{options}", uri=True)
    database.text_factory = bytes
    return database


def primary_code(error: Exception) -> int:
    """Return SQLite's code of an error without its details; 0 if it is another error."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def is_forged(journal: Path) -> bool:
    """Whether a journal names another file, which SQLite would delete. Ours never do."""
    with suppress(FileNotFoundError), open_regular(journal, MAX_BYTES) as stream:
        stream.seek(-min(8, os.fstat(stream.fileno()).st_size), os.SEEK_END)
        return stream.read() == b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
    return False


def check(database: sqlite3.Connection, path: Path) -> None:
    """Let no statement take longer than the file's size justifies, and check that there are the usual tables.

    A file can hold views and triggers, which compute anything, and lists of pages without end.

    Raises:
        ValueError: There are others.
        sqlite3.Error: It is no database, or damaged.
    """
    database.execute("PRAGMA user_version").fetchall()  # rolls back what a killed process left, and reads no table
    with open_regular(path, MAX_BYTES) as stream:
        head, size = stream.read(105), os.fstat(stream.fileno()).st_size
    if head[100:101] != b"\r" or head[103:105] != b"\0\2":  # SQLite reads many tables in quadratic time
        raise ValueError("it has other tables")
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_ROW_BYTES)
    database.set_progress_handler(lambda: True, 2**16 + size // 4)  # a row of 60 bytes takes some twelve operations
    database.execute("PRAGMA trusted_schema = OFF")
    found = database.execute("SELECT name, sql FROM sqlite_master").fetchall()
    if sorted(found) != sorted((name.encode(), statement.encode()) for name, statement in SCHEMA.items()):
        raise ValueError("it has other tables")


def read_images(database: sqlite3.Connection, root: Path) -> Images:
    """Return all images, whose containers are below `root`.

    Raises:
        ValueError: A row is not as this module writes it, or there is none.
        sqlite3.Error: The database is damaged.
    """
    paths, hashes, numbers = dict[bytes, int](), list[bytes](), list[npt.NDArray[np.int64]]()
    selected = database.execute("SELECT * FROM image ORDER BY rowid")
    while some := selected.fetchmany(10_000):
        is_train, label, sha256, names, *place = zip(*some, strict=True)
        columns = [[paths.setdefault(name, len(paths)) for name in names], is_train, label, *place]
        is_typed = {type(value) for column in columns for value in column} == {int}
        if not is_typed or {*map(type, sha256 + names)} != {bytes} or {*map(len, sha256)} != {32}:
            raise ValueError("a row is damaged")
        hashes += sha256
        numbers.append(np.array(columns))
    if not numbers:
        raise ValueError("it lists no images")
    container, train, labels, offset, length, size, times = np.concatenate(numbers, axis=1)
    are_valid = (train >> 1 == 0) & (labels >= 0) & (labels < len(synsets()))
    are_valid &= (offset >= 0) & (length > 0) & (length <= size) & (offset <= size - length)
    if not (are_valid.all() and all(map(_is_path, paths))):
        raise ValueError("a row is damaged")
    digests = np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, 32)
    files = ImageFiles(root, labels, digests, [*map(os.fsdecode, paths)], container, offset, length)
    return Images(files, train.astype(bool), size, times)


def _is_path(name: bytes) -> bool:
    """Whether a path is below the root."""
    return not (b"\0" in name or name.startswith(b"/") or b".." in name.split(b"/"))


def read_index(path: Path) -> Index:
    """Read an index and check that its images are those of its fingerprint.

    Raises:
        FileNotFoundError: There is none.
    """
    remedy = f"Index the images again: `paperbench data index imagenet DIR --data {shlex.quote(str(path.parent))}`"
    try:
        with open_regular(path, MAX_BYTES) as stream:
            is_text = stream.read(1) == b"{"
        if is_text:
            raise ValueError("an earlier version of paperbench wrote it")
        with closing(open_database(path, "mode=ro&immutable=1")) as database:
            check(database, path)
            rows = database.execute("SELECT root, facts FROM header LIMIT 2").fetchall()
            if [[*map(type, row)] for row in rows] != [[bytes, bytes]] or b"\0" in rows[0][0]:
                raise ValueError("it has no header")
            root, facts = rows[0]
            index = Index(path.parent, from_json(Header, facts), read_images(database, path.parent / os.fsdecode(root)))
        if fingerprint(index.images.train, index.images.test) != index.header.fingerprint:
            raise ValueError("its images are not those of its fingerprint")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise PaperbenchError(format_read_error(path, error, "Check its permissions.")) from error
    except (ValueError, sqlite3.Error) as error:
        if primary_code(error) == sqlite3.SQLITE_CANTOPEN:  # it opens files by their whole path
            raise PaperbenchError(
                f"{path} cannot be opened. Check the permissions of the directories above it."
            ) from error
        raise PaperbenchError(
            f"{path} cannot be used: {str(error).rstrip('.')}. {remedy}; all images are read."
        ) from error
    return index
