"""SGD with momentum, in the form that the recipe names."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from paperbench.specs.recipe import Recipe


class MomentumSGD(torch.optim.SGD):
    """torch's fused SGD, whose learning rate changes as the recipe's momentum form demands.

    Caffe keeps v <- m v + lr g and steps by v, torch keeps b <- m b + g and steps by lr b. With v = lr b they are one
    while the rate stands still; when it changes, Caffe's v goes on unchanged, so b is scaled by lr_old / lr_new. At
    iteration 400, where the rate rises tenfold, and at each drop the two forms differ for some dozen iterations.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], recipe: Recipe) -> None:
        self._keeps_velocity = recipe.momentum_form == "caffe"
        super().__init__(
            parameters,
            lr=recipe.rate_at(0),
            momentum=recipe.momentum,
            nesterov=recipe.momentum_form == "nesterov",
            weight_decay=recipe.weight_decay,
            fused=True,
        )

    @torch.no_grad()
    def set_rate(self, rate: float) -> None:
        """Change the learning rate; nothing happens if it is the present one."""
        for group in self.param_groups:
            old = group["lr"]
            if old == rate:
                continue
            group["lr"] = rate
            if self._keeps_velocity:
                buffers = [self.state[p].get("momentum_buffer") for p in group["params"]]
                present = [b for b in buffers if b is not None]
                if present:
                    torch._foreach_mul_(present, old / rate)
