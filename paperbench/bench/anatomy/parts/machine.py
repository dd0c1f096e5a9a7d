"""Part "machine": ceilings. What memory, arithmetic, kernel launches and the host's dispatch can do at best."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from paperbench.bench import machine
from paperbench.bench.anatomy.context import Context
from paperbench.bench.anatomy.timing import wait_for
from paperbench.catalogue import Net, resolve
from paperbench.models import ResidualNet
from paperbench.training.precision import set_arithmetic


def measure(context: Context) -> None:
    """Write down facts and ceilings."""
    attempt = context.recorder.attempt
    attempt({"what": "copy"}, lambda: copy(context))
    attempt({"what": "empty kernel"}, lambda: empty_kernel(context))
    for precision in context.precisions:
        attempt({"what": "matrix product", "precision": precision}, lambda p=precision: product(context, p))  # type: ignore[misc]
    attempt({"what": "facts"}, lambda: {"facts": machine.facts(context.device)})
    net = resolve("preact_resnet20" if context.scale.name == "quick" else "preact_resnet110")
    attempt({"what": "dispatch"}, lambda: dispatch(context, net))


def copy(context: Context) -> dict[str, Any]:
    """Copy a large tensor of random numbers."""
    source = torch.randn(context.scale.copy_bytes // 4, device=context.device)
    target = torch.empty_like(source)
    timing = context.timer.time([lambda: target.copy_(source)])
    size = 2 * source.nbytes
    return {"bytes": size, "bytes_per_second": size / timing.seconds, **timing.row()}


def product(context: Context, precision: str) -> dict[str, Any]:
    """Multiply two square matrices of random numbers."""
    side = context.scale.matmul
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    set_arithmetic(precision)
    a, b = (torch.randn(side, side, device=context.device, dtype=dtype) for _ in range(2))
    torch.backends.cuda.matmul.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    try:
        timing = context.timer.time([lambda: a @ b])
    finally:
        set_arithmetic(precision)
    flops = 2 * side**3
    return {"side": side, "flops_per_second": flops / timing.seconds, **timing.row()}


def empty_kernel(context: Context) -> dict[str, Any]:
    """Time of the smallest kernel, which adds 1 to one number, in a chain of many within one CUDA graph.

    On a CPU that of the smallest operation, which is the cost of calling it.
    """
    number = torch.zeros(1, device=context.device)
    nodes = context.scale.graph_nodes

    def chain() -> None:
        for _ in range(nodes):
            number.add_(1)

    # One call is the whole chain: the graph then has no fewer nodes than asked for.
    timing = context.timer.time([chain])
    return {"nodes": nodes, "seconds_each": timing.seconds / nodes, "in_graph": context.device.type == "cuda"}


def dispatch(context: Context, net: Net) -> dict[str, Any]:
    """Host time of an eager forward and backward pass with the device all but idle, by its operations.

    Two images of 8 pixels: on a GPU a kernel has ended before the host launches the next, on a CPU there is next to
    nothing to compute.
    """
    set_arithmetic("fp32")
    with context.device:
        model = ResidualNet(net).train()
        images, labels = torch.randn(2, 3, 8, 8), torch.zeros(2, dtype=torch.long)

    def step() -> None:
        model.zero_grad()
        F.cross_entropy(model(images), labels).backward()

    with CountOperations() as counted:
        step()
    seconds = statistics.median(_host_seconds(step, context) for _ in range(2 + context.scale.samples))
    return {
        "net": f"ResNet-{net.depth}",
        "operations": counted.operations,
        "host_seconds": seconds,
        "seconds_each": seconds / counted.operations,
    }


def _host_seconds(step: Callable[[], None], context: Context) -> float:
    wait_for(context.device)
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


class CountOperations(TorchDispatchMode):
    """Counts operations other than views and allocations.

    Attributes:
        operations: How many so far.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aliases = (returned.alias_info for returned in function._schema.returns)
        is_view = any(alias is not None and not alias.is_write for alias in aliases)
        self.operations += not (is_view or function.__name__.startswith("empty"))
        return function(*args, **(kwargs or {}))
