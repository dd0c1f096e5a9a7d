"""Variants that are built, warmed up, and ready to be timed."""

from __future__ import annotations

import gc
import time
from dataclasses import asdict

import torch

from paperbench.bench.flags import Flags
from paperbench.bench.plain_loop import Feed, PlainLoop, plain_flags
from paperbench.bench.trajectory import Beginning, first_steps, next_loss
from paperbench.catalogue import Net
from paperbench.data.dataset import ImageDataset
from paperbench.errors import PaperbenchError
from paperbench.models import ResidualNet
from paperbench.specs.recipe import Recipe
from paperbench.training.precision import set_arithmetic
from paperbench.training.trainer import Trainer

SETTLING_SECONDS = 0.5
"""Untimed steps that empty a DataLoader's queue end here: if they take longer, the queue is full in every step."""

REST_SECONDS = 0.25
"""Time for a DataLoader's workers to fill their queues, which is all that they do while others are timed."""

PLAIN_WARM_UP_ON_A_CPU = 1
"""Steps of a plain loop beyond its first. On a GPU it makes as many as ours, so that cuDNN has chosen."""


def wait_for(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free_memory(device: torch.device) -> None:
    """Give back what nobody holds any more. CUDA graphs cannot use what the allocator keeps for others."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def new_trainer(
    net: Net, recipe: Recipe, dataset: ImageDataset, engine: str, precision: str, device: torch.device
) -> Trainer:
    """Our trainer, always from the same seed."""
    return Trainer(net, recipe, dataset, 0, precision, device, engine=engine)  # type: ignore[arg-type]


class OurRunner:
    """Our trainer, stepped as a run steps it: nothing is read back within a round.

    Args:
        steps: Of the warm-up, which are to be compared.

    Attributes:
        beginning: What these did.
        construction_seconds, first_step_seconds: See `figures.VariantFigures`.
        flags: torch's switches as read back while it ran.
    """

    def __init__(
        self,
        net: Net,
        recipe: Recipe,
        dataset: ImageDataset,
        engine: str,
        precision: str,
        device: torch.device,
        steps: int,
    ) -> None:
        self._precision, self._device = precision, device
        start = time.perf_counter()
        self._trainer = new_trainer(net, recipe, dataset, engine, precision, device)
        wait_for(device)
        self.construction_seconds = time.perf_counter() - start
        self.beginning: Beginning = first_steps(self._trainer, steps, self._first_step)
        self._trainer.begin_window()

    def _first_step(self) -> float:
        start = time.perf_counter()
        loss = next_loss(self._trainer, self.wait)
        self.first_step_seconds = time.perf_counter() - start
        self.flags = asdict(Flags.now())
        return loss

    def begin(self) -> None:
        set_arithmetic(self._precision)
        self.step()

    def step(self) -> None:
        if self._trainer.iteration == self._trainer.recipe.iterations:
            self._trainer.iteration = 0  # a captured step knows no more batches, so they come again
        self._trainer.step()

    def wait(self) -> None:
        wait_for(self._device)

    def end(self) -> None:
        """Nothing of it goes on in the background."""

    def close(self) -> None:
        """There is nothing to end."""


class PlainRunner:
    """A plain loop.

    Args:
        steps: Untimed ones beyond its first, on a GPU.

    Attributes:
        construction_seconds, first_step_seconds: See `figures.VariantFigures`.
        flags: torch's switches as read back while it ran.
        beginning: None: it is no engine of ours, and its batches are others.
    """

    beginning = None

    def __init__(self, net: Net, recipe: Recipe, feed: Feed, precision: str, device: torch.device, steps: int) -> None:
        self._feed, self._device, self._flags = feed, device, plain_flags(precision)
        start = time.perf_counter()
        self._flags.set()
        self._loop = PlainLoop(ResidualNet(net).to(device), feed, precision, device, rate=recipe.rate_at(0))
        wait_for(device)
        built = time.perf_counter()
        self.step()
        self.wait()
        self.construction_seconds, self.first_step_seconds = built - start, time.perf_counter() - built
        self.flags = asdict(Flags.now())
        for _ in range(steps if device.type == "cuda" else PLAIN_WARM_UP_ON_A_CPU):
            self.step()

    def begin(self) -> None:
        self._flags.set()
        start = time.perf_counter()
        for _ in range(self._feed.queue + 1):
            self.step()
            if time.perf_counter() - start > SETTLING_SECONDS:
                break

    def step(self) -> None:
        loss = self._loop.step()
        if not loss < float("inf"):
            raise PaperbenchError(f"its loss is {loss}, so its step is not that of a training")

    def wait(self) -> None:
        wait_for(self._device)

    def end(self) -> None:
        if self._feed.queue:
            time.sleep(REST_SECONDS)

    def close(self) -> None:
        self._feed.close()
