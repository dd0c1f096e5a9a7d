from __future__ import annotations

from collections.abc import Iterator

import pytest

from paperbench.data.dataset import ImageDataset
from paperbench.runs.planning import PlannedRun
from paperbench.specs.recipe import Recipe
from tests.runs.running import planned, tiny, writers


@pytest.fixture
def run(paper_recipe: Recipe, small_dataset: ImageDataset) -> PlannedRun:
    return planned(tiny(paper_recipe), small_dataset)


@pytest.fixture(autouse=True)
def _no_writer_is_left() -> Iterator[None]:
    yield
    assert writers() == []
