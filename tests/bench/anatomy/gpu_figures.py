"""Rows as the parts would write them on a GPU, with numbers that were made up so that what follows from them is known.

The machine copies 4 TB/s, multiplies 800 (bf16) and 400 (tf32) TFLOP/s, and needs 2 us for an empty kernel.
"""

from __future__ import annotations

from typing import Any

from paperbench.bench.anatomy.floors import placed_convolutions
from paperbench.bench.anatomy.kernels import KINDS
from paperbench.bench.anatomy.parts.convolutions import describe
from paperbench.bench.anatomy.plan import PARTS, Task
from paperbench.bench.anatomy.schedule import Outcome
from paperbench.catalogue import resolve

MODELS = ("preact_resnet110", "preact_resnet164")
CODE = {"version": "0.1.0", "commit": "0123456789abcdef", "source": "0" * 16, "numerics": 1}
TIMING = {"microseconds": 10.0, "low_microseconds": 9.0, "high_microseconds": 11.0}

MACHINE: list[dict[str, Any]] = [
    {"what": "copy", "bytes": 2**33, "bytes_per_second": 4e12, **TIMING},
    {"what": "empty kernel", "nodes": 1000, "seconds_each": 2e-6, "in_graph": True},
    {"what": "matrix product", "precision": "bf16", "side": 8192, "flops_per_second": 8e14, **TIMING},
    {"what": "matrix product", "precision": "tf32", "side": 8192, "flops_per_second": 4e14, **TIMING},
    {
        "what": "facts",
        "facts": {
            "device": "A GPU",
            "torch": "2.11.0",
            "cuda": "13.0",
            "cudnn": "9",
            "driver": "580",
            "clocks_mhz": {"sm": 1980},
        },
    },
    {
        "what": "dispatch",
        "net": "ResNet-110",
        "operations": 891,
        "host_seconds": 0.009,
        "seconds_each": 1e-5,
    },
]


def convolution_rows(benchmark: bool = False) -> list[dict[str, Any]]:
    """Each convolution takes 4 us going forward and 8 us for either gradient."""
    rows = []
    seen = set()
    for placed in (p for name in MODELS for p in placed_convolutions(resolve(name))):
        c = placed.convolution
        if (c, placed.size) in seen:
            continue
        seen.add((c, placed.size))
        for direction, us in (("forward", 4.0), ("data gradient", 8.0), ("weight gradient", 8.0)):
            if direction == "data gradient" and not placed.needs_input_gradient:
                continue
            rows.append(
                {
                    "convolution": describe(placed),
                    "kernel": c.kernel,
                    "inputs": c.inputs,
                    "outputs": c.outputs,
                    "stride": c.stride,
                    "size": placed.size,
                    "direction": direction,
                    "precision": "bf16",
                    "layout": "NHWC",
                    "batch": 128,
                    "benchmark": benchmark,
                    "deterministic": True,
                    "flops": 1e9,
                    "bytes": 8e6,
                    "tflops": 1e9 / us / 1e6,
                    "gigabytes_per_second": 8e6 / us / 1e3,
                    "microseconds": us,
                    "low_microseconds": us,
                    "high_microseconds": us,
                }
            )
    return rows


def step_row(model: str, engine: str, precision: str, ms: float, kind: str = "paperbench") -> dict[str, Any]:
    rate = 128_000 / ms
    return {
        "model": model,
        "precision": precision,
        "kind": kind,
        "engine": engine,
        "label": f"{engine if kind == 'paperbench' else 'plain loop'} {precision}",
        "batch": 128,
        "group": 64,
        "images_per_second": rate,
        "low_images_per_second": 0.99 * rate,
        "high_images_per_second": 1.01 * rate,
        "ms_per_step": ms,
        "over_plain": 20.0 / ms,
        "over_plain_same_precision": 18.0 / ms,
        "first_step_seconds": 12.0,
        "peak_allocated": 10**9,
        "peak_reserved": 2 * 10**9,
        "flags": {"convolution": "ieee"},
        "clocks": {"sm": 1980},
        "rounds": 3,
        "noise": 0.01,
        "compared_steps": 20,
        "displacement": 0.98 if kind == "paperbench" else None,
    }


