"""What a command prints through: streams that no untrusted text controls and no failure breaks, and its progress."""

from __future__ import annotations

import io
import math
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from functools import partial
from typing import Any, TextIO, TypeVar, cast

from paperbench.errors import duration, one_line, printable

MIN_WIDTH = 40
"""Width in characters below which nothing is fitted to the terminal."""
SECONDS_TO_FIRST, MOST_SECONDS_BETWEEN = 5.0, 300.0
"""Before a count is told in a line of its own; between two such lines, which become ever rarer."""
_SECONDS_BETWEEN_CHANGES = 0.1

T = TypeVar("T")
Clock = Callable[[], float]
"""Returns seconds, such as `time.monotonic`."""


class Stream:
    """A text stream that escapes unprintable characters.

    Args:
        is_vital: Whether `flush` raises the first error, unless the reader has closed the pipe. Other errors are
            dropped, and what cannot be written is lost: a closed terminal must not end a training.
    """

    def __init__(self, stream: TextIO | None, is_vital: bool = False) -> None:
        self._stream = stream or open(os.devnull, "w")  # noqa: SIM115  (stays open)
        self._is_vital = is_vital
        self._error: OSError | None = None

    def write(self, text: str) -> int:
        line = text.removeprefix("\r")  # with which `StatusLine` rewrites its line
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


class StatusLine:
    """The last line of a terminal, which is rewritten, below lines that remain; elsewhere there are only those."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        self._stream, self._clock = Stream(stream), clock
        self.is_terminal = self._stream.isatty()
        self._shown, self._changed = "", -math.inf

    @property
    def _width(self) -> int:
        """One less than the terminal has, as a full line would make some terminals start another; it may change."""
        columns = 0
        with suppress(OSError, ValueError):
            columns = os.get_terminal_size(self._stream.fileno()).columns
        return max(MIN_WIDTH, columns or shutil.get_terminal_size().columns) - 1

    def show(self, facts: Callable[[], Iterable[str]], now: bool = True) -> None:
        """Rewrite the line with the facts that fit, from the first on; unless `now`, only if a moment has passed."""
        if not self.is_terminal or (not now and self._clock() - self._changed < _SECONDS_BETWEEN_CHANGES):
            return
        width, text = self._width, ""
        for fact in facts():
            longer = f"{text}, {fact}" if text else fact
            text = longer if len(longer) <= width else text
        self._rewrite(text)
        self._changed = self._clock()

    def say(self, text: str) -> None:
        """Print a text in lines of its own; on a terminal they fit its width."""
        self.clear()
        text = one_line(text)
        self._stream.write(f"{wrapped(text, self._width, '    ') if self.is_terminal else text}\n")
        self._stream.flush()

    def clear(self) -> None:
        if self._shown:
            self._rewrite("")
            self._stream.write("\r")

    def _rewrite(self, text: str) -> None:
        self._stream.write(f"\r{text.ljust(len(self._shown))}")
        self._stream.flush()
        self._shown = text


class Count:
    """How far a count is and how much time it has left, to be told now and then.

    Args:
        done: The number at first.
        total: The number in the end, if it is known.
    """

    def __init__(
        self, what: str, unit: str, *, done: int = 0, total: int | None = None, clock: Clock = time.monotonic
    ) -> None:
        self._what, self._unit, self._first, self._total, self._clock = what, unit, done, total, clock
        self._began, self._next = clock(), SECONDS_TO_FIRST

    def is_due(self) -> bool:
        """Whether to tell it in a line of its own: after some seconds, then after as much time again."""
        seconds = self._clock() - self._began
        is_due = seconds >= self._next
        if is_due:
            self._next = seconds + min(seconds, MOST_SECONDS_BETWEEN)
        return is_due

    def tell(self, say: Callable[[str], None], done: int) -> None:
        if self.is_due():
            say(", ".join(self.facts(done)))

    def facts(self, done: int) -> list[str]:
        if self._total is None:
            return [f"{self._what}: {done:,} {self._unit}"]
        seconds_each = (self._clock() - self._began) / max(1, done - self._first)
        left = duration(seconds_each * max(0, self._total - done))
        return [f"{self._what}: {done:,} of {self._total:,} {self._unit}", f"about {left} left"]


def watched(
    items: Iterable[T],
    stream: TextIO,
    what: str,
    unit: str,
    amount: Callable[[T], int] = lambda _: 1,
    *,
    done: int = 0,
    total: int | None = None,
    clock: Clock = time.monotonic,
) -> Iterator[T]:
    """Yield items and show their number, see `Count`; `amount` is what an item adds to it."""
    line, counted = StatusLine(stream, clock), Count(what, unit, done=done, total=total, clock=clock)
    try:
        for item in items:
            yield item
            done += amount(item)
            line.show(partial(counted.facts, done), now=False)
            if not line.is_terminal:
                counted.tell(line.say, done)
    finally:
        line.clear()


def wrapped(text: str, width: int, indent: str = "") -> str:
    """Wrap prose, but neither words nor the commands in it, so that they can be copied."""
    whole = re.sub("`[^`]*`", lambda command: command[0].replace(" ", "\0"), text)
    lines = textwrap.fill(whole, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
    return lines.replace("\0", " ")


@contextmanager
def standard_streams() -> Iterator[None]:
    """Let a command print through a `Stream`: on stdout, which is vital, and on stderr."""
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
