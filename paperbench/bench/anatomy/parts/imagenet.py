"""Part "imagenet": steps of ResNet-200 on random images of 224 pixels. The trainer reads small images alone."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.nn.functional as F

from paperbench.bench.anatomy.context import Context
from paperbench.bench.anatomy.floors import Floors
from paperbench.bench.anatomy.timing import free_memory, wait_for
from paperbench.catalogue import Net, resolve
from paperbench.models import ResidualNet
from paperbench.training.precision import autocast, set_arithmetic


def measure(context: Context) -> None:
    """Time eager steps, precision by precision."""
    net = resolve("preact_resnet200")
    for precision in context.precisions[:2]:
        what = {"model": "preact_resnet200", "precision": precision, "engine": "eager"}
        context.recorder.attempt(what, lambda p=precision: steps(context, net, p, batch=128, size=224))  # type: ignore[misc]
        free_memory(context.device)


def steps(context: Context, net: Net, precision: str, *, batch: int, size: int, seconds: float = 3.0) -> dict[str, Any]:
    """Time forward, backward and update on two batches in turn."""
    set_arithmetic(precision)
    model = ResidualNet(net).to(context.device).to(memory_format=torch.channels_last).train()
    rate = torch.tensor(1e-3, device=context.device)
    optimiser = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4, fused=True)
    images = [
        torch.randn(batch, 3, size, size, device=context.device).to(memory_format=torch.channels_last) for _ in range(2)
    ]
    labels = torch.randint(net.num_classes, (batch,), device=context.device)

    def step(number: int) -> None:
        optimiser.zero_grad()
        with autocast(precision, context.device):
            logits = model(images[number % 2]).float()
        F.cross_entropy(logits, labels).backward()
        optimiser.step()

    for number in range(3):
        step(number)
    wait_for(context.device)
    start, done = time.perf_counter(), 0
    while done < 2 or time.perf_counter() - start < seconds:
        step(done)
        done += 1
        if done % 5 == 0:
            wait_for(context.device)
    wait_for(context.device)
    each = (time.perf_counter() - start) / done
    peak = torch.cuda.max_memory_allocated(context.device) if context.device.type == "cuda" else None
    return {
        "batch": batch,
        "size": size,
        "ms_per_step": 1000 * each,
        "images_per_second": batch / each,
        "peak_allocated": peak,
        "unfused_bytes": Floors(net).step_bytes("unfused", precision, batch),
    }