def kernel_row(model: str, engine: str, precision: str, ms: float, **kinds: float) -> dict[str, Any]:
    given = {"copy, cast": kinds.pop("copies", 0.0), "batch norm": kinds.pop("batch_norm", 0.0), **kinds}
    busy = sum(given.values())
    return {
        "model": model,
        "precision": precision,
        "engine": engine,
        "batch": 128,
        "group": 64,
        "first_step_seconds": 3.0,
        "ms_per_step": ms,
        "images_per_second": 128_000 / ms,
        "unit": "kernels",
        "launches": 1000.0,
        "busy_ms": busy,
        "busy_share": busy / ms,
        "idle_ms": ms - busy,
        "profiled_ms": ms + 0.5,
        "gaps": 900.0,
        "longest_gap_us": 12.0,
        "kinds": {kind: {"ms": given.get(kind, 0.0), "number": 100.0} for kind in KINDS},
        "top": [{"name": "sm90_xmma_dgrad<a|b>", "kind": "convolution", "ms": 1.5, "number": 60.0}],
        "unknown": [{"name": "strange_kernel", "kind": "other", "ms": 0.1, "number": 2.0}],
    }


def outcome(part: str, rows: list[dict[str, Any]], model: str | None = None, **changes: Any) -> Outcome:
    values: dict[str, Any] = {"status": "complete", "seconds": 20.0, "limit_seconds": 40.0, "rows": rows, **changes}
    return Outcome(Task(PARTS[part], model, 1.0), **values)


def outcomes() -> list[Outcome]:
    """Of two nets; of the second the ladder was killed after a row, and kernels crashed before any."""
    small, large = MODELS
    sequence = {
        "sequence": "add, BN, ReLU",
        "channels": 64,
        "size": 32,
        "precision": "bf16",
        "layout": "NHWC",
        "way": "native",
        "batch": 128,
        "group": 64,
        "backend": "Native",
        "elements": 2**23,
        "bytes_each": 2,
        "forward_floor_bytes": 80_000_000,
        "forward_microseconds": 40.0,
        "forward_low_microseconds": 40.0,
        "forward_high_microseconds": 40.0,
        "both_microseconds": 110.0,
        "both_low_microseconds": 110.0,
        "both_high_microseconds": 110.0,
        "backward_microseconds": 70.0,
        "both_floor_bytes": 176_000_000,
    }
    seeds = {"model": small, "precision": "bf16", "engine": "graph", "batch": 128, "compared_steps": 20}
    exact = {"model": small, "precision": "bf16", "steps": 50}
    return [
        outcome("machine", MACHINE),
        outcome("convolutions", convolution_rows()),
        outcome("normalisation", [sequence]),
        outcome(
            "ladder",
            [
                step_row(small, "eager", "tf32", 20.0, kind="plain"),
                step_row(small, "eager", "bf16", 18.0),
                step_row(small, "graph", "bf16", 8.0),
                step_row(small, "compile", "bf16", 4.0),
                step_row(small, "graph", "tf32", 10.0),
            ],
            small,
            left_out=[{"what": {"model": small, "precision": "fp32"}, "why": "no time left"}],
        ),
        outcome(
            "kernels",
            [
                kernel_row(small, "compile", "bf16", 4.1, convolution=2.0, batch_norm=0.9, elementwise=0.2, copies=0.4),
                kernel_row(small, "eager", "fp32", 25.0, convolution=9.0, batch_norm=4.0, elementwise=2.0),
            ],
            small,
        ),
        outcome(
            "ladder",
            [step_row(large, "graph", "bf16", 12.0)],
            large,
            status="killed",
            why="still running after 65 s; last said: round 1 of 3",
        ),
        outcome("kernels", [], large, status="crashed", why="ended by SIGSEGV"),
        outcome(
            "seeds",
            [
                {**seeds, "seeds": 1, "images_per_second": 16000.0, "ms_per_turn": 8.0, "equal_to_solo": [True]},
                {
                    **seeds,
                    "seeds": 4,
                    "images_per_second": 24000.0,
                    "ms_per_turn": 21.0,
                    "equal_to_solo": [True] * 3 + [False],
                },
            ],
        ),
        outcome(
            "exactness",
            [
                {**exact, "check": "eager repeats itself", "equal": True, "loss": 2.2},
                {
                    **exact,
                    "check": "compile is as eager",
                    "equal": False,
                    "greatest_relative_difference_of_loss": 0.003,
                },
            ],
        ),
        outcome(
            "pieces",
            [
                {
                    "piece": "SGD",
                    "model": small,
                    "tensors": 300,
                    "parameters": 1_727_962,
                    "floor_bytes": 34_559_240,
                    **TIMING,
                }
            ],
        ),
        outcome("autotuned", convolution_rows(benchmark=True)),
        outcome(
            "imagenet",
            [
                {
                    "model": "preact_resnet200",
                    "precision": "bf16",
                    "engine": "eager",
                    "batch": 128,
                    "size": 224,
                    "ms_per_step": 70.0,
                    "images_per_second": 1828.0,
                    "peak_allocated": 30 * 10**9,
                    "unfused_bytes": 1.8e11,
                }
            ],
        ),
    ]
