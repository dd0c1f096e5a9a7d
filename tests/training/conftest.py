from __future__ import annotations

from dataclasses import replace

import pytest

from paperbench.data.dataset import ImageDataset
from paperbench.specs.recipe import BatchNormSettings, Drops, Recipe, WarmUp
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
