"""The eager engine: one operation after another, on CPUs and GPUs. The reference for the others."""

from __future__ import annotations

from paperbench.training.engine import Parts
from paperbench.training.working_copy import DirectModel


class EagerEngine:
    """Runs a step one operation after another."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._step = parts, parts.new_step([DirectModel(parts.model)])

    def step(self, iteration: int) -> None:
        parts = self._parts
        parts.processes.agreed(lambda: self._step.compute(parts.feed.choices(iteration), parts.batch_size(iteration)))
        self._step.update()
