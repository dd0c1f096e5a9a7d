"""Repeating the beginning of a recorded run, to see whether it trains the recorded numbers."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from paperbench.data.dataset import ImageDataset
from paperbench.errors import RunError
from paperbench.runs.environment import environment_facts
from paperbench.runs.history import HistoryLine
from paperbench.runs.planning import net_and_recipe
from paperbench.runs.record import Record
from paperbench.runs.session import history_line
from paperbench.training.engine import BIT_EQUAL, EngineName, available_engines
from paperbench.training.precision import choose_precision
from paperbench.training.trainer import NUMERICS_VERSION, Trainer

MAX_LINES = 3
"""Lines of history that a repetition covers at most: it is to be short."""

TOLERANCE = 0.02
"""Relative difference of a training loss, averaged over the iterations of a line, on other hardware or libraries."""


@dataclass(frozen=True)
class Rerun:
    """The first iterations of a run, trained again.

    Attributes:
        iterations: How many.
        is_same_machine: Whether CPU, threads, torch and the engine's arithmetic are those of the record: then every
            number must be the same.
        is_identical: Whether every loss and error was the recorded one, bit for bit.
        deviation: Largest relative difference of a training loss.
    """

    run: str
    iterations: int
    is_same_machine: bool
    is_identical: bool
    deviation: float

    @property
    def holds(self) -> bool:
        """Whether the record stands."""
        return self.is_identical or (not self.is_same_machine and self.deviation <= TOLERANCE)


class NotRepeatableError(RunError):
    """A run whose beginning cannot be repeated here, for a reason that says nothing against it."""


def rerun_prefix(
    record: Record,
    history: Sequence[HistoryLine],
    dataset: ImageDataset,
    device: torch.device,
    chance: random.Random,
) -> Rerun:
    """Train a run's first iterations again, up to one of its first lines of history, and compare.

    Args:
        history: The run's.
        dataset: What it was trained on.
        chance: Chooses the line.

    Raises:
        NotRepeatableError: There is no line within the first session, or the code has other numerics.
        PaperbenchError: The device lacks the run's precision.
    """
    first, there = record.sessions[0], record.sessions[0].environment
    if first.code.numerics != NUMERICS_VERSION:
        raise NotRepeatableError(f"it has numerics version {first.code.numerics}, and this is {NUMERICS_VERSION}.")
    lines = [line for line in history[:MAX_LINES] if line.iteration <= first.last]
    if not lines:
        raise NotRepeatableError("its first session wrote no line of history.")
    del lines[chance.randint(1, len(lines)) :]
    net, recipe = net_and_recipe(record.spec)
    precision = choose_precision(record.spec.precision, device)
    with _threads(there.threads if device.type == "cpu" else None):
        here = environment_facts(device)
        engine = _engine_like(first.engine, device)
        computes_alike = first.engine == engine or {first.engine, engine} <= BIT_EQUAL
        is_same = device.type == "cpu" and computes_alike and (here.torch, here.device) == (there.torch, there.device)
        trainer = Trainer(net, recipe, dataset, record.seed, precision, device, engine=engine)
        pairs = list(zip(lines, _repeat(trainer, lines, len(dataset.x_train)), strict=True))
    return Rerun(
        run=record.run,
        iterations=lines[-1].iteration,
        is_same_machine=is_same,
        is_identical=all(line == again for line, again in pairs),
        deviation=max(_deviation(line.train_loss, again.train_loss) for line, again in pairs),
    )


def _engine_like(recorded: str, device: torch.device) -> EngineName:
    """The engine of a record where the device has it, else the one that every device has."""
    for name, why_not in available_engines(device).items():
        if name == recorded and why_not is None:
            return name
    return "eager"


def _repeat(trainer: Trainer, lines: Sequence[HistoryLine], images: int) -> Iterator[HistoryLine]:
    """The same lines by a new training; times are left as they were."""
    for line in lines:
        while trainer.iteration < line.iteration:
            trainer.step()
        window = trainer.training_metrics()
        tested = trainer.test() if line.test_error is not None else None
        trainer.reset_training_metrics()
        yield history_line(trainer.recipe, images, line.iteration, window, tested, line.seconds)


def _deviation(recorded: float | None, repeated: float | None) -> float:
    if recorded is None or repeated is None:
        return 0.0 if recorded == repeated else math.inf
    return abs(repeated - recorded) / abs(recorded) if recorded else abs(repeated)


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Compute with as many threads as the record's machine did: sums depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
