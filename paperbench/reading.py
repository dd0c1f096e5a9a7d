"""Files that others wrote, read within limits."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from pathlib import Path

UNPRINTABLE = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\ud800-\\udfff]")
"""A character that a terminal would obey, or that no file can be written with."""


def read_at_most(path: Path, limit: int) -> bytes:
    """The content of a regular file, unless it is unreasonably large.

    A pipe would be waited for, and a device might never end.

    Raises:
        OSError: It cannot be read, is larger than `limit` bytes, or is a pipe or device.
    """
    check_size(path, limit)
    return path.read_bytes()


def read_end(path: Path, size: int) -> bytes:
    """The last bytes of a regular file that has more than `size`; as `read_at_most`.

    Raises:
        OSError: It cannot be read, is no larger, or is a pipe or device.
    """
    check_size(path, sys.maxsize)
    with open(path, "rb") as stream:
        stream.seek(-size - 1, os.SEEK_END)
        return stream.read()


def check_size(path: Path, limit: int) -> None:
    """What `read_at_most` asks before it reads.

    Raises:
        OSError: As there.
    """
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        return  # open() refuses it in the system's words
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no ordinary file", str(path))
    if status.st_size > limit:
        reason = f"its {status.st_size:,} bytes are more than the {limit:,} of any such file"
        raise OSError(errno.EFBIG, reason, str(path))
