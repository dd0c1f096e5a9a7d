"""The recipes by depth in examples/: what they say, and that they train."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import paperbench
from paperbench.errors import PaperbenchError
from paperbench.report.curve_text import render
from paperbench.report.curves import curves_of, panels_of
from paperbench.runs.observer import Observer
from paperbench.runs.store import Store
from paperbench.runs.verify import verify
from paperbench.specs.table import load_table
from tests.helpers import ROOT, edit

DEPTHS = ROOT / "examples" / "recipes_by_depth"
DROPPING, COSINE = "resnet110/error", "resnet506/error"


def test_rates_are_those_that_guides_recommend() -> None:
    table = load_table("depths", DEPTHS)
    recipes = [table.recipe_in(table.profiles.named("paper"), cell.recipe) for cell in table.all_cells]
    highest = [max(map(recipe.rate_at, range(0, recipe.iterations, 100))) for recipe in recipes]
    assert highest == [0.1, 0.1, 0.05, 0.001, 0.001]
    assert [(one.rate_at(0) < one.learning_rate, one.schedule) for one in recipes] == [
        *[(False, None)] * 2,
        *[(True, "cosine")] * 3,
    ]
    assert all("guides" in one.source and "neither what the paper did" in one.source for one in recipes)


@pytest.mark.parametrize(
    "cell", [COSINE, *(pytest.param(c, marks=pytest.mark.full) for c in (DROPPING, "resnet1202/error"))]
)
def test_recipe_trains_and_its_run_verifies(tmp_path: Path, cell: str) -> None:
    plan = paperbench.plan("depths", tmp_path, profile="smoke", cells=cell, device="cpu", root=DEPTHS)
    judged = paperbench.run(plan, Observer()).judged
    (found,) = verify(store := Store(tmp_path))
    assert (found.status, found.problems) == ("finished", [])
    (directory,) = store.directories()
    rates = [line.lr for line in directory.history()]
    assert rates == [plan.runs[0].recipe.rate_at(iteration) for iteration in (4, 9, 14, 19)]
    curves = [*curves_of(judged.comparison, lambda _: directory.history())]
    text = render(panels_of(curves, judged.comparison), [], "iterations")
    assert ("the rate drops" in text) is (cell == DROPPING)


def test_profile_that_adds_drops_to_a_cosine_is_refused(tmp_path: Path) -> None:
    shutil.copytree(DEPTHS, tmp_path, dirs_exist_ok=True)
    profiles = tmp_path / "experiments" / "profiles.yaml"
    line = edit(profiles, "to_1000: {warm_up: {iterations: 5}}", "to_1000: {drops: {at: [5]}}")
    with pytest.raises(PaperbenchError) as caught:
        load_table("depths", tmp_path)
    assert f"profiles.yaml:{line}: drops: must be given, or a schedule (cosine) in their place" in str(caught.value)
