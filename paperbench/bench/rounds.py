"""Rounds in which variants take turns, so that whatever slows the machine slows them all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol


class Runner(Protocol):
    """A variant that can be stepped."""

    def begin(self) -> None:
        """Set torch's switches and make untimed steps: after it the variant runs as if it had never paused."""

    def step(self) -> None:
        """One training step; it may still be under way on the device on return."""

    def wait(self) -> None:
        """Wait for the device."""

    def end(self) -> None:
        """Let whatever goes on in the background come to rest, before another variant is timed."""


@dataclass
class Slot:
    """A variant's turn in every round.

    Attributes:
        runner: What is timed.
        steps: How many.
        seconds: Time of each round so far.
        error: What ended it, if something did; it has no more turns then.
    """

    runner: Runner
    steps: int
    seconds: list[float] = field(default_factory=list)
    error: Exception | None = None


def timed(runner: Runner, steps: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds that so many steps take, the device's work included."""
    runner.begin()
    runner.wait()
    start = clock()
    for _ in range(steps):
        runner.step()
    runner.wait()
    seconds = clock() - start
    runner.end()
    return seconds


def steps_for(seconds: float, step_seconds: float, least: int) -> int:
    """Steps that fill a round of so many seconds, but not fewer than `least`."""
    return max(least, math.ceil(seconds / step_seconds))


def interleave(
    slots: Sequence[Slot],
    rounds: int,
    *,
    report: Callable[[int], None],
    is_late: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Give every slot a turn in every round; each round begins one slot later than the one before.

    Args:
        slots: Get a value in `seconds` for each round; one that raises gets an `error` instead and no more turns.
        rounds: How many.
        report: Called after each round with its number, from 1.
        is_late: Whether to stop after the present round.
        clock: Returns seconds.
    """
    for number in range(rounds):
        for turn in range(len(slots)):
            slot = slots[(number + turn) % len(slots)]
            if slot.error is not None:
                continue
            try:
                slot.seconds.append(timed(slot.runner, slot.steps, clock))
            except Exception as error:  # a lack of memory, or an engine that breaks: the others go on
                slot.error = error.with_traceback(None)  # whose frames would keep what they hold in memory
        report(number + 1)
        if is_late():
            return
