"""A pass through a net and back, unit by unit: what Sections 2 and 3 of the paper say about signal and gradient."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paperbench.analysis.linear import UnitAt, norm, pull, push, resizing
from paperbench.architecture import units
from paperbench.catalogue import Convolution
from paperbench.models import ResidualNet
from paperbench.models.residual_unit import ResidualUnit


class Subject:
    """A net with the images that it is analysed on. A copy: nothing is changed in the net that it is made from.

    Args:
        images, labels: One batch, (N, 3, H, W) and (N,).
        by_batch: Whether the net is as in training, where BN uses the statistics of the batch, and dropout drops; else
            it is as in tests.
        dtype: Of all arithmetic.
        seed: Of the dropout.
        label_smoothing: Of the loss that is trained on.

    Attributes:
        units: The residual units, each with its place in the architecture.
        spacing: About the square root of their number. To pass back keeps the input of every such unit, and computes
            the others twice.
    """

    def __init__(
        self,
        model: ResidualNet,
        images: Tensor,
        labels: Tensor,
        *,
        by_batch: bool,
        dtype: torch.dtype,
        seed: int = 0,
        label_smoothing: float = 0.0,
    ) -> None:
        own = copy.deepcopy(model).to(dtype).to(memory_format=torch.contiguous_format)
        self.model = own.train(by_batch).requires_grad_(False)
        for layer in self.model.modules() if by_batch else ():
            if isinstance(layer, nn.BatchNorm2d):
                layer.__class__ = nn.BatchNorm2d  # a trainer's keep statistics
                layer.running_mean = layer.running_var = layer.num_batches_tracked = None  # nothing to update
        self.images, self.labels = images.to(dtype).contiguous(), labels
        self._seed, self._label_smoothing = seed, label_smoothing
        modules = (module for module in self.model.stages.modules() if isinstance(module, ResidualUnit))
        self.units = list(zip(units(model.net), modules, strict=True))
        self.spacing = math.isqrt(len(self.units)) + 1

    def enter(self) -> Tensor:
        """Return x_0, the input of the first unit."""
        x: Tensor = self.model.stem(self.images)
        return x

    def logits(self, x: Tensor) -> Tensor:
        """Return the output of the net from x_L, the output of the last unit."""
        return self.model.forward_head(self.model.tail(x))

    def loss(self, x: Tensor) -> Tensor:
        """Return E, the loss of the batch that is trained on, from x_L: mean cross-entropy, with label smoothing."""
        return F.cross_entropy(self.logits(x), self.labels, label_smoothing=self._label_smoothing)

    @torch.no_grad()
    def forward(self, x: Tensor | None = None, first: int = 0, last: int | None = None) -> Iterator[UnitAt]:
        """Yield units at their inputs, from one index up to another; the first at x, or at x_0 if that is None."""
        x = self.enter() if x is None else x
        for index in range(len(self.units))[first:last]:
            unit = UnitAt(self.units[index][1], x, self._seed + index)
            yield unit
            x = unit.output

    def through(self) -> tuple[Tensor, list[Tensor]]:
        """Return x_L, and the inputs of units that `backward` needs."""
        kept, output = [], self.enter()
        for index, unit in enumerate(self.forward(output)):
            kept += [unit.x] if index % self.spacing == 0 else []
            output = unit.output
        return output, kept

    def backward(self, kept: list[Tensor]) -> Iterator[UnitAt]:
        """Yield units at their inputs, last first.

        Args:
            kept: The inputs of the first unit and every `spacing`-th after it. Is emptied.
        """
        while kept:
            first = self.spacing * (len(kept) - 1)
            segment = list(self.forward(kept.pop(), first, first + self.spacing))
            while segment:
                yield segment.pop()


@dataclass(frozen=True)
class Measurements:
    """What the passes measured in one net.

    Attributes:
        loss: E.
        output: Norm, mean and standard deviation of x_L, the output of the last unit.
        output_gradient: Norm of dE/dx_L.
        rows: The values of `Passes` for each unit, by name.
        channels: Standard deviation of each channel of x_l, for each unit.
    """

    loss: float
    output: dict[str, float]
    output_gradient: float
    rows: list[dict[str, Any]]
    channels: list[tuple[float, ...]]


def measure(subject: Subject) -> Measurements:
    """Measure signal and gradient in every unit."""
    rows: list[dict[str, Any]] = []
    channels, kept, output = [], [], subject.enter()
    for index, (unit, values) in enumerate(_forward(subject, output)):
        rows.append(values)
        channels.append(tuple(unit.x.double().std((0, 2, 3), correction=0).tolist()))
        kept += [unit.x] if index % subject.spacing == 0 else []
        output = unit.output
    loss, gradient = subject.loss(output), pull(subject.loss, output)
    for values, found in zip(reversed(rows), _backward(subject, subject.backward(kept), gradient), strict=True):
        values |= found
    return Measurements(loss.item(), _describe(output), norm(gradient), rows, channels)


@torch.no_grad()
def _forward(subject: Subject, x: Tensor) -> Iterator[tuple[UnitAt, dict[str, Any]]]:
    """Yield every unit at its input, with what the pass forward measures, by name."""
    carried, from_input, from_residuals, alone, identity = x, x, torch.zeros_like(x), x, x
    for (facts, module), unit in zip(subject.units, subject.forward(x), strict=True):
        is_shared = facts.shortcut_reads == "activated"
        if is_shared:  # not linear, so it applies to the whole sum
            from_input, from_residuals = from_input + from_residuals, torch.zeros_like(from_residuals)
        from_input = unit.factor * unit.shortcut(from_input)
        from_residuals = unit.factor * push(unit.shortcut, unit.x, from_residuals) + unit.residual
        alone, identity = unit.without_residual(alone), resizing(subject.model.net, facts, module)(identity)
        has_relu = "relu" in facts.placement.after_addition
        values = {
            **{f"signal_{name}": value for name, value in _describe(unit.x).items()},
            **{f"residual_{name}": value for name, value in _describe(unit.residual).items()},
            "input_share": _share(carried, unit.x),
            "sum_error": _distance(from_input + from_residuals, unit.output),
            "negative": _fraction(unit.y < 0),
            "cut": _fraction(unit.output == 0) if has_relu else None,
            "identity_error": _distance(alone, identity),
            "identity_kept": _share(alone, identity),
            "factor": _mean(unit.factor),
        }
        yield unit, values
        carried = push(unit.by_shortcut, unit.x, carried)
        projects = isinstance(facts.resizing, Convolution) and subject.model.net.shortcut_option
        identity = alone if is_shared or projects else identity


def _backward(subject: Subject, last_first: Iterable[UnitAt], gradient: Tensor) -> Iterator[dict[str, Any]]:
    """Yield what the pass back measures in each unit, by name, the last unit first; it begins with dE/dx_L."""
    direct = identity = gradient
    predicted = 1.0
    for (facts, module), unit in zip(reversed(subject.units), last_first, strict=True):
        gradient = pull(unit.whole, unit.x, gradient)
        direct = pull(unit.by_shortcut, unit.x, direct)
        identity = pull(resizing(subject.model.net, facts, module), unit.x, identity)
        predicted *= _mean(unit.factor) if subject.model.net.shortcut_option else math.nan
        through = gradient - direct
        norms = norm(direct), norm(through)
        yield {
            "gradient_norm": norm(gradient),
            "direct_norm": norms[0],
            "through_norm": norms[1],
            "direct_share": _share(direct, gradient),
            "cosine": _dot(direct, through) / math.prod(norms) if all(norms) else None,
            "predicted": None if math.isnan(predicted) else predicted,
            "measured": _share(direct, identity),
        }


def _describe(x: Tensor) -> dict[str, float]:
    variance, mean = torch.var_mean(x.double(), correction=0)
    return {"norm": norm(x), "mean": mean.item(), "std": variance.sqrt().item()}


def _mean(x: Tensor) -> float:
    return x.double().mean().item()


def _fraction(true: Tensor) -> float:
    return int(torch.count_nonzero(true)) / true.numel()


def _dot(x: Tensor, y: Tensor) -> float:
    return float(torch.dot(x.flatten().double(), y.flatten().double()))


def _distance(x: Tensor, y: Tensor) -> float:
    """Return the distance of x from y, relative to the norm of y unless that is zero."""
    return norm(x - y) / (norm(y) or 1.0)


def _share(part: Tensor, whole: Tensor) -> float:
    """Return the share that a part has in the squared norm of a whole; 0 if that is zero."""
    total = _dot(whole, whole)
    return _dot(part, whole) / total if total else 0.0
