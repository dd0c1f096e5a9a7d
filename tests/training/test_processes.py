"""Several processes that share a run must make the numbers of one, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from paperbench.catalogue import NETS, resolve
from paperbench.data.dataset import Dataset, ImageDataset
from paperbench.data.share import Share
from paperbench.errors import DataError, Interrupted, RunError
from paperbench.launch import Launch
from paperbench.specs.recipe import BatchNormSettings, Drops, Evaluation, Recipe
from paperbench.training import compiling
from paperbench.training import trainer as trainer_module
from paperbench.training.divergence import find_in_test, find_in_training
from paperbench.training.engine import EngineError, EngineName
from paperbench.training.evaluation import EvaluationMetrics, as_memory_allows
from paperbench.training.memory import is_out_of_memory
from paperbench.training.metrics import TrainingMetrics
from paperbench.training.processes import ALONE, Processes
from paperbench.training.trainer import Trainer
from paperbench.training.tree_sum import TreeSum
from tests.training.tape import Tape
from tests.training.together import CPU, led, together
from tests.training.trainings import advance, differences, state_of

STEPS = 3


@pytest.fixture(scope="module")
def base(paper_recipe: Recipe) -> Recipe:
    """Batches of 16 images in four groups; the rate drops before the last. 25 groups are re-estimated."""
    return replace(
        paper_recipe,
        batch_size=16,
        iterations=STEPS,
        warm_up=None,
        drops=Drops((STEPS - 1,), 0.1),
        batch_norm=BatchNormSettings(4, 1e-5, 0.1, "reestimated"),
    )


@dataclass(frozen=True)
class Training:
    """A training on random images of 16 pixels, or on the embedded photographs.

    Attributes:
        at_once: Test images, and groups of a re-estimation, that go through the net at once.
    """

    net: str = "preact_resnet20"
    depth: int = 8
    precision: str = "fp32"
    engine: EngineName = "eager"
    group: int = 4
    changes: Mapping[str, Any] = field(default_factory=dict)
    photographs: bool = False
    recompute: bool = False
    at_once: tuple[int, int] = (7, 3)

    def trainer(self, data: Data, processes: Processes) -> Trainer:
        recipe, dataset = (data.photo_recipe, data.photos) if self.photographs else (data.recipe, data.images)
        batch_norm = replace(recipe.batch_norm, group=self.group)
        recipe = replace(recipe, **{"batch_norm": batch_norm, **self.changes})
        what = resolve(self.net, depth=self.depth), recipe, dataset, 3, self.precision, CPU, self.engine
        trainer = Trainer(*what, recompute=self.recompute, processes=processes)
        trainer.feed.test_batch, trainer.feed.groups_at_once = self.at_once
        return trainer


@dataclass(frozen=True)
class Data:
    recipe: Recipe
    images: ImageDataset
    photo_recipe: Recipe
    photos: Dataset


@pytest.fixture(scope="module")
def data(base: Recipe, tiny_dataset: ImageDataset, photo_recipe: Recipe, photos: Dataset) -> Data:
    return Data(base, tiny_dataset, photo_recipe, photos)


@dataclass(frozen=True)
class Outcome:
    """State and metrics after the last iteration; results of tests before and after the end; the last state."""

    trained: dict[str, Tensor]
    metrics: TrainingMetrics
    tests: list[EvaluationMetrics]
    finished: dict[str, Tensor]


def to_the_end(trainer: Trainer) -> Outcome:
    advance(trainer, trainer.recipe.iterations)
    trained, metrics = state_of(trainer), trainer.training_metrics()
    evaluations = list(trainer.recipe.evaluations.values()) or [None]
    tests = [*(trainer.test(evaluation=one) for one in evaluations), *trainer.finish()]
    return Outcome(trained, metrics, tests, state_of(trainer))


def assert_equal(found: Outcome, expected: Outcome) -> None:
    assert differences(found.trained, expected.trained) == []
    assert differences(found.finished, expected.finished) == []
    assert (found.metrics, found.tests) == (expected.metrics, expected.tests)
    assert all(value.isfinite().all() for value in expected.finished.values())


# The dagger row divides a batch of 256 among eight GPUs: of the last 143 images of an epoch, the last GPU gets 17.
UNEQUAL = {"batch_size": 30, "iterations": 4, "drops": Drops((3,), 0.1)}  # of 48 photographs: 30, then 5 + 5 + 4 + 4
MEANS = {
    "input": "per_pixel_mean",
    "evaluations": {"first": Evaluation(crop=16, scale=18), "second": Evaluation(crop=24, scale=24)},
}
SMALLEST = {"basic": 8, "bottleneck": 11, "one_layer": 5}
UNITS = {
    (net.family, net.placement, net.shortcut): Training(name, SMALLEST[net.family], ("fp32", "bf16")[index % 2])
    for index, (name, net) in enumerate((name, resolve(name)) for name in NETS)
    if net.family in SMALLEST and not net.has_noise
}
TRAININGS = {
    "two groups": Training(group=8, changes={"momentum_form": "nesterov"}),
    "four groups": Training("resnet110_exclusive_gating", precision="bf16", recompute=True),
}
