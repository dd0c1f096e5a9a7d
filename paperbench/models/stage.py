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
    """Repeats the forward pass of a module in the mode of the first, and leaves BN's statistics and counters unchanged.

    Recomputing a unit would otherwise count its batch twice, or normalise with other statistics after `model.eval()`.
    torch enters this context once per backward pass. Not thread-safe: while one thread is inside, no other may train
    the same module.
    """

    def __init__(self, module: nn.Module) -> None:
        self._modes = [(part, part.training) for part in module.modules()]
        self._before: list[list[tuple[nn.Module, bool, dict[str, Tensor]]]] = []

    def __enter__(self) -> None:
        # Copies take the updates. A momentum of 0 would make torch.compile compile each unit twice.
        self._before.append([(part, part.training, _statistics(part)) for part, _ in self._modes])
        for (part, mode), (_, _, statistics) in zip(self._modes, self._before[-1], strict=True):
            _set(part, mode, {name: own.clone() for name, own in statistics.items()})

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for before in self._before.pop():
            _set(*before)


def _statistics(part: nn.Module) -> dict[str, Tensor]:
    """Return what a BN layer's forward pass may write; nothing for other modules."""
    values = ((name, getattr(part, name, None)) for name in _STATISTICS if isinstance(part, _BatchNorm))
    return {name: value for name, value in values if value is not None}


def _set(part: nn.Module, training: bool, statistics: dict[str, Tensor]) -> None:
    part.training = training
    for name, value in statistics.items():
        setattr(part, name, value)
