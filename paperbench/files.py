"""Read files of bounded size, and replace files atomically."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from paperbench.errors import Finding, PaperbenchError, RunError

MAX_TENSOR_FILE_BYTES = 2_000_000_000
"""Maximum size of checkpoints and weights; those of the largest net here, with momentum, have 0.5 GB."""


def open_regular(path: Path, limit: int) -> BufferedReader:
    """Open a regular file of at most `limit` bytes for reading, without ever waiting: a pipe would block `open`.

    Raises:
        OSError: The file does not exist, is larger than `limit` bytes, or is a directory, pipe or device.
    """
    further = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    stream = open(path, "rb", opener=lambda name, flags: os.open(name, flags | further))  # noqa: SIM115  (stays open)
    try:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        if status.st_size > limit:
            reason = f"its {status.st_size:,} bytes are more than the {limit:,} allowed"
            raise OSError(errno.EFBIG, reason, str(path))
    except OSError:
        stream.close()
        raise
    return stream


def read_at_most(path: Path, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes. Of a file that grows meanwhile, read what was there at first.

    Raises:
        OSError: As for `open_regular`, or the file cannot be read, or the memory is not sufficient.
    """
    with open_regular(path, limit) as stream:
        try:
            return stream.read(os.fstat(stream.fileno()).st_size)
        except MemoryError as error:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), str(path)) from error


def list_directory(directory: Path) -> list[Path]:
    """Return the entries of a directory, sorted by name; none if the directory does not exist."""
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        if isinstance(error, NotADirectoryError) and not directory.exists():  # its parent is a file
            return []
        raise PaperbenchError(format_read_error(directory, error, "Check its permissions.")) from error


def format_read_error(path: Path, error: OSError, remedy: str) -> str:
    """Return the message for a file that cannot be read."""
    return str(Finding.unreadable(path, error, remedy))


TEMPORARY = ".tmp"
"""Suffix of files that are being written. If a process is killed meanwhile, its file can be deleted."""
LEFTOVER = re.compile(rf"[^/]+\.\d+-[0-9a-f]{{8}}\{TEMPORARY}")
"""Names of such files."""
DAMAGED = ".damaged"
"""Suffix of files that were set aside because they are damaged; they are kept in case they can be repaired."""


class Writer:
    """Changes files for as long as a guard permits it.

    A process may be suspended right after any check, and resumed once another one has taken over. So a late change must
    do no harm:

    - `write` renames a temporary file, which the other process has deleted (`RunDirectory.clear_leftovers`).
    - Data appended to a file of `write_open` go to that very file, which the other process has replaced.
    - `remove` is for what no result depends on: older checkpoints, weights, what a killed process left.
    - `rename` checks again afterwards, and undoes the change.

    Args:
        guard: Called right before every change; raises PaperbenchError if this process must not write any more.
    """

    def __init__(self, guard: Callable[[], object] = lambda: None) -> None:
        self.check = guard

    def write(self, path: Path, data: bytes | Iterable[bytes], option: str = "--results DIR") -> None:
        """Replace a file once the new contents are on disk and read back correctly; create its directory if needed.

        Args:
            data: The contents, or their parts in order.
            option: The option that chooses another directory.
        """
        with report_write_errors(path, option):
            self.write_open(path, data, option).close()

    def write_open(self, path: Path, data: bytes | Iterable[bytes], option: str = "--results DIR") -> BinaryIO:
        """Replace a file as `write` does, and return the new one, open at its end."""
        unique = f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY}"
        temporary, digest = path.with_name(unique), hashlib.sha256()
        with report_write_errors(path, option):
            path.parent.mkdir(parents=True, exist_ok=True)
            stream = open(temporary, "xb")  # noqa: SIM115  (stays open)
            try:
                for part in (data,) if isinstance(data, bytes) else data:
                    stream.write(part)
                    digest.update(part)
                stream.flush()
                os.fsync(stream.fileno())
                with open_regular(temporary, stream.tell()) as written:
                    if hashlib.file_digest(written, "sha256").digest() != digest.digest():
                        raise OSError("the file does not read back as written")
                self.check()
                temporary.replace(path)
                _sync_directory(path.parent)
            except BaseException:
                with suppress(OSError):
                    stream.close()
                raise
            finally:
                with suppress(OSError):
                    temporary.unlink(missing_ok=True)
        return stream

    def set_aside(self, path: Path) -> Path:
        """Rename a damaged file so that it is no longer used; return its new path."""
        with report_write_errors(path):
            return self.rename(path, path.with_name(path.name + DAMAGED))

    def remove(self, path: Path) -> None:
        """Delete a file if it exists; a directory stays."""
        with report_write_errors(path), suppress(FileNotFoundError):
            if not path.is_dir():
                self.check()
                path.unlink()

    def rename(self, path: Path, target: Path) -> Path:
        """Rename a file or a directory; return its new path.

        Raises:
            OSError: It cannot be renamed.
        """
        self.check()
        path.replace(target)
        try:
            self.check()
        except PaperbenchError:
            with suppress(OSError):
                if not path.exists():  # else the other process has written it since
                    target.replace(path)
            raise
        return target


UNGUARDED = Writer()
"""Writes files that no other process writes."""


def write_named(path: Path, data: bytes, option: str) -> None:
    """Write a file that the user named, as `Writer.write` does."""
    with report_write_errors(path, option):
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise OSError("it is not a regular file")
    UNGUARDED.write(path, data, option)


def write_growing(path: Path, data: bytes, option: str) -> None:
    """Write a file that other programs may have open: append what is new if it begins with what is there."""
    before = None
    with suppress(OSError):  # it is not there, or longer
        before = read_at_most(path, len(data))
    if before is None or path.is_symlink() or not data.startswith(before):
        write_named(path, data, option)
    elif before != data:
        with report_write_errors(path, option), open(path, "ab") as stream:
            stream.write(data[len(before) :])


def refuse_links(*directories: Path) -> None:
    """Refuse to write into directories that are links: a results directory of others may link to anything of yours."""
    for directory in directories:
        with report_write_errors(directory):
            if directory.is_symlink():
                raise RunError(
                    f"{directory} is a link, and nothing is written through it. Replace it by the directory itself."
                )


def is_leftover(path: Path) -> bool:
    """Whether a file has the name of a temporary one."""
    return LEFTOVER.fullmatch(path.name) is not None


@contextmanager
def report_write_errors(path: Path, option: str = "--results DIR") -> Iterator[None]:
    """Turn an OSError into a PaperbenchError: `path` cannot be written, and `option` chooses another directory."""
    try:
        yield
    except OSError as error:
        advice = f"Choose another directory (`{option}`)"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = f"Free some space or choose another directory (`{option}`)"
        elif error.errno in (errno.EFBIG, errno.EMFILE):
            advice = "Raise the limit (see `ulimit -a`)"
        raise PaperbenchError(
            f"{path} cannot be written: {error.strerror or error}. {advice}, and run the same command again."
        ) from error


def _sync_directory(directory: Path) -> None:
    """Make a rename survive a power cut, on systems that can sync directories."""
    if os.name == "posix":
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            with suppress(OSError):  # some network file systems do not support it
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
