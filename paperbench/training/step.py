"""What an iteration computes. How it is carried out is the engine's business."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from paperbench.data.loader import BatchIndices, TrainingBatches
from paperbench.specs.recipe import Recipe
from paperbench.training.metrics import Window
from paperbench.training.optimiser import MomentumSGD
from paperbench.training.precision import autocast
from paperbench.training.working_copy import DirectModel


class TrainingStep:
    """Gather, augment, forward, loss, backward, update, and sums for the metrics.

    The batch goes through the net in parts, whose gradients are summed. With parts of the size of a batch-norm group
    that is what the paper's GPUs did side by side; BN's moving averages take in every group.

    Args:
        working: What it computes with.
        optimiser: Of the net's parameters.
        window: Takes in loss and errors.
        recipe: What a step is.
        batches: Where images come from.
        precision: As of `training.precision`.
        part: Images that go through the net at once.
    """

    def __init__(
        self,
        working: DirectModel,
        optimiser: MomentumSGD,
        window: Window,
        recipe: Recipe,
        batches: TrainingBatches,
        precision: str,
        part: int,
    ) -> None:
        self._working, self._optimiser, self._window = working, optimiser, window
        self._batches, self._precision, self._part = batches, precision, part
        self._device = batches.device
        self._share = torch.tensor(1 / recipe.batch_size, device=self._device)  # of one image in the mean loss

    def __call__(self, choices: BatchIndices) -> None:
        """Train on the images that were chosen. Work for the device alone, always the same but for their values."""
        batch = self._batches.make(choices)
        self._working.refresh()
        sums: list[Tensor] = []
        for images, labels in zip(batch.images.split(self._part), batch.labels.split(self._part), strict=True):
            # Gradients start from None in each part and are added in one go: autograd would add one by one.
            self._working.forget_gradients()
            self._backward(images, labels)
            gradients = self._working.gradients()
            if sums:
                torch._foreach_add_(gradients, sums)
            sums = gradients
        self._optimiser.step(sums)

    def _backward(self, images: Tensor, labels: Tensor) -> None:
        """Gradients of the part's share in the batch's mean loss."""
        with autocast(self._precision, self._device):
            logits = self._working.module(images).float()
        loss = F.cross_entropy(logits, labels, reduction="sum")
        loss.backward(self._share)
        self._working.take_in_statistics()
        self._window.add(loss.detach(), (logits.detach().argmax(1) != labels).sum())
