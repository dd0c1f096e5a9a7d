from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paperbench.data.dataset import Dataset, ImageDataset
from paperbench.data.sources import load_dataset
from paperbench.specs.recipe import BatchNormSettings, Drops, Evaluation, Recipe, WarmUp
from paperbench.specs.table import Table
from tests.helpers import random_dataset


@pytest.fixture(scope="session")
def tiny_dataset() -> ImageDataset:
    """100 + 40 random images of 16x16 pixels."""
    return random_dataset(16)


@pytest.fixture
def recipe(paper_recipe: Recipe) -> Recipe:
    """24 iterations of 16 images in two groups of 8, with the end of the warm-up and a drop among them."""
    return replace(
        paper_recipe,
        batch_size=16,
        iterations=24,
        warm_up=WarmUp(0.01, 4),
        drops=Drops((12,), 0.1),
        batch_norm=BatchNormSettings(8, 1e-5, 0.1, "reestimated"),
    )


@pytest.fixture(scope="session")
def photos() -> Dataset:
    """The embedded photographs: 48 to train on, 12 to test."""
    return load_dataset("photos", Path())


@pytest.fixture(scope="session")
def photo_recipe(tables: dict[str, Table]) -> Recipe:
    """The dagger row's: 16 iterations with a drop, each epoch four batches of ten (groups of two) and one of eight."""
    table = tables["table5"]
    recipe = table.recipe_in(table.profiles.named("paper"), "imagenet_torch")
    assert recipe.photographs
    return replace(
        recipe,
        batch_size=10,
        iterations=16,
        learning_rate=0.01,
        drops=Drops((8,), 0.1),
        batch_norm=replace(recipe.batch_norm, group=2),
        photographs=replace(recipe.photographs, crop=16),
        evaluations={"crop": Evaluation(crop=16, scale=18)},
    )
