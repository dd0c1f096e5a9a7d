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
from paperbench.data.imagenet.feed import training_threads
from paperbench.data.imagenet.index import ImageFiles, PhotoDataset
from paperbench.data.imagenet.stream import processors
from paperbench.errors import PaperbenchError, count, duration
from paperbench.runs.disk_space import format_bytes
from paperbench.runs.limits import Limits
from paperbench.runs.planning import PlannedRun
from paperbench.specs.recipe import ChannelValues, Photographs, Recipe
from paperbench.training.memory import is_out_of_memory, memory_needed
from paperbench.training.trainer import Trainer

_ENOUGH_SECONDS = 1.5
"""After this time, a CPU measures no further step, and the loader no further batch."""
_STEPS = 8
"""Maximum number of measured steps. A GPU takes them all, as its first ones load kernels."""
_FORWARD = 1 / 3
"""Share of the forward pass in a step: the backward pass has twice its multiply-adds."""
_WHOLE = 5 * 10**10
"""Multiply-adds of a batch's forward pass up to which a CPU measures the whole batch, and else two images."""
_SHORT = 10**14
"""Multiply-adds that take minutes on any machine."""
_LONG = 30 * 86_400.0
"""Seconds from which on a CPU is not the machine for the runs."""


@dataclass(frozen=True)
class Cost:
    """How long some runs will take. `str` says so, and what was measured.

    Attributes:
        seconds: By run id.
        measured: What was measured.
        elsewhere: What the runs need on a GPU, if they take very long on a CPU.
    """

    seconds: dict[str, float]
    measured: str
    elsewhere: str

    def __str__(self) -> str:
        return f"about {duration(sum(self.seconds.values()))}, going by {self.measured}.{self.elsewhere}"


def estimate(
    to_do: Sequence[tuple[PlannedRun, int]], device: torch.device, limits: Limits, *, only_if_long: bool = False
) -> Cost | None:
    """Estimate how long runs on photographs take: steps, tests, BN re-estimation and mean images.

    The step of one net is measured, with the eager engine. Those of other nets are in proportion to their
    multiply-adds, and so is the forward pass: a third of a step.

    Args:
        to_do: Runs, each with the number of iterations to do. Those on small images are left out.
        only_if_long: Whether to measure nothing if training takes minutes.

    Returns:
        None if no run is on photographs, or nothing was measured.

    Raises:
        PaperbenchError: An image cannot be read, or the memory is not sufficient.
    """
    chosen = [(run, iterations) for run, iterations in to_do if run.recipe.photographs]
    work = sum(iterations * run.recipe.batch_size * _macs(run) for run, iterations in chosen)
    if not chosen or (only_if_long and work < _SHORT):
        return None
    cheapest, largest = (pick((run for run, _ in chosen), key=_macs) for pick in (min, max))
    files, source = _sample(cheapest)
    images, step = _measure_step(cheapest, files, device)
    recipes = {run.recipe.recipe: run.recipe for run, _ in chosen}
    rates = {name: _measure_loader(recipe, files) for name, recipe in recipes.items()}
    seconds: dict[str, float] = {}
    kept: set[str] = set()
    for run, iterations in chosen:
        speed = _Speed(step / images / _macs(cheapest), 1 / rates[run.recipe.recipe], training_threads(device))
        last = limits.last_iteration(run.recipe.iterations)
        seconds[run.id] = _seconds(run, last - iterations, last, speed, kept)
    each = " and ".join(f"{rate:,.0f}" for rate in rates.values())
    measured = (
        f"one step of {cheapest.net_name} on {device} ({step:.2g} s for {images} images), the multiply-adds of other "
        f"nets, and {each} crops a second made of {source} in {count(processors(), 'thread')}"
    )
    elsewhere = ""
    if device.type == "cpu" and sum(seconds.values()) > _LONG:
        group = largest.recipe.batch_norm.group
        memory = memory_needed(largest.net, largest.recipe, largest.spec.precision)
        elsewhere = (
            f" Use a GPU: {largest.net_name} takes {format_bytes(memory)} of its memory for {group} images, and "
            "`--dry-run` there estimates the time."
        )
    return Cost(seconds, measured, elsewhere)


