"""The computation of one training step. The engine decides how it runs; see `training.engine`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import cycle
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from paperbench.data.loader import Choices
from paperbench.training.precision import autocast
from paperbench.training.tree_sum import TreeSum
from paperbench.training.working_copy import DirectModel

if TYPE_CHECKING:
    from paperbench.training.engine import Parts

GroupResult = tuple[Tensor, list[Tensor]]
"""Results of a batch-norm group: its row, see `TrainingStep._backward`, and the gradients."""


def in_turn(calls: Iterable[Callable[[], GroupResult]]) -> Iterator[GroupResult]:
    """Do one call after another, each when its result is asked for."""
    return (call() for call in calls)


class TrainingStep:
    """Gather, augment, forward, loss, backward; then update, and metrics.

    The batch-norm groups of a batch go through the net one by one, and their gradients are summed. This is what the
    paper's two or eight GPUs did in parallel. BN's moving averages include every group, one after the other.

    Args:
        workings: The net or a working copy of it; or one for each group, all with the same weights.
        run: Does the work of all groups, and returns their results in order.
    """

    def __init__(
        self,
        parts: Parts,
        workings: Sequence[DirectModel],
        run: Callable[[Iterable[Callable[[], GroupResult]]], Iterable[GroupResult]] = in_turn,
    ) -> None:
        self._parts, self._workings, self._run = parts, workings, run
        self._rows: list[Tensor] = []
        self._gradients: list[Tensor] = []
        # Of one image in the mean loss of a batch of so many.
        dtype, device = parts.optimiser.dtype, parts.feed.device
        self._loss_weight = cache(lambda images: torch.tensor(1 / images, dtype=dtype, device=device))
        self._loss_weight(parts.recipe.batch_size)  # which could not be made while the step is captured

    def compute(self, choices: Choices, images: int | None = None) -> None:
        """Compute the gradients of this process's images, which changes no state of the training.

        Runs the same operations for all batches of a size, as `update` does, so they can be captured.

        Args:
            choices: Those of this process's images.
            images: Number of images of the whole batch; by default the recipe's.
        """
        images = images or self._parts.recipe.batch_size
        batch = self._parts.feed.make(choices)
        self._workings[0].refresh()
        weight = self._loss_weight(images)
        sizes = list(self._parts.processes.share.group_sizes(self._parts.recipe, images))
        self._rows, self._gradients, sums = [], [], TreeSum()  # frees the last batch's
        parts = zip(batch.images.split(sizes), batch.labels.split(sizes), strict=True)
        calls = [partial(self._backward, *one, weight) for one in zip(cycle(self._workings), parts)]
        for row, gradients in self._run(calls):
            self._rows.append(row)
            sums.add(gradients)
        self._gradients = sums.total()

    def _backward(self, working: DirectModel, group: tuple[Tensor, Tensor], weight: Tensor) -> GroupResult:
        """Compute the gradients of the group's share of the batch's mean loss, given the weight of one image in it.

        Returns:
            A row of BN statistics, the loss and the number of errors; and the gradients.
        """
        images, labels = group
        # Gradients start from None for each group and are added in one call; autograd would add them one by one.
        working.clear_gradients()
        with autocast(self._parts.precision, self._parts.feed.device):
            logits = working.module(images).to(weight.dtype)
        smoothing = self._parts.recipe.label_smoothing or 0.0
        loss = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
        loss.backward(weight)
        sums = torch.stack([loss.detach(), (logits.detach().argmax(1) != labels).sum()])
        return torch.cat([working.averages.last_batch(), sums]), working.gradients()

    def update(self) -> None:
        """Add the gradients of all processes, and update parameters, moving averages and metrics."""
        for row in self._parts.processes.gathered(torch.stack(self._rows)):
            self._workings[0].averages.move(row[:-2])
            self._parts.metrics.add(row[-2], row[-1])
        self._parts.optimiser.step(self._parts.processes.summed(self._gradients))

    def clear_gradients(self) -> None:
        """Free the gradients that the last step left behind."""
        self._gradients = []
        for working in self._workings:
            working.clear_gradients()
