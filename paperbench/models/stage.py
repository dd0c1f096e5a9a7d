"""A stage of residual units, which can trade time for memory."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


class Stage(nn.Sequential):
    """Residual units one after another.

    Attributes:
        grad_checkpointing: Whether training keeps the input of each unit alone, and computes what is inside it again
            when its gradients are needed. Gradients and BN's moving averages are the same either way.
    """

    def __init__(self, *units: Any) -> None:
        super().__init__(*units)
        self.grad_checkpointing = False

    def forward(self, x: Tensor) -> Tensor:
        if self.grad_checkpointing and not torch.jit.is_scripting():  # type: ignore[attr-defined]
            return self._forward_checkpointed(x)
        for unit in self:
            x = unit(x)
        return x

    def _forward_checkpointed(self, x: Tensor) -> Tensor:
        for unit in self:

            def contexts(unit: nn.Module = unit) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
                return nullcontext(), moving_averages_kept(unit)

            x = checkpoint(unit, x, use_reentrant=False, context_fn=contexts)
        return x


@contextmanager
def moving_averages_kept(module: nn.Module) -> Iterator[None]:
    """Let BN normalise as in training without taking the batch into its moving averages, which have had it already."""
    layers = [m for m in module.modules() if isinstance(m, _BatchNorm)]
    before = [(layer.momentum, layer.num_batches_tracked) for layer in layers]
    for layer in layers:
        layer.momentum, layer.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for layer, (momentum, counter) in zip(layers, before, strict=True):
            layer.momentum, layer.num_batches_tracked = momentum, counter
