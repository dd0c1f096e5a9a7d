"""The health of a training: weights, gradients and updates by layer, activations by ReLU, Jacobians by unit.

Over random v, |Jv|^2 / |v|^2 has the mean |J|_F^2 over the dimensions of v; so has |J^T u|^2 / |u|^2 over those of u.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from paperbench.analysis.linear import norm
from paperbench.analysis.record import ALL, Health, Modules
from paperbench.analysis.walk import Subject
from paperbench.models.residual_unit import ResidualUnit
from paperbench.training.optimiser import MomentumSGD

if TYPE_CHECKING:
    from paperbench.analysis.cases import Case

Tensors = Mapping[str, Tensor]
PROBES = 4
"""Random vectors per unit. Few give chi to a percent, as signals have many values."""


def health(subject: Subject, case: Case) -> Health:
    """Measure what `Health` says."""
    rows, gradients = measure_modules(subject)
    weights = dict(subject.model.named_parameters())
    update, update_is = last_update(case, weights, gradients)
    for column, tensors in (("weight", weights), ("gradient", gradients), ("update", update)):
        known = {name: [tensors[f"{name}.weight"]] for name in rows if f"{name}.weight" in tensors}
        for name, some in (known | {ALL: [*tensors.values()]}).items() if tensors else ():
            rows.setdefault(name, {})[column] = norm(*some)
    errors = [case.history.newest(of, case.iteration) if case.history else None for of in ("train_error", "test_error")]
    return Health(Modules.of({"name": name, **row} for name, row in rows.items()), update_is, PROBES, *errors)


def last_update(case: Case, weights: Tensors, gradients: Tensors) -> tuple[Tensors, str]:
    """Return how one step of `MomentumSGD` changes the weights, and which that is; or nothing, and why not."""
    recipe, is_nesterov = case.recipe, case.recipe.momentum_form == "nesterov"
    if not case.iteration and case.weights is None:
        after = [weight.to(torch.float64, copy=True) for weight in weights.values()]
        MomentumSGD(after, recipe).step([gradients[name].double() for name in weights])
        return {n: one - weights[n] for n, one in zip(weights, after, strict=True)}, "the first step's, on these images"
    if is_nesterov or not case.momentum:
        return {}, f"unavailable: {'Nesterov lacks the last gradient' if case.momentum else 'no momentum was kept'}"
    rate = recipe.rate_at(case.iteration - 1)
    return {n: -rate * one.double() for n, one in zip(weights, case.momentum, strict=True)}, "the last step's"


def measure_modules(subject: Subject, probes: int = PROBES) -> tuple[dict[str, dict[str, Any]], Tensors]:
    """Return what `Modules` says about ReLUs and units, by name, and the gradients with respect to all parameters."""
    model, found = subject.model, dict[Tensor, Tensor]()
    kinds = nn.Conv2d | nn.Linear | nn.ReLU | ResidualUnit
    rows = {name: dict[str, Any]() for name, module in model.named_modules() if isinstance(module, kinds)}
    relus = ((name, module) for name, module in model.named_modules() if isinstance(module, nn.ReLU))
    hooks = [module.register_forward_hook(partial(_note, rows[name])) for name, module in relus]

    def pull(y: Tensor, x: Tensor, cotangent: Tensor | None, *passed: nn.Module) -> Tensor:
        weights = [weight for module in passed for weight in module.parameters()]
        product, *others = torch.autograd.grad(y, [x, *weights], cotangent, retain_graph=True, materialize_grads=True)
        found.update(zip(weights, others, strict=True))
        return product

    output, kept = subject.through()
    generator = torch.Generator().manual_seed(0)
    model.requires_grad_()
    with torch.enable_grad():
        leaf = output.detach().requires_grad_()
        gradient = pull(subject.loss(leaf), leaf, None, model.tail, model.fc)
        for (facts, _), unit in zip(reversed(subject.units), subject.backward(kept), strict=True):
            leaf = unit.x.detach().requires_grad_()
            y = unit.whole(leaf)
            gradient = pull(y, leaf, gradient, unit.unit)
            random = [torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y) for _ in range(probes)]
            of_unit = mean_squared_singular_value(y, leaf, random) | {"correlation": correlation(unit.x)}
            rows[f"stages.{facts.stage}.{facts.index}"] |= of_unit
        leaf = subject.images.detach().requires_grad_()
        pull(model.stem(leaf), leaf, gradient, model.stem)
    model.requires_grad_(False)
    for hook in hooks:
        hook.remove()
    return rows, {name: found[weight] for name, weight in model.named_parameters()}


def _note(row: dict[str, Any], _: nn.Module, inputs: Any, y: Tensor) -> None:
    if inputs[0].requires_grad:  # else it computes the input of a unit
        deviation, mean = torch.std_mean(y.detach().double(), correction=0)
        dead = int((y.amax((0, 2, 3)) == 0).sum())
        row |= {"mean": mean.item(), "std": deviation.item(), "dead": dead, "channels": y.shape[1]}


def correlation(x: Tensor) -> float | None:
    """Return the mean cosine of the angle between two images' signals, 0 where one is zero; None for one image."""
    norms = torch.linalg.vector_norm(x.flatten(1), dim=1, dtype=torch.float64)
    scales, pairs = torch.where(norms > 0, 1 / norms, 0), len(x) * (len(x) - 1)
    return (norm(scales @ x.flatten(1).double()) ** 2 - int((norms > 0).sum())) / pairs if pairs else None


def mean_squared_singular_value(y: Tensor, x: Tensor, probes: Sequence[Tensor]) -> dict[str, float | None]:
    """Return chi, as the mean of |J^T u|^2 / |u|^2 by the ratio of dimensions, with its standard error."""
    pulled = (torch.autograd.grad(y, x, u, retain_graph=True)[0] for u in probes)
    found = [(norm(v) / norm(u)) ** 2 * y.numel() / x.numel() for u, v in zip(probes, pulled, strict=True)]
    return {"chi": statistics.mean(found), "chi_error": statistics.stdev(found) / len(found) ** 0.5}
