"""SGD with momentum in the form of Caffe, PyTorch or Nesterov, as set in the recipe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from paperbench.specs.recipe import Recipe


@torch.no_grad()
def clipped(gradients: Sequence[Tensor], most: float) -> list[Tensor]:
    """Return gradients whose norm, of all together, is at most `most`: scaled as by torch's `clip_grad_norm_`.

    Only the device knows the norm, so this can be captured. If it is not finite, every result is NaN, so that the run
    diverges: torch would multiply what is finite by 0, and go on if the norm alone is infinite.
    """
    norm = torch.nn.utils.get_total_norm(gradients)
    scale = (most / (norm + 1e-6)).clamp(max=1).masked_fill(~norm.isfinite(), torch.nan)
    return list(torch._foreach_mul(list(gradients), scale))


class MomentumSGD:
    """torch's fused SGD, with Caffe's momentum at changes of the learning rate if the recipe asks for it.

    Caffe keeps v <- m v + lr g and steps by v; torch keeps b <- m b + g and steps by lr b. With v = lr b the two are
    equal while the rate is constant. When it changes, Caffe's v stays the same, so b is scaled by lr_old / lr_new. The
    two forms differ for a few dozen iterations after iteration 400, where the rate rises tenfold, and after each drop;
    with a rate that changes at every iteration, all along.

    All tensors that a step reads, including the rate, stay at the same address, so that a step can be captured once
    and replayed.

    Args:
        parameters: The parameters, all of one dtype on one device.
        recipe: Momentum and its form, weight decay and what it is applied to, learning rates, maximum norm.

    Attributes:
        momentum: One buffer b per parameter, initially zero; empty if the recipe has no momentum.
        rate: The learning rate.
        dtype: Of the parameters.
    """

    def __init__(self, parameters: Iterable[Tensor], recipe: Recipe) -> None:
        self._parameters, self._recipe = list(parameters), recipe
        self.rate = recipe.rate_at(0)
        like = self._parameters[0]
        self.dtype = like.dtype
        self._rate_on_device = torch.tensor(self.rate, dtype=self.dtype, device=like.device)
        decays = [recipe.weight_decay_on != "convolutions" or p.ndim == 4 for p in self._parameters]
        self._groups = [
            ([i for i, its_decay in enumerate(decays) if its_decay == decay], recipe.weight_decay if decay else 0.0)
            for decay in dict.fromkeys(decays)
        ]
        self.momentum = [torch.zeros_like(p, requires_grad=False) for p in self._parameters] if recipe.momentum else []

    @torch.no_grad()
    def set_rate(self, rate: float) -> None:
        """Set the learning rate. Does nothing if it is unchanged, and never waits for the device."""
        if rate == self.rate:
            return
        self._rate_on_device.fill_(rate)
        if self._recipe.momentum_form == "caffe" and self.momentum:
            torch._foreach_mul_(self.momentum, self.rate / rate)
        self.rate = rate

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """Update the parameters with one gradient per parameter, in the same order. No gradient is changed."""
        if self._recipe.clip_norm is not None:
            gradients = clipped(gradients, self._recipe.clip_norm)
        for indices, weight_decay in self._groups:
            sgd(
                [self._parameters[i] for i in indices],
                [gradients[i] for i in indices],
                [self.momentum[i] if self.momentum else None for i in indices],
                fused=True,
                weight_decay=weight_decay,
                momentum=self._recipe.momentum,
                lr=self._rate_on_device,
                dampening=0,
                nesterov=self._recipe.momentum_form == "nesterov",
                maximize=False,
            )

    @torch.no_grad()
    def resume(self, iteration: int, momentum: Sequence[Tensor]) -> None:
        """Resume after `iteration` iterations of the recipe with the given momentum, which is copied."""
        for ours, theirs in zip(self.momentum, momentum, strict=True):
            ours.copy_(theirs)
        self.rate = self._recipe.rate_at(max(iteration - 1, 0))
        self._rate_on_device.fill_(self.rate)
