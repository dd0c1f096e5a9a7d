"""A stage of residual units, with gradient checkpointing."""

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

State = tuple[nn.Module, bool, dict[str, Tensor]]


class Stage(nn.Sequential):
    """A sequence of residual units.

    Attributes:
        grad_checkpointing: Whether training keeps only the input of each unit and recomputes its activations in the
            backward pass. Gradients and BN's moving averages are the same either way.
        has_dropout: Whether a unit may draw random numbers, which recomputation must repeat. If not, torch need not
            read the generator's state, which a CUDA graph could not capture.
    """

    def __init__(self, *units: Any) -> None:
        super().__init__(*units)
        self.grad_checkpointing, self.has_dropout = False, True

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
                return nullcontext(), RepeatedForwardPass(unit)

            x = checkpoint(unit, x, use_reentrant=False, context_fn=contexts, preserve_rng_state=self.has_dropout)
        return x


class RepeatedForwardPass(AbstractContextManager[None]):
    """Repeats the forward pass of a module in the mode and with the buffers of the first, which it leaves unchanged.

    Recomputing a unit would otherwise count its batch twice, or normalise with other statistics after `model.eval()`.
    torch enters this context once per backward pass. Not thread-safe: while one thread is inside, no other may train
    the same module.
    """

    def __init__(self, module: nn.Module) -> None:
        # Copies take the updates.
        states = map(_state, module.modules())
        self._first = [(part, mode, {name: own.clone() for name, own in kept.items()}) for part, mode, kept in states]
        self._before: list[list[State]] = []

    def __enter__(self) -> None:
        self._before.append([_state(part) for part, *_ in self._first])
        for state in self._first:
            _set(*state)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for state in self._before.pop():
            _set(*state)


def _state(part: nn.Module) -> State:
    """Return a module, its mode and what a forward pass may write: buffers, and what `training.batch_norm` explains."""
    values = ((name, getattr(part, name, None)) for name in (*part._buffers, "means", "variances"))
    return part, part.training, {name: value for name, value in values if isinstance(value, Tensor)}


def _set(part: nn.Module, training: bool, kept: dict[str, Tensor]) -> None:
    part.training = training
    for name, value in kept.items():
        setattr(part, name, value)
