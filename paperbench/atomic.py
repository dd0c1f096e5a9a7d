"""Files that are either the old ones or the new ones, whatever happens in between."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from paperbench.errors import PaperbenchError

TEMPORARY = ".tmp"
"""Ending of files that are not complete yet; what a killed process left under such a name is rubbish."""


def unguarded() -> None:
    """The guard of files that nobody else writes."""


def write_atomically(path: Path, data: bytes, guard: Callable[[], None] = unguarded) -> None:
    """Replace a file by new contents, once these are on disk and read back as they were written.

    Its folder is made if it is not there, or no longer.

    Args:
        guard: Called in the last moment before the replacement, and when that fails; may raise to prevent it.

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
        guard()  # whoever has taken over may have cleared the temporary file away: then that is what happened
        raise unwritable(path, error) from error


def sync(path: Path) -> None:
    """Make what was written to a file last through a power cut."""
    try:
        with open(path, "rb+") as stream:
            os.fsync(stream.fileno())
    except OSError as error:
        raise unwritable(path, error) from error


def _sync_folder(folder: Path) -> None:
    """Make a renaming last through a power cut, where the system lets folders be synced."""
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
