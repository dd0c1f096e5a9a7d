"""What every part measures with: device, timer, nets, recipe, images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TextIO

import torch

from paperbench.bench.anatomy.job import Job
from paperbench.bench.anatomy.recorder import Recorder
from paperbench.bench.anatomy.scale import Scale, checked_models
from paperbench.bench.anatomy.timing import GraphTimer, Timer, WallTimer, free_memory, is_usable
from paperbench.bench.images import random_images
from paperbench.catalogue import Net
from paperbench.data.dataset import ImageDataset
from paperbench.specs.locate import spec_root
from paperbench.specs.recipe import Drops, Recipe, WarmUp
from paperbench.specs.table import load_table
from paperbench.training.choice import available_engines
from paperbench.training.precision import PRECISIONS, choose_precision
from paperbench.training.trainer import Trainer

MOST_STEPS = 10_000
"""Steps that a trainer here can make; graphs keep a table of all batches on the device."""


@dataclass(frozen=True)
class Context:
    """A part's surroundings.

    Attributes:
        job: What is asked for.
        scale: Its sizes.
        device: Where to measure.
        recorder: Takes the rows.
        timer: Times single operations.
    """

    job: Job
    scale: Scale
    device: torch.device
    recorder: Recorder
    timer: Timer

    @staticmethod
    def of(job: Job, stream: TextIO, deadline: float) -> Context:
        """The surroundings of a job, by the monotonic clock."""
        device, scale = torch.device(job.device), job.sizes
        if device.index is not None:
            torch.cuda.set_device(device)
        recorder = Recorder(
            stream,
            deadline,
            is_usable=lambda: is_usable(device),
            release=lambda: free_memory(device),
        )
        timer: Timer = (
            GraphTimer(device, scale.sample_seconds, scale.samples)
            if device.type == "cuda"
            else WallTimer(scale.sample_seconds, scale.samples)
        )
        torch.manual_seed(0)
        return Context(job, scale, device, recorder, timer)

    @cached_property
    def nets(self) -> dict[str, Net]:
        """The nets that the part is about."""
        return checked_models((self.job.model,) if self.job.model else self.job.models)

    @cached_property
    def recipe(self) -> Recipe:
        """The paper's recipe with the scale's batches, shorter: nothing here takes as many steps.

        The learning rate rises half-way through the steps by which exactness is judged.
        """
        table = load_table("table2", spec_root(None))
        recipe = table.recipe_in(table.profiles.named("paper"))
        return replace(
            recipe,
            batch_size=self.scale.batch_size,
            batch_norm=replace(recipe.batch_norm, group=self.scale.group),
            iterations=MOST_STEPS,
            warm_up=WarmUp(0.01, max(1, self.scale.exactness_steps // 2)),
            drops=Drops((), 0.1),
        )

    @cached_property
    def dataset(self) -> ImageDataset:
        """Random images."""
        return random_images(self.scale.images, 10)

    @cached_property
    def precisions(self) -> tuple[str, ...]:
        """The scale's precisions that the device has, most decisive first."""
        if self.device.type == "cuda" and choose_precision(None, self.device) != "tf32":
            return tuple(p for p in self.scale.precisions if p != "tf32")
        return self.scale.precisions

    @property
    def stream_precision(self) -> str | None:
        """bf16 with the residual stream in float32, if the trainer knows it."""
        name = "bf16-fp32-stream"
        return name if name in PRECISIONS and "bf16" in self.precisions and self.scale.name != "quick" else None

    @cached_property
    def can_compile(self) -> bool:
        """Whether torch.compile works here."""
        return available_engines(self.device)["compile"] is None

    @cached_property
    def engines(self) -> tuple[str, ...]:
        """Engines that steps are measured with, most decisive first; on a CPU whole nets take minutes to compile."""
        if self.device.type != "cuda":
            return ("eager",)
        why_not = available_engines(self.device)
        return tuple(name for name in ("graph", "compile", "eager") if why_not[name] is None)

    def trainer(self, net: Net, precision: str, engine: str, seed: int = 0) -> Trainer:
        """A trainer that has not begun."""
        return Trainer(net, self.recipe, self.dataset, seed, precision, self.device, engine=engine)  # type: ignore[arg-type]
