"""A stage of residual units, with gradient checkpointing."""

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

_STATISTICS = ("running_mean", "running_var", "num_batches_tracked", "means", "variances")
"""What BN's forward pass writes; `training.batch_norm` explains the last two."""


class Stage(nn.Sequential):
    """A sequence of residual units.

    Args:
        has_noise: Whether a unit draws random numbers, which recomputation must repeat. If not, torch need not read the
            generator's state, which a CUDA graph could not capture.

    Attributes:
        grad_checkpointing: Whether training keeps only the input of each unit and recomputes its activations in the
            backward pass. Gradients and BN's moving averages are the same either way.
    """

    def __init__(self, *units: Any, has_noise: bool = True) -> None:
        super().__init__(*units)
        self.has_noise = has_noise
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

            x = checkpoint(unit, x, use_reentrant=False, context_fn=contexts, preserve_rng_state=self.has_noise)
        return x


class FrozenMovingAverages(AbstractContextManager[None]):
    """Keeps BN in training mode but leaves its statistics and its counter unchanged.

    Recomputing a unit would otherwise count its batch twice. torch enters this context once per backward pass. Not
    thread-safe: while one thread is inside, no other may train the same module.
    """

    def __init__(self, module: nn.Module) -> None:
        self._layers = [m for m in module.modules() if isinstance(m, _BatchNorm)]
        self._before: list[list[dict[str, Tensor]]] = []

    def __enter__(self) -> None:
        # Other tensors take the updates. A momentum of 0 would make torch.compile compile each unit twice.
        self._before.append([_statistics(layer) for layer in self._layers])
        for layer, before in zip(self._layers, self._before[-1], strict=True):
            _set(layer, {name: torch.empty_like(own) for name, own in before.items()})

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for layer, before in zip(self._layers, self._before.pop(), strict=True):
            _set(layer, before)


def _statistics(layer: nn.Module) -> dict[str, Tensor]:
    values = ((name, getattr(layer, name, None)) for name in _STATISTICS)
    return {name: value for name, value in values if value is not None}


def _set(layer: nn.Module, values: dict[str, Tensor]) -> None:
    for name, value in values.items():
        setattr(layer, name, value)
