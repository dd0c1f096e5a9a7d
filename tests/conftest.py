"""Fixtures that every part of the tests uses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from paperbench.data.dataset import ImageDataset
from paperbench.specs.recipe import Recipe
from paperbench.specs.table import Table, load_table

ROOT = Path(__file__).resolve().parents[1]

torch.set_num_threads(1)  # the nets here are tiny: two threads mostly wait, for each other or for another process


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def table2() -> Table:
    return load_table("table2", ROOT)


@pytest.fixture(scope="session")
def paper_recipe(table2: Table) -> Recipe:
    return table2.recipe_in(table2.profiles.named("paper"))


@pytest.fixture(scope="session")
def small_dataset() -> ImageDataset:
    """100 + 40 random images; 100 is no multiple of the batch sizes that the tests use."""
    rng = np.random.default_rng(0)
    return ImageDataset(
        key="cifar10",
        name="random pixels",
        origin="a test",
        canonical=False,
        x_train=rng.integers(0, 256, (100, 32, 32, 3), dtype=np.uint8),
        y_train=rng.integers(0, 10, 100),
        x_test=rng.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8),
        y_test=rng.integers(0, 10, 40),
    )
