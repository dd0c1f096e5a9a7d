"""Trainings that share a device: each has a place of its own there, and they take turns, a step each.

A step of a small net is thousands of short kernels, which leave most of a GPU idle. Those of several trainings, each on
its own CUDA stream, fill each other's gaps. No number depends on it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache

import torch

from paperbench.errors import Interrupted

_STREAMS = 28
"""torch gives out 32 different streams on a device, one after the other; some are left to others in the process."""


def most_at_once(groups: int) -> int:
    """Return how many trainings can have streams of their own on a GPU.

    Args:
        groups: Of how many batch-norm groups work side by side in a step, which then has a stream for each, beside one
            to launch it and one to capture it.
    """
    return _STREAMS // (2 + (groups if groups > 1 else 0))


class Place:
    """Where one training at a time computes: on a CUDA stream, and with the state of torch's random generators.

    Places with different numbers may be used in turn, or on a GPU at the same time.
    """

    def __init__(self, device: torch.device, number: int) -> None:
        self._stream = _stream(device, number)
        self._noise = torch.get_rng_state()
        self._generators = [torch.cuda.default_generators[device.index]] if self._stream else []
        self._gpu_noise = [one.clone_state() for one in self._generators]

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Inside the context, the training goes on here. Afterwards the random state of the CPU is its own."""
        before = [one.graphsafe_get_state() for one in self._generators]
        try:
            torch.set_rng_state(self._noise)
            self._set(self._gpu_noise)
            with torch.cuda.stream(self._stream) if self._stream else nullcontext():  # stream(None) would start CUDA
                yield
        finally:
            self._noise = torch.get_rng_state()
            self._gpu_noise = [one.graphsafe_get_state() for one in self._generators]
            self._set(before)

    def _set(self, states: list[torch.Generator]) -> None:
        """Set the states of a GPU themselves, not their numbers: a captured step keeps the state of its capture."""
        for generator, state in zip(self._generators, states, strict=True):
            generator.graphsafe_set_state(state)


@cache
def _stream(device: torch.device, number: int) -> torch.cuda.Stream | None:  # noqa: ARG001  (of the cache)
    """Return the stream of all places with a number, as torch soon gives out the same streams again."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None


def take_turns(trainings: Iterator[Generator[object, None, None] | None], device: torch.device, at_once: int) -> None:
    """Advance up to so many trainings at once, each by a step in turn. A free place takes the next training.

    An error of one is raised once the others have ended, as they do when they are interrupted.

    Args:
        trainings: Each yields after every step, and handles `Interrupted`. None: the next waits until another ends.
    """
    enter = [nullcontext] if at_once == 1 else [Place(device, number).entered for number in range(at_once)]
    active: dict[int, Generator[object, None, None]] = {}

    def advance(number: int) -> None:
        with enter[number]():
            try:
                next(active[number])
            except StopIteration:
                del active[number]

    try:
        while True:
            for number in range(at_once):
                while number not in active and (training := next(trainings, None)):
                    active[number] = training
                    advance(number)
            if not active:
                return
            before = len(active)
            while len(active) == before:
                for number in list(active):
                    advance(number)
    except Exception:
        for number, training in active.items():
            with enter[number](), suppress(Exception):  # another error has the same cause, such as a full disk
                training.throw(Interrupted())
        raise
    finally:  # also when the process is told to exit at once
        for training in active.values():
            training.close()
