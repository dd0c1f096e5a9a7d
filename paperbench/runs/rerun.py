"""Retrain the first iterations of a recorded run, and compare the numbers with the record."""

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
"""Maximum number of history lines that a rerun covers, to keep it short."""

TOLERANCE = 0.02
"""Allowed relative difference of a training loss (mean over a history line) on other hardware or libraries."""


@dataclass(frozen=True)
class Rerun:
    """The outcome of retraining the first iterations of a run.

    Attributes:
        iterations: Number of retrained iterations.
        is_same_machine: Whether CPU, threads, torch and the engine's arithmetic are as recorded, so that the numbers
            must be bit-identical.
        is_identical: Whether every loss and error is bit-identical to the record.
        deviation: Largest relative difference of a training loss.
    """

    run: str
    iterations: int
    is_same_machine: bool
    is_identical: bool
    deviation: float

    @property
    def holds(self) -> bool:
        """Whether the rerun agrees with the record."""
        return self.is_identical or (not self.is_same_machine and self.deviation <= TOLERANCE)


class NotRepeatableError(RunError):
    """A run that cannot be rerun here; this does not cast doubt on its record."""


def rerun_prefix(
    record: Record,
    history: Sequence[HistoryLine],
    dataset: ImageDataset,
    device: torch.device,
    random_state: random.Random,
) -> Rerun:
    """Retrain a run up to a random one of its first history lines, and compare.

    Args:
        record: The run's record.
        history: The run's history.
        dataset: The data set that the run was trained on.
        device: Where to train.
        random_state: Chooses the line.

    Raises:
        NotRepeatableError: The first session logged no line, or this code has another numerics version.
        PaperbenchError: The device does not support the run's precision.
    """
    first, recorded = record.sessions[0], record.sessions[0].environment
    if first.code.numerics != NUMERICS_VERSION:
        raise NotRepeatableError(f"it has numerics version {first.code.numerics}, and this is {NUMERICS_VERSION}.")
    lines = [line for line in history[:MAX_LINES] if line.iteration <= first.last]
    if not lines:
        raise NotRepeatableError("its first session logged no history line.")
    del lines[random_state.randint(1, len(lines)) :]
    net, recipe = net_and_recipe(record.spec)
    precision = choose_precision(record.spec.precision, device)
    with _use_threads(recorded.threads if device.type == "cpu" else None):
        current = environment_facts(device)
        engine = _engine_like(first.engine, device)
        computes_alike = first.engine == engine or {first.engine, engine} <= BIT_EQUAL
        is_same = (
            device.type == "cpu"
            and computes_alike
            and (current.torch, current.device) == (recorded.torch, recorded.device)
        )
        trainer = Trainer(net, recipe, dataset, record.seed, precision, device, engine=engine)
        pairs = list(zip(lines, _retrain(trainer, lines, len(dataset.x_train)), strict=True))
    return Rerun(
        run=record.run,
        iterations=lines[-1].iteration,
        is_same_machine=is_same,
        is_identical=all(line == again for line, again in pairs),
        deviation=max(_deviation(line.train_loss, again.train_loss) for line, again in pairs),
    )


def _engine_like(recorded: str, device: torch.device) -> EngineName:
    """Return the recorded engine if it is available on the device, otherwise "eager"."""
    for name, why_not in available_engines(device).items():
        if name == recorded and why_not is None:
            return name
    return "eager"


def _retrain(trainer: Trainer, lines: Sequence[HistoryLine], images: int) -> Iterator[HistoryLine]:
    """Train, and yield the same lines with new numbers but the recorded times."""
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
def _use_threads(number: int | None) -> Iterator[None]:
    """Use as many CPU threads as the recorded run, since the rounding of sums depends on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
