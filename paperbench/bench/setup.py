"""What a benchmark trains: nets, recipe and images, and the engines and precisions that a device has."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch

from paperbench.catalogue import FAMILIES, Net, resolve
from paperbench.data.dataset import ImageDataset
from paperbench.errors import PaperbenchError, nearest
from paperbench.specs.locate import spec_root
from paperbench.specs.recipe import Recipe
from paperbench.specs.table import load_table
from paperbench.training.choice import available_engines
from paperbench.training.engine import EngineName
from paperbench.training.precision import PRECISIONS, choose_precision
from paperbench.training.trainer import Trainer

SIDE, BANDS = 32, 2

IMAGES = {"cpu": 5_000, "cuda": 50_000}
"""Distinct training images; on a GPU as many as would not stay in its caches."""

RATE = 1e-3
"""Learning rate. At the paper's, rounding alone changes the second loss of ResNet-110 by 1e-4 of it, the third by more
than 1e-3: no engine could be told from a wrong one. What a step costs does not depend on it."""


def usable_engines(device: torch.device) -> tuple[EngineName, ...]:
    """The engines that are measured unless others are asked for; compiling costs minutes on a CPU and is left out."""
    usable = (name for name, why in available_engines(device).items() if why is None)
    return tuple(name for name in usable if name != "compile" or device.type == "cuda")


def usable_precisions(device: torch.device) -> tuple[str, ...]:
    """The precisions that the device has."""
    has_tf32 = choose_precision(None, device) == "tf32"
    return tuple(precision for precision in PRECISIONS if precision != "tf32" or has_tf32)


def checked_engines(names: Sequence[str], device: torch.device) -> tuple[EngineName, ...]:
    """The engines of these names, each once, in their order.

    Raises:
        PaperbenchError: There is no such engine, or it does not run here.
    """
    available = available_engines(device)
    for name in names:
        if name not in available:
            raise PaperbenchError(f"Unknown engine {name!r}. {nearest(name, available)}")
        if why := available[name]:
            raise PaperbenchError(f"Engine {name}: {why}. Leave it out.")
    return tuple(name for name in dict.fromkeys(names) if name in available)


def checked_net(name: str) -> Net:
    """The net of that name, if its training can be measured.

    Raises:
        PaperbenchError: There is no such net, or it is made for large images.
    """
    net = resolve(name)
    if FAMILIES[net.family].size != SIDE:
        raise PaperbenchError(f"{name} is made for large images, which paperbench cannot train on yet. Leave it out.")
    return net


def bench_recipe(batch_size: int) -> Recipe:
    """The paper's recipe at a batch size and at `RATE`: its groups of batch norm if they divide it, else one group.

    Raises:
        PaperbenchError: The batch is too small for batch norm.
    """
    if batch_size < 2:
        raise PaperbenchError(f"Batch norm needs at least 2 images per batch, not {batch_size}.")
    table = load_table("table2", spec_root())
    recipe = table.recipe_in(table.profiles.named("paper"))
    group = recipe.batch_norm.group if batch_size % recipe.batch_norm.group == 0 else batch_size
    settings = replace(recipe.batch_norm, group=group)
    return replace(recipe, batch_size=batch_size, batch_norm=settings, warm_up=None, learning_rate=RATE)


@cache
def random_images(count: int, classes: int) -> ImageDataset:
    """A data set of random images: a quarter of each is noise, three quarters are its class's two bands of colour.

    With random labels the loss would hardly move, and a wrong step could not be seen in it. Random bytes, because
    multiplying by zeros is faster than by other numbers. Crops and mirroring leave the bands what they are.
    """
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 256, (classes, BANDS, 1, 3), dtype=np.uint8).repeat(SIDE // BANDS, axis=1)
    labels = rng.integers(0, classes, count)
    images = rng.integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)
    images = images // 4 + patterns[labels] // 4 * 3
    key = "cifar100" if classes == 100 else "cifar10"
    return ImageDataset(
        key, "random images", "made for a benchmark", False, images, labels, images[:classes], labels[:classes]
    )


@dataclass(frozen=True)
class Training:
    """What is trained, and where."""

    net: Net
    recipe: Recipe
    dataset: ImageDataset
    device: torch.device

    def trainer(self, engine: str, precision: str, *, channels_last: bool = True) -> Trainer:
        """Our trainer, always from the same seed."""
        return Trainer(
            self.net,
            self.recipe,
            self.dataset,
            0,
            precision,
            self.device,
            engine=engine,  # type: ignore[arg-type]
            channels_last=channels_last,
        )


def bench_training(name: str, batch_size: int, device: torch.device) -> Training:
    """The training of a net that is measured.

    Raises:
        PaperbenchError: There is no such net, it is made for large images, or the batch is too small for batch norm.
    """
    net = checked_net(name)
    dataset = random_images(max(IMAGES[device.type], batch_size), net.num_classes)
    return Training(net, bench_recipe(batch_size), dataset, device)


def wait_for(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free_memory(device: torch.device) -> None:
    """Give back what nobody holds any more. CUDA graphs cannot use what the allocator keeps for others."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
