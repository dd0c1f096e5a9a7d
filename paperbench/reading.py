"""Files that others wrote, read within limits."""

from __future__ import annotations

import errno
import re
import stat
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
