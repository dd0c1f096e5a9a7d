"""Several processes that share a run must make the numbers of one, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from paperbench.catalogue import resolve
from paperbench.data.dataset import Dataset
from paperbench.specs.recipe import BatchNormSettings, Drops, Recipe
from paperbench.training.processes import Processes
from paperbench.training.trainer import Trainer
from tests.training.together import CPU, together
from tests.training.trainings import advance, differences, state_of


def outcome_of(count: int, recipe: Recipe, dataset: Dataset, *, net: str = "preact_resnet20", **options: Any) -> Any:
    """State after the recipe's iterations, training loss, and the results of a test before and after the end."""

    def work(processes: Processes) -> Any:
        trainer = Trainer(resolve(net, depth=8), recipe, dataset, 3, "fp32", CPU, processes=processes, **options)
        if processes.rank:
            while (order := processes.receive()).name != "end":
                trainer.obey(order, lambda: None)
            return None
        advance(trainer, recipe.iterations)
        state, metrics = state_of(trainer), trainer.training_metrics()
        tests = [trainer.test(), *trainer.finish()]
        return state, metrics, tests, state_of(trainer)

    return together(count, work)[0]


@pytest.fixture
def shared_recipe(recipe: Recipe) -> Recipe:
    """Six batches of 16 images in four groups."""
    return replace(
        recipe, iterations=6, drops=Drops((5,), 0.1), batch_norm=BatchNormSettings(4, 1e-5, 0.1, "reestimated")
    )


@pytest.mark.parametrize("count", [2, 4])
def test_processes_make_the_numbers_of_one(count: int, shared_recipe: Recipe, tiny_dataset: Dataset) -> None:
    alone, shared = (outcome_of(n, shared_recipe, tiny_dataset) for n in (1, count))
    assert differences(shared[0], alone[0]) == []
    assert differences(shared[3], alone[3]) == []
    assert shared[1:3] == alone[1:3]
