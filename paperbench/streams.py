"""The standard streams of a command: untrusted text cannot control the terminal, nor a broken one end a training."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any, TextIO, cast

from paperbench.errors import printable


class Stream:
    """A text stream that escapes unprintable characters.

    Args:
        is_vital: Whether `flush` raises the first error, unless the reader has closed the pipe. Other errors are
            dropped, and what cannot be written is lost: a closed terminal must not end a training.
    """

    def __init__(self, stream: TextIO | None, is_vital: bool = False) -> None:
        self._stream, self._is_vital = stream or _null_device(), is_vital
        self._error: OSError | None = None

    def write(self, text: str) -> int:
        line = text.removeprefix("\r")  # with which tqdm rewrites its line
        self._try(self._stream.write, text[: len(text) - len(line)] + printable(line))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)
        if self._error and self._is_vital:
            self._is_vital = False
            raise self._error

    def isatty(self) -> bool:
        with suppress(OSError, ValueError, AttributeError):
            return self._stream.isatty()
        return False

    def _try(self, action: Callable[..., object], *arguments: str) -> None:
        try:
            action(*arguments)
        except (BrokenPipeError, ValueError):  # ValueError: it is closed
            pass
        except OSError as error:
            self._error = OSError(error.errno, error.strerror, "standard output")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def standard_streams() -> Iterator[None]:
    """Let a command print through a `Stream`: on stdout, which is vital, and on stderr.

    Streams that the caller has closed are the null device: otherwise the next file would get the number 1 or 2, and
    messages with it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # opens the lowest free number
    streams: list[Any] = [sys.stdout, sys.stderr]
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            with suppress(ValueError):  # it is closed
                stream.reconfigure(errors="backslashreplace")  # the terminal's encoding may lack a character
    out, err = Stream(streams[0], is_vital=True), Stream(streams[1])
    try:
        with redirect_stdout(cast(TextIO, out)), redirect_stderr(cast(TextIO, err)):
            yield
    finally:
        for stream in filter(None, streams):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                # It was reported above; at its end, Python would report it again, and exit with 120.
                if stream in (sys.__stdout__, sys.__stderr__):
                    with suppress(OSError, ValueError):
                        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _null_device() -> TextIO:
    return open(os.devnull, "w")
