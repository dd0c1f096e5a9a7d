"""How long one operation takes.

On a GPU many calls are captured as one CUDA graph and its replays timed by events: the host's launches would decide
otherwise. Calls take turns over several sets of inputs, and their outputs are kept for as many calls, so that together
they do not fit the second-level cache: what is measured is a value that comes from memory, as a saved activation does.
In a step, a value that was written a moment before can come from the cache, which is faster.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

Body = Callable[[], object]

MOST_SETS = 64
"""Sets of inputs that calls take turns over, at most."""

MOST_CALLS = 1000
"""Calls in one sample, at most."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one call.

    Attributes:
        seconds: Median over samples.
        low, high: Fastest and slowest sample.
    """

    seconds: float
    low: float
    high: float

    def row(self) -> dict[str, float]:
        """In microseconds, under the names that rows have."""
        return {
            "microseconds": 1e6 * self.seconds,
            "low_microseconds": 1e6 * self.low,
            "high_microseconds": 1e6 * self.high,
        }


class Timer(Protocol):
    """Times bodies that do the same work on different inputs."""

    def time(self, bodies: Sequence[Body]) -> Timing:
        """Time of one call; each body is called once or more beforehand."""

    def sets(self, bytes_each: float) -> int:
        """Over how many sets of inputs and outputs of so many bytes calls should take turns."""


def _summary(samples: Sequence[float], calls: int) -> Timing:
    per_call = [seconds / calls for seconds in samples]
    return Timing(statistics.median(per_call), min(per_call), max(per_call))


def calls_for(sample_seconds: float, call_seconds: float, bodies: int) -> int:
    """Calls that fill a sample: a multiple of the number of bodies where that is not too many."""
    wanted = max(1, math.ceil(sample_seconds / max(call_seconds, 1e-9)))
    return min(math.ceil(wanted / bodies) * bodies, max(MOST_CALLS, bodies))


class WallTimer:
    """By the clock on the wall; for CPUs, where a call has ended when it returns.

    Args:
        sample_seconds: Length of a sample.
        samples: How many.
        clock: Seconds.
    """

    def __init__(self, sample_seconds: float, samples: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._sample_seconds, self._samples, self._clock = sample_seconds, samples, clock

    def time(self, bodies: Sequence[Body]) -> Timing:
        for body in bodies:
            body()
        first = self._sample(bodies, len(bodies)) / len(bodies)
        calls = calls_for(self._sample_seconds, first, len(bodies))
        return _summary([self._sample(bodies, calls) for _ in range(self._samples)], calls)

    def sets(self, bytes_each: float) -> int:
        return max(1, min(4, math.ceil(2**26 / max(bytes_each, 1.0))))

    def _sample(self, bodies: Sequence[Body], calls: int) -> float:
        start = self._clock()
        for call in range(calls):
            bodies[call % len(bodies)]()
        return self._clock() - start


class GraphTimer:
    """By CUDA events around replays of a graph of many calls.

    Args:
        device: The GPU.
        sample_seconds: Length of a replay.
        samples: How many are timed.
    """

    WARM_UPS = 2

    def __init__(self, device: torch.device, sample_seconds: float, samples: int) -> None:
        self._device, self._sample_seconds, self._samples = device, sample_seconds, samples
        # One stream for warm-up and capture: cuBLAS and cuDNN keep workspaces by stream.
        self._stream = torch.cuda.Stream(device)
        properties = torch.cuda.get_device_properties(device)
        self._cache_bytes = getattr(properties, "L2_cache_size", 0) or 2**26

    def time(self, bodies: Sequence[Body]) -> Timing:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for body in bodies:  # plans are made, kernels are loaded and compiled here
                body()
            first = self._elapsed(lambda: [body() for body in bodies]) / len(bodies)
        torch.cuda.synchronize(self._device)
        calls = calls_for(self._sample_seconds, first, len(bodies))
        graph = torch.cuda.CUDAGraph()
        kept: list[object] = [None] * len(bodies)
        with torch.cuda.graph(graph, stream=self._stream):
            for call in range(calls):
                kept[call % len(bodies)] = bodies[call % len(bodies)]()
        try:
            for _ in range(self.WARM_UPS):
                graph.replay()
            # Each is timed while one before it still runs, or the launch of the graph would be part of its time.
            return _summary([self._elapsed(graph.replay, graph.replay) for _ in range(self._samples)], calls)
        finally:
            torch.cuda.synchronize(self._device)
            kept.clear()
            graph.reset()

    def sets(self, bytes_each: float) -> int:
        return max(2, min(MOST_SETS, math.ceil(2 * self._cache_bytes / max(bytes_each, 1.0))))

    def _elapsed(self, work: Callable[[], object], before: Callable[[], object] = lambda: None) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before()
        start.record()
        work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000


def free_memory(device: torch.device) -> None:
    """Give back what nobody holds any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def is_usable(device: torch.device) -> bool:
    """Whether the device still computes. After some errors CUDA refuses everything until the process ends."""
    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True


def wait_for(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
