"""Lists files in directories and in uncompressed tar files, and reads images from them."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tarfile import BLOCKSIZE, GNUTYPE_LONGNAME, GNUTYPE_SPARSE, LNKTYPE, SYMTYPE, XHDTYPE, HeaderError, TarInfo
from typing import NamedTuple

from paperbench.errors import PaperbenchError
from paperbench.files import format_read_error, open_regular

_MAX_CONTAINER_BYTES = 2**42
"""Maximum size of a file; the archive of all training images has 138 GB."""
_MAX_IMAGE_BYTES = 2**27
"""Maximum size of an encoded image; the largest of ImageNet has 15 MB."""
_MAX_EXTENDED_BYTES = 2**20
"""Maximum size of a header with a long name or other attributes."""
_MAGICS = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
"""First bytes of files compressed with gzip, bzip2, xz and zstd."""
_PAX_RECORD = re.compile(rb"(\d{1,7}) ([^=\n]{1,200})=")

Read = Callable[[int, int], bytes]
"""Returns bytes of a container: arguments are length and offset, as for `os.pread`."""


class Entry(NamedTuple):
    """A file or directory, or the target of a link; of one that leads nowhere, `size` is None."""

    name: str
    size: int | None = None
    is_directory: bool = False
    is_file: bool = False


class Member(NamedTuple):
    """A file in a tar file, at `offset` bytes from the start of the outermost one."""

    name: str
    offset: int
    length: int


def scan(directory: Path) -> list[Entry]:
    """Return the entries of a directory whose names do not begin with a dot, sorted by name."""
    entries = []
    try:
        with os.scandir(directory) as found:
            for entry in found:
                if not entry.name.startswith("."):
                    try:
                        entries.append(Entry(entry.name, entry.stat().st_size, entry.is_dir(), entry.is_file()))
                    except OSError:
                        entries.append(Entry(entry.name))
    except OSError as error:
        raise PaperbenchError(format_read_error(directory, error, "Check the path and its permissions.")) from error
    return sorted(entries)


def read_image(path: Path, offset: int, length: int) -> bytes:
    """Return the bytes of an image from its container; fewer if that is shorter.

    Raises:
        OSError: The container is missing or cannot be read, or the image is too large.
    """
    if length > _MAX_IMAGE_BYTES:
        raise OSError(errno.EFBIG, f"its {length:,} bytes are more than the {_MAX_IMAGE_BYTES:,} allowed", str(path))
    with open_regular(path, _MAX_CONTAINER_BYTES) as stream:
        return os.pread(stream.fileno(), length, offset)


@contextmanager
def open_container(path: Path) -> Iterator[tuple[Read, int]]:
    """Open a file; yield a function that reads it, and its size."""
    try:
        with open_regular(path, _MAX_CONTAINER_BYTES) as stream:
            yield partial(os.pread, stream.fileno()), os.fstat(stream.fileno()).st_size
    except OSError as error:
        raise PaperbenchError(format_read_error(path, error, "Check its permissions, or copy it again.")) from error


def tar_members(read: Read, start: int, end: int, title: str) -> Iterator[Member]:
    """Yield the regular files of the uncompressed tar file between two offsets. Reads only the headers.

    `tarfile` would keep all members in memory, read headers of any length, in some versions of Python in a time that is
    quadratic in it, end silently at a damaged one, and run past the end of an inner tar file.

    Args:
        title: Path of the tar file, for messages.

    Raises:
        OSError: It cannot be read.
    """
    damaged = "Copy or download it again."
    extended: dict[str, str] = {}
    while True:
        if start + BLOCKSIZE > end:
            raise PaperbenchError(f"{title} is truncated: its end is missing. {damaged}")
        header = read(BLOCKSIZE, start)
        if not header.strip(b"\0"):
            return
        try:
            info = TarInfo.frombuf(header, "utf-8", "surrogateescape")
            name, length = extended.get("path", info.name), int(extended.get("size", info.size))
        except (HeaderError, ValueError) as error:
            if header.startswith(_MAGICS):
                raise PaperbenchError(
                    f"{title} is compressed. Unpack it, or decompress it to a .tar file: images are read in place."
                ) from error
            raise PaperbenchError(f"{title} is damaged or no tar file (byte {start:,}: {error}). {damaged}") from error
        offset = start + BLOCKSIZE
        if info.type in (SYMTYPE, LNKTYPE, GNUTYPE_SPARSE) or any(key.startswith("GNU.sparse") for key in extended):
            raise PaperbenchError(
                f"{title} holds a link or a sparse file: {name!r:.300}. Write the archive again with plain files, for "
                "example with `tar --dereference --hard-dereference`."
            )
        if info.isdir() or info.isdev():
            length = 0
        if length < 0 or offset + length > end:
            raise PaperbenchError(
                f"{title} is truncated: {name!r:.300} should end at byte {offset + length:,}, and the file has "
                f"{end:,}. {damaged}"
            )
        start = offset + -(-length // BLOCKSIZE) * BLOCKSIZE
        if info.type in (GNUTYPE_LONGNAME, XHDTYPE):
            if length > _MAX_EXTENDED_BYTES:
                raise PaperbenchError(f"{title} is damaged (byte {offset:,}: a header of {length:,} bytes). {damaged}")
            content = read(length, offset)
            if info.type == GNUTYPE_LONGNAME:
                extended["path"] = content.rstrip(b"\0").decode("utf-8", "surrogateescape")
            else:
                extended |= _pax_records(content)
        else:
            extended = {}
            if info.isreg():
                yield Member(name, offset, length)


def _pax_records(content: bytes) -> dict[str, str]:
    records, position = {}, 0
    while found := _PAX_RECORD.match(content, position):
        end = position + int(found[1])
        value = content[found.end() : end - 1]
        records[found[2].decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        if end < found.end():
            break
        position = end
    return records
