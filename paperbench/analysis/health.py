"""The health of a training: weights, gradients and updates by layer, activations by ReLU, Jacobians by unit.

chi is the mean squared singular value of Pennington, Schoenholz and Ganguli, "Resurrecting the sigmoid in deep learning
through dynamical isometry", 2017 (arXiv:1711.04735).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from paperbench.analysis.record import ALL, Health, Modules
from paperbench.analysis.walk import Subject
from paperbench.models.residual_unit import ResidualUnit

if TYPE_CHECKING:
    from paperbench.analysis.cases import Case

PROBES = 2
"""Random vectors per unit. Two give chi to one percent with 64 images of 8x8 pixels, as signals have many values."""


def health(subject: Subject, case: Case) -> Health:
    """Measure what `Health` says."""
    rows, gradients = measure_modules(subject)
    weights = dict(subject.model.named_parameters())
    update, update_is = last_update(case, weights, gradients)
    for column, tensors in (("weight", weights), ("gradient", gradients), ("update", update)):
        known = {name: [tensors[f"{name}.weight"]] for name in rows if f"{name}.weight" in tensors}
        for name, some in (known | {ALL: [*tensors.values()]}).items() if tensors else ():
            rows.setdefault(name, {})[column] = _norm(*some)
    errors = [case.history.newest(of, case.iteration) if case.history else None for of in ("train_error", "test_error")]
    return Health(Modules.of({"name": name, **row} for name, row in rows.items()), update_is, PROBES, *errors)


def last_update(
    case: Case, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor]
) -> tuple[Mapping[str, Tensor], str]:
    """Return how one step changes the weights, and which step that is; or nothing, and why it is unavailable.

    `MomentumSGD` steps by its rate times the momentum, in Nesterov's form by a gradient more.

    Args:
        gradients: Of the mean loss, for the first step.
    """
    recipe, is_nesterov = case.recipe, case.recipe.momentum_form == "nesterov"
    if case.state is None:
        rate = recipe.rate_at(0) * (1 + recipe.momentum * is_nesterov)
        decay = {n: recipe.weight_decay * (recipe.weight_decay_on is None or w.ndim == 4) for n, w in weights.items()}
        steps = {name: -rate * (gradients[name] + decay[name] * weight) for name, weight in weights.items()}
        return steps, "the first step's, on these images"
    if not case.momentum:
        return {}, f"unavailable: {'weights have' if case.weights else 'finished runs keep'} no momentum"
    if is_nesterov:
        return {}, "unavailable: Nesterov's momentum lacks the last gradient"
    rate = recipe.rate_at(case.iteration - 1)
    return {n: -rate * one.double() for n, one in zip(weights, case.momentum, strict=True)}, "the last step's"


def measure_modules(subject: Subject) -> tuple[dict[str, dict[str, Any]], dict[str, Tensor]]:
    """Return what `Modules` says about ReLUs and units, by name, and the gradients with respect to all parameters.

    Weight layers have empty rows.
    """
    model, found = subject.model, dict[Tensor, Tensor]()
    rows: dict[str, dict[str, Any]] = {}
    hooks = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear | nn.ReLU | ResidualUnit):
            rows[name] = {}
        if isinstance(module, nn.ReLU):
            hooks.append(module.register_forward_hook(partial(_note, rows[name])))

    def pull(y: Tensor, x: Tensor, cotangent: Tensor | None, *passed: nn.Module) -> Tensor:
        weights = [weight for module in passed for weight in module.parameters()]
        product, *others = torch.autograd.grad(y, [x, *weights], cotangent, retain_graph=True, materialize_grads=True)
        found.update(zip(weights, others, strict=True))
        return product

    output, kept = subject.enter(), []
    for index, unit in enumerate(subject.forward(output)):
        kept += [unit.x] if index % subject.spacing == 0 else []
        output = unit.output
    generator = torch.Generator().manual_seed(0)
    model.requires_grad_()
    with torch.enable_grad():
        leaf = output.detach().requires_grad_()
        gradient = pull(subject.loss(leaf), leaf, None, model.tail, model.fc)
        for (facts, _), unit in zip(reversed(subject.units), subject.backward(kept), strict=True):
            leaf = unit.x.detach().requires_grad_()
            y = unit.whole(leaf)
            gradient = pull(y, leaf, gradient, unit.unit)
            probes = [torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y) for _ in range(PROBES)]
            mean, error = mean_squared_singular_value(y, leaf, probes)
            of_unit = {"chi": mean, "chi_error": error, "correlation": correlation(unit.x)}
            rows[f"stages.{facts.stage}.{facts.index}"] |= of_unit
        leaf = subject.images.detach().requires_grad_()
        pull(model.stem(leaf), leaf, gradient, model.stem)
    model.requires_grad_(False)
    for hook in hooks:
        hook.remove()
    return rows, {name: found[weight] for name, weight in model.named_parameters()}


@torch.no_grad()
def _note(row: dict[str, Any], _: nn.Module, inputs: Any, y: Tensor) -> None:
    if inputs[0].requires_grad:  # else it computes the input of a unit
        variance, mean = torch.var_mean(y.double(), correction=0)
        dead = int((y.amax((0, 2, 3)) == 0).sum())
        row |= {"mean": mean.item(), "std": variance.sqrt().item(), "dead": dead, "channels": y.shape[1]}


def correlation(x: Tensor) -> float | None:
    """Return the mean cosine of the angle between two images' signals, 0 where one is zero; None for one image."""
    norms = torch.linalg.vector_norm(x.flatten(1), dim=1, dtype=torch.float64)
    scales, pairs = torch.where(norms > 0, 1 / norms, 0), len(x) * (len(x) - 1)
    return (_norm(scales @ x.flatten(1).double()) ** 2 - int((norms > 0).sum())) / pairs if pairs else None


def mean_squared_singular_value(y: Tensor, x: Tensor, probes: Sequence[Tensor]) -> tuple[float, float]:
    """Return chi of the Jacobian J of y with respect to x, and its standard error, from products J^T u with probes u.

    The mean of |J^T u|^2 / |u|^2, times values of y over values of x, is |J|_F^2 over values of x, as that of
    |Jv|^2 / |v|^2 is; but it needs no other pass forward.
    """
    found = []
    for u in probes:
        (product,) = torch.autograd.grad(y, x, u, retain_graph=True)
        found.append((_norm(product) / _norm(u)) ** 2 * y.numel() / x.numel())
    return statistics.mean(found), statistics.stdev(found) / len(found) ** 0.5


def _norm(*tensors: Tensor) -> float:
    return float(torch.stack([torch.linalg.vector_norm(one, dtype=torch.float64) for one in tensors]).norm())
