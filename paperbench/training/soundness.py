"""Checks that an engine computes the right step, by comparing its first steps with those of eager float32.

A variant whose losses differ is not timed. Neither is one whose first parameter updates are too small or too large:
within the rounding of bfloat16, the losses alone do not show that a net learns nothing.
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
"""Number of steps whose losses are compared."""

UPDATES = 3
"""Number of first updates whose norm is compared."""

MIN_UPDATE_NORM, MAX_UPDATE_NORM = 0.85, 1.15
"""Bounds of the update norm relative to eager float32. In bfloat16 it is 0.97 to 1.01 for ResNet-20 to ResNet-1001,
0.49 with halved gradients, at most 0.66 without momentum. Directions are not compared, as
rounding alone rotates them in deep nets."""

TOLERANCE = {"fp32": 1e-3, "tf32": 1e-2, "bf16": 5e-2, "bf16-fp32-stream": 5e-2}
"""Maximum relative difference of a loss from eager float32."""

ROUNDING_MARGIN = 4
"""Maximum difference in multiples of `Reference.rounding`, where that is above the tolerance."""


@dataclass(frozen=True)
class FirstSteps:
    """Results of the first steps of a training.

    Attributes:
        losses: Loss of each step.
        update_norm: Norm of the total change of all parameters in the first `UPDATES` steps.
        seconds: Time of the first step.
    """

    losses: list[float]
    update_norm: float
    seconds: float


@dataclass(frozen=True)
class Reference:
    """First steps of the eager engine, in float32 unless bitwise equality is checked.

    Attributes:
        losses, update_norm: See `FirstSteps`.
        rounding: For each step, the largest relative difference of a loss so far if the initial parameters change in
            their last bits. Deep nets amplify such differences a thousandfold within a few steps.
    """

    losses: list[float]
    update_norm: float
    rounding: list[float]


def find_reference(make_trainer: Callable[[], Trainer], steps: int) -> Reference:
    """Compute the reference with two eager trainers of the same seed, one after the other to save memory."""
    first = first_steps(make_trainer(), steps)
    perturbed = make_trainer()
    signs = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in perturbed.model.parameters():
            sign = torch.randint(2, parameter.shape, generator=signs) * 2 - 1
            parameter.mul_(1 + sign.to(parameter.device) * torch.finfo(torch.float32).eps)
    pairs = zip(first_steps(perturbed, steps).losses, first.losses, strict=True)
    return Reference(first.losses, first.update_norm, list(accumulate((abs(a - b) / abs(b) for a, b in pairs), max)))


def first_steps(trainer: Trainer, steps: int) -> FirstSteps:
    """Make the first steps of a training, at least `UPDATES`."""
    before = _parameter_vector(trainer.model)
    start = time.perf_counter()
    losses = [next_loss(trainer)]
    seconds = time.perf_counter() - start
    losses += [next_loss(trainer) for _ in range(UPDATES - 1)]
    update = _parameter_vector(trainer.model) - before
    losses += [next_loss(trainer) for _ in range(steps - UPDATES)]
    return FirstSteps(losses, float(update.double().norm()), seconds)


def next_loss(trainer: Trainer) -> float:
    """Make a step and return its mean loss, which waits for the device."""
    trainer.reset_training_metrics()
    trainer.step()
    return trainer.training_metrics().loss


def step_error(found: FirstSteps, reference: Reference, precision: str) -> str | None:
    """Describe the first difference from the reference beyond the tolerance of the precision; None if there is none."""
    pairs = zip(found.losses, reference.losses, reference.rounding, strict=True)
    for number, (loss, expected, rounding) in enumerate(pairs, start=1):
        bound = max(TOLERANCE[precision], ROUNDING_MARGIN * rounding)
        if not math.isfinite(loss) or abs(loss - expected) > bound * abs(expected):
            return f"step {number}: loss {loss:.6g}, eager fp32 {expected:.6g}; allowed difference {bound:.2g} of it"
    relative = found.update_norm / reference.update_norm
    if MIN_UPDATE_NORM <= relative <= MAX_UPDATE_NORM:
        return None
    return (
        f"norm of the first {UPDATES} updates: {relative:.2f} of eager fp32's; allowed {MIN_UPDATE_NORM} to "
        f"{MAX_UPDATE_NORM}"
    )


def bitwise_error(losses: Sequence[float], eager: Sequence[float], precision: str) -> str | None:
    """Describe the first loss that is not bitwise equal to eager's in the same precision; None if all are equal."""
    for number, (loss, expected) in enumerate(zip(losses, eager, strict=True), start=1):
        if loss != expected:
            return f"step {number}: loss {loss!r}, eager {precision} {expected!r}; they must be bitwise equal"
    return None


def _parameter_vector(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten().cpu() for parameter in model.parameters()])
