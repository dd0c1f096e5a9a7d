"""A stage of residual units, which can trade time for memory."""

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
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
            if torch.compiler.is_compiling():  # the compiler recomputes values alone, and cannot trace our context
                x = checkpoint(unit, x, use_reentrant=False)
                continue

            def contexts(unit: nn.Module = unit) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
                return nullcontext(), MovingAveragesKept(unit)

            x = checkpoint(unit, x, use_reentrant=False, context_fn=contexts)
        return x


class MovingAveragesKept(AbstractContextManager[None]):
    """Lets BN normalise as in training without taking the batch into its moving averages: they have had it already.

    torch's checkpointing alone would let a batch count twice. It enters this context once for every backward pass.
    While one thread is inside, no other may train the same module.
    """

    def __init__(self, module: nn.Module) -> None:
        self._layers = [m for m in module.modules() if isinstance(m, _BatchNorm)]
        self._before: list[list[tuple[float | None, Tensor | None]]] = []

    def __enter__(self) -> None:
        self._before.append([(layer.momentum, layer.num_batches_tracked) for layer in self._layers])
        for layer in self._layers:
            counter = layer.num_batches_tracked
            layer.momentum = 0.0
            layer.num_batches_tracked = None if counter is None else counter.clone()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for layer, (momentum, counter) in zip(self._layers, self._before.pop(), strict=True):
            layer.momentum, layer.num_batches_tracked = momentum, counter
