"""How long runs will take, from measured training steps and a measured loader, or from stated rates."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch

from paperbench.bench.loader import sample_images, sample_photographs, stream_seconds
from paperbench.bench.setup import TrainerLoop, random_images
from paperbench.bench.timing import Rounds, stopwatch
from paperbench.catalogue import resolve
from paperbench.data.dataset import Dataset
from paperbench.data.imagenet.batches import TrainingCrops
from paperbench.data.imagenet.index import ImageFiles, PhotoDataset
from paperbench.errors import PaperbenchError, count, duration, listing
from paperbench.models.building import macs
from paperbench.processors import processors
from paperbench.runs.planning import PlannedRun
from paperbench.specs.recipe import ChannelValues, Recipe
from paperbench.training.device import OTHER_MACHINES_GPU
from paperbench.training.engines import engine_candidates
from paperbench.training.memory import is_out_of_memory, release_memory
from paperbench.training.trainer import Trainer

_ROUNDS, _BATCHES = 3, 8
"""Numbers of measurements of a step, of which the fastest counts, and of measured batches of the loader."""
_LEAST, _ENOUGH = 0.1, 3.0
"""Seconds that a measurement takes at least, as a GPU is behind the host, and after which no other begins."""
_MOST = 2 * 10**10
"""Multiply-adds of the forward pass of the images that a CPU measures: at most one batch-norm group, at least two."""
_SHORT = 10**14
"""Multiply-adds that take minutes on most machines, less than a day on any."""


@dataclass(frozen=True)
class Cost:
    """How long some runs will take. `str` says so, and what was measured or stated.

    Attributes:
        seconds: For what is left of each run, by its id. Runs at once share the time.
    """

    seconds: dict[str, float]
    measured: str

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def on_devices(self, number: int, at_once: int = 1) -> float:
        """Return the seconds that so many devices take, each of which begins the next run when one of its has ended."""
        busy = [0.0] * number * at_once
        for seconds in self.seconds.values():
            heapq.heapreplace(busy, busy[0] + seconds * at_once)
        return max(busy)

    def __str__(self) -> str:
        return f"about {duration(self.total)} for the training steps, going by {self.measured}."


def estimate(
    to_do: Sequence[tuple[PlannedRun, int]],
    device: torch.device,
    engine: str = "auto",
    at_once: int = 1,
    *,
    rates: Mapping[str, float] | None = None,
    only_if_long: bool = False,
    processes: int = 1,
) -> Cost | None:
    """Estimate how long the training steps of runs take.

    Tests, mean images and the averaging of BN statistics are left out: a few percent of a run of the paper.

    Of each family of nets, one with the fewest multiply-adds is measured, as it would be trained. Other nets are in
    proportion. Every image of a step takes the time of the net or of the loader of photographs, whichever is longer.

    Args:
        to_do: Runs, each with the number of iterations to do.
        engine, at_once: As in `TrainingOptions`.
        rates: Images per second of nets, by name. No net of their families is measured, nor of others if the GPU is
            not here; each goes by the net with the nearest number of multiply-adds, if possible of its own family.
        only_if_long: Return None if training takes minutes, or if a GPU trains on small images.
        processes: Number of processes that share the work, as if that cost nothing.
    """
    if only_if_long:
        to_do = [(run, number) for run, number in to_do if run.recipe.photographs or device.type == "cpu"]
        if sum(number * run.recipe.batch_size * _macs(run) for run, number in to_do) < _SHORT:
            return None
    families = {run.net.family for run, _ in to_do}
    at_once = max(1, min(at_once, sum(number > 0 for _, number in to_do)))
    speeds: list[tuple[str, int, float]] = []  # the family, multiply-adds and images per second of nets
    facts: list[str] = []
    for name, rate in (rates or {}).items():
        net = next((run.net for run, _ in to_do if run.net.family == name), None) or resolve(name)
        if net.family not in families:
            raise PaperbenchError(f"No run trains a net of the kind of {name}. Omit its rate, or choose other cells.")
        speeds.append((net.family, macs(net), rate))
        facts.append(f"{rate:g} images a second of {name} (as stated)")
    stated = {family for family, *_ in speeds}
    if stated and device == OTHER_MACHINES_GPU:
        stated = families  # one speed is enough where none can be measured
    by_cost = sorted((run for run, _ in to_do if run.net.family not in stated), key=_macs, reverse=True)
    measured = {run.net.family: run for run in by_cost}  # the cheapest
    if measured and device == OTHER_MACHINES_GPU:
        names, example = [run.net_name for run in measured.values()], by_cost[0].reference.name
        raise PaperbenchError(f"There is no GPU here for {listing(names)}. State the speed: `--rate {example}=2000`.")
    photographed = next((run for run in measured.values() if run.recipe.photographs), None)
    files, source = _sample(photographed.dataset) if photographed else (None, "")
    for family, run in measured.items():
        batch, step, how = _measure_step(run, files, device, engine, at_once)
        speeds.append((family, _macs(run), batch / step))
        facts.append(f"one step of {run.net_name} on {device} ({how} for {batch} images)")
    recipes = {run.recipe.recipe: run.recipe for run in by_cost if run.recipe.photographs}
    loaders = {name: _measure_loader(recipe, files) for name, recipe in recipes.items() if files}
    seconds = {}
    for run, iterations in to_do:
        similar = [speed for speed in speeds if speed[0] == run.net.family] or speeds
        _, known, rate = min(similar, key=lambda speed: abs(math.log(speed[1] / _macs(run))))
        per_image = max(_macs(run) / known / rate, 1 / loaders.get(run.recipe.recipe, math.inf)) / processes
        seconds[run.id] = iterations * run.recipe.batch_size * per_image
    facts.append("the multiply-adds of other nets")
    if loaders:
        each = " and ".join(f"{rate:,.0f}" for rate in loaders.values())
        facts.append(f"{each} crops a second made of {source} in {count(processors(), 'thread')}")
    shared = f", by each of {processes} processes" * (processes > 1)
    return Cost(seconds, f"{', '.join(facts[:-1])} and {facts[-1]}{shared}")


def _sample(data: Dataset) -> tuple[ImageFiles, str]:
    return sample_images(data) if isinstance(data, PhotoDataset) and len(data.train) else sample_photographs()


def _measure_step(
    run: PlannedRun, files: ImageFiles | None, device: torch.device, engine: str, at_once: int
) -> tuple[int, float, str]:
    """Return the number of images of a batch, on a CPU of a smaller one, the seconds for it, and how it was trained.

    A way to train that fails is left for a slower one, as in a run.
    """
    images, group = run.recipe.batch_size, run.recipe.batch_norm.group
    if device.type == "cpu":
        images = group = min(group, max(2, _MOST // _macs(run)))
    sample: Dataset
    if run.recipe.photographs and files:
        recipe, sample = on_sample(run.recipe, files, images, group)
    else:
        recipe = replace(run.recipe, batch_size=images, batch_norm=replace(run.recipe.batch_norm, group=group))
        sample = random_images(images, run.net.num_classes, run.side)

    def measured(engine: str, at_once: int) -> tuple[int, float, str]:
        new = partial(Trainer, run.net, recipe, sample, 0, run.spec.precision, device, engine)
        with closing(TrainerLoop(device, new)) as loop:
            loop.grow(at_once)
            loop.step()  # the first ones are slow
            way, deadline = stopwatch(loop.step, device), time.monotonic() + _ENOUGH
            (times,) = Rounds(_ROUNDS, _LEAST, deadline=deadline).race({"": way}).values()
        step = min(times) / at_once
        how = f"{at_once} at once, {step:.2g} s each" if at_once > 1 else f"{step:.2g} s"
        return images, step, f"engine {engine}, {how}"

    *faster, last = dict.fromkeys(product(engine_candidates(engine, device), (at_once, 1)))
    for way in faster:
        with suppress(Exception):  # libraries may raise anything
            return measured(*way)
        release_memory(device)
    try:
        return measured(*last)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise PaperbenchError(
            f"{device} is out of memory in a step of {run.net_name} with groups of {group} images."
        ) from error


def on_sample(recipe: Recipe, files: ImageFiles, batch_size: int, group: int) -> tuple[Recipe, PhotoDataset]:
    """Return a recipe for photographs with another batch, which needs no mean image, and some files as its data set."""
    assert recipe.photographs  # noqa: S101
    changed = replace(
        recipe,
        batch_size=batch_size,
        batch_norm=replace(recipe.batch_norm, group=group),
        input=ChannelValues((0.5, 0.5, 0.5), (1.0, 1.0, 1.0)),
        photographs=replace(recipe.photographs, mean_image_scale=None),
        silent=(),
    )
    sample = PhotoDataset("", "a sample", "", (), files, files, files.root, canonical=False)
    return changed, sample


def _measure_loader(recipe: Recipe, files: ImageFiles) -> float:
    """Return how many training crops all processors make per second."""
    assert recipe.photographs  # noqa: S101
    batch = 4 * processors()
    source = TrainingCrops(files, recipe.photographs, batch_size=batch, flip=True, has_short_batches=False, seed=0)
    return _BATCHES * batch / stream_seconds(source, processors(), _BATCHES)


def _macs(run: PlannedRun) -> int:
    return macs(run.net, run.side)
