"""Checks of a device that take minutes: batch norm on exploding inputs, and trainings that are repeated and resumed.

`ci/first_gpu.sh` runs them: python -m paperbench.bench.checks batch-norm|repetitions DEVICE NET FILE [BATCH_SIZE]
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from paperbench.bench.decisions import BatchNormRow, Checks, Repetition
from paperbench.bench.profiling import LAYOUTS, median_seconds
from paperbench.bench.setup import bench_training, machine_facts
from paperbench.bench.throughput import bench_variants
from paperbench.errors import summarize_error
from paperbench.files import UNGUARDED
from paperbench.tensor_file import read_tensor_file, tensor_file_bytes
from paperbench.training.precision import choose_precision
from paperbench.typed import to_json

MEANS = (1.0, 1e3, 1e6, 1e9, 1e12)
SPREADS = (1.0, 1e-3)
SHAPE = (64, 16, 32, 32)
"""Shape of the activations of a net's first units, for one batch-norm group of the paper."""

STEPS = 20
"""Steps before a training is saved, and again after it is resumed."""


def check_batch_norm(device: torch.device, seconds: float = 0.05) -> list[BatchNormRow]:
    """Compare batch norm by cuDNN and by torch's own kernels with float64, on inputs of growing size."""
    rows = []
    generator = torch.Generator().manual_seed(0)
    noise, gradient = (torch.randn(SHAPE, generator=generator) for _ in range(2))
    for mean in MEANS:
        for spread in SPREADS:
            x = mean * (1 + spread * noise)
            exact = _normalise("native", x.double(), gradient.double())
            for layout, memory_format in LAYOUTS.items():
                inputs = [tensor.to(device).contiguous(memory_format=memory_format) for tensor in (x, gradient)]
                for kernels in ("native", "cudnn"):
                    run: Callable[[], list[Tensor]] = partial(_normalise, kernels, *inputs)
                    pairs = zip(run(), exact, strict=True)
                    error = max(float((found.cpu().double() - e).norm() / e.norm()) for found, e in pairs)
                    found = error if math.isfinite(error) else None
                    rows.append(BatchNormRow(layout, kernels, mean, spread, found, 1000 * median_seconds(run, seconds)))
    return rows


def _normalise(kernels: str, x: Tensor, gradient: Tensor) -> list[Tensor]:
    """Return output, moving averages, and gradients by input, weight and bias."""
    x = x.detach().requires_grad_()
    weight, bias = (x.new_full((x.shape[1],), value).requires_grad_() for value in (1.0, 0.0))
    averages = mean, variance = x.new_zeros(x.shape[1]), x.new_zeros(x.shape[1])
    if kernels == "cudnn":
        y = torch.batch_norm(x, weight, bias, mean, variance, True, 1.0, 1e-5, torch.backends.cudnn.enabled)
    else:
        y = torch.native_batch_norm(x, weight, bias, mean, variance, True, 1.0, 1e-5)[0]
    return [y.detach(), *averages, *torch.autograd.grad(y, [x, weight, bias], gradient)]


def check_repetitions(net: str, device: torch.device, batch_size: int) -> list[Repetition]:
    """Train in one process, again in a second, and resume in a third the state that the first saved halfway."""
    rows = []
    for variant in bench_variants([], [choose_precision(None, device), "bf16"], device):
        if variant.kind != "paperbench":
            continue
        states: list[str] = []
        problem = None
        with TemporaryDirectory() as folder:
            arguments = (net, batch_size, str(device), variant.engine, variant.precision, Path(folder, "state"))
            try:
                for is_resumed in (False, False, True):
                    with ProcessPoolExecutor(1, get_context("spawn")) as process:
                        states.append(process.submit(train, *arguments, is_resumed).result())
            except Exception as error:  # report it, and check the other engines
                problem = summarize_error(error)
        rows.append(Repetition(variant.engine, variant.precision, tuple(states), problem))
    return rows


def train(net: str, batch_size: int, device: str, engine: str, precision: str, saved: Path, is_resumed: bool) -> str:
    """Train for twice `STEPS` steps, saving the state halfway or resuming it there; return the state's sha256."""
    trainer = bench_training(net, batch_size, torch.device(device)).trainer(engine, precision)
    if is_resumed:
        trainer.load_state_dict(read_tensor_file(saved.read_bytes())[0])
    for last in (STEPS, 2 * STEPS):
        while trainer.iteration < last:
            trainer.step()
        data = tensor_file_bytes(trainer.state_dict(), {})
        if last == STEPS:
            saved.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def main(what: str, device_name: str, net: str, file: str, batch_size: str = "128") -> None:
    """Run the checks of one kind and write them to a file."""
    device = torch.device(device_name)
    found: dict[str, Any] = (
        {"batch_norm": tuple(check_batch_norm(device))}
        if what == "batch-norm"
        else {"repetitions": tuple(check_repetitions(net, device, int(batch_size)))}
    )
    checks = Checks(1, machine_facts(device), net, **found)
    UNGUARDED.write(Path(file), to_json(checks, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
