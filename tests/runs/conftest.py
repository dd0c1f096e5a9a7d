from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from paperbench.data.dataset import ImageDataset
from paperbench.runs.planning import PlannedRun
from paperbench.runs.store import RunDirectory, Store
from paperbench.specs.recipe import Recipe
from tests.helpers import random_dataset
from tests.runs.running import plan_run, tiny_recipe, train


@pytest.fixture(scope="session")
def small_dataset() -> ImageDataset:
    """100 training and 40 test images of 8 x 8 random pixels, which train fast."""
    return random_dataset(8)


@pytest.fixture(scope="session")
def run(paper_recipe: Recipe, small_dataset: ImageDataset) -> PlannedRun:
    return plan_run(tiny_recipe(paper_recipe), small_dataset)


@pytest.fixture(scope="session")
def expected(run: PlannedRun, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """The results of training `run` in one session. Tests must not change them."""
    return train(run, tmp_path_factory.mktemp("uninterrupted"))[0]


@pytest.fixture
def finished(expected: RunDirectory, tmp_path: Path) -> RunDirectory:
    """A copy of `expected` that the test may change."""
    root = shutil.copytree(expected.path.parents[1], tmp_path / "finished")
    return Store(root).directory(expected.path.name)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB, if the user may mount one."""
    path = tmp_path / "small disk"
    path.mkdir()
    mount = shutil.which("mount")
    if mount is None or subprocess.run([mount, "-t", "tmpfs", "-o", "size=3m", "tmpfs", path], check=False).returncode:
        pytest.skip("needs the right to mount a small tmpfs")
    yield path
    subprocess.run(["umount", path], check=True)
