from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from paperbench.specs.recipe import Drops, Recipe, WarmUp
from paperbench.training.optimiser import MomentumSGD

STEPS = 30


@pytest.fixture
def recipe(paper_recipe: Recipe) -> Recipe:
    return replace(paper_recipe, iterations=STEPS, warm_up=WarmUp(0.01, 5), drops=Drops((12, 20), 0.1))


def gradients() -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        yield torch.randn(50, generator=generator, dtype=torch.float64)


def start() -> torch.Tensor:
    return torch.linspace(-1, 1, 50, dtype=torch.float64)


def trained(recipe: Recipe) -> torch.Tensor:
    weight = nn.Parameter(start())
    optimiser = MomentumSGD([weight], recipe)
    for iteration, gradient in enumerate(gradients()):
        optimiser.set_rate(recipe.rate_at(iteration))
        optimiser.step([gradient.clone()])
    return weight.detach()


def by_formula(recipe: Recipe) -> torch.Tensor:
    """The three forms of momentum as their frameworks document them."""
    w, v = start(), torch.zeros(50, dtype=torch.float64)
    for iteration, gradient in enumerate(gradients()):
        rate, decayed = recipe.rate_at(iteration), gradient + 1e-4 * w
        match recipe.momentum_form:
            case "caffe":
                v = 0.9 * v + rate * decayed
                w = w - v
            case "pytorch":
                v = 0.9 * v + decayed
                w = w - rate * v
            case "nesterov":
                v = 0.9 * v + decayed
                w = w - rate * (decayed + 0.9 * v)
    return w


@pytest.mark.parametrize("form", ["caffe", "pytorch", "nesterov"])
def test_momentum_equals_the_formula_of_its_framework(recipe: Recipe, form: Any) -> None:
    changed = replace(recipe, momentum_form=form)
    torch.testing.assert_close(trained(changed), by_formula(changed), rtol=1e-12, atol=1e-12)
