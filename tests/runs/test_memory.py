from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import pytest

from paperbench.data.dataset import ImageDataset
from paperbench.specs.recipe import BatchNormSettings, Monitoring, Recipe
from tests.runs.running import Log, go, planned, tiny


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_does_not_grow_with_iterations(
    paper_recipe: Recipe, small_dataset: ImageDataset, tmp_path: Path
) -> None:
    """Over 2,500 iterations, 100 epochs, 250 lines of history, 12 tests and 25 checkpoints."""
    recipe = tiny(
        paper_recipe,
        batch_size=4,
        iterations=2_500,
        batch_norm=BatchNormSettings(4, 1e-5, 0.1, "moving_average"),
        monitoring=Monitoring(log_every=10, test_every=200, checkpoint_every=100, checkpoint_share=1.0),
    )
    small = {"x_train": small_dataset.x_train[:, 8:24, 8:24], "x_test": small_dataset.x_test[:, 8:24, 8:24]}
    run = planned(replace(recipe, learning_rate=0.001), replace(small_dataset, **small))
    seen = []

    class Watching(Log):
        def stepped(self, iteration: int) -> None:
            if iteration % 500 == 0:
                gc.collect()
                seen.append(resident_bytes())

        def logged(self, line: object) -> None:
            pass

    _, log = go(run, tmp_path, log=Watching())
    assert log.record.status == "finished"
    assert max(seen[1:]) - seen[0] < 5_000_000, seen
