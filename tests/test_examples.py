"""The tables in examples/: what they say, and that they train."""

from __future__ import annotations

from pathlib import Path

import pytest

import paperbench
from paperbench.architecture import parameters
from paperbench.report.curve_text import render
from paperbench.report.curves import curves_of, panels_of
from paperbench.runs.observer import Observer
from paperbench.runs.store import Store
from paperbench.runs.verify import verify
from paperbench.specs.table import read_table
from tests.helpers import ROOT

EXAMPLES = ROOT / "examples"
DEPTHS = EXAMPLES / "recipes_by_depth"
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


@pytest.mark.full
def test_second_paper_is_compared_from_its_yaml_alone(tmp_path: Path) -> None:
    cells = ["layers20/*", "layers110/residual"]
    how = {"profile": "smoke+iterations=4", "cells": cells, "device": "cpu", "root": EXAMPLES / "resnet_v1"}
    plan = paperbench.plan("resnet_v1", tmp_path, **how)
    assert [run.net.depth for run in plan.runs] == [8, 8, 32]
    judged = paperbench.run(plan, Observer()).judged
    best = judged.cell("layers110/residual")
    assert (best.published.value, best.published.mean) == (6.43, 6.61)
    assert "6.43 (6.61±0.16)" in judged.render("table")


def test_table_of_a_second_paper_has_its_numbers_of_parameters() -> None:
    """arXiv:1512.03385, Table 6, rounds them. Plain nets have as many as residual ones (Sec. 4.2)."""
    table = read_table("resnet_v1", EXAMPLES / "resnet_v1")
    paper = table.profiles.named("paper")
    for cell in table.all_cells:
        net = cell.net_in(paper)
        printed = table.cell(f"{cell.row.id}/residual").expected.params
        assert f"{parameters(net) / 1e6:.{2 if net.depth < 100 else 1}f}M" == printed


@pytest.mark.full
def test_units_of_ones_own_train_beside_the_papers(tmp_path: Path) -> None:
    how = {"profile": "smoke", "device": "cpu", "stop_at": 1, "root": EXAMPLES / "own_unit"}
    plan = paperbench.plan("own_unit", tmp_path, cells=["preact", "squeezed", "rms_gelu"], **how)
    outcome = paperbench.run(plan, Observer())
    assert (outcome.failed, outcome.remaining) == ([], [])
    assert [run.net_name for run in plan.runs[1:]] == ["units.py:rms_gelu(depth=14)", "units.py:squeezed(depth=14)"]
