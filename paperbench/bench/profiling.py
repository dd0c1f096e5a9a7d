"""Measures the time of each kind of kernel in a training step, and its theoretical minimum (floor)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.benchmark import Timer

from paperbench.bench.breakdown import COMBO_KERNELS, NOT_DETERMINISTIC, TIMED, Breakdown, Ceilings, Floors, Row
from paperbench.bench.setup import Training, machine_facts, synchronize
from paperbench.errors import PaperbenchError, summarize_error
from paperbench.training.memory import release_memory
from paperbench.training.precision import memory_layout, set_arithmetic
from paperbench.training.soundness import STEPS, Reference, find_reference, first_steps, step_error
from paperbench.training.trainer import Trainer

PROFILED_STEPS = 2
COPY_BYTES = {"cpu": 2**28, "cuda": 2**30}
MATRIX_SIDE = {"cpu": 1024, "cuda": 8192}
CHAIN = 1000
"""Number of kernels in the chain that measures launches."""

LAYOUTS = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}

_RULES = (
    # Layout changes before and after convolutions, by cuDNN and Inductor
    ("copies", r"nchw_?(to|2)_?nhwc|nhwc_?(to|2)_?nchw|tensorTransform|scalePackedTensor|pad_channel"),
    (
        "copies",
        r"^triton_poi_fused(__?to_copy|_clone|_copy_?|_convert_element_type|_view|_permute|_convolution)+(_\d+)?$",
    ),
    ("optimiser", r"fused_?sgd|_sgd_"),
    # Batch norm of cuDNN (bn_fw_tr, bn_bw, batchnorm_fwtr_nhwc), ATen and Inductor (named after its operators)
    ("batch norm", r"batch_?norm|\bbn_(fw|bw|add|stat|apply)|(^|_)bn_(fw|bw|stats?|apply|reduce)|var_mean|welford"),
    ("elementwise", r"^triton_poi_"),
    ("classifier, loss", r"^triton_(red|per)_"),
    ("convolution backward by data", r"dgrad|col2im"),
    ("convolution backward by weights", r"wgrad"),
    ("convolution backward", r"convolution_backward"),
    (
        "convolution forward",
        r"fprop|winograd|implicit_convolve|implicit_gemm|convolve|convolution|conv2d|conv_depthwise|scudnn|mkldnn_conv|"
        r"cutlass_cudnn|cutlass__5x_cudnn|cudnn.*(xmma|cutlass)|_5x_cudnn|cudnn::cnn|im2col|fft2d|flip_filter|"
        r"compute(B)?OffsetsKernel|triton_tem_fused_\w*conv",
    ),
    ("data", r"gather_kernel|vectorized_gather|index_elementwise|index_?select|aten::(index|gather|index_select)\b"),
    (
        "copies",
        r"memcpy|memset|FillFunctor|fill_kernel|copy_kernel|direct_copy|Copy(Functor)?<|CatArrayBatchedCopy|"
        r"aten::(copy_|_to_copy|_foreach_copy_|fill_|zero_|cat|clone|contiguous)\b",
    ),
    (
        "classifier, loss",
        r"gemm|gemv|nvjet|cublas|splitKreduce|cutlass|matmul|reduce_kernel|softmax|nll_loss|"
        r"cross_entropy|avg_pool|max_pool|argmax|aten::(addmm|mm|bmm|linear|sum|mean|amax|argmax)\b",
    ),
    (
        "elementwise",
        r"elementwise|multi_tensor_apply|threshold|relu|where_kernel|"
        r"aten::(add|add_|mul|mul_|div|div_|sub|neg|clamp_min|threshold_backward|ne|eq|_foreach_\w+)\b",
    ),
)
"""Kinds and patterns of their names; the first match counts. "convolution backward" is a CPU operator by data and by
weights; "elementwise" is ReLU, additions and sums of gradients; "data" makes the batch; "copies" include casts."""


def classify(name: str) -> str:
    """Return the kind of a kernel of cuDNN, cuBLAS, ATen or Inductor, or of an operator; "other" if unrecognised.

    A kernel that fuses ReLU or additions into batch norm counts as batch norm.
    """
    return next((kind for kind, pattern in _RULES if re.search(pattern, name, re.IGNORECASE)), "other")


@dataclass(frozen=True)
class Setting:
    """A way to run the step.

    Attributes:
        name: Its layout, and what else is changed.
        layout, compile_options: Arguments of `Trainer`.
        cudnn: Values of attributes of `torch.backends.cudnn`.
    """

    name: str
    layout: torch.memory_format
    compile_options: Mapping[str, bool] = field(default_factory=dict)
    cudnn: Mapping[str, bool] = field(default_factory=dict)


def make_settings(engine: str, precision: str, device: torch.device) -> list[Setting]:
    """Return the settings of a breakdown: as trained, then with one change each."""
    used = memory_layout(precision, device)
    trained, other = sorted((Setting(*item) for item in LAYOUTS.items()), key=lambda setting: setting.layout != used)
    changes: list[tuple[str, dict[str, Any]]] = []
    if device.type == "cuda":
        changes = [
            (NOT_DETERMINISTIC, {"cudnn": {"deterministic": False}}),
            (TIMED, {"cudnn": {"deterministic": False, "benchmark": True}}),  # as in the plain loop
            *([(COMBO_KERNELS, {"compile_options": {"combo_kernels": True}})] if engine == "compile" else []),
        ]
    return [trained, other, *(replace(trained, name=f"{trained.name}, {name}", **change) for name, change in changes)]


def measure_breakdown(
    training: Training, engine: str, precision: str, seconds: float, log: Callable[[str], None]
) -> Breakdown:
    """Measure one net, each of its steps for at least this many seconds. `log` prints a line of progress."""
    device = training.device
    on_gpu = device.type == "cuda"
    if on_gpu:  # the first profile hooks into CUDA, which must happen before a graph is captured
        with profile(activities=[ProfilerActivity.CUDA]):
            synchronize(device)
    ceilings = measure_ceilings(device, precision, in_graph=on_gpu and engine != "eager", seconds=seconds / 10)
    work = count_work(training, precision, is_fused=engine == "compile")
    reference = find_reference(lambda: training.trainer("eager", "fp32"), "fp32", STEPS)
    log(f"{training.name}: measured the machine's limits, counted the work, made the reference's first steps")
    steps: list[Row] = []
    kinds: list[Row] = []
    for setting in make_settings(engine, precision, device):
        name = f"step, {setting.name}"
        options = {"layout": setting.layout, "compile_options": setting.compile_options}
        try:
            milliseconds, profiled = _measure_step(
                training.trainer(engine, precision, **options), reference, seconds, setting.cudnn
            )
            kinds = kinds if steps else times_by_kind(profiled, work, ceilings)
            row = Row(name, milliseconds)
        except Exception as error:  # report it, and measure the other settings
            row = Row(name, None, problem=summarize_error(error))
        release_memory(device)
        log(f"{training.name}, {name}: {row.problem or 'done'}")
        steps.append(row if steps else replace(row, floors=floors(sum(work.values()), ceilings)))
    return Breakdown(
        schema=1,
        machine=machine_facts(device),
        net=training.name,
        engine=engine,
        precision=precision,
        batch_size=training.recipe.batch_size,
        bn_group=training.recipe.batch_norm.group,
        ceilings=ceilings,
        kinds=tuple(kinds),
        steps=tuple(steps),
    )


def _measure_step(
    trainer: Trainer, reference: Reference, seconds: float, cudnn: Mapping[str, bool]
) -> tuple[float, list[Row]]:
    """Return the median milliseconds of a step over this many seconds, and the step's kernels."""
    for name, value in cudnn.items():
        setattr(torch.backends.cudnn, name, value)  # before the first step, which may be captured
    if problem := step_error(first_steps(trainer, STEPS), reference, trainer.precision):
        raise PaperbenchError(problem)
    return 1000 * median_seconds(trainer.step, seconds), profiled_step(trainer)


