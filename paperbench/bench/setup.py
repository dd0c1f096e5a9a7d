"""Net, recipe, images and trainers of a benchmark, and facts about the machine."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from itertools import chain, pairwise
from typing import Any

import numpy as np
import torch

from paperbench.bench.figures import Machine
from paperbench.catalogue import FAMILIES, Net, resolve
from paperbench.data.dataset import ImageDataset
from paperbench.errors import PaperbenchError
from paperbench.runs.environment import code_facts, environment_facts
from paperbench.specs.recipe import Recipe
from paperbench.specs.table import find_spec_root, read_table
from paperbench.training.precision import set_arithmetic
from paperbench.training.soundness import LEARNING_RATE
from paperbench.training.trainer import Trainer
from paperbench.training.turns import Place

IMAGE_SIZE, BANDS = 32, 2

IMAGES = {"cpu": 5_000, "cuda": 50_000}
"""Number of distinct training images; on a GPU too many for its caches."""

GPU_FACTS = "driver_version,compute_cap,memory.total,power.limit,clocks.max.sm,clocks.max.mem,clocks.sm,clocks.mem"


@dataclass(frozen=True)
class Training:
    """A net with all that is needed to train it."""

    name: str
    net: Net
    recipe: Recipe
    dataset: ImageDataset
    device: torch.device

    def trainer(self, engine: str, precision: str, **options: Any) -> Trainer:
        """Return our trainer at iteration 0, always with the same seed. `options` are further ones of `Trainer`."""
        return Trainer(self.net, self.recipe, self.dataset, 0, precision, self.device, engine, **options)


def bench_training(name: str, batch_size: int, device: torch.device) -> Training:
    """Return the training of a net, given its name, by the paper's recipe with this batch size and `LEARNING_RATE`.

    Batch norm uses the paper's groups if they divide the batch, else the whole batch.
    """
    net = resolve(name)
    if FAMILIES[net.family].size != IMAGE_SIZE:
        raise PaperbenchError(
            f"{name} takes photographs, and this measures nets for {IMAGE_SIZE} pixels. Leave it out. `paperbench "
            "plan table5` measures a step on photographs."
        )
    if batch_size < 2:
        raise PaperbenchError(
            f"Batch norm needs at least 2 images per batch, not {batch_size}. Choose a larger --batch-size."
        )
    table = read_table("table2", find_spec_root())
    recipe = table.recipe_in(table.profiles.named("paper"))
    group = recipe.batch_norm.group if batch_size % recipe.batch_norm.group == 0 else batch_size
    settings = replace(recipe.batch_norm, group=group)
    recipe = replace(recipe, batch_size=batch_size, batch_norm=settings, warm_up=None, learning_rate=LEARNING_RATE)
    return Training(name, net, recipe, random_images(max(IMAGES[device.type], batch_size), net.num_classes), device)


@cache
def random_images(count: int, classes: int, side: int = IMAGE_SIZE) -> ImageDataset:
    """Return a data set of random images: one quarter noise, three quarters two colour bands that depend on the class.

    The bands make the loss fall, so that it shows a wrong step; cropping and mirroring keep them. The noise avoids
    zeros, which multiply faster than other numbers.
    """
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 256, (classes, BANDS, 1, 3), dtype=np.uint8).repeat(side // BANDS, axis=1)
    labels = rng.integers(0, classes, count)
    images = rng.integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    images = images // 4 + patterns[labels] // 4 * 3
    key, test = "cifar100" if classes == 100 else "cifar10", (images[:classes], labels[:classes])
    return ImageDataset(key, "random images", "generated for a benchmark", images, labels, *test, canonical=False)


def machine_facts(device: torch.device) -> Machine:
    """Return the code, libraries and hardware that determine speed, without host name, paths or serial numbers."""
    code = code_facts()
    return Machine(
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        version=code.version,
        commit=code.commit,
        source=code.source,
        environment=environment_facts(device),
        gpu=_nvidia_smi(device) if device.type == "cuda" else None,
    )


def _nvidia_smi(device: torch.device) -> dict[str, str] | None:
    """Return the values of `GPU_FACTS` with units, or None if nvidia-smi fails."""
    identity = f"GPU-{torch.cuda.get_device_properties(device).uuid}"  # its index may differ from torch's
    command = ["nvidia-smi", f"--id={identity}", f"--query-gpu={GPU_FACTS}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    row = next((line for line in done.stdout.splitlines() if line.count(",") == GPU_FACTS.count(",")), "")  # no warning
    return dict(zip(GPU_FACTS.split(","), map(str.strip, row.split(",")), strict=True)) if row else None


class TrainerLoop:
    """Trainers, each built by `new` in a place of its own, that take turns; with the interface of `PlainLoop`."""

    def __init__(self, device: torch.device, new: Callable[[], Trainer]) -> None:
        self._device, self._new = device, new
        self.trainers: dict[Place, Trainer] = {}

    def grow(self, at_once: int) -> None:
        """Build trainers until there are so many."""
        while len(self.trainers) < at_once:
            place = Place(self._device, len(self.trainers))
            with place.entered():
                self.trainers[place] = self._new()

    def each(self, work: Callable[[Trainer], Any]) -> list[Any]:
        """Do something with each trainer, in its place."""
        results = []
        for place, trainer in self.trainers.items():
            with place.entered():
                results.append(work(trainer))
        return results

    def prepare(self) -> None:
        """Set torch's switches, and make an untimed step to warm the caches."""
        set_arithmetic(next(iter(self.trainers.values())).precision)
        self.step()

    def step(self) -> None:
        """Make a step of each training without waiting for the device."""
        self.each(step_endlessly)

    def pause(self) -> None:
        """Return at once: nothing runs in the background."""

    def close(self) -> None:
        """Free the trainers."""
        while self.trainers:
            self.trainers.popitem()[1].close()


def step_endlessly(trainer: Trainer) -> None:
    """Make a step, after the last iteration the first again: captured steps have no batches for others."""
    if trainer.iteration == trainer.recipe.iterations:
        trainer.iteration = 0
    trainer.step()


def equal_parameters(trainers: Iterable[Trainer]) -> bool:
    """Whether successive trainers have the same parameters, bit for bit, if they have made equally many steps."""
    pairs = ((one, other) for one, other in pairwise(trainers) if one.iteration == other.iteration)
    parameters = (zip(one.model.parameters(), other.model.parameters(), strict=True) for one, other in pairs)
    return all(torch.equal(ours, theirs) for ours, theirs in chain.from_iterable(parameters))
