"""Loss and error of a net on the test set, and re-estimation of the BN statistics used for testing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from paperbench.data.loader import Batch
from paperbench.training.batch_norm import BatchNormAverages
from paperbench.training.memory import is_out_of_memory, release_memory
from paperbench.training.precision import autocast
from paperbench.training.processes import ALONE, Processes

Result = TypeVar("Result")


@dataclass(frozen=True)
class EvaluationMetrics:
    """Mean cross-entropy, and errors in percent.

    Attributes:
        error: Top-1.
        top5_error: An image whose class ties for the fifth place counts as right if its label is lower.
    """

    loss: float
    error: float
    top5_error: float


def as_memory_allows(work: Callable[[int], Result], at_once: int, device: torch.device) -> Result:
    """Return `work(at_once)`, repeated with half as many images at once while memory is short, down to one.

    Raises:
        torch.OutOfMemoryError, or another error of `is_out_of_memory`: There is too little memory even for one.
    """
    while True:
        try:
            return work(at_once)
        except Exception as error:  # libraries may raise anything
            if at_once == 1 or not is_out_of_memory(error):
                raise
        at_once //= 2
        release_memory(device)  # not before the error is gone, whose traceback keeps the tensors


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    precision: str,
    device: torch.device,
    between_batches: Callable[[], None] = lambda: None,
    processes: Processes = ALONE,
) -> EvaluationMetrics:
    """Test a net with its current BN statistics. Leaves it in evaluation mode.

    Args:
        batches: Those of this process.
        between_batches: Called before each batch; may raise to abort.
    """
    model.eval()

    def sums(batch: Batch) -> Tensor:
        between_batches()
        with autocast(precision, device):
            logits = model(batch.images).float()
        loss = F.cross_entropy(logits.double(), batch.labels, reduction="sum")
        wrong = (logits.argmax(1) != batch.labels).sum()
        wrong5 = (_ranks(logits, batch.labels) >= 5).sum()
        return torch.stack([loss, wrong, wrong5, loss.new_full((), len(batch.labels))])[None]

    total = torch.zeros(4, dtype=torch.float64, device=device)  # exact for the numbers of images
    processes.add_rows(batches, sums, total)
    loss, wrong, wrong5, images = total.tolist()
    return EvaluationMetrics(loss / images, 100 * wrong / images, 100 * wrong5 / images)


def _ranks(logits: Tensor, labels: Tensor) -> Tensor:
    """Return how many classes are ahead of each image's own: with a higher score, or an equal one and a lower label."""
    own = logits.gather(1, labels[:, None])
    is_lower = torch.arange(logits.shape[1], device=labels.device) < labels[:, None]
    return ((logits > own) | ((logits == own) & is_lower)).sum(1)


@torch.no_grad()
def reestimate_batch_norm(
    model: nn.Module,
    groups: Iterable[Tensor],
    precision: str,
    device: torch.device,
    between_groups: Callable[[], None] = lambda: None,
    processes: Processes = ALONE,
) -> None:
    """Replace BN's moving averages by plain averages over groups of training images.

    The running mean and (unbiased) variance of every BN layer become the averages of its batch statistics over all
    groups, with equal weights. They are added up in float64, in the order of the groups. The parameters do not change.
    Of a net without BN, no image is read.

    Args:
        groups: Those of this process: images of shape (N, 3, H, W).
        between_groups: Called before each group; may raise to abort, which leaves the net in training mode.
    """
    averages = BatchNormAverages(model.train())
    if not averages.statistics:
        model.eval()
        return

    def statistics(images: Tensor) -> Tensor:
        between_groups()
        with autocast(precision, device):
            model(images)
        return averages.last_batch()[None]

    total = torch.zeros_like(averages.last_batch(), dtype=torch.float64)
    number = processes.add_rows(groups, statistics, total)
    averages.set(total / number)
    set_batch_count(model, number)
    model.eval()


def set_batch_count(model: nn.Module, number: int) -> None:
    """Set BN's number of batches. Nothing here depends on it, but torch's state dicts contain it."""
    for layer in model.modules():
        if isinstance(layer, _BatchNorm) and layer.num_batches_tracked is not None:
            layer.num_batches_tracked.fill_(number)
