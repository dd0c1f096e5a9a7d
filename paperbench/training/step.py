"""The computation of one training step. The engine decides how it runs; see `training.engine`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from paperbench.data.loader import BatchIndices, TrainingBatches
from paperbench.specs.recipe import Recipe
from paperbench.training.metrics import MetricAccumulator
from paperbench.training.optimiser import MomentumSGD
from paperbench.training.precision import autocast
from paperbench.training.working_copy import DirectModel


class TrainingStep:
    """Gather, augment, forward, loss, backward, update, and metrics.

    The batch goes through the net in chunks, and their gradients are summed. With chunks of one batch-norm group each,
    this is what the paper's two GPUs did in parallel. BN's moving averages include every group.

    Args:
        working: The net or a working copy of it.
        metrics: Accumulates loss and errors.
        chunk_size: Images in one forward pass.
    """

    def __init__(
        self,
        working: DirectModel,
        optimiser: MomentumSGD,
        metrics: MetricAccumulator,
        recipe: Recipe,
        batches: TrainingBatches,
        precision: str,
        chunk_size: int,
    ) -> None:
        self._working, self._optimiser, self._metrics = working, optimiser, metrics
        self._batches, self._precision, self._chunk_size = batches, precision, chunk_size
        self._device = batches.device
        self._loss_weight = torch.tensor(1 / recipe.batch_size, device=self._device)  # of one image in the mean loss

    def __call__(self, choices: BatchIndices) -> None:
        """Train on the chosen images. Runs the same operations on the device every time, so it can be captured."""
        batch = self._batches.make(choices)
        self._working.refresh()
        sums: list[Tensor] = []
        chunks = zip(batch.images.split(self._chunk_size), batch.labels.split(self._chunk_size), strict=True)
        for images, labels in chunks:
            # Gradients start from None for each chunk and are added in one call; autograd would add them one by one.
            self._working.clear_gradients()
            self._backward(images, labels)
            gradients = self._working.gradients()
            if sums:
                torch._foreach_add_(gradients, sums)
            sums = gradients
        self._optimiser.step(sums)

    def _backward(self, images: Tensor, labels: Tensor) -> None:
        """Compute the gradients of the chunk's share of the batch's mean loss."""
        with autocast(self._precision, self._device):
            logits = self._working.module(images).float()
        loss = F.cross_entropy(logits, labels, reduction="sum")
        loss.backward(self._loss_weight)
        self._working.update_moving_averages()
        self._metrics.add(loss.detach(), (logits.detach().argmax(1) != labels).sum())
