"""Whether an engine computes the right step: its first training steps against those of eager float32.

The speed of a wrong step is not a result, so a variant whose losses differ gets no figure, nor one whose parameters
move too little or too far: within the rounding of bfloat16, losses alone do not show that nothing is learnt.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch.nn import Module

    from paperbench.training.window import WindowMetrics

STEPS, DEEP_STEPS = 20, 8
"""Steps whose losses are compared; fewer of nets of `DEEP` layers, where eager steps would take half of the time."""

DEEP = 500
"""Layers."""

MOVING_STEPS = 3
"""Steps after which the parameters' displacement is compared."""

LEAST_MOVED, MOST_MOVED = 0.85, 1.15
"""Norm of that displacement over eager float32's. In bfloat16 it is 0.97 to 1.01 for ResNet-20 to ResNet-1001; 0.49
with halved gradients, at most 0.66 without momentum. Its direction is no measure: rounding turns it in deep nets."""

TOLERANCE = {"fp32": 1e-3, "tf32": 1e-2, "bf16": 5e-2}
"""Greatest relative difference of a loss from eager float32's, by the precision of the convolutions."""

ROUNDING_MARGIN = 4
"""How many times farther a right engine may be than a change in the last bit alone leads, where that is more."""


class Trained(Protocol):
    """The part of a trainer that is needed to know the loss of a step."""

    def begin_window(self) -> None: ...

    def step(self) -> None: ...

    def window_metrics(self) -> WindowMetrics: ...


class TrainedNet(Trained, Protocol):
    """A trainer with the net that it trains."""

    @property
    def model(self) -> Module: ...


@dataclass(frozen=True)
class Beginning:
    """What a training's first steps do.

    Attributes:
        losses: Of each step.
        displacement: Norm of what `MOVING_STEPS` steps change in all parameters together.
    """

    losses: list[float]
    displacement: float


def compared_steps(depth: int) -> int:
    """Steps that are compared for a net of so many layers."""
    return DEEP_STEPS if depth >= DEEP else STEPS


def first_steps(trainer: TrainedNet, steps: int, first_step: Callable[[], float] | None = None) -> Beginning:
    """Make the first steps of a training.

    Args:
        trainer: Has made no step.
        steps: At least `MOVING_STEPS`.
        first_step: Makes the first of them instead and returns its loss.
    """
    start = [parameter.detach().to("cpu", copy=True) for parameter in trainer.model.parameters()]
    losses = [first_step() if first_step else next_loss(trainer)]
    losses += [next_loss(trainer) for _ in range(MOVING_STEPS - 1)]
    squares = 0.0
    for before, parameter in zip(start, trainer.model.parameters(), strict=True):
        squares += float((parameter.detach().to("cpu") - before).double().square().sum())
    del start
    losses += [next_loss(trainer) for _ in range(steps - MOVING_STEPS)]
    return Beginning(losses, math.sqrt(squares))


def lameness(displacement: float, fp32: float) -> str | None:
    """What is wrong with how far a variant's parameters have moved, or None.

    Args:
        displacement: See `Beginning`.
        fp32: That of the eager engine in float32.
    """
    moved = displacement / fp32
    if LEAST_MOVED <= moved <= MOST_MOVED:
        return None
    return (
        f"after {MOVING_STEPS} steps the parameters have moved {moved:.2f} times as far as eager fp32's; "
        f"{LEAST_MOVED} to {MOST_MOVED} is allowed"
    )


def next_loss(trainer: Trained, wait: Callable[[], None] = lambda: None) -> float:
    """Mean loss over the images of the next step.

    Args:
        trainer: Is stepped.
        wait: Called after the step, before its loss is read.
    """
    trainer.begin_window()
    trainer.step()
    wait()
    return trainer.window_metrics().loss


def drift(losses: Sequence[float], fp32: Sequence[float]) -> list[float]:
    """How far a training has gone from `fp32` at each step at most so far, as a relative difference of losses."""
    found, most = [], 0.0
    for changed, expected in zip(losses, fp32, strict=True):
        most = max(most, abs(changed - expected) / abs(expected))
        found.append(most)
    return found


def complaint(
    losses: Sequence[float],
    fp32: Sequence[float],
    eager: Sequence[float] | None,
    precision: str,
    rounding: Sequence[float],
) -> str | None:
    """What is wrong with a variant's losses, or None.

    Args:
        losses: One a step.
        fp32: Those of the eager engine in float32.
        eager: Those of the eager engine in the variant's precision, if they must be equal to the last bit.
        precision: Decides how far the losses may be from `fp32`.
        rounding: `drift` of the eager engine in float32 from itself, after a change of its first parameters in the last
            bit. Deep nets magnify any rounding, a thousandfold within a few steps.
    """
    least = TOLERANCE[precision.partition("-")[0]]
    for number, (found, expected, alone) in enumerate(zip(losses, fp32, rounding, strict=True), start=1):
        bound = max(least, ROUNDING_MARGIN * alone)
        if not math.isfinite(found) or abs(found - expected) > bound * abs(expected):
            return f"step {number}: loss {found:.6g}, eager fp32 {expected:.6g}; {bound:.2g} of it is allowed"
    for number, (found, expected) in enumerate(zip(losses, eager or losses, strict=True), start=1):
        if found != expected:
            return f"step {number}: loss {found!r}, eager {precision} {expected!r}; they must be equal"
    return None
