"""Fixtures that every part of the tests uses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from paperbench.data.dataset import ImageDataset
from paperbench.data.sources import ENVIRONMENT_VARIABLE, load_dataset
from paperbench.specs.recipe import Recipe
from paperbench.specs.table import Table, load_table
from tests.helpers import random_dataset

ROOT = Path(__file__).resolve().parents[1]

torch.set_num_threads(1)  # the nets here are tiny: two threads mostly wait, for each other or for another process


for name, examples in (("quick", 100), ("full", 1000)):
    settings.register_profile(
        name,
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    about = "more kills and more fuzzed inputs: minutes instead of seconds"
    parser.addoption("--full", action="store_true", help=about)


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("full" if config.getoption("--full") else "quick")


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether --full was given."""
    return bool(request.config.getoption("--full"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session")
def cifar10() -> ImageDataset:
    """CIFAR-10, or a copy of it, from where the user has it."""
    directory = os.environ.get(ENVIRONMENT_VARIABLE)
    if not directory:
        pytest.skip(f"needs CIFAR-10 in the folder that {ENVIRONMENT_VARIABLE} names")
    return load_dataset("cifar10", Path(directory))


@pytest.fixture(scope="session")
def tables() -> dict[str, Table]:
    """The paper's five tables by id."""
    return {table: load_table(table, ROOT) for table in ("table1", "table2", "table3", "table4", "table5")}


@pytest.fixture(scope="session")
def table2(tables: dict[str, Table]) -> Table:
    return tables["table2"]


@pytest.fixture(scope="session")
def paper_recipe(table2: Table) -> Recipe:
    return table2.recipe_in(table2.profiles.named("paper"))


@pytest.fixture(scope="session")
def small_dataset() -> ImageDataset:
    """100 + 40 random images; 100 is no multiple of the batch sizes that the tests use."""
    return random_dataset(32)
