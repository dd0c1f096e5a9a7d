"""When to stop before the end: an iteration, a time, or a signal. A run that stops so can be continued."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType


@dataclass
class Limits:
    """What ends a command early.

    Attributes:
        stop_at: Iteration at which every run pauses.
        max_seconds: Time that the command may train for, from its creation on.
        signal: Number of a signal that asked for the end, once one has.
    """

    stop_at: int | None = None
    max_seconds: float | None = None
    signal: int | None = None
    _started: float = field(default_factory=time.monotonic)

    def last_iteration(self, iterations: int) -> int:
        """Where a run of that many iterations ends or pauses."""
        return iterations if self.stop_at is None else min(iterations, self.stop_at)

    @property
    def exhausted(self) -> bool:
        """Whether to stop training now, whatever the iteration."""
        return self.signal is not None or self.seconds_left == 0

    @property
    def seconds_left(self) -> float | None:
        if self.max_seconds is None:
            return None
        return max(0.0, self.max_seconds - (time.monotonic() - self._started))


@contextmanager
def stopping_on_signals(limits: Limits) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the training after the current iteration; a second signal ends it at once."""

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if limits.signal is not None:
            raise SystemExit(128 + number)
        limits.signal = number
        os.write(2, b"\npaperbench: stopping; a second signal ends at once, back to the last checkpoint\n")

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
