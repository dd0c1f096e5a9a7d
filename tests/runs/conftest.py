from __future__ import annotations

import pytest

from paperbench.data.dataset import ImageDataset
from paperbench.runs.planning import PlannedRun
from paperbench.runs.store import RunDirectory
from paperbench.specs.recipe import Recipe
from tests.runs.running import go, planned, tiny


@pytest.fixture(scope="session")
def run(paper_recipe: Recipe, small_dataset: ImageDataset) -> PlannedRun:
    return planned(tiny(paper_recipe), small_dataset)


@pytest.fixture(scope="session")
def whole(run: PlannedRun, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """The run in one go. Tests compare with it, and leave it as it is."""
    return go(run, tmp_path_factory.mktemp("whole"))[0]
