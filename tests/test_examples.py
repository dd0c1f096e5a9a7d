"""The recipes by depth in examples/: what they say, and that they train."""

from __future__ import annotations

from pathlib import Path

import pytest

import paperbench
from paperbench.report.curve_text import render
from paperbench.report.curves import curves_of, panels_of
from paperbench.runs.observer import Observer
from paperbench.runs.store import Store
from paperbench.runs.verify import verify
from paperbench.specs.table import read_table
from tests.helpers import ROOT

DEPTHS = ROOT / "examples" / "recipes_by_depth"
DROPPING = "resnet110/error"


def test_rates_are_those_that_guides_recommend() -> None:
    table = read_table("depths", DEPTHS)
    recipes = [table.recipe_in(table.profiles.named("paper"), cell.recipe) for cell in table.all_cells]
    highest = [max(map(recipe.rate_at, range(0, recipe.iterations, 100))) for recipe in recipes]
    assert highest == [0.1, 0.1, 0.05, 0.001, 0.001]
    assert [one.rate_at(0) < one.learning_rate for one in recipes] == [False] * 2 + [True] * 3


@pytest.mark.parametrize("cell", ["resnet506/error", pytest.param(DROPPING, marks=pytest.mark.full)])
def test_recipe_trains_and_its_run_verifies(tmp_path: Path, cell: str) -> None:
    plan = paperbench.plan("depths", tmp_path, profile="smoke", cells=cell, device="cpu", root=DEPTHS)
    judged = paperbench.run(plan, Observer()).judged
    (found,) = verify(store := Store(tmp_path))
    assert (found.status, found.problems) == ("finished", [])
    (directory,) = store.directories()
    rates = [line.lr for line in directory.history()]
    assert rates == [plan.runs[0].recipe.rate_at(iteration) for iteration in (2, 5, 8, 11)]
    panels = panels_of([*curves_of(judged.comparison, lambda _: directory.history())], judged.comparison)
    assert ("the rate drops" in render(panels, [], "iterations")) is (cell == DROPPING)
