"""Reasons to stop before the end: an iteration, a time limit, or a signal. A stopped run can be resumed."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

from paperbench.errors import Interrupted
from paperbench.streams import Clock

REPEAT_SECONDS = 1.0
"""A signal this soon after another repeats it: `timeout` sends two, and a signal to a whole cgroup also reaches the
workers, to whom their executor passes it on."""


@dataclass
class Limits:
    """When a command stops early.

    Attributes:
        stop_at: Iteration at which every run pauses.
        max_seconds: Time limit for training, in seconds since this object was created.
        signal: Number of the first signal received, if any.
    """

    stop_at: int | None = None
    max_seconds: float | None = None
    signal: int | None = None
    clock: Clock = time.monotonic
    _started: float = field(init=False)

    def __post_init__(self) -> None:
        self._started = self.clock()

    def last_iteration(self, iterations: int) -> int:
        """Return where a run of `iterations` iterations ends or pauses."""
        return iterations if self.stop_at is None else min(iterations, self.stop_at)

    @property
    def exhausted(self) -> bool:
        """Whether to stop training now: the time is up, or a signal arrived."""
        return self.seconds_left <= 0 or self.signal is not None

    @property
    def seconds_left(self) -> float:
        """Seconds until the time limit; infinite without one."""
        return math.inf if self.max_seconds is None else self._started + self.max_seconds - self.clock()

    def raise_if_signalled(self) -> None:
        """Raise `Interrupted` if a signal arrived, to abort a long computation."""
        if self.signal is not None:
            raise Interrupted


@contextmanager
def stopping_on_signals(
    limits: Limits,
    *,
    is_launched: bool = False,
    forward: Callable[[int], None] | None = None,
    clock: Clock = time.monotonic,
) -> Iterator[None]:
    """Let SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 stop training after the current iteration; a later one exits.

    Signals that the caller ignores stay ignored, such as SIGHUP under nohup.

    Args:
        is_launched: Whether a launcher or Slurm started this process. These repeat signals that it has already
            received, so a second one changes nothing; and they kill processes that take too long.
        forward: Called with every signal instead.
    """
    heeded_at = -math.inf

    def on_signal(number: int, _frame: FrameType | None) -> None:
        nonlocal heeded_at
        if clock() < heeded_at + REPEAT_SECONDS:
            return
        heeded_at = clock()
        if forward:
            forward(number)
            return
        if limits.signal is not None and not is_launched:
            raise SystemExit(128 + number)
        limits.signal = limits.signal or number
        if is_launched or sys.stderr is None:  # descriptor 2 may be any file
            return
        text = "stopping; a second signal exits at once and discards work since the last checkpoint"
        with suppress(OSError):  # the terminal may be closed
            os.write(2, f"\npaperbench: {text}\n".encode())

    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    heeded = [number for number in numbers if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    previous = {number: signal.signal(number, on_signal) for number in heeded}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
