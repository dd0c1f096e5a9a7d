"""Part "pieces": what a step does beside the net: optimiser, making of the batch, loss and metrics."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from paperbench.architecture import parameters as count_parameters
from paperbench.bench.anatomy.context import Context
from paperbench.bench.anatomy.floors import Floors
from paperbench.catalogue import Net
from paperbench.data.loader import InputTransform, TrainingBatches
from paperbench.models import ResidualNet
from paperbench.training.precision import set_arithmetic


def measure(context: Context) -> None:
    """Time the pieces."""
    set_arithmetic("fp32")
    for name, net in context.nets.items():
        context.recorder.attempt({"piece": "SGD", "model": name}, lambda n=net: sgd(context, n))  # type: ignore[misc]
    net = next(iter(context.nets.values()))
    context.recorder.attempt({"piece": "batch", "model": None}, lambda: batch(context, net))
    context.recorder.attempt({"piece": "loss and metrics", "model": None}, lambda: loss(context))


def sgd(context: Context, net: Net) -> dict[str, Any]:
    """A step of torch's fused SGD with momentum over all parameters, its rate on the device."""
    model = ResidualNet(net).to(context.device)
    tensors = list(model.parameters())
    for tensor in tensors:
        tensor.grad = torch.randn_like(tensor) * 1e-3
    rate = torch.tensor(1e-4, device=context.device)
    optimiser = torch.optim.SGD(tensors, lr=rate, momentum=0.9, weight_decay=1e-4, fused=True)
    optimiser.step()  # the first makes the momentum and is another kernel
    timing = context.timer.time([optimiser.step])
    return {
        "tensors": len(tensors),
        "parameters": count_parameters(net),
        "floor_bytes": Floors(net).optimiser_bytes(),
        **timing.row(),
    }


def batch(context: Context, net: Net) -> dict[str, Any]:
    """Gather, crop, mirror and normalise a batch."""
    batches = TrainingBatches(
        context.dataset,
        InputTransform(context.dataset.x_train, context.recipe.input),
        batch_size=context.scale.batch_size,
        padding=context.recipe.augmentation.padding,
        flip=True,
        seed=0,
        device=context.device,
    )
    number = max(1, min(32, context.scale.images // context.scale.batch_size))
    choices = [batches.choices(iteration) for iteration in range(number)]
    timing = context.timer.time([lambda c=c: batches.make(c) for c in choices])  # type: ignore[misc]
    return {"floor_bytes": context.scale.batch_size * Floors(net).input_bytes(), **timing.row()}


def loss(context: Context) -> dict[str, Any]:
    """Cross-entropy of a batch, its gradient, and the sums of loss and errors."""
    size = context.scale.batch_size
    logits = torch.randn(size, 10, device=context.device, requires_grad=True)
    labels = torch.randint(10, (size,), device=context.device)
    share = torch.tensor(1 / size, device=context.device)
    sums = torch.zeros((), dtype=torch.float64, device=context.device)
    wrong = torch.zeros((), dtype=torch.int64, device=context.device)

    def step() -> Tensor:
        value = F.cross_entropy(logits, labels, reduction="sum")
        (gradient,) = torch.autograd.grad(value, [logits], [share])
        sums.add_(value.detach())
        wrong.add_((logits.detach().argmax(1) != labels).sum())
        return gradient

    timing = context.timer.time([step])
    return {"floor_bytes": 3 * size * 10 * 4, **timing.row()}
