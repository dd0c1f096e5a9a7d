"""Files that are either the old ones or the new ones, whatever happens in between."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from paperbench.errors import PaperbenchError

TEMPORARY = ".tmp"
"""Ending of files that are not complete yet; what a killed process left under such a name is rubbish."""


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Replace a file by what `write` puts into a stream, once that is safely on disk.

    Raises:
        PaperbenchError: The disk is full or the folder cannot be written; the old file is untouched.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        try:
            with open(temporary, "wb") as stream:
                write(stream)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
            _sync_folder(path.parent)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(path, error) from error


def _sync_folder(folder: Path) -> None:
    """Make a renaming last through a power cut, where the system lets folders be synced."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def unwritable(path: Path, error: OSError) -> PaperbenchError:
    """What to tell a user whose file cannot be written."""
    return PaperbenchError(
        f"{path} cannot be written: {error.strerror or error}. Make room or choose another folder (`--results DIR`), "
        "and give the same command again."
    )
