"""The health of a training: weights, gradients and updates by layer, activations by ReLU, Jacobians by unit.

chi is the mean squared singular value of Pennington, Schoenholz and Ganguli, "Resurrecting the sigmoid in deep learning
through dynamical isometry", 2017 (arXiv:1711.04735).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from paperbench.analysis.record import Health
from paperbench.analysis.walk import Subject
from paperbench.runs.history import History
from paperbench.specs.recipe import Recipe

PROBES = 2
"""Random vectors per unit. Two give chi to one percent with 64 images of 8x8 pixels, as signals have many values."""


@dataclass(frozen=True)
class Training:
    """How a net has come about.

    Attributes:
        recipe: How it is trained.
        iteration: How often; None if the weights are from a file.
        momentum: The buffers of `MomentumSGD` after that, if they are known.
        history: Of the run, if there is one.
    """

    recipe: Recipe
    iteration: int | None
    momentum: Sequence[Tensor] = ()
    history: History | None = None

    def update(self, parameters: Sequence[Tensor], gradients: Sequence[Tensor]) -> tuple[list[Tensor] | None, str]:
        """Return how one step changes the parameters, and which one, or why that cannot be told.

        After the first step that is the last one, which `MomentumSGD` made by its rate times the momentum, except in
        Nesterov's form, where the gradient of that step is added.

        Args:
            gradients: Of the mean loss with respect to the parameters, for the first step.
        """
        recipe = self.recipe
        if self.iteration is None:
            return None, "unavailable: a file of weights has no momentum"
        if self.iteration == 0:
            rate = recipe.rate_at(0) * (1 + (recipe.momentum if recipe.momentum_form == "nesterov" else 0))
            decays = [recipe.weight_decay * (recipe.weight_decay_on is None or p.ndim == 4) for p in parameters]
            steps = [-rate * (g + decay * p) for p, g, decay in zip(parameters, gradients, decays, strict=True)]
            return steps, "the first step's, on these images"
        if not self.momentum or recipe.momentum_form == "nesterov":
            return None, "unavailable: " + (
                "Nesterov's momentum does not tell it" if self.momentum else "no momentum was kept"
            )
        rate = recipe.rate_at(self.iteration - 1)
        return [-rate * buffer.to(p) for p, buffer in zip(parameters, self.momentum, strict=True)], "the last step's"

    def errors(self) -> tuple[float | None, float | None, str]:
        """Return the newest errors on training and test images in percent, and which ones, or why there are none."""
        if not self.history or not self.iteration:
            return None, None, "unavailable: only runs log errors"
        train, test = (self.history.newest(name, self.iteration) for name in ("train_error", "test_error"))
        if train is None or test is None:
            return None, None, "unavailable: not yet tested"
        return train, test, "those last logged"


def health(subject: Subject, training: Training) -> Health:
    """Measure what `Health` says."""
    relus, correlations, kept, output = signals(subject)
    gradients, chi = gradients_and_chi(subject, kept, output)
    parameters = dict(subject.model.named_parameters())
    update, update_is = training.update(list(parameters.values()), [gradients[name] for name in parameters])
    steps = dict(zip(parameters, update, strict=True)) if update else None
    modules = subject.model.named_modules()
    layers = [name for name, module in modules if isinstance(module, nn.Conv2d | nn.Linear)]
    train_error, test_error, errors_are = training.errors()
    weights = [f"{name}.weight" for name in layers]
    return Health(
        layers=tuple(layers),
        weight_norm=_norms(parameters, weights),
        gradient_norm=_norms(gradients, weights),
        update_norm=_norms(steps, weights) if steps else None,
        update_is=update_is,
        all_weight_norm=_norm(*parameters.values()),
        all_gradient_norm=_norm(*gradients.values()),
        all_update_norm=_norm(*steps.values()) if steps else None,
        relus=tuple(row["name"] for row in relus),
        relu_mean=tuple(row["mean"] for row in relus),
        relu_std=tuple(row["std"] for row in relus),
        dead=tuple(row["dead"] for row in relus),
        relu_channels=tuple(row["channels"] for row in relus),
        probes=PROBES,
        chi=tuple(mean for mean, _ in chi),
        chi_error=tuple(error for _, error in chi),
        correlation=tuple(correlations),
        train_error=train_error,
        test_error=test_error,
        errors_are=errors_are,
    )


@torch.no_grad()
def signals(subject: Subject) -> tuple[list[dict[str, Any]], list[float], list[Tensor], Tensor]:
    """Return what each ReLU puts out, by name, the correlation of images in each x_l, inputs to keep, and x_L."""
    relus: list[dict[str, Any]] = []
    modules = [(name, module) for name, module in subject.model.named_modules() if isinstance(module, nn.ReLU)]
    hooks = [module.register_forward_hook(partial(_note, relus, name)) for name, module in modules]
    output, kept = subject.enter(), []
    correlations = [correlation(output)]
    for index, unit in enumerate(subject.forward(output)):
        kept += [unit.x] if index % subject.spacing == 0 else []
        output = unit.output
        correlations.append(correlation(output))
    subject.logits(output)
    for hook in hooks:
        hook.remove()
    return relus, correlations if len(output) > 1 else [], kept, output


def _note(relus: list[dict[str, Any]], name: str, _: nn.Module, __: Any, y: Tensor) -> None:
    variance, mean = torch.var_mean(y.double(), correction=0)
    dead = int((y.amax((0, 2, 3)) == 0).sum())
    relus.append(
        {"name": name, "mean": mean.item(), "std": variance.sqrt().item(), "dead": dead, "channels": y.shape[1]}
    )


def correlation(x: Tensor) -> float:
    """Return the mean cosine of the angle between the signals of two images; 0 counts where one of them is zero."""
    signals, images = x.flatten(1).double(), len(x)
    norms = torch.linalg.vector_norm(signals, dim=1)
    scales = torch.where(norms > 0, norms.reciprocal(), 0)
    return float(((scales @ signals).square().sum() - (norms > 0).sum()) / max(images * (images - 1), 1))


def gradients_and_chi(
    subject: Subject, kept: list[Tensor], output: Tensor
) -> tuple[dict[str, Tensor], list[tuple[float, float]]]:
    """Return the gradient of E with respect to each parameter, and chi of each unit with its standard error.

    Args:
        kept: See `Subject.backward`. Is emptied.
        output: x_L.
    """
    model, found = subject.model.requires_grad_(), dict[Tensor, Tensor]()
    generator, chi = torch.Generator().manual_seed(0), []

    def pull(y: Tensor, leaf: Tensor, cotangent: Tensor | None, *modules: nn.Module) -> Tensor:
        parameters = [parameter for module in modules for parameter in module.parameters()]
        wanted = [leaf, *parameters]
        product, *others = torch.autograd.grad(y, wanted, cotangent, retain_graph=True, materialize_grads=True)
        found.update(zip(parameters, others, strict=True))
        return product

    with torch.enable_grad():
        leaf = output.detach().requires_grad_()
        gradient = pull(subject.loss(leaf), leaf, None, model.tail, model.fc)
        for unit in subject.backward(kept):
            leaf = unit.x.detach().requires_grad_()
            y = unit.whole(leaf)
            gradient = pull(y, leaf, gradient, unit.unit)
            chi.append(mean_squared_singular_value(y, leaf, generator))
        leaf = subject.images.detach().requires_grad_()
        pull(model.stem(leaf), leaf, gradient, model.stem)
    model.requires_grad_(False)
    return {name: found[parameter] for name, parameter in model.named_parameters()}, chi[::-1]


def mean_squared_singular_value(y: Tensor, x: Tensor, generator: torch.Generator) -> tuple[float, float]:
    """Return chi from products J^T u with random vectors u, which need no other pass forward, and its standard error.

    The means of |Jv|^2 / |v|^2, and of |J^T u|^2 / |u|^2 times values of y over values of x, are both |J|_F^2 over
    values of x.

    Args:
        x, y: Input and output of the function whose Jacobian is J.
    """
    ratios = []
    for _ in range(PROBES):
        u = torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y)
        (pulled,) = torch.autograd.grad(y, x, u, retain_graph=True)
        ratios.append((_norm(pulled) / _norm(u)) ** 2 * y.numel() / x.numel())
    return statistics.mean(ratios), statistics.stdev(ratios) / PROBES**0.5


def _norms(tensors: Mapping[str, Tensor], names: Sequence[str]) -> tuple[float, ...]:
    return tuple(_norm(tensors[name]) for name in names)


def _norm(*tensors: Tensor) -> float:
    return float(torch.stack([torch.linalg.vector_norm(one, dtype=torch.float64) for one in tensors]).norm())
