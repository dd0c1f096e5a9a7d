"""Whether an engine computes the right step: its first training losses against those of eager float32.

The speed of a wrong step is not a result, so a variant whose losses differ gets no figure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from paperbench.training.window import WindowMetrics

STEPS = 20

TOLERANCE = {"fp32": 1e-3, "tf32": 1e-2, "bf16": 5e-2}
"""Greatest relative difference of a loss from eager float32's, by the precision of the convolutions."""

ROUNDING_MARGIN = 4
"""How many times farther a right engine may be than a change in the last bit alone leads, where that is more."""


class Trained(Protocol):
    """The part of a trainer that is needed."""

    def begin_window(self) -> None: ...

    def step(self) -> None: ...

    def window_metrics(self) -> WindowMetrics: ...


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
