"""A divergence in words."""

from __future__ import annotations

from paperbench.runs.record import Divergence


def describe(divergence: Divergence) -> str:
    """Since when values were not finite, and where that began."""
    when = f"not finite from iteration {divergence.iteration:,} on, at rate {divergence.learning_rate:.3g}"
    if divergence.phase is None:
        return f"{when}; repeating the iterations before did not show where"
    parts = {"forward": "output", "backward": "gradient", "update": "parameters", "test": "output in the test"}
    return f"{when}; first the {parts[divergence.phase]} of {divergence.module}"
