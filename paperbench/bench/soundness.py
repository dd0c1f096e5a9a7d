"""Whether an engine computes the right step: its first training steps against those of eager float32.

The speed of a wrong step is not a result. So a variant whose losses differ gets no figure, nor one whose parameters
move too little or too far: within the rounding of bfloat16, losses alone do not show that nothing is learnt.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor, nn

    from paperbench.training.trainer import Trainer

STEPS = 20
"""Steps whose losses are compared."""

UPDATES = 3
"""Number of first updates whose length is compared."""

MIN_UPDATE_NORM, MAX_UPDATE_NORM = 0.85, 1.15
"""Bounds of that length, relative to eager float32's. In bfloat16 it is 0.97 to 1.01 for ResNet-20 to ResNet-1001; 0.49
with halved gradients, at most 0.66 without momentum. The direction is no measure: rounding turns it in deep nets."""

TOLERANCE = {"fp32": 1e-3, "tf32": 1e-2, "bf16": 5e-2, "bf16-fp32-stream": 5e-2}
"""Greatest relative difference of a loss from eager float32's."""

ROUNDING_MARGIN = 4
"""How many times farther a right engine may be than a change in the last bit alone leads, where that is more."""


@dataclass(frozen=True)
class FirstSteps:
    """What a training's first steps do.

    Attributes:
        losses: Of each step.
        update_norm: Length of what the first `UPDATES` steps change in all parameters together.
        seconds: Time of the very first step.
    """

    losses: list[float]
    update_norm: float
    seconds: float


@dataclass(frozen=True)
class Reference:
    """What engines are compared with.

    Attributes:
        losses, update_norm: Of the first steps of the eager engine in float32.
        rounding: Up to each step, the greatest relative difference of a loss after a change of the first parameters in
            their last bits. Deep nets magnify any rounding, a thousandfold within a few steps.
    """

    losses: list[float]
    update_norm: float
    rounding: list[float]


def find_reference(make: Callable[[], Trainer], steps: int) -> Reference:
    """The reference by eager trainers in float32 from the same seed, which are held in memory one after the other."""
    fp32 = first_steps(make(), steps)
    changed = make()
    signs = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in changed.model.parameters():
            sign = torch.randint(2, parameter.shape, generator=signs) * 2 - 1
            parameter.mul_(1 + sign.to(parameter.device) * torch.finfo(torch.float32).eps)
    pairs = zip(first_steps(changed, steps).losses, fp32.losses, strict=True)
    return Reference(fp32.losses, fp32.update_norm, list(accumulate((abs(a - b) / abs(b) for a, b in pairs), max)))


def first_steps(trainer: Trainer, steps: int) -> FirstSteps:
    """Make the first steps of a training, at least `UPDATES`."""
    before = _parameters(trainer.model)
    start = time.perf_counter()
    losses = [next_loss(trainer)]
    seconds = time.perf_counter() - start
    losses += [next_loss(trainer) for _ in range(UPDATES - 1)]
    update = _parameters(trainer.model) - before
    losses += [next_loss(trainer) for _ in range(steps - UPDATES)]
    return FirstSteps(losses, float(update.double().norm()), seconds)


def next_loss(trainer: Trainer) -> float:
    """Mean loss over the images of the next step. Waits for the device."""
    trainer.reset_training_metrics()
    trainer.step()
    return trainer.training_metrics().loss


def step_error(found: FirstSteps, reference: Reference, precision: str) -> str | None:
    """What is wrong with a variant's first steps, or None. The precision decides how far its losses may be off."""
    pairs = zip(found.losses, reference.losses, reference.rounding, strict=True)
    for number, (loss, expected, rounding) in enumerate(pairs, start=1):
        bound = max(TOLERANCE[precision], ROUNDING_MARGIN * rounding)
        if not math.isfinite(loss) or abs(loss - expected) > bound * abs(expected):
            return f"step {number}: loss {loss:.6g}, eager fp32 {expected:.6g}; {bound:.2g} of it is allowed"
    relative = found.update_norm / reference.update_norm
    if MIN_UPDATE_NORM <= relative <= MAX_UPDATE_NORM:
        return None
    return (
        f"the first {UPDATES} updates are {relative:.2f} times as long as eager fp32's; "
        f"{MIN_UPDATE_NORM} to {MAX_UPDATE_NORM} is allowed"
    )


def inequality(losses: Sequence[float], eager: Sequence[float], precision: str) -> str | None:
    """Where an engine that promises eager's very numbers has another loss than eager in the same precision, or None."""
    for number, (loss, expected) in enumerate(zip(losses, eager, strict=True), start=1):
        if loss != expected:
            return f"step {number}: loss {loss!r}, eager {precision} {expected!r}; they must be equal bit for bit"
    return None


def _parameters(model: nn.Module) -> Tensor:
    """A copy of all parameters in one vector on the CPU."""
    return torch.cat([parameter.detach().flatten().cpu() for parameter in model.parameters()])
