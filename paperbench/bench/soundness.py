"""Whether an engine computes the right step: its first training steps against those of eager float32.

The speed of a wrong step is not a result. So a variant whose losses differ gets no figure, nor one whose parameters
move too little or too far: within the rounding of bfloat16, losses alone do not show that nothing is learnt.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor, nn

    from paperbench.training.trainer import Trainer

STEPS, DEEP_STEPS = 20, 8
"""Steps whose losses are compared; fewer in nets of `DEEP` layers, where eager steps would take half of the time."""

DEEP = 500
"""Layers."""

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
        fp32: First steps of the eager engine in float32.
        rounding: `drift` of the same after a change of the first parameters in their last bits.
    """

    fp32: FirstSteps
    rounding: list[float]

    def error(self, found: FirstSteps, precision: str) -> str | None:
        """What is wrong with a variant's first steps, or None."""
        wrong = loss_error(found.losses, self.fp32.losses, precision, self.rounding)
        return wrong or update_norm_error(self.relative_update_norm(found))

    def relative_update_norm(self, found: FirstSteps) -> float:
        """Length of the first updates relative to float32's."""
        return found.update_norm / self.fp32.update_norm


def find_reference(make: Callable[[], Trainer], steps: int) -> Reference:
    """The reference by eager trainers in float32 from the same seed, which are held in memory one after the other."""
    fp32 = first_steps(make(), steps)
    changed = make()
    signs = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in changed.model.parameters():
            sign = torch.randint(2, parameter.shape, generator=signs) * 2 - 1
            parameter.mul_(1 + sign.to(parameter.device) * torch.finfo(torch.float32).eps)
    return Reference(fp32, drift(first_steps(changed, steps).losses, fp32.losses))


def compared_steps(depth: int) -> int:
    """Steps that are compared for a net of so many layers."""
    return DEEP_STEPS if depth >= DEEP else STEPS


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
    trainer.begin_window()
    trainer.step()
    return trainer.window_metrics().loss


def drift(losses: Sequence[float], fp32: Sequence[float]) -> list[float]:
    """The greatest relative difference from `fp32` up to each step."""
    found, greatest = [], 0.0
    for changed, expected in zip(losses, fp32, strict=True):
        greatest = max(greatest, abs(changed - expected) / abs(expected))
        found.append(greatest)
    return found


def loss_error(losses: Sequence[float], fp32: Sequence[float], precision: str, rounding: Sequence[float]) -> str | None:
    """What is wrong with a variant's losses, or None.

    Args:
        losses: One per step.
        fp32: Those of the eager engine in float32.
        precision: Decides how far the losses may be from `fp32`.
        rounding: See `Reference`. Deep nets magnify any rounding, a thousandfold within a few steps.
    """
    for number, (found, expected, alone) in enumerate(zip(losses, fp32, rounding, strict=True), start=1):
        bound = max(TOLERANCE[precision], ROUNDING_MARGIN * alone)
        if not math.isfinite(found) or abs(found - expected) > bound * abs(expected):
            return f"step {number}: loss {found:.6g}, eager fp32 {expected:.6g}; {bound:.2g} of it is allowed"
    return None


def update_norm_error(relative: float) -> str | None:
    """What is wrong with the length of the first updates relative to eager float32's, or None."""
    if MIN_UPDATE_NORM <= relative <= MAX_UPDATE_NORM:
        return None
    return (
        f"the first {UPDATES} updates are {relative:.2f} times as long as eager fp32's; "
        f"{MIN_UPDATE_NORM} to {MAX_UPDATE_NORM} is allowed"
    )


def _parameters(model: nn.Module) -> Tensor:
    """A copy of all parameters in one vector on the CPU."""
    return torch.cat([parameter.detach().flatten().cpu() for parameter in model.parameters()])
