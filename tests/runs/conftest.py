from __future__ import annotations

import pytest

from paperbench.data.dataset import ImageDataset
from paperbench.runs.planning import PlannedRun
from paperbench.specs.recipe import Recipe
from tests.runs.running import planned, tiny


@pytest.fixture
def run(paper_recipe: Recipe, small_dataset: ImageDataset) -> PlannedRun:
    return planned(tiny(paper_recipe), small_dataset)
