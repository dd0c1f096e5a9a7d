"""Files read within limits, and written so that they hold either the old contents or the new."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paperbench.errors import PaperbenchError

UNPRINTABLE = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\ud800-\\udfff]")
"""A character that a terminal would obey, or that no file can be written with."""


def read_at_most(path: Path, limit: int) -> bytes:
    """The content of a regular file, unless it is unreasonably large.

    Raises:
        OSError: As `check_size`, or it cannot be read.
    """
    check_size(path, limit)
    return path.read_bytes()


def check_size(path: Path, limit: int) -> None:
    """Refuse what should not be read: reading a pipe would block, and a device might never end.

    Raises:
        OSError: The file does not exist, is larger than `limit` bytes, or is a pipe or device.
    """
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        return  # open() refuses it, with the system's message
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no ordinary file", str(path))
    if status.st_size > limit:
        reason = f"its {status.st_size:,} bytes are more than the {limit:,} of any such file"
        raise OSError(errno.EFBIG, reason, str(path))


def list_folder(folder: Path) -> list[Path]:
    """What is in a folder, sorted by name; nothing if the folder does not exist.

    Raises:
        PaperbenchError: It cannot be read.
    """
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise PaperbenchError(unreadable(folder, error, "Check its permissions.")) from error


def unreadable(path: Path, error: OSError, remedy: str) -> str:
    """The message about a file that cannot be read."""
    return f"{path} cannot be read: {error.strerror or error}. {remedy}"


TEMPORARY = ".tmp"
"""Ending of incomplete files; what a killed process left under such a name can be deleted."""
DAMAGED = ".damaged"
"""Ending of files that could not be read; kept, as somebody may know more about the disk."""


def unguarded() -> None:
    """The guard of files that no other process writes."""


def write_atomically(path: Path, data: bytes, guard: Callable[[], object] = unguarded) -> None:
    """Replace a file by new contents, once these are on disk and read back as they were written.

    Its folder is made if it does not exist.

    Args:
        guard: Called right before the replacement, and when that fails; may raise to prevent it.

    Raises:
        PaperbenchError: The disk is full or the folder cannot be written; the old file is untouched.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(temporary, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            if temporary.read_bytes() != data:
                raise OSError("what was written does not read back the same")
            guard()
            temporary.replace(path)
            _sync_folder(path.parent)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
    except OSError as error:
        guard()  # if another process took over and cleared the temporary file away, that is what to report
        raise unwritable(path, error) from error


def set_aside(path: Path, guard: Callable[[], object]) -> Path:
    """Give a damaged file a name under which it is not looked for; returns that.

    Raises:
        PaperbenchError: The folder cannot be written.
    """
    guard()
    with writing(path):
        return path.replace(path.with_name(path.name + DAMAGED))


def remove(path: Path, guard: Callable[[], object]) -> None:
    """Delete a file, if it is there.

    Raises:
        PaperbenchError: It cannot be deleted.
    """
    guard()
    with writing(path):
        path.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Report an OSError within as a file that cannot be written.

    Raises:
        PaperbenchError: There was one.
    """
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from error


def _sync_folder(folder: Path) -> None:
    """Make a renaming survive a power cut, where the system lets folders be synced."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            with suppress(OSError):  # some network file systems do not offer it
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


def unwritable(path: Path, error: OSError) -> PaperbenchError:
    """What to tell a user whose file cannot be written."""
    advice = "Make room or choose" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "Choose"
    return PaperbenchError(
        f"{path} cannot be written: {error.strerror or error}. {advice} another folder (`--results DIR`), and give the "
        "same command again."
    )
