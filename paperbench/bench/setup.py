"""What a benchmark trains: net, recipe and images, and on which machine."""

from __future__ import annotations

import gc
import subprocess
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache

import numpy as np
import torch

from paperbench.bench.figures import Machine
from paperbench.catalogue import FAMILIES, Net, resolve
from paperbench.data.dataset import ImageDataset
from paperbench.errors import PaperbenchError
from paperbench.runs.environment import code_facts, environment_facts
from paperbench.specs.recipe import Recipe
from paperbench.specs.table import find_spec_root, load_table
from paperbench.training.trainer import Trainer

SIDE, BANDS = 32, 2

IMAGES = {"cpu": 5_000, "cuda": 50_000}
"""Distinct training images; on a GPU as many as would not stay in its caches."""

RATE = 1e-3
"""Learning rate. At the paper's, rounding alone changes the second loss of ResNet-110 by 1e-4 of it, the third by more
than 1e-3: no engine could be told from a wrong one. What a step costs does not depend on it."""

GPU_FACTS = "driver_version,compute_cap,memory.total,power.limit,clocks.max.sm,clocks.max.mem,clocks.sm,clocks.mem"


@dataclass(frozen=True)
class Training:
    """What is trained, and where."""

    name: str
    net: Net
    recipe: Recipe
    dataset: ImageDataset
    device: torch.device

    def trainer(self, engine: str, precision: str, kind: type[Trainer] = Trainer) -> Trainer:
        """Our trainer, always from the same seed."""
        return kind(self.net, self.recipe, self.dataset, 0, precision, self.device, engine)  # type: ignore[arg-type]


def bench_training(name: str, batch_size: int, device: torch.device) -> Training:
    """The training of a net that is measured.

    Raises:
        PaperbenchError: There is no such net, it is made for large images, or the batch is too small for batch norm.
    """
    net = resolve(name)
    if FAMILIES[net.family].size != SIDE:
        raise PaperbenchError(f"{name} is made for large images, which paperbench cannot train on yet. Leave it out.")
    dataset = random_images(max(IMAGES[device.type], batch_size), net.num_classes)
    return Training(name, net, bench_recipe(batch_size), dataset, device)


def bench_recipe(batch_size: int) -> Recipe:
    """The paper's recipe at a batch size and at `RATE`: its groups of batch norm if they divide it, else one group.

    Raises:
        PaperbenchError: The batch is too small for batch norm.
    """
    if batch_size < 2:
        raise PaperbenchError(f"Batch norm needs at least 2 images per batch, not {batch_size}.")
    table = load_table("table2", find_spec_root())
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


def machine_facts(device: torch.device) -> Machine:
    """Code, libraries and hardware that speed on the device depends on; no host name, path or serial number."""
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
    """What nvidia-smi reports of a GPU, with units; None where it does not work."""
    identity = f"GPU-{torch.cuda.get_device_properties(device).uuid}"  # whatever number it has there
    command = ["nvidia-smi", f"--id={identity}", f"--query-gpu={GPU_FACTS}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return dict(zip(GPU_FACTS.split(","), (value.strip() for value in done.stdout.split(",")), strict=False))


def wait_for(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free_memory(device: torch.device) -> None:
    """Give back what nobody holds any more. CUDA graphs cannot use what the allocator keeps for others."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
