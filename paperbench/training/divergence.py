"""The origin of a divergence, found by repeating the last iterations with checks for non-finite values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from paperbench.training.evaluation import no_interrupt
from paperbench.training.trainer import Trainer


@dataclass(frozen=True)
class Origin:
    """The first non-finite value of a training.

    Attributes:
        iteration: The iteration, counted from 1.
        phase: The part of the iteration.
        module: Name of the module whose output, statistics, gradient or parameter is not finite; "loss" for the loss.
    """

    iteration: int
    phase: Literal["forward", "backward", "update", "test"]
    module: str


@torch.no_grad()
def has_finite_state(trainer: Trainer) -> bool:
    """Whether the parameters, the BN statistics and the accumulated training loss are finite."""
    values = [t.flatten() for t in (*trainer.model.parameters(), *trainer.model.buffers()) if t.is_floating_point()]
    if not torch.cat(values).isfinite().all():  # one check, since each one waits for the GPU
        return False
    return not trainer.has_training_metrics or math.isfinite(trainer.training_metrics().loss)


def find_in_training(trainer: Trainer, last: int, between_steps: Callable[[], None] = no_interrupt) -> Origin | None:
    """Step until a value is not finite, and return its origin.

    Args:
        trainer: A trainer in an earlier, finite state. The search advances it.
        last: The last iteration to search.
        between_steps: Called before each step; may raise to abort the search.

    Returns:
        The origin; None if everything stayed finite, which happens only if the arithmetic is not deterministic.
    """
    model = trainer.model
    with trainer.stepping_eagerly(), _broken_outputs(model) as broken:
        while trainer.iteration < last:
            between_steps()
            trainer.step()
            if module := next(iter(broken), None) or _owner(model.named_buffers()):
                return Origin(trainer.iteration, "forward", module)
            if not math.isfinite(trainer.training_metrics().loss):
                return Origin(trainer.iteration, "forward", "loss")
            backwards = reversed(list(model.named_parameters()))
            if module := _owner((name, p.grad) for name, p in backwards if p.grad is not None):
                return Origin(trainer.iteration, "backward", module)
            if module := _owner(model.named_parameters()):
                return Origin(trainer.iteration, "update", module)
    return None


def find_in_test(trainer: Trainer, between_batches: Callable[[], None] = no_interrupt) -> Origin | None:
    """Test the trainer's net and return the origin of the first non-finite output, or None."""
    with trainer.stepping_eagerly(), _broken_outputs(trainer.model) as broken:
        loss = trainer.test(between_batches).loss
    if not math.isfinite(loss):
        broken.append("loss")
    return Origin(trainer.iteration, "test", broken[0]) if broken else None


def _owner(values: Iterable[tuple[str, Tensor]]) -> str | None:
    """Return the name of the module of the first tensor with a non-finite value."""
    for name, value in values:
        if value.is_floating_point() and not value.isfinite().all():
            return name.rpartition(".")[0]
    return None


@contextmanager
def _broken_outputs(model: nn.Module) -> Iterator[list[str]]:
    """Inside the context, append to the list the first module, in order of execution, with a non-finite output."""
    broken: list[str] = []

    def check(name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if not broken and isinstance(output, Tensor) and not torch.isfinite(output).all():
            broken.append(name)

    hooks = [module.register_forward_hook(partial(check, name)) for name, module in model.named_modules() if name]
    try:
        yield broken
    finally:
        for hook in hooks:
            hook.remove()
