"""Parts "convolutions" and "autotuned": each convolution of the nets in each of its three passes, one by one.

torch keeps the algorithm that it has chosen for a convolution under a key that does not say whether it was chosen by
timing (`cudnn.benchmark`). So the two ways are measured in processes of their own: "convolutions" as the trainer
chooses, "autotuned" with timing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from paperbench.bench.anatomy.context import Context
from paperbench.bench.anatomy.floors import PlacedConvolution, placed_convolutions
from paperbench.training.precision import set_arithmetic

Direction = Literal["forward", "data gradient", "weight gradient"]
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)


def measure(context: Context) -> None:
    """Time all convolutions, the most decisive settings first."""
    cases = different(context)
    tuned = context.job.part == "autotuned"
    batch = context.scale.batch_size
    for layout in context.scale.layouts:
        for precision in context.precisions:
            for case in cases:
                _row(context, case, precision, layout, batch, benchmark=tuned, deterministic=True)
    if context.device.type != "cuda":
        return
    for precision in context.precisions:
        for case in cases:
            _row(context, case, precision, "NHWC", batch, benchmark=tuned, deterministic=False)
    if not tuned:  # what eager and graph work off at once
        for case in cases:
            _row(context, case, context.precisions[0], "NHWC", context.scale.group, benchmark=False, deterministic=True)


def different(context: Context) -> list[PlacedConvolution]:
    """The convolutions of all nets, each once; those that most of the nets' time may go to first."""
    weight: dict[tuple[Any, ...], float] = {}
    found: dict[tuple[Any, ...], PlacedConvolution] = {}
    for net in context.nets.values():
        placed = placed_convolutions(net)
        total = sum(p.number * elements(p, 1) for p in placed)
        for one in placed:
            key = (one.convolution, one.size)
            found.setdefault(key, one)
            weight[key] = weight.get(key, 0.0) + one.number * elements(one, 1) / total
    return [found[key] for key in sorted(found, key=lambda key: -weight[key])]


def elements(case: PlacedConvolution, batch: int) -> int:
    """Elements that one pass over it reads or writes, weights left out."""
    c = case.convolution
    return batch * (c.inputs * case.size**2 + c.outputs * c.output_size(case.size) ** 2)


def describe(case: PlacedConvolution) -> str:
    """Such as "3x3, 16 to 32, 32 px, stride 2"."""
    c = case.convolution
    stride = f", stride {c.stride}" if c.stride > 1 else ""
    return f"{c.kernel}x{c.kernel}, {c.inputs} to {c.outputs}, {case.size} px{stride}"


def _row(
    context: Context,
    case: PlacedConvolution,
    precision: str,
    layout: str,
    batch: int,
    *,
    benchmark: bool,
    deterministic: bool,
) -> None:
    for direction in DIRECTIONS:
        if direction == "data gradient" and not case.needs_input_gradient:
            continue
        what = {
            "convolution": describe(case),
            "kernel": case.convolution.kernel,
            "inputs": case.convolution.inputs,
            "outputs": case.convolution.outputs,
            "stride": case.convolution.stride,
            "size": case.size,
            "direction": direction,
            "precision": precision,
            "layout": layout,
            "batch": batch,
            "benchmark": benchmark,
            "deterministic": deterministic,
        }

        def timed(direction: Direction = direction) -> dict[str, Any]:
            set_arithmetic(precision)
            torch.backends.cudnn.benchmark = benchmark
            torch.backends.cudnn.deterministic = deterministic
            return time_convolution(context, case, direction, precision, layout, batch)

        context.recorder.attempt(what, timed)


def time_convolution(
    context: Context, case: PlacedConvolution, direction: Direction, precision: str, layout: str, batch: int
) -> dict[str, Any]:
    """Time of one pass of one convolution; bytes and operations are counted."""
    c = case.convolution
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    bytes_each = dtype.itemsize * elements(case, batch)
    number = context.timer.sets(bytes_each)
    timing = context.timer.time(list(_bodies(context, case, direction, dtype, layout, batch, number)))
    flops = 2 * batch * c.macs(case.size)
    moved = bytes_each + dtype.itemsize * c.parameters
    return {
        "flops": flops,
        "bytes": moved,
        "tflops": flops / timing.seconds / 1e12,
        "gigabytes_per_second": moved / timing.seconds / 1e9,
        **timing.row(),
    }


def _bodies(
    context: Context,
    case: PlacedConvolution,
    direction: Direction,
    dtype: torch.dtype,
    layout: str,
    batch: int,
    number: int,
) -> Iterator[Callable[[], Tensor]]:
    c = case.convolution
    memory_format = torch.channels_last if layout == "NHWC" else torch.contiguous_format
    out = c.output_size(case.size)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=context.device, dtype=dtype).to(memory_format=memory_format)

    padding = c.kernel // 2
    weight = random(c.outputs, c.inputs, c.kernel, c.kernel)
    mask = [direction == "data gradient", direction == "weight gradient", False]
    for _ in range(number):
        x = random(batch, c.inputs, case.size, case.size)
        if direction == "forward":
            yield lambda x=x: torch.ops.aten.convolution(  # type: ignore[misc]
                x, weight, None, [c.stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1
            )
            continue
        gradient = random(batch, c.outputs, out, out)
        yield lambda x=x, gradient=gradient: torch.ops.aten.convolution_backward(  # type: ignore[misc]
            gradient, x, weight, None, [c.stride] * 2, [padding] * 2, [1, 1], False, [0, 0], 1, mask
        )
