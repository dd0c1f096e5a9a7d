"""How long runs on photographs will take, from a measured training step and a measured loader."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import torch

from paperbench.architecture import macs
from paperbench.bench.loader import sample_images, sample_photographs, stream_seconds
from paperbench.bench.setup import synchronize
from paperbench.data.imagenet.batches import TrainingCrops
from paperbench.data.imagenet.index import ImageFiles, PhotoDataset
from paperbench.data.imagenet.stream import processors
from paperbench.errors import PaperbenchError, count, duration
from paperbench.runs.planning import PlannedRun
from paperbench.specs.recipe import ChannelValues, Photographs, Recipe
from paperbench.training.memory import is_out_of_memory
from paperbench.training.trainer import Trainer

_STEPS, _BATCHES = 4, 8
"""Numbers of measured steps, of which the fastest counts, and of measured batches of the loader."""
_WHOLE = 5 * 10**10
"""Multiply-adds of a batch's forward pass up to which a CPU measures the whole batch, and else two images."""
_SHORT = 10**14
"""Multiply-adds that take minutes on any machine."""


@dataclass(frozen=True)
class Cost:
    """How long some runs will take. `str` says so, and what was measured.

    Attributes:
        seconds: By run id.
        measured: What was measured.
    """

    seconds: dict[str, float]
    measured: str

    def __str__(self) -> str:
        return f"about {duration(sum(self.seconds.values()))} for the training steps, going by {self.measured}."


def estimate(
    to_do: Sequence[tuple[PlannedRun, int]], device: torch.device, *, only_if_long: bool = False, processes: int = 1
) -> Cost | None:
    """Estimate how long the training steps of runs on photographs take.

    Tests, mean images and the averaging of BN statistics are left out: a few percent of a run of the paper.

    One step of the net with the fewest multiply-adds is measured, with the eager engine; those of other nets are in
    proportion. Every image of a step takes the time of the net or of the loader, whichever is longer.

    Args:
        to_do: Runs, each with the number of iterations to do. Those on small images are left out.
        only_if_long: Whether to measure nothing if training takes minutes.
        processes: Number of processes that share each run, as if that cost nothing.

    Returns:
        None if no run is on photographs, or nothing was measured.

    Raises:
        PaperbenchError: An image cannot be read, or the memory is not sufficient.
    """
    chosen = [(run, iterations * run.recipe.batch_size) for run, iterations in to_do if run.recipe.photographs]
    work = sum(images * _macs(run) for run, images in chosen)
    if not chosen or (only_if_long and work < _SHORT):
        return None
    cheapest = min((run for run, _ in chosen), key=_macs)
    data = cheapest.dataset
    own = sample_images(data) if isinstance(data, PhotoDataset) and len(data.train) else None
    files, source = own or sample_photographs()
    batch, step = _measure_step(cheapest, files, device)
    per_mac = step / batch / _macs(cheapest)
    recipes = {run.recipe.recipe: run.recipe for run, _ in chosen}
    rates = {name: _measure_loader(recipe, files) for name, recipe in recipes.items()}
    per_image = {run.id: max(per_mac * _macs(run), 1 / rates[run.recipe.recipe]) for run, _ in chosen}
    seconds = {run.id: images * per_image[run.id] / processes for run, images in chosen}
    each = " and ".join(f"{rate:,.0f}" for rate in rates.values())
    measured = (
        f"one step of {cheapest.net_name} on {device} ({step:.2g} s for {batch} images), the multiply-adds of other "
        f"nets, and {each} crops a second made of {source} in {count(processors(), 'thread')}"
        f"{f', by each of {processes} processes' * (processes > 1)}"
    )
    return Cost(seconds, measured)


def _measure_step(run: PlannedRun, files: ImageFiles, device: torch.device) -> tuple[int, float]:
    """Return the number of images of a batch, on a CPU perhaps of a smaller one, and the seconds of their step."""
    images, group = run.recipe.batch_size, run.recipe.batch_norm.group
    if device.type == "cpu" and images * _macs(run) > _WHOLE:
        images = group = 2
    recipe, sample = on_sample(run.recipe, files, images, group)
    times: list[float] = []
    try:
        with closing(Trainer(run.net, recipe, sample, 0, run.spec.precision, device)) as trainer:
            for _ in range(_STEPS):  # the first ones are slow
                began = time.perf_counter()
                trainer.step()
                synchronize(device)
                times.append(time.perf_counter() - began)
    except Exception as error:  # libraries may raise anything
        if not is_out_of_memory(error):
            raise
        raise PaperbenchError(
            f"{device} is out of memory in a step of {run.net_name} with groups of {group} images."
        ) from error
    return images, min(times)


def on_sample(recipe: Recipe, files: ImageFiles, batch_size: int, group: int) -> tuple[Recipe, PhotoDataset]:
    """Return a recipe for photographs with another batch, which needs no mean image, and some files as its data set."""
    changed = replace(
        recipe,
        batch_size=batch_size,
        batch_norm=replace(recipe.batch_norm, group=group),
        input=ChannelValues((0.5, 0.5, 0.5), (1.0, 1.0, 1.0)),
        photographs=replace(_photographs(recipe), mean_image_scale=None),
        silent=(),
    )
    return changed, PhotoDataset(
        "", "a sample", "", canonical=False, classes=(), train=files, test=files, directory=files.root
    )


def _measure_loader(recipe: Recipe, files: ImageFiles) -> float:
    """Return how many training crops all processors make per second."""
    batch = 4 * processors()
    source = TrainingCrops(files, _photographs(recipe), batch_size=batch, flip=True, has_short_batches=False, seed=0)
    return _BATCHES * batch / stream_seconds(source, processors(), _BATCHES)


def _macs(run: PlannedRun) -> int:
    return macs(run.net, _photographs(run.recipe).crop)


def _photographs(recipe: Recipe) -> Photographs:
    assert recipe.photographs  # noqa: S101  (others are left out)
    return recipe.photographs
