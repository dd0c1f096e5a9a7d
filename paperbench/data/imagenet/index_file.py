"""The file format of an index: a header, a line for each image in canonical order, and a checksum.

The columns of a line are split ("test " or "train"), label, sha256, and the place: offset, length, size and time of
change of the container, and its path. All but the path have a fixed width, so that sorted lines are in canonical order.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

import numpy as np
import numpy.typing as npt
import pydantic

from paperbench.data.imagenet.index import ImageFiles, PhotoDataset, fingerprint
from paperbench.data.imagenet.synsets import synsets
from paperbench.errors import PaperbenchError
from paperbench.files import UNGUARDED, format_read_error, open_regular
from paperbench.typed import Line, Natural, from_json, to_json, typed

FILE_NAME = "imagenet.index"
"""Name of the index in the data directory."""
_MAX_BYTES = 2**31
"""Maximum size of an index; ImageNet's has 0.2 GB."""
_MAX_HEADER_BYTES = 2**16
MAX_LINE_BYTES = 2**14
"""Maximum length of a line; paths have at most 4,096 bytes, each of which may be escaped by three."""
_MTIME_MODULUS = 10**18
"""Modification times are kept modulo 31.7 years, as 18 digits; all that matters is whether they have changed."""

KEY_LENGTH, PATH = 75, 134
"""Length of split, label and sha256, and the first character of the path."""
_LINE = re.compile(
    rb"((test |train) (\d{4}) ([0-9a-f]{64})) ((\d{13}) (\d{10}) (\d{13}) (\d{18}) ([ -~]+)\n)"  # key and place
)
_CHECKSUM = b"sha256 %s\n"
_KEPT = "".join(sorted(set(string.printable) - set(string.whitespace) - {"%"})) + " "
"""Characters that are not escaped in paths."""

Sha256 = Annotated[str, pydantic.StringConstraints(pattern=r"^[0-9a-f]{64}$")]


@typed
class Header:
    """First line of an index.

    Attributes:
        root: Directory of the containers, escaped as their paths are; absolute, or relative to that of the index.
        layout: Kind of the containers.
        train, test: Numbers of images.
        fingerprint: That of the images.
        is_complete: Whether the numbers of images and classes are those of ImageNet.
        proven: The fingerprint of the original files, if it is known.
    """

    schema: Literal["paperbench.imagenet/1"]
    root: Line
    layout: Line
    train: Natural
    test: Natural
    fingerprint: Sha256
    is_complete: bool
    proven: Sha256 | None = None


class Images(NamedTuple):
    """The lines of an index.

    Attributes:
        files: All images in canonical order.
        is_train: Whether each is in the training set.
        size, mtime: Of its container: bytes, and what `modified` returns.
    """

    files: ImageFiles
    is_train: npt.NDArray[np.bool_]
    size: npt.NDArray[np.int64]
    mtime: npt.NDArray[np.int64]

    @property
    def train(self) -> ImageFiles:
        return self.files.select(self.is_train)

    @property
    def test(self) -> ImageFiles:
        return self.files.select(~self.is_train)


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
        is_canonical = fingerprint(train, test) == header.proven  # not what the header says of it
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


def modified(status: os.stat_result) -> int:
    """Return the modification time as indices have it: in whole seconds, which is all that a copy with `tar` keeps."""
    return status.st_mtime_ns // 10**9 * 10**9 % _MTIME_MODULUS


def escaped(path: str) -> str:
    """Return a path as ASCII text of one line, for any file name that a system allows."""
    return quote_from_bytes(os.fsencode(path), _KEPT)


def unescaped(text: str) -> str:
    """Return the path that was escaped."""
    return os.fsdecode(unquote_to_bytes(text)) if "%" in text else text


def format_place(path: str, offset: int, length: int, status: os.stat_result) -> bytes:
    """Return the part of a line that says where an image is, with the newline.

    Args:
        status: Of the container.
    """
    return b"%013d %010d %013d %018d %s\n" % (
        offset,
        length,
        status.st_size,
        modified(status),
        escaped(path).encode(),
    )


def format_line(split: str, label: int, sha256: bytes, place: bytes) -> bytes:
    """Return the line of an image."""
    return b"%-5s %04d %s %s" % (split.encode(), label, sha256.hex().encode(), place)


