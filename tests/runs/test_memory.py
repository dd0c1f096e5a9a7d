from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import pytest

from paperbench.data.dataset import ImageDataset
from paperbench.specs.recipe import BatchNormSettings, Monitoring, Recipe
from tests.runs.running import Log, plan_run, tiny_recipe, train


def resident_bytes() -> int:
    """Return the resident set size of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_does_not_grow_with_iterations(
    paper_recipe: Recipe, small_dataset: ImageDataset, tmp_path: Path, stress: bool
) -> None:
    """With epochs, history lines, tests and checkpoints in between."""
    iterations = 20_000 if stress else 2_500
    recipe = tiny_recipe(
        paper_recipe,
        batch_size=4,
        iterations=iterations,
        batch_norm=BatchNormSettings(4, 1e-5, 0.1, "moving_average"),
        monitoring=Monitoring(log_every=10, test_every=100, checkpoint_every=40, checkpoint_share=1.0),
    )
    run = plan_run(replace(recipe, learning_rate=0.001), small_dataset)
    sizes = []

    class Monitor(Log):
        def stepped(self, run: object, iteration: int) -> None:
            if iteration % (iterations // 5) == 0:
                gc.collect()
                sizes.append(resident_bytes())

        def logged(self, run: object, line: object) -> None:
            pass

    _, log = train(run, tmp_path, log=Monitor())
    assert log.record.status == "finished"
    assert max(sizes[1:]) - sizes[0] < 5_000_000, sizes
