"""Loss and error of a net on the test set, and the BN statistics that it is tested with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from paperbench.data.loader import Batch
from paperbench.training.precision import autocast
from paperbench.training.working_copy import WorkingCopy


@dataclass(frozen=True)
class EvaluationMetrics:
    """Mean cross-entropy, and percentage of misclassified images."""

    loss: float
    error: float


def no_interrupt() -> None:
    """What is called between batches where nothing interrupts them."""


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    precision: str,
    device: torch.device,
    between_batches: Callable[[], None] = no_interrupt,
) -> EvaluationMetrics:
    """Test a net with the BN statistics that it holds; leaves it in evaluation mode.

    Args:
        between_batches: Called before each batch; may raise to break off.
    """
    model.eval()
    loss = torch.zeros((), dtype=torch.float64, device=device)
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    images = 0
    for batch in batches:
        between_batches()
        with autocast(precision, device):
            logits = model(batch.images).float()
        loss += F.cross_entropy(logits.double(), batch.labels, reduction="sum")
        wrong += (logits.argmax(1) != batch.labels).sum()
        images += len(batch.labels)
    return EvaluationMetrics(loss.item() / images, 100 * wrong.item() / images)


@torch.no_grad()
def reestimate_batch_norm(
    model: nn.Module,
    batches: Iterable[Tensor],
    group: int,
    precision: str,
    device: torch.device,
    between_batches: Callable[[], None] = no_interrupt,
) -> None:
    """Replace the moving averages of BN by plain averages over the given groups of training images.

    Mean and (unbiased) variance of every BN layer become the averages of what it sees in each group, all groups
    counting equally. The parameters stay as they are.

    Args:
        model: The trained net.
        batches: Images of shape (N, 3, H, W), N being any multiple of `group`.
        group: Images that share BN statistics in training.
        between_batches: Called before each batch; may raise to break off, which leaves BN in pieces.
    """
    for layer in model.modules():
        if isinstance(layer, _BatchNorm):
            layer.reset_running_stats()
    copy = WorkingCopy(model, batch_norm_group=group).module
    groups = 0
    for images in batches:
        between_batches()
        with autocast(precision, device):
            copy(images)
        groups += len(images) // group
    count_batches(model, groups)
    model.eval()


def count_batches(model: nn.Module, number: int) -> None:
    """Set how many batches BN has seen. Nothing depends on it, but torch's state dicts have it."""
    for layer in model.modules():
        if isinstance(layer, _BatchNorm) and layer.num_batches_tracked is not None:
            layer.num_batches_tracked.fill_(number)