def parse(lines: Iterable[bytes], root: Path, at_once: int = 50_000) -> Images:
    """Return what sorted lines say.

    Args:
        root: Directory of the containers.
        at_once: Lines that are in memory as text.

    Raises:
        ValueError: A line is not as this module writes it, or out of order.
    """
    parts, last = [], b""
    paths: dict[bytes, int] = {}
    lines = iter(lines)
    while some := list(islice(lines, at_once)):
        found = [match.groups() for line in some if (match := _LINE.fullmatch(line))]
        if len(found) < len(some):
            raise ValueError("a line is damaged")
        keys, split, label, sha256, _, offset, length, size, mtime, names = zip(*found, strict=True)
        numbers = [np.array(column).astype(np.int64) for column in (label, offset, length, size, mtime)]
        are_valid = (numbers[0] < len(synsets())) & (numbers[2] > 0) & (numbers[1] + numbers[2] <= numbers[3])
        if not (are_valid.all() and all(map(_is_path, names))):
            raise ValueError("a line is damaged")
        if sorted((last, *keys)) != [last, *keys]:
            raise ValueError("its lines are out of order")
        hashes = np.frombuffer(bytes.fromhex(b"".join(sha256).decode()), np.uint8).reshape(-1, 32)
        container = np.array([paths.setdefault(name, len(paths)) for name in names])
        parts.append((np.array(split) == b"train", hashes, container, *numbers))
        last = keys[-1]
    if not parts:
        raise ValueError("it lists no images")
    is_train, hashes, container, labels, offsets, lengths, sizes, mtimes = map(np.concatenate, zip(*parts, strict=True))
    containers = [unescaped(name.decode()) for name in paths]
    return Images(ImageFiles(root, labels, hashes, containers, container, offsets, lengths), is_train, sizes, mtimes)


def _is_path(name: bytes) -> bool:
    """Whether a line's path is below the root."""
    if b"%" in name:
        name = unquote_to_bytes(name)
    return b"\0" not in name and not name.startswith(b"/") and (b".." not in name or b".." not in name.split(b"/"))


def known_hashes(lines: Iterable[bytes]) -> dict[bytes, bytes]:
    """Return the sha256 of each image by its place. Lines that are none of an image are left out."""
    found = map(_LINE.fullmatch, lines)
    return {line[5]: bytes.fromhex(line[4].decode()) for line in found if line}


def write_index(path: Path, header: Header, lines: Iterable[bytes]) -> None:
    """Replace an index.

    Args:
        lines: Those of the images, sorted.
    """
    digest = hashlib.sha256()

    def chunks() -> Iterator[bytes]:
        for line in (to_json(header).encode() + b"\n", *lines):
            digest.update(line)
            yield line
        yield _CHECKSUM % digest.hexdigest().encode()

    UNGUARDED.write(path, chunks(), "--data DIR")


def read_index(path: Path) -> Index:
    """Read an index and check that it is as it was written.

    Raises:
        FileNotFoundError: There is none.
    """
    remedy = f"Index the images again: `paperbench data index imagenet DIR --data {shlex.quote(str(path.parent))}`"
    digest = hashlib.sha256()

    def lines(stream: BufferedReader, left: int) -> Iterator[bytes]:
        while left > 0 and (line := stream.readline(MAX_LINE_BYTES)).endswith(b"\n"):
            left -= len(line)
            digest.update(line)
            yield line

    try:
        with open_regular(path, _MAX_BYTES) as stream:
            first = stream.readline(_MAX_HEADER_BYTES)
            header = from_json(Header, first)
            digest.update(first)
            left = os.fstat(stream.fileno()).st_size - len(first) - len(_CHECKSUM % bytes(64))
            if "\0" in (root := unescaped(header.root)):
                raise ValueError("its root is no path")
            index = Index(path.parent, header, parse(lines(stream, left), path.parent / root))
            if stream.read(MAX_LINE_BYTES) != _CHECKSUM % digest.hexdigest().encode():
                raise ValueError("its checksum does not match")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise PaperbenchError(format_read_error(path, error, "Check its permissions.")) from error
    except ValueError as error:
        raise PaperbenchError(f"{path} was changed or is cut off: {error}. {remedy}; all images are read.") from error
    return index
