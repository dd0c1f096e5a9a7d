"""Limits on the time and memory that reading a hostile input may take."""

from __future__ import annotations

import faulthandler
import resource
import signal
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn


@contextmanager
def limit_memory(megabytes: int = 50) -> Iterator[None]:
    """Fail the test if the body allocates more."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < megabytes * 2**20


class Hang(BaseException):
    """The body takes too long. No handler of errors catches it."""


@contextmanager
def limit_seconds(seconds: int = 60) -> Iterator[None]:
    """Fail the test if the body takes longer, even if it waits in a system call."""

    def give_up(*_: object) -> NoReturn:
        raise Hang

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    faulthandler.dump_traceback_later(2 * seconds, exit=True, file=sys.__stderr__)  # libraries repeat some system calls
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


@contextmanager
def limit_address_space(megabytes: int = 1_000) -> Iterator[None]:
    """Let the body map only so much more memory, whichever library asks for it; beyond that it fails."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + megabytes * 2**20, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextmanager
def limit_file_size(size: int) -> Iterator[None]:
    """Let no file that the body writes grow beyond so many bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
