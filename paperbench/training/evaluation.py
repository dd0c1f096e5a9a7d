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


@dataclass(frozen=True)
class EvaluationMetrics:
    """Mean cross-entropy, and percentage of misclassified images."""

    loss: float
    error: float


def go_on() -> None:
    """What is called between batches where nobody may want to break off."""


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    precision: str,
    device: torch.device,
    between_batches: Callable[[], None] = go_on,
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
    groups: Iterable[Tensor],
    precision: str,
    device: torch.device,
    between_groups: Callable[[], None] = go_on,
) -> None:
    """Replace the moving averages of BN by plain averages over the given groups of training images.

    Mean and (unbiased) variance of every BN layer become the averages of what it sees in each group, all groups
    counting equally. The parameters stay as they are.

    Args:
        model: The trained net.
        groups: Images of shape (N, 3, H, W), as many in each as share BN statistics in training.
        between_groups: Called before each group; may raise to break off, which leaves BN in pieces.
    """
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    moving_average = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
    model.train()
    for count, images in enumerate(groups, start=1):
        between_groups()
        for layer in layers:
            layer.momentum = 1 / count  # the moving average is then the plain one
        with autocast(precision, device):
            model(images)
    for layer, momentum in zip(layers, moving_average, strict=True):
        layer.momentum = momentum
    model.eval()
