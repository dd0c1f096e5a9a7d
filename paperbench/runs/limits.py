"""When to stop before the end: an iteration, a time, or a signal. A run that stops so can be continued."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType


class Interrupted(Exception):  # noqa: N818  (no error: the user's wish)
    """A signal asked for the end in the middle of a test."""


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
        is_late = self.max_seconds is not None and time.monotonic() - self._started >= self.max_seconds
        return is_late or self.signal is not None

    def raise_if_signalled(self) -> None:
        """Break off what would take longer than a signal should wait.

        Raises:
            Interrupted: A signal has asked for the end.
        """
        if self.signal is not None:
            raise Interrupted


@contextmanager
def stopping_on_signals(limits: Limits) -> Iterator[None]:
    """Let signals end the training after the current iteration; a second one ends it at once.

    They are those of Ctrl-C, of `kill` and batch systems, and of a terminal that is closed.
    """

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if limits.signal is not None:
            raise SystemExit(128 + number)
        limits.signal = number
        with suppress(OSError):  # nobody may be reading any more
            os.write(2, b"\npaperbench: stopping; a second signal ends at once, back to the last checkpoint\n")

    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    previous = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
