from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TextIO, cast

import pytest

from paperbench.streams import Count, Stream, standard_streams, watched, wrapped


class Full(io.StringIO):
    """A full disk that has space again later."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = True

    def write(self, text: str) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


def test_stream_escapes_all_but_the_carriage_return_of_a_bar() -> None:
    written = io.StringIO()
    stream = Stream(written)
    for text in ("\r 3/6 [2J", "\rx\ry\n", "a\x1b[2J\u202eb\tc\n"):
        assert stream.write(text) == len(text)
    assert written.getvalue() == "\r 3/6 [2J\rx\\ry\na\\x1b[2J\\u202eb\tc\n"


def test_stream_has_the_attributes_of_the_stream_below() -> None:
    below = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    stream = Stream(cast(TextIO, below))
    assert (stream.encoding, stream.buffer, stream.isatty()) == ("latin-1", below.buffer, False)
    with pytest.raises(io.UnsupportedOperation):
        stream.fileno()


def test_vital_stream_raises_its_first_error_once() -> None:
    stream = Stream(Full(), is_vital=True)
    stream.write("a")
    with pytest.raises(OSError, match="No space left on device: 'standard output'"):
        stream.flush()
    stream.write("b")
    stream.flush()


def test_other_stream_drops_only_what_it_cannot_write() -> None:
    below = Full()
    stream = Stream(below)
    stream.write("lost")
    stream.flush()
    below.is_full = False
    stream.write("kept")
    assert below.getvalue() == "kept"


@pytest.mark.parametrize(
    ("is_terminal", "shown"),
    [
        (False, "packing: 3 of 9 images, about 18 seconds left\npacking: 5 of 9 images, about 12 seconds left\n"),
        (
            True,
            "\rpacking: 2 of 9 images, about 21 seconds left"
            "\rpacking: 3 of 9 images, about 18 seconds left"
            "\rpacking: 4 of 9 images, about 15 seconds left"
            "\rpacking: 5 of 9 images, about 12 seconds left"
            f"\r{' ' * 45}\r",
        ),
    ],
)
def test_progress_is_told_ever_more_rarely_or_in_one_line(is_terminal: bool, shown: str) -> None:
    class Output(io.StringIO):
        def isatty(self) -> bool:
            return is_terminal

    stream, now = Output(), [0.0]
    for _ in watched(range(4), stream, "packing", "images", done=1, total=9, clock=lambda: now[0]):
        now[0] += 3.0
    assert stream.getvalue() == shown


def test_long_count_is_told_after_as_much_time_again_up_to_five_minutes() -> None:
    now = iter(range(1_000))
    count = Count("pass", "images", clock=lambda: next(now))
    assert [second for second in range(1, 1_000) if count.is_due()] == [5, 10, 20, 40, 80, 160, 320, 620, 920]


def test_commands_and_words_are_not_broken() -> None:
    text = wrapped("run `paperbench compare table2 --long` in a-directory/with_a_very_long_name", 20, "  ")
    assert text.splitlines() == [
        "run",
        "  `paperbench compare table2 --long`",
        "  in",
        "  a-directory/with_a_very_long_name",
    ]


def test_standard_streams_are_restored(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    with suppress(SystemExit), standard_streams():
        print("a\x1b")
        print("b\x1b", file=sys.stderr)
        raise SystemExit(0)
    assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr() == ("a\\x1b\n", "b\\x1b\n")


def test_stream_that_is_closed_detached_or_missing_takes_everything() -> None:
    closed, detached = io.StringIO(), io.TextIOWrapper(io.BytesIO())
    closed.close()
    detached.detach()
    for stream in (closed, detached, None):
        with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream), standard_streams():
            print("lost", flush=True)
            print("lost", file=sys.stderr, flush=True)
    assert not Stream(None).isatty()


def test_stream_of_a_caller_stays_its_own_if_it_is_full() -> None:
    """Only the interpreter's own streams become the null device, since they are flushed once more at its end."""
    with open("/dev/full", "w") as full, contextlib.redirect_stdout(full):
        with pytest.raises(OSError, match="No space left"), standard_streams():
            print("too much", flush=True)
        assert Path(f"/proc/self/fd/{full.fileno()}").readlink() == Path("/dev/full")
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())
