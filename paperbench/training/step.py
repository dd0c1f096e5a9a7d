"""The computation of one training step. The engine decides how it runs; see `training.engine`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from paperbench.data.feed import Feed
from paperbench.data.loader import Choices
from paperbench.specs.recipe import Recipe
from paperbench.training.metrics import MetricAccumulator
from paperbench.training.optimiser import MomentumSGD
from paperbench.training.precision import autocast
from paperbench.training.tree_sum import TreeSum
from paperbench.training.working_copy import DirectModel


class TrainingStep:
    """Gather, augment, forward, loss, backward, update, and metrics.

    The batch goes through the net in chunks of one batch-norm group each, and their gradients are summed. This is what
    the paper's two or eight GPUs did in parallel. BN's moving averages include every group.

    Args:
        working: The net or a working copy of it.
        at_once: Whether the net takes the whole batch at once, and tells the groups apart.
    """

    def __init__(
        self,
        working: DirectModel,
        optimiser: MomentumSGD,
        metrics: MetricAccumulator,
        recipe: Recipe,
        batches: Feed,
        precision: str,
        *,
        at_once: bool = False,
    ) -> None:
        self._working, self._optimiser, self._metrics = working, optimiser, metrics
        self._recipe, self._batches, self._precision, self._at_once = recipe, batches, precision, at_once
        self._device = batches.device
        self._loss_weights = {recipe.batch_size: self._loss_weight(recipe.batch_size)}

    def _loss_weight(self, images: int) -> Tensor:
        """Return the weight of one image in the mean loss of a batch."""
        return torch.tensor(1 / images, device=self._device)

    def __call__(self, choices: Choices) -> None:
        """Train on the chosen images. Runs the same operations for all batches of a size, so it can be captured."""
        batch = self._batches.make(choices)
        self._working.refresh()
        size = len(batch.labels)
        weight = self._loss_weights.get(size)
        if weight is None:
            weight = self._loss_weights[size] = self._loss_weight(size)
        chunks = [size] if self._at_once else list(self._recipe.group_sizes(size))
        sums = TreeSum()
        for images, labels in zip(batch.images.split(chunks), batch.labels.split(chunks), strict=True):
            # Gradients start from None for each chunk and are added in one call; autograd would add them one by one.
            self._working.clear_gradients()
            self._backward(images, labels, weight)
            sums.add(self._working.gradients())
        self._optimiser.step(sums.total())

    def _backward(self, images: Tensor, labels: Tensor, weight: Tensor) -> None:
        """Compute the gradients of the chunk's share of the batch's mean loss, given the weight of one image in it."""
        with autocast(self._precision, self._device):
            logits = self._working.module(images).float()
        loss = F.cross_entropy(logits, labels, reduction="sum")
        loss.backward(weight)
        self._working.update_moving_averages()
        self._metrics.add(loss.detach(), (logits.detach().argmax(1) != labels).sum())
