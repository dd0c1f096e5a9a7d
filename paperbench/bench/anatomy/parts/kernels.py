"""Part "kernels": where the time of a step goes, kernel by kernel, for every engine and precision of a net."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from paperbench.bench.anatomy.context import Context
from paperbench.bench.anatomy.kernels import KINDS, classify, is_overhead
from paperbench.bench.anatomy.timing import wait_for
from paperbench.bench.trajectory import DEEP
from paperbench.catalogue import Net
from paperbench.errors import PaperbenchError
from paperbench.training.trainer import Trainer

STEPS, DEEP_STEPS = 2, 1
"""Steps that are profiled, and of nets of `DEEP` layers, which launch some 20,000 kernels in one: reading the profile
takes a tenth of a millisecond for each."""

TOP = 15
"""Kernels that are listed by name."""


@dataclass(frozen=True)
class KernelRun:
    """One run of a kernel, in microseconds from some moment on."""

    name: str
    start: float
    end: float


def measure(context: Context) -> None:
    """Profile all engines, the most decisive precision first."""
    (name, net), *_ = context.nets.items()
    if context.device.type == "cuda":
        # The profiler hooks into CUDA when it is first started, which should be before a graph is captured.
        with profile(activities=[ProfilerActivity.CUDA]):
            torch.zeros(1, device=context.device).add_(1)
            wait_for(context.device)
    precisions = [*context.precisions, *([context.stream_precision] if context.stream_precision else [])]
    took: dict[str, float] = {}
    for precision in precisions:
        for engine in context.engines:
            what = {"model": name, "precision": precision, "engine": engine}
            before = context.recorder.seconds_left
            # What an engine took in the precision before, it will take again.
            needs = took.get(engine, 0.0)
            if context.recorder.attempt(what, lambda p=precision, e=engine: one(context, net, p, e), needs):  # type: ignore[misc]
                took[engine] = before - context.recorder.seconds_left


def one(context: Context, net: Net, precision: str, engine: str) -> dict[str, Any]:
    """Time some steps as they are, then profile some."""
    trainer = context.trainer(net, precision, engine)
    start = time.perf_counter()
    trainer.step()
    wait_for(context.device)
    first = time.perf_counter() - start
    ms_per_step = 1000 * plain_seconds(trainer, context)
    about = {
        "batch": context.scale.batch_size,
        "group": context.scale.group,
        "first_step_seconds": first,
        "ms_per_step": ms_per_step,
        "images_per_second": 1000 * context.scale.batch_size / ms_per_step,
    }
    steps = DEEP_STEPS if net.depth >= DEEP else STEPS
    if context.device.type == "cuda":
        return about | summary(profiled_kernels(trainer, context, steps), steps, ms_per_step)
    return about | operators(trainer, steps)


def plain_seconds(trainer: Trainer, context: Context, at_least: float = 0.3) -> float:
    """Seconds of a step, measured without the profiler."""
    for _ in range(2):
        trainer.step()
    wait_for(context.device)
    start, steps = time.perf_counter(), 0
    while True:
        for _ in range(1 if context.scale.name == "quick" else 5):
            trainer.step()
            steps += 1
        wait_for(context.device)
        if time.perf_counter() - start > at_least or context.scale.name == "quick":
            return (time.perf_counter() - start) / steps


def profiled_kernels(trainer: Trainer, context: Context, steps: int) -> list[KernelRun]:
    """All kernels, copies and fills of some steps on a GPU."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            trainer.step()
        wait_for(context.device)
    return [
        KernelRun(event.name, event.time_range.start, event.time_range.end)
        for event in profiler.events() or ()
        if event.device_type == DeviceType.CUDA and not getattr(event, "is_user_annotation", False)
    ]


def summary(kernels: Sequence[KernelRun], steps: int, ms_per_step: float) -> dict[str, Any]:
    """Time by kind, busy share and gaps, each a step.

    Args:
        ms_per_step: Without the profiler, which slows the host down; idle time is what that leaves beside the kernels.

    Raises:
        PaperbenchError: There are no kernels.
    """
    if not kernels:
        raise PaperbenchError("the profiler saw no kernels; does it have the right to? Try it as another user.")
    busy, gaps = occupation(kernels)
    busy_ms = busy / steps / 1000
    names: dict[str, list[float]] = {}
    for kernel in kernels:
        names.setdefault(kernel.name, []).append(kernel.end - kernel.start)
    return {
        "unit": "kernels",
        "launches": len(kernels) / steps,
        "busy_ms": busy_ms,
        "busy_share": min(1.0, busy_ms / ms_per_step),
        "idle_ms": max(0.0, ms_per_step - busy_ms),
        "profiled_ms": (max(k.end for k in kernels) - min(k.start for k in kernels)) / steps / 1000,
        "gaps": len(gaps) / steps,
        "longest_gap_us": max(gaps, default=0.0),
        **_by_kind((name, sum(times) / steps / 1000, len(times) / steps) for name, times in names.items()),
    }


def occupation(kernels: Sequence[KernelRun]) -> tuple[float, list[float]]:
    """Microseconds in which at least one kernel ran, and the gaps between such times."""
    busy, gaps, until = 0.0, list[float](), None
    for kernel in sorted(kernels, key=lambda k: k.start):
        if until is None or kernel.start > until:
            if until is not None:
                gaps.append(kernel.start - until)
            busy += kernel.end - kernel.start
            until = kernel.end
        elif kernel.end > until:
            busy += kernel.end - until
            until = kernel.end
    return busy, gaps


def operators(trainer: Trainer, steps: int) -> dict[str, Any]:
    """Time by kind on a CPU, where operators take the place of kernels; each one's own time, without those it calls."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(steps):
            trainer.step()
    rows = [(e.key, e.self_cpu_time_total / steps / 1000, e.count / steps) for e in profiler.key_averages()]
    rows = [row for row in rows if row[1] > 0]
    return {"unit": "operators", "launches": sum(number for *_, number in rows), **_by_kind(rows)}


def _by_kind(rows: Iterable[tuple[str, float, float]]) -> dict[str, Any]:
    """Sums by kind, and the largest by name.

    Args:
        rows: Name, milliseconds and number, each a step.
    """
    kinds = {kind: {"ms": 0.0, "number": 0.0} for kind in KINDS}
    named = []
    for name, ms, number in rows:
        kind = classify(name)
        kinds[kind]["ms"] += ms
        kinds[kind]["number"] += number
        named.append({"name": name[:200], "kind": kind, "ms": ms, "number": number})
    named.sort(key=lambda row: -float(row["ms"]))  # type: ignore[arg-type]
    unknown = [row for row in named if row["kind"] == "other" and not is_overhead(str(row["name"]))]
    return {"kinds": kinds, "top": named[:TOP], "unknown": unknown[:TOP]}
