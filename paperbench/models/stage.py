"""A stage of residual units, with gradient checkpointing."""

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


class Stage(nn.Sequential):
    """A sequence of residual units.

    Attributes:
        grad_checkpointing: Whether training keeps only the input of each unit and recomputes its activations in the
            backward pass. Gradients and BN's moving averages are the same either way.
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
            if torch.compiler.is_compiling():  # it recomputes without side effects, and cannot trace our context
                x = checkpoint(unit, x, use_reentrant=False)
                continue

            def contexts(unit: nn.Module = unit) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
                return nullcontext(), FrozenMovingAverages(unit)

            x = checkpoint(unit, x, use_reentrant=False, context_fn=contexts)
        return x


class FrozenMovingAverages(AbstractContextManager[None]):
    """Keeps BN in training mode but leaves its moving averages unchanged.

    Recomputing a unit would otherwise count its batch twice. torch enters this context once per backward pass. Not
    thread-safe: while one thread is inside, no other may train the same module.
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
