from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from paperbench.specs.recipe import Drops, Recipe, WarmUp
from paperbench.training.optimiser import MomentumSGD
from tests.training.trainings import MORE

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


@pytest.mark.parametrize("changes", [{}, {**MORE, "clip_norm": None}])
@pytest.mark.parametrize("form", ["caffe", "pytorch", "nesterov"])
def test_momentum_equals_the_formula_of_its_framework(recipe: Recipe, form: Any, changes: dict[str, Any]) -> None:
    changed = replace(recipe, momentum_form=form, **changes)
    torch.testing.assert_close(trained(changed), by_formula(changed), rtol=1e-12, atol=1e-12)


def test_clipped_updates_are_those_of_torch(recipe: Recipe) -> None:
    """Some gradients are longer than 5, others shorter."""
    ours, theirs = ([nn.Parameter(start()), nn.Parameter(start().view(5, 10))] for _ in range(2))
    optimiser = MomentumSGD(ours, replace(recipe, clip_norm=5.0, warm_up=None))
    reference = torch.optim.SGD(theirs, lr=0.1, momentum=0.9, weight_decay=1e-4)
    for factor, gradient in zip((0.1, 2.0, 1.0), gradients(), strict=False):
        for parameter in theirs:
            parameter.grad = factor * gradient.clone().view(parameter.shape)
        optimiser.step([p.grad.clone() for p in theirs if p.grad is not None])
        nn.utils.clip_grad_norm_(theirs, 5.0)
        reference.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("value", [torch.inf, torch.nan, 1e200])
def test_clipping_hides_no_gradient_without_a_finite_norm(recipe: Recipe, value: float) -> None:
    ours = [nn.Parameter(start()), nn.Parameter(start())]
    MomentumSGD(ours, replace(recipe, clip_norm=5.0)).step([torch.full_like(start(), value), start()])
    assert torch.stack([*ours]).isnan().all()


def test_weight_decay_on_convolutions_spares_other_parameters(recipe: Recipe) -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 2))
    before = [p.detach().clone() for p in net.parameters()]
    optimiser = MomentumSGD(net.parameters(), replace(recipe, weight_decay=0.5, weight_decay_on="convolutions"))
    optimiser.step([torch.zeros_like(p) for p in net.parameters()])
    shrunk = [p.detach() / b for p, b in zip(net.parameters(), before, strict=True)]
    torch.testing.assert_close(shrunk[0], torch.full_like(shrunk[0], 1 - 0.01 * 0.5))
    assert all(torch.equal(p, b) for p, b in zip(list(net.parameters())[1:], before[1:], strict=True))