def measure_ceilings(device: torch.device, precision: str, *, in_graph: bool, seconds: float) -> Ceilings:
    """Measure how fast the device copies a large tensor, multiplies large matrices and launches small kernels."""
    source = torch.randn(COPY_BYTES[device.type] // 4, device=device)
    copy = median_seconds(partial(torch.empty_like(source).copy_, source), seconds)
    set_arithmetic(precision)
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    side, dtype = MATRIX_SIDE[device.type], torch.bfloat16 if precision.startswith("bf16") else torch.float32
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    product = median_seconds(lambda: left @ right, seconds)
    number = torch.zeros(1, device=device)

    def chain() -> None:
        for _ in range(CHAIN):
            number.add_(1)

    launch: Callable[[], object] = chain
    if in_graph:
        chain()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device), torch.cuda.graph(graph):
            chain()
        launch = graph.replay
    return Ceilings(2 * source.nbytes / copy, 2 * side**3 / product, CHAIN / median_seconds(launch, seconds))


class WorkCounter(TorchDispatchMode):
    """Counts the minimum work of the operators that torch runs in this context.

    An operator reads its tensors and writes its results once; batch norm reads its input twice, forward and backward,
    as it needs statistics first. Copies are not counted, as a step could do without them.

    Args:
        device: "cpu", "cuda" or "meta"; operators on other devices are not counted.
        is_fused: Whether batch norm, ReLU and additions share kernels, as with Inductor: then ReLU and sums of
            gradients move nothing, and batch norm takes three kernels each forward and backward.

    Attributes:
        work: Array of memory traffic in bytes, floating-point operations and kernel launches, by kind.
    """

    def __init__(self, device: str, *, is_fused: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work: dict[str, Any] = defaultdict(lambda: np.zeros(3))
        self._device, self._is_fused, self._is_backward = device, is_fused, False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        if any(tensor.device.type == self._device for tensor in _tensors(args)):
            self._count(function.__name__.partition(".")[0], args, output)
        return output

    def _count(self, name: str, args: Any, output: Any) -> None:
        self._is_backward |= name.endswith("_backward")
        kind = classify(f"aten::{name}")
        moved, flops, launches = _bytes(args) + (_bytes(output) or _bytes(args[0])), 0, 1
        match kind:
            case "convolution forward":
                flops = 2 * output.numel() * args[1][0].numel()
            case "convolution backward":
                # By data and by weights: each reads the gradient and the other operand, and writes its own gradient.
                once = _bytes(args[:3]), 2 * args[0].numel() * args[2][0].numel(), 1
                for suffix, is_wanted in zip((" by data", " by weights"), args[-1][:2], strict=True):
                    if is_wanted:
                        self.work[kind + (suffix if self._device != "cpu" else "")] += once
                return
            case "batch norm":
                moved += sum(tensor.nbytes for tensor in _tensors(args) if tensor.dim() == 4)
                launches = 3 if self._is_fused else 1
            case "elementwise" if self._is_fused:
                if name != "add" or self._is_backward:
                    return
                launches = 0
            case "optimiser":  # reads parameters, gradients and momentum, writes parameters and momentum
                moved = 5 * _bytes(args[0])
            case "data":  # reads what it gathers, not all images
                moved = 2 * _bytes(output)
            case "copies" | "other":
                return
        self.work[kind] += (moved, flops, launches)


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def _bytes(values: Any) -> int:
    return sum(tensor.nbytes for tensor in _tensors(values))


def count_work(training: Training, precision: str, *, is_fused: bool) -> dict[str, Any]:
    """Count the minimum work of a training step; if kernels are fused, with the whole batch in one pass."""
    recipe = training.recipe
    if is_fused:
        recipe = replace(recipe, batch_norm=replace(recipe.batch_norm, group=recipe.batch_size))
    trainer = replace(training, recipe=recipe).trainer("eager", precision)
    counter = WorkCounter(training.device.type, is_fused=is_fused)
    with counter:
        trainer.step()
    return counter.work


def profiled_step(trainer: Trainer) -> list[Row]:
    """Return the kernels of a step; on a CPU its operators, each without the operators that it calls."""
    on_gpu = trainer.device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
        for _ in range(PROFILED_STEPS):
            trainer.step()
        synchronize(trainer.device)
    found = []
    for event in profiler.key_averages():
        if not on_gpu or (event.device_type == DeviceType.CUDA and not event.is_user_annotation):
            microseconds = event.self_device_time_total if on_gpu else event.self_cpu_time_total
            found.append(Row(event.key, microseconds / 1000 / PROFILED_STEPS, event.count / PROFILED_STEPS))
    if not found:
        raise PaperbenchError("The profiler saw no kernels. Check that you may use it on this system.")
    return found


def times_by_kind(profiled: list[Row], work: dict[str, Any], ceilings: Ceilings) -> list[Row]:
    """Sum the kernels by kind, longest first, and add the floors of counted work.

    An unrecognised kernel gets its own row if it takes more than 1 % of the time.
    """
    total = sum(row.milliseconds or 0 for row in profiled)
    sums: dict[str, Any] = defaultdict(lambda: np.zeros(2))
    for row in profiled:
        kind, time = classify(row.name), row.milliseconds or 0
        sums[row.name[:60] if kind == "other" and time > total / 100 else kind] += (time, row.number)
    return [
        Row(kind, float(time), float(number), floors(work[kind], ceilings) if kind in work else None)
        for kind, (time, number) in sorted(sums.items(), key=lambda item: -item[1][0])
    ]


def floors(work: Any, ceilings: Ceilings) -> Floors:
    """Return the minimum milliseconds for this work."""
    return Floors(*(1000 * work / list(vars(ceilings).values())).tolist())


def median_seconds(work: Callable[[], object], min_seconds: float) -> float:
    """Return the median time of a call, including the device's work."""
    timer = Timer("work()", globals={"work": work}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=min_seconds).median
