"""Lowers residual units with Inductor for NVIDIA GPUs that are not there, and compiles the kernels with Triton.

The compile engine's own code traces the units on the CPU. Their graphs are then lowered for fake tensors on a GPU whose
properties are made up. Nothing is computed: the units return uninitialised tensors.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch._inductor.compile_fx
import triton
from torch import Tensor
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import PyCodeCache
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime import triton_helpers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from paperbench.catalogue import resolve
from paperbench.models import ResidualNet
from paperbench.training.compiling import compile_units
from paperbench.training.precision import autocast, set_arithmetic
from paperbench.training.working_copy import WorkingCopy

GPU = torch.device("cuda:0")
BATCH, GROUPS = 128, 2

Capability = tuple[int, int]


@dataclass
class Lowered:
    """What Inductor generated for the units of a net.

    Attributes:
        graphs: Code that launches the kernels of one graph: the forward passes of all kinds of units in the order of
            the net, then their backward passes in the opposite order.
        kernels: Triton source of every kernel, by name.
    """

    graphs: list[str] = field(default_factory=list)
    kernels: dict[str, str] = field(default_factory=dict)

    def launches(self) -> list[int]:
        """Number of Triton kernels that each kind of unit launches, forward and backward, in the order of the net."""
        numbers = [len(re.findall(r"\.run\(", graph)) for graph in self.graphs]
        half = len(numbers) // 2
        return [sum(pair) for pair in zip(numbers[:half], reversed(numbers[half:]), strict=True)]

    def image_strides(self) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Shapes and strides of the buffers that hold values of every image and pixel, and of convolutions' results."""
        found = re.findall(
            r"(?:empty_strided_cuda\(|reinterpret_tensor\(\w+, |assert_\w+\(buf\d+, )\(([\d, ]+)\), \(([\d, ]+)\)",
            "".join(self.graphs),
        )
        pairs = {tuple(tuple(map(int, part.rstrip(", ").split(", "))) for part in parts) for parts in found}
        return {(shape, strides) for shape, strides in pairs if torch.Size(shape).numel() >= BATCH * 8 * 8 * 16}


@contextmanager
def _gpu(capability: Capability) -> Iterator[None]:
    """Let torch and Triton believe in a GPU, as far as code generation asks."""
    properties = SimpleNamespace(
        name="a GPU",
        major=capability[0],
        minor=capability[1],
        multi_processor_count=108,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=2048,
        max_threads_per_block=1024,
        shared_memory_per_block=48 * 2**10,
        warp_size=32,
    )
    answers: dict[str, Callable[..., Any]] = {
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "get_device_capability": lambda _=None: capability,
        "get_device_properties": lambda _=None: properties,
        "is_available": lambda: True,
        "is_bf16_supported": lambda including_emulation=True: capability >= (8, 0),
        "synchronize": lambda _=None: None,
    }
    target = GPUTarget("cuda", capability[0] * 10 + capability[1], 32)
    cudnn = torch._C._ConvBackend.Cudnn  # without a GPU, torch chooses for bfloat16 one that wants channels first
    static = {name: staticmethod(answer) for name, answer in answers.items()}
    del answers["is_available"]  # torch.cuda would initialise itself
    with (
        mock.patch.multiple(CudaInterface, create=True, **static),
        mock.patch.multiple(torch.cuda, **answers),
        mock.patch.object(CudaInterface.Worker, "get_device_properties", static["get_device_properties"]),
        mock.patch.object(torch._C, "_select_conv_backend", return_value=cudnn),
        mock.patch("torch._inductor.scheduler.has_triton", return_value=True, create=True),
        mock.patch.object(driver, "_active", SimpleNamespace(get_current_target=lambda: target)),
        mock.patch.object(triton_helpers, "set_driver_to_gpu"),
    ):
        yield


def _lower_graph(graph: torch.fx.GraphModule, inputs: list[Any], capability: Capability, **kwargs: Any) -> Any:
    """Lower a graph traced on the CPU, as if its inputs were on the GPU."""
    mode = FakeTensorMode()
    graph = copy.deepcopy(graph)
    with mode:
        moved = [
            torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=GPU)
            if isinstance(value, Tensor)
            else value
            for value in inputs
        ]
    for node in graph.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": GPU}
    with _gpu(capability), torch._guards.tracing(torch._guards.TracingContext(mode)):
        outputs = FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*moved)
        for node, value in zip(graph.graph.find_nodes(op="placeholder"), moved, strict=True):
            node.meta["val"] = value
        with config.patch(force_disable_caches=True):
            torch._inductor.compile_fx.compile_fx_inner(graph, moved, **kwargs)

    def run(arguments: list[Any]) -> list[Any]:
        arguments.clear()
        return [
            torch.empty_strided(value.shape, value.stride(), dtype=value.dtype) if isinstance(value, Tensor) else value
            for value in outputs
        ]

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def lower_units(net: str, depth: int, precision: str, capability: Capability) -> Lowered:
    """Lower every kind of residual unit of a net as the compile engine would."""
    lowered = Lowered()

    def record(_: AsyncCompile, name: str, source: str, **__: Any) -> None:
        lowered.kernels[name] = source

    set_arithmetic(precision)
    model = ResidualNet(resolve(net, depth=depth)).to(memory_format=torch.channels_last)
    size = BATCH // GROUPS
    working = WorkingCopy(model, bf16_weights=precision == "bf16", batch_norm_group=size, groups=GROUPS)
    compile_units(working.module)
    lower = partial(torch._inductor.compile_fx.compile_fx, inner_compile=partial(_lower_graph, capability=capability))
    images = torch.zeros(BATCH, 3, 32, 32).to(memory_format=torch.channels_last)
    with (
        mock.patch.object(torch._inductor.compile_fx, "compile_fx", lower),
        mock.patch.object(AsyncCompile, "triton", record),
        mock.patch.object(AsyncCompile, "wait"),
        mock.patch.object(GraphLowering, "save_output_code", staticmethod(lowered.graphs.append)),
    ):
        with autocast(precision, torch.device("cpu")):
            logits = working.module(images)
        logits.float().sum().backward()
    return lowered


@dataclass
class Compiled:
    """A kernel compiled for a GPU.

    Attributes:
        is_reduction: Whether it sums, so that another configuration would round differently.
        configurations: Number of configurations among which Inductor would choose by timing them.
        shared_memory: Bytes per block.
        cubin: The machine code.
    """

    is_reduction: bool
    configurations: int
    shared_memory: int
    cubin: bytes


def compile_kernels(kernels: dict[str, str], capability: Capability) -> list[Compiled]:
    """Compile the kernels with Triton, each in the first of its configurations."""
    binaries: list[Any] = []
    found = []

    def compiler(*arguments: Any, **options: Any) -> Any:
        binaries.append(triton_compile(*arguments, **options))
        return binaries[-1]

    triton_compile = triton.compile
    with _gpu(capability), mock.patch.object(triton, "compile", compiler):
        for name, source in kernels.items():
            kernel = getattr(PyCodeCache.load(source), name)
            kernel._precompile_config(kernel.configs[0])
            shared = binaries[-1].metadata.shared
            is_reduction = "tl.sum(" in source or "welford" in source
            found.append(Compiled(is_reduction, len(kernel.configs), shared, binaries[-1].asm["cubin"]))
    return found
