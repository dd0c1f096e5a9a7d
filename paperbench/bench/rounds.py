"""Variants that are ready to be timed, and rounds in which they take turns, so that all are slowed by the same."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from paperbench.bench.machine import current_flags, set_flags
from paperbench.bench.plain_loop import PREFETCH, WORKERS, Batch, PlainLoop, endless, loader, plain_flags
from paperbench.bench.setup import Training, wait_for
from paperbench.bench.soundness import FirstSteps, first_steps
from paperbench.errors import PaperbenchError
from paperbench.models import ResidualNet
from paperbench.training.precision import set_arithmetic

SETTLING_SECONDS = 0.5
"""Untimed steps that empty a DataLoader's queue end here: if they take longer, the queue is full in every step."""

REST_SECONDS = 0.25
"""Time for a DataLoader's workers to fill their queues, which is all that they do while others are timed."""


class Runner:
    """A variant that can be stepped.

    Attributes:
        device: Where.
        first_steps: What it did in its warm-up; None of a plain loop, which reads other batches.
        construction_seconds, first_step_seconds, flags: See `figures.VariantFigures`.
    """

    device: torch.device
    first_steps: FirstSteps | None = None
    construction_seconds: float
    first_step_seconds: float

    def begin(self) -> None:
        """Set torch's switches and make untimed steps: after it the variant runs as if it had never paused."""
        raise NotImplementedError

    def step(self) -> None:
        """One training step; it may still be under way on the device on return."""
        raise NotImplementedError

    def wait(self) -> None:
        """Wait for the device."""
        wait_for(self.device)

    def end(self) -> None:
        """Let whatever goes on in the background come to rest, before another variant is timed."""

    def close(self) -> None:
        """End what works in the background."""


class OurRunner(Runner):
    """Our trainer, stepped as a run steps it: nothing is read back within a round.

    Args:
        steps: Of the warm-up, which are to be compared.
    """

    def __init__(self, training: Training, engine: str, precision: str, steps: int) -> None:
        self.device, self._precision = training.device, precision
        start = time.perf_counter()
        self._trainer = training.trainer(engine, precision)
        self.wait()
        self.construction_seconds = time.perf_counter() - start
        self.first_steps = first_steps(self._trainer, steps)
        self.first_step_seconds = self.first_steps.seconds
        self.flags = current_flags()
        self._trainer.begin_window()

    def begin(self) -> None:
        set_arithmetic(self._precision)
        self.step()

    def step(self) -> None:
        if self._trainer.iteration == self._trainer.recipe.iterations:
            self._trainer.iteration = 0  # a captured step knows no more batches, so they come again
        self._trainer.step()


class PlainRunner(Runner):
    """A plain loop.

    Args:
        batches: On the device; None to let a DataLoader make them of the data set.
        warm_up: Untimed steps beyond the first.
    """

    def __init__(self, training: Training, precision: str, batches: list[Batch] | None, warm_up: int) -> None:
        self.device, self._flags = (device := training.device), plain_flags(precision)
        recipe = training.recipe
        self._queue = WORKERS[device.type] * PREFETCH if batches is None else 0
        start = time.perf_counter()
        set_flags(self._flags)
        self._batches = endless(batches or loader(training.dataset, recipe.batch_size, device), device)
        self._loop = PlainLoop(ResidualNet(training.net).to(device), self._batches, precision, rate=recipe.rate_at(0))
        self.wait()
        built = time.perf_counter()
        self.step()
        self.wait()
        self.construction_seconds, self.first_step_seconds = built - start, time.perf_counter() - built
        self.flags = current_flags()
        for _ in range(warm_up):
            self.step()

    def begin(self) -> None:
        set_flags(self._flags)
        start = time.perf_counter()
        for _ in range(self._queue + 1):
            self.step()
            if time.perf_counter() - start > SETTLING_SECONDS:
                break

    def step(self) -> None:
        loss = self._loop.step()
        if not loss < float("inf"):
            raise PaperbenchError(f"its loss is {loss}, so its step is not that of a training")

    def end(self) -> None:
        if self._queue:
            time.sleep(REST_SECONDS)

    def close(self) -> None:
        self._batches.close()


@dataclass
class Slot:
    """A variant's turn in every round.

    Attributes:
        steps: How many are timed per round.
        seconds: Time of each round so far.
        error: What ended it; it has no more turns then.
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


def steps_for(seconds: float, step_seconds: float, at_least: int) -> int:
    """Steps that fill a round of so many seconds."""
    return max(at_least, math.ceil(seconds / step_seconds))


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