@dataclass(frozen=True)
class _Speed:
    """Seconds for a forward and backward pass per multiply-add and for a crop; threads that make those of training."""

    mac: float
    crop: float
    training_threads: int

    def step(self, macs: int) -> float:
        """Return the seconds per image of a training step, or of the loader beside it, if that takes longer."""
        return max(self.mac * macs, self.crop * processors() / self.training_threads)

    def test(self, macs: int) -> float:
        """Return the seconds per image of a forward pass, or of the loader, if that takes longer."""
        return max(self.mac * macs * _FORWARD, self.crop)


def _seconds(run: PlannedRun, first: int, last: int, speed: _Speed, kept: set[str]) -> float:
    """Return the seconds that a run takes from one iteration to another.

    Args:
        kept: The data sets whose mean images earlier runs computed, in one pass; this run's is added.
    """
    recipe, dataset, photographs = run.recipe, run.dataset, _photographs(run.recipe)
    is_whole, every = last == recipe.iterations, recipe.monitoring.test_every
    tests = last // every - first // every + (is_whole and last % every > 0)
    evaluations = list(recipe.evaluations.values())
    tested = evaluations[:1] * tests + evaluations * is_whole
    macs_of_crop = macs(run.net, photographs.crop)
    trained = recipe.images_before(last, dataset.num_train) - recipe.images_before(first, dataset.num_train)
    total = trained * speed.step(macs_of_crop)
    total += sum(dataset.num_test * speed.test(macs(run.net, one.crop)) for one in tested)
    if is_whole and recipe.batch_norm.at_test == "reestimated":
        total += dataset.num_train * speed.test(macs_of_crop)
    if recipe.input == "per_pixel_mean":
        total += dataset.num_train * speed.crop * (dataset.fingerprint not in kept)
        kept.add(dataset.fingerprint)
    return total


def _sample(run: PlannedRun) -> tuple[ImageFiles, str]:
    """Return images to measure the loader on: training images of the run if they are there."""
    if isinstance(run.dataset, PhotoDataset) and len(run.dataset.train):
        return sample_images(run.dataset)
    return sample_photographs()


def _measure_step(run: PlannedRun, files: ImageFiles, device: torch.device) -> tuple[int, float]:
    """Return the number of images of a batch, on a CPU perhaps of a smaller one, and the seconds of their step."""
    images, group = run.recipe.batch_size, run.recipe.batch_norm.group
    if device.type == "cpu" and images * _macs(run) > _WHOLE:
        images = group = 2
    recipe = replace(
        run.recipe,
        batch_size=images,
        batch_norm=replace(run.recipe.batch_norm, group=group),
        input=ChannelValues((0.5, 0.5, 0.5), (1.0, 1.0, 1.0)),
        photographs=replace(_photographs(run.recipe), mean_image_scale=None),
        silent=(),
    )
    sample = PhotoDataset(
        "", "a sample", "", canonical=False, classes=(), train=files, test=files, directory=files.root
    )
    times: list[float] = []
    try:
        with closing(Trainer(run.net, recipe, sample, 0, run.spec.precision, device)) as trainer:
            least = 2 if device.type == "cpu" else _STEPS  # the first one is slow
            while len(times) < least or (len(times) < _STEPS and sum(times) < _ENOUGH_SECONDS):
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


def _measure_loader(recipe: Recipe, files: ImageFiles) -> float:
    """Return how many training crops all processors make per second."""
    batch = 4 * processors()
    source = TrainingCrops(files, _photographs(recipe), batch_size=batch, flip=True, has_short_batches=False, seed=0)
    one = stream_seconds(source, processors(), 2) / 2
    batches = max(2, round(_ENOUGH_SECONDS / 2 / one))
    return batches * batch / stream_seconds(source, processors(), batches)


def _macs(run: PlannedRun) -> int:
    return macs(run.net, _photographs(run.recipe).crop)


def _photographs(recipe: Recipe) -> Photographs:
    assert recipe.photographs  # noqa: S101  (other runs are left out)
    return recipe.photographs
