"""Part "normalisation": BN, ReLU and addition, one by one and in sequence, forward and backward.

Ways: torch's own kernels, torch.compile, and torch.compile with all groups of batch-norm statistics in one operation,
as the compile engine has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paperbench.bench.anatomy.context import Context
from paperbench.bench.anatomy.timing import Timing
from paperbench.training.batch_norm import GroupedBatchNorm2d
from paperbench.training.precision import set_arithmetic

Way = Literal["native", "compiled", "compiled, grouped"]

FLOOR_ELEMENTS = {
    "BN": (3, 5),
    "ReLU": (2, 3),
    "add": (3, 0),
    "BN, ReLU": (3, 5),
    "add, BN, ReLU": (5, 6),
}
"""Elements read and written for each of the input, forward and backward, if a sequence is one fused operation.

BN reads its input twice, as statistics come before they are used. Behind an addition BN's statistics read the two terms
and write the sum, which is then read once; going back, the sum's other gradient is read too.
"""

SHAPES = ((64, 32), (16, 32), (256, 8), (128, 16), (32, 16), (64, 8))
"""Channels and side: the residual streams and inner layers of the nets, the decisive first."""


def measure(context: Context) -> None:
    """Time all sequences, the most decisive first."""
    quick = context.scale.name == "quick"
    shapes = SHAPES[1:2] if quick else SHAPES
    batch, group = context.scale.batch_size, context.scale.group
    precisions = tuple(p for p in context.precisions if p != "tf32")
    compiles = context.can_compile and not quick  # a compilation takes seconds
    for sequence in ("add, BN, ReLU", "BN, ReLU"):
        for shape in shapes[:2]:
            for precision in precisions:
                _row(context, sequence, shape, precision, "NHWC", "native", batch, batch)
                _row(context, sequence, shape, precision, "NHWC", "native", batch, group)
                if compiles:
                    _row(context, sequence, shape, precision, "NHWC", "compiled", batch, batch)
    if compiles:
        for precision in precisions[:1]:
            for shape in shapes[:2]:
                _row(context, "add, BN, ReLU", shape, precision, "NHWC", "compiled, grouped", batch, group)
    for sequence in ("BN", "ReLU", "add"):
        for shape in shapes[:2]:
            for precision in precisions:
                for layout in context.scale.layouts:
                    _row(context, sequence, shape, precision, layout, "native", batch, batch)
    for shape in shapes[2:]:
        for precision in precisions:
            _row(context, "add, BN, ReLU", shape, precision, "NHWC", "native", batch, batch)
    if compiles:
        for shape in shapes[2:3]:
            _row(context, "add, BN, ReLU", shape, precisions[0], "NHWC", "compiled", batch, batch)
    if "NCHW" in context.scale.layouts:
        for precision in precisions:
            _row(context, "add, BN, ReLU", shapes[0], precision, "NCHW", "native", batch, batch)


def _row(
    context: Context,
    sequence: str,
    shape: tuple[int, int],
    precision: str,
    layout: str,
    way: Way,
    batch: int,
    group: int,
) -> None:
    channels, size = shape
    what = {
        "sequence": sequence,
        "channels": channels,
        "size": size,
        "precision": precision,
        "layout": layout,
        "way": way,
        "batch": batch,
        "group": group,
    }
    context.recorder.attempt(what, lambda: time_sequence(context, sequence, shape, precision, layout, way, group))


def time_sequence(
    context: Context, sequence: str, shape: tuple[int, int], precision: str, layout: str, way: Way, group: int
) -> dict[str, Any]:
    """Times of a sequence, forward and backward; the latter is what both take less the former."""
    set_arithmetic(precision)
    torch.compiler.reset()
    channels, size = shape
    batch = context.scale.batch_size
    layer = nn.BatchNorm2d(channels, device=context.device)
    layer.num_batches_tracked = None  # a kernel for a number that is known
    layer.train()
    parts = [group] * (batch // group)
    if way == "compiled, grouped":
        layer, parts = GroupedBatchNorm2d(layer, group, batch // group).train(), [batch]
    run: Callable[..., tuple[Tensor, ...]] = _sequence(sequence, layer)
    if way != "native":
        run = torch.compile(run, dynamic=False)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    elements = batch * channels * size**2
    has_backward = FLOOR_ELEMENTS[sequence][1] > 0
    number = context.timer.sets(dtype.itemsize * elements * 3)
    outputs = 2 if sequence == "add, BN, ReLU" else 1
    sets = list(_sets(context, 2 if sequence.startswith("add") else 1, outputs, parts, shape, dtype, layout, number))
    backend = _backend(sets[0][0].inputs[0], layer) if way == "native" and "BN" in sequence else None
    forward = context.timer.time([lambda s=s: [run(*part.inputs) for part in s] for s in sets])  # type: ignore[misc]
    found = {"backend": backend, "elements": elements, "bytes_each": dtype.itemsize, **_figures("forward", forward)}
    found["forward_floor_bytes"] = FLOOR_ELEMENTS[sequence][0] * elements * dtype.itemsize
    if has_backward:
        parameters = list(layer.parameters()) if "BN" in sequence else []
        both = context.timer.time([lambda s=s: _both(run, s, parameters) for s in sets])  # type: ignore[misc]
        found |= _figures("both", both)
        found["backward_microseconds"] = 1e6 * (both.seconds - forward.seconds)
        found["both_floor_bytes"] = sum(FLOOR_ELEMENTS[sequence]) * elements * dtype.itemsize
    return found


def _figures(name: str, timing: Timing) -> dict[str, float]:
    return {f"{name}_{key}": value for key, value in timing.row().items()}


def _sequence(name: str, layer: nn.BatchNorm2d) -> Callable[..., tuple[Tensor, ...]]:
    match name:
        case "BN":
            return lambda x: (layer(x),)
        case "ReLU":
            return lambda x: (F.relu(x),)
        case "add":
            return lambda x, f: (x + f,)
        case "BN, ReLU":
            return lambda x: (F.relu(layer(x)),)
        case _:

            def add_bn_relu(x: Tensor, f: Tensor) -> tuple[Tensor, ...]:
                total = x + f
                return total, F.relu(layer(total))

            return add_bn_relu


@dataclass(frozen=True)
class _Part:
    """Tensors for a part of the batch.

    Attributes:
        inputs: Terms of the addition, or the one input.
        gradients: Of each output. Tensors of their own: reading an input twice would be half the traffic.
    """

    inputs: list[Tensor]
    gradients: list[Tensor]


def _sets(
    context: Context,
    inputs: int,
    outputs: int,
    parts: Sequence[int],
    shape: tuple[int, int],
    dtype: torch.dtype,
    layout: str,
    number: int,
) -> Iterator[list[_Part]]:
    """Sets of tensors for calls to take turns over, each with all parts of a batch."""
    memory_format = torch.channels_last if layout == "NHWC" else torch.contiguous_format
    channels, size = shape

    def random(images: int) -> Tensor:
        values = torch.randn(images, channels, size, size, device=context.device, dtype=dtype)
        return values.to(memory_format=memory_format)

    for _ in range(number):
        yield [
            _Part([random(part).requires_grad_() for _ in range(inputs)], [random(part) for _ in range(outputs)])
            for part in parts
        ]


def _both(run: Callable[..., tuple[Tensor, ...]], parts: Sequence[_Part], parameters: Sequence[Tensor]) -> list[Any]:
    found: list[Any] = []
    for part in parts:
        outputs = run(*part.inputs)
        found.append((outputs, torch.autograd.grad(outputs, [*part.inputs, *parameters], part.gradients)))
    return found


def _backend(x: Tensor, layer: nn.BatchNorm2d) -> str | None:
    """What torch runs BN with."""
    select = getattr(torch._C, "_select_batch_norm_backend", None)
    if select is None:
        return None
    told = select(x, layer.weight, layer.bias, layer.running_mean, layer.running_var, True, layer.eps)
    return str(told).rpartition(".")[2]
