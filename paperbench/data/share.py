"""The part of each batch that a process makes and trains on, if several processes share a run."""

from __future__ import annotations

from dataclasses import dataclass

from paperbench.specs.recipe import Recipe


@dataclass(frozen=True)
class Share:
    """Consecutive batch-norm groups of every batch.

    Attributes:
        rank: Number of the process, from 0.
        processes: Number of processes. It divides the recipe's groups.
    """

    rank: int = 0
    processes: int = 1

    def group_sizes(self, recipe: Recipe, images: int) -> tuple[int, ...]:
        """Return the sizes of this process's groups of a batch."""
        each = recipe.groups // self.processes
        return recipe.group_sizes(images)[self.rank * each : (self.rank + 1) * each]

    def rows(self, recipe: Recipe, images: int) -> slice:
        """Return which images of a batch are this process's."""
        before = sum(recipe.group_sizes(images)[: recipe.groups // self.processes * self.rank])
        return slice(before, before + sum(self.group_sizes(recipe, images)))


WHOLE = Share()
"""The share of a process that trains alone."""
