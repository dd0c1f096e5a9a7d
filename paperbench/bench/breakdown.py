"""Where the time of a training step goes, by kind of kernel, beside the floors of bytes, arithmetic and launches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import partial

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile
from torch.utils.benchmark import Timer

from paperbench.bench.figures import (
    Breakdown,
    Ceilings,
    Floors,
    KindTime,
    Layout,
    Spread,
    StepTime,
    spread,
    summarize_error,
)
from paperbench.bench.kernels import Kind, Work, classify, step_work
from paperbench.bench.machine import machine_facts, restore_flags
from paperbench.bench.setup import Training, free_memory, wait_for
from paperbench.bench.soundness import compared_steps, find_reference, first_steps
from paperbench.errors import PaperbenchError
from paperbench.runs.environment import code_facts
from paperbench.training.precision import set_arithmetic
from paperbench.training.trainer import Trainer

PROFILED_STEPS = 2
ROUNDS = 3

COPY_BYTES = {"cpu": 2**28, "cuda": 2**30}
MATRIX_SIDE = {"cpu": 1024, "cuda": 8192}
CHAIN = 1000
"""Kernels that are launched to time one."""

Profiled = Mapping[str, tuple[float, float]]
"""Milliseconds and number per step of each kernel or operator, by name."""


def measure_breakdown(
    name: str, training: Training, engine: str, precision: str, seconds: float, progress: Callable[[str], None]
) -> Breakdown:
    """Measure one net. torch's switches are as before.

    Args:
        name: The net's.
        engine, precision: Available on the device.
        seconds: Least time for which a step is timed.
        progress: Called with a line of text after each measurement.
    """
    device, recipe = training.device, training.recipe
    on_gpu = device.type == "cuda"
    steps: list[StepTime] = []
    profiled: Profiled = {}
    with restore_flags(), torch.cuda.device(device) if on_gpu else nullcontext():
        if on_gpu:  # the profiler hooks into CUDA when it is first started, which should be before a capture
            with profile(activities=[ProfilerActivity.CUDA]):
                wait_for(device)
        ceilings = measure_ceilings(device, precision, in_graph=on_gpu and engine != "eager", seconds=seconds / 10)
        progress(f"{name}: ceilings measured")
        reference = find_reference(lambda: training.trainer("eager", "fp32"), compared_steps(training.net.depth))
        progress(f"{name}: losses of eager fp32 to compare with computed")
        settings: list[tuple[Layout, bool]] = [("channels_last", True), ("contiguous", True), ("channels_last", False)]
        for layout, deterministic in settings if on_gpu else settings[:2]:
            time, problem = None, None
            try:
                trainer = training.trainer(engine, precision, channels_last=layout == "channels_last")
                torch.backends.cudnn.deterministic = deterministic  # before the first step, which may be captured
                problem = reference.error(first_steps(trainer, len(reference.fp32.losses)), precision)
                if problem is None:
                    time = _time(trainer.step, seconds, scale=1000)
                    profiled = profiled if steps else profiled_step(trainer)
            except Exception as error:  # one setting that fails leaves the others their rows
                problem = summarize_error(error.with_traceback(None))
            trainer = None  # type: ignore[assignment]
            free_memory(device)
            steps.append(StepTime(layout, deterministic if on_gpu else None, time, problem))
            progress(f"{name}, {layout}{'' if deterministic else ', not deterministic'}: {problem or 'done'}")
    passes = 1 if engine == "compile" else recipe.batch_size // recipe.batch_norm.group
    work = step_work(training.net, precision, batch_size=recipe.batch_size, passes=passes, is_fused=engine == "compile")
    total = sum(time for time, _ in profiled.values())
    return Breakdown(
        schema=1,
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        paperbench=code_facts(),
        machine=machine_facts(device),
        net=name,
        engine=engine,
        precision=precision,
        batch_size=recipe.batch_size,
        bn_group=recipe.batch_norm.group,
        ceilings=ceilings,
        steps=tuple(steps),
        kinds=tuple(times_by_kind(profiled, work or {}, ceilings)),
        floors=floors(sum(work.values(), Work()), ceilings) if work else None,
        unknown=tuple(name for name, (time, _) in profiled.items() if classify(name) == "other" and time > total / 100),
    )


def measure_ceilings(device: torch.device, precision: str, *, in_graph: bool, seconds: float) -> Ceilings:
    """What the machine can do: copy a large tensor, multiply large matrices, launch small kernels."""
    source = torch.randn(COPY_BYTES[device.type] // 4, device=device)
    copy = _time(partial(torch.empty_like(source).copy_, source), seconds).median
    set_arithmetic(precision)
    torch.backends.cuda.matmul.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    side, dtype = MATRIX_SIDE[device.type], torch.bfloat16 if precision.startswith("bf16") else torch.float32
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    product = _time(lambda: left @ right, seconds).median
    number = torch.zeros(1, device=device)

    def chain() -> None:
        for _ in range(CHAIN):
            number.add_(1)

    launch: Callable[[], object] = chain
    if in_graph:
        chain()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            chain()
        launch = graph.replay
    launches = _time(launch, seconds).median / CHAIN
    return Ceilings(2 * source.nbytes / copy, 2 * side**3 / product, launches, in_graph)


def profiled_step(trainer: Trainer) -> Profiled:
    """Milliseconds and number per step of each kernel on a GPU, of each operator by itself on a CPU.

    Raises:
        PaperbenchError: The profiler does not work.
    """
    on_gpu = trainer.device.type == "cuda"
    times: dict[str, float] = defaultdict(float)
    numbers: dict[str, int] = defaultdict(int)
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
        for _ in range(PROFILED_STEPS):
            trainer.step()
        wait_for(trainer.device)
    for event in profiler.events() or ():
        is_kernel = event.device_type == DeviceType.CUDA and not getattr(event, "is_user_annotation", False)
        if is_kernel or not on_gpu:
            times[event.name] += event.time_range.elapsed_us() if on_gpu else event.self_cpu_time_total
            numbers[event.name] += 1
    if not times:
        raise PaperbenchError("The profiler saw no kernels. See whether your system lets you use it.")
    return {name: (times[name] / PROFILED_STEPS / 1000, numbers[name] / PROFILED_STEPS) for name in times}


def times_by_kind(profiled: Profiled, work: Mapping[Kind, Work], ceilings: Ceilings) -> list[KindTime]:
    """Sums by kind, the longest first.

    Args:
        profiled: Milliseconds and number of each kernel.
        work: The least of each kind; empty if it is not counted.
    """
    times: dict[Kind, float] = defaultdict(float)
    numbers: dict[Kind, float] = defaultdict(float)
    for name, (milliseconds, number) in profiled.items():
        times[classify(name)] += milliseconds
        numbers[classify(name)] += number
    least = dict(work)
    if "convolution backward" in times and work:
        by_data, by_weights = least["convolution backward by data"], least["convolution backward by weights"]
        least["convolution backward"] = by_data + by_weights
    return [
        KindTime(kind, time, numbers[kind], floors(least[kind], ceilings) if kind in least else None)
        for kind, time in sorted(times.items(), key=lambda item: -item[1])
    ]


def floors(work: Work, ceilings: Ceilings) -> Floors:
    """The least milliseconds for some work."""
    return Floors(
        bytes=1000 * work.bytes / ceilings.bytes_per_second,
        arithmetic=1000 * work.flops / ceilings.flops_per_second,
        launches=1000 * work.launches * ceilings.launch_seconds,
    )


def _time(work: Callable[[], object], at_least: float, scale: float = 1.0) -> Spread:
    """Seconds of a call times `scale`, the device's work included, over some rounds of at least so many seconds."""
    timer = Timer("work()", globals={"work": work}, num_threads=torch.get_num_threads())
    return spread([scale * timer.blocked_autorange(min_run_time=at_least).median for _ in range(ROUNDS)])
