"""Times ways of doing something in interleaved rounds, so that a slowdown of the machine affects all of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

K = TypeVar("K")

Way = Callable[[int], float]
"""Does something so many times and returns the seconds that it took, the device's work included."""


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def stopwatch(work: Callable[[], object], device: torch.device) -> Way:
    """Return the way that calls a function."""

    def way(times: int) -> float:
        synchronize(device)
        start = time.perf_counter()
        for _ in range(times):
            work()
        synchronize(device)
        return time.perf_counter() - start

    return way


@dataclass(frozen=True)
class Rounds:
    """How ways of doing something are timed.

    Attributes:
        number: Of the rounds.
        seconds: Minimum length of a measurement.
        log: Prints a line of progress.
        deadline: Value of `time.monotonic()` after which no second or further round begins.
    """

    number: int
    seconds: float
    log: Callable[[str], None] = lambda _: None
    deadline: float = math.inf

    def of(self, name: str) -> Rounds:
        """Return the same rounds, with a name before each line of progress."""
        return replace(self, log=lambda line: self.log(f"{name}, {line}"))

    def race(self, ways: Mapping[K, Way], least: int = 1) -> dict[K, tuple[float, ...]]:
        """Return the seconds per time of each way in every round; each round begins with another way.

        Args:
            least: Number of times in a trial, and the least in a measurement.
        """
        times = {name: max(least, math.ceil(self.seconds * least / way(least))) for name, way in ways.items()}
        found: dict[K, tuple[float, ...]] = dict.fromkeys(ways, ())
        for number in range(self.number if ways else 0):
            first = number % len(ways)
            for name in [*ways][first:] + [*ways][:first]:
                found[name] += (ways[name](times[name]) / times[name],)
            self.log(f"round {number + 1} of {self.number}")
            if time.monotonic() > self.deadline:
                break
        return found
