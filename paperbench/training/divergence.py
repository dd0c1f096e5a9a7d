"""Where the values of a training stop being finite: found by repeating its last iterations under observation."""

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
    """The first value that was not finite.

    Attributes:
        iteration: Its iteration, counted from 1.
        phase: In which part of the iteration it came up.
        module: Name of the module whose output, statistics, gradient or parameter it stood in; "loss" for the loss.
    """

    iteration: int
    phase: Literal["forward", "backward", "update", "test"]
    module: str


@torch.no_grad()
def is_sound(trainer: Trainer) -> bool:
    """Whether parameters, statistics and the loss of the present window are finite."""
    values = [t.flatten() for t in (*trainer.model.parameters(), *trainer.model.buffers()) if t.is_floating_point()]
    if not torch.cat(values).isfinite().all():  # all at once: one by one, a GPU would be waited for each time
        return False
    return trainer.is_window_empty or math.isfinite(trainer.window_metrics().loss)


def find_in_training(trainer: Trainer, last: int, between_steps: Callable[[], None] = no_interrupt) -> Origin | None:
    """Step until a value is not finite.

    Args:
        trainer: In a sound state that it had before; the search steps it on.
        last: The iteration after which to give up.
        between_steps: Called before each step; may raise to break off.

    Returns:
        Where it came up; None if everything stayed finite, which only arithmetic that does not repeat itself can do.
    """
    model = trainer.model
    with trainer.stepping_eagerly(), _broken_outputs(model) as broken:
        while trainer.iteration < last:
            between_steps()
            trainer.step()
            if module := next(iter(broken), None) or _owner(model.named_buffers()):
                return Origin(trainer.iteration, "forward", module)
            if not math.isfinite(trainer.window_metrics().loss):
                return Origin(trainer.iteration, "forward", "loss")
            backwards = reversed(list(model.named_parameters()))
            if module := _owner((name, p.grad) for name, p in backwards if p.grad is not None):
                return Origin(trainer.iteration, "backward", module)
            if module := _owner(model.named_parameters()):
                return Origin(trainer.iteration, "update", module)
    return None


def find_in_test(trainer: Trainer, between_batches: Callable[[], None] = no_interrupt) -> Origin | None:
    """Test the trainer's net: where its outputs stop being finite, None if they do not."""
    with _broken_outputs(trainer.model) as broken:
        loss = trainer.test(between_batches).loss
    if not math.isfinite(loss):
        broken.append("loss")
    return Origin(trainer.iteration, "test", broken[0]) if broken else None


def _owner(values: Iterable[tuple[str, Tensor]]) -> str | None:
    """Name of the module of the first tensor with a value that is not finite."""
    for name, value in values:
        if value.is_floating_point() and not value.isfinite().all():
            return name.rpartition(".")[0]
    return None


@contextmanager
def _broken_outputs(model: nn.Module) -> Iterator[list[str]]:
    """Within it, the first module in order of computation whose output is not finite goes into the list."""
    broken: list[str] = []

    def look(name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if not broken and isinstance(output, Tensor) and not torch.isfinite(output).all():
            broken.append(name)

    hooks = [module.register_forward_hook(partial(look, name)) for name, module in model.named_modules() if name]
    try:
        yield broken
    finally:
        for hook in hooks:
            hook.remove()
