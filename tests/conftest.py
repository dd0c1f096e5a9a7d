"""Fixtures that every part of the tests uses."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from paperbench.data.dataset import ImageDataset
from paperbench.data.sources import ENVIRONMENT_VARIABLE, load_dataset
from paperbench.specs.recipe import Recipe
from paperbench.specs.table import Table, read_table
from tests.helpers import random_dataset

ROOT = Path(__file__).resolve().parents[1]

torch.set_num_threads(1)  # the nets here are tiny: two threads mostly wait, for each other or for another process


for name, examples in (("default", 25), ("full", 100), ("stress", 2_000)):
    settings.register_profile(
        name,
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="every test but the stress tests: under half an hour")
    parser.addoption("--stress", action="store_true", help="--full, and kills, faults and fuzzing by the thousand")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile(_tier(config))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a script; processes would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _tier(config: pytest.Config) -> str:
    return next((tier for tier in ("stress", "full") if config.getoption(f"--{tier}")), "default")


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Whether to try more cases than by default: with --full or --stress."""
    return _tier(request.config) != "default"


@pytest.fixture(scope="session")
def stress(request: pytest.FixtureRequest) -> bool:
    """Whether to try thousands of cases: with --stress."""
    return _tier(request.config) == "stress"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tier = _tier(config)
    for item in items:
        if "stress" in item.keywords and tier != "stress":
            item.add_marker(pytest.mark.skip(reason="runs with --stress"))
        elif "full" in item.keywords and tier == "default":
            item.add_marker(pytest.mark.skip(reason="runs with --full"))
        elif "gpu" in item.keywords and not torch.cuda.is_available():
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
    return {table: read_table(table, ROOT) for table in ("table1", "table2", "table3", "table4", "table5")}


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
