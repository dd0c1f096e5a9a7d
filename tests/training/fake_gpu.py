"""A GPU without values: torch's fake tensors have a device, a shape, a type and a layout, but no memory.

Whatever is trained on them is checked operation by operation: all tensors of an operation are on one device, a captured
step does nothing on the host, and batch norm does not use cuDNN. What the operations compute is not checked, nor which
algorithms cuDNN has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paperbench.data.imagenet import feed as feed_module
from paperbench.data.imagenet.batches import Crops, CropSource
from paperbench.data.imagenet.stream import CropStream
from tests.training.tape import CaptureError, refuse_uncapturable
from tests.training.trainings import Runs

CUDA = torch.device("cuda", 0)

_aten = torch.ops.aten
_COPIES = {_aten.copy_, _aten._to_copy, _aten._foreach_copy_}
"""Operations that may read from one device and write to another."""
_READS = {_aten._local_scalar_dense.default, _aten.equal.default}
"""Operations that return a value to the host; on a fake GPU, any value."""


class DeviceError(RuntimeError):
    """A GPU would refuse this operation, or we do."""


class FakeGpu(TorchDispatchMode):
    """Checks every operation. Also replaces `paperbench.training.graph.CudaCapture`; replays do nothing.

    Attributes:
        reads: How often the host waited for a value.
        captured: Number of operations in warm-ups and captures.
        is_copying: Whether a stream beside the default one is current.
        arriving: Results on that stream, by id, for which nobody has waited.
        unrecorded: Results on that stream, by id, whose memory may be reused while the default stream reads it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads = self.captured = 0
        self._capturing = False
        self.is_copying = False
        self.arriving: dict[int, Tensor] = {}
        self.unrecorded: dict[int, Tensor] = {}

    def on(self, runs: Runs) -> Runs:
        """Return trainings on this GPU."""
        return replace(runs, device=CUDA, capture=lambda _: self)

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        self.warm_up(work)
        return lambda: None

    def warm_up(self, work: Callable[[], None]) -> None:
        self._capturing = True
        try:
            work()
        finally:
            self._capturing = False

    def side_by_side(self, calls: list[Callable[[], Any]]) -> list[Any]:
        return [call() for call in calls]

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._capturing:
            self.captured += 1
            refuse_uncapturable(function, args, kwargs)
        tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        if not self.is_copying and any(id(tensor) in {**self.arriving, **self.unrecorded} for tensor in tensors):
            raise DeviceError(f"{function} uses a tensor of another stream")
        devices = {tensor.device for tensor in tensors}
        if len(devices) > 1 and function.overloadpacket not in _COPIES:
            raise DeviceError(f"{function} mixes devices")
        if "cudnn_batch_norm" in str(function):
            raise DeviceError("batch norm uses cuDNN")
        output = self._run(function, args, kwargs)
        results = [value for value in tree_leaves(output) if isinstance(value, Tensor)]
        if self.is_copying:
            self.arriving.update((id(tensor), tensor) for tensor in results)
            self.unrecorded.update(self.arriving)
        # an empty tensor is no work: torch 2.11 makes one on the host for each recomputed unit
        if self._capturing and any(tensor.device != CUDA and tensor.numel() for tensor in [*tensors, *results]):
            raise CaptureError(f"{function} works on the host during the capture")
        return output

    def _run(self, function: Any, args: Any, kwargs: Any) -> Any:
        if function in _READS and isinstance(args[0], FakeTensor) and args[0].constant is None:
            self.reads += args[0].device == CUDA
            return 0.5 if args[0].is_floating_point() else 1
        if function is _aten._fused_sgd_.tensor_lr:  # torch has no fake kernel
            return _check_fused_sgd(*args, **kwargs)
        return function(*args, **kwargs)

    def stream(self, _: torch.device) -> SimpleNamespace:
        """Return a stream beside the default one."""
        return SimpleNamespace(synchronize=self.arriving.clear)

    @contextmanager
    def on_stream(self, _: SimpleNamespace) -> Iterator[None]:
        self.is_copying = True
        yield
        self.is_copying = False

    def record_stream(self, tensor: Tensor, _: object) -> None:
        self.unrecorded.pop(id(tensor))


class HostCrops(CropStream):
    """Works outside the fake mode."""

    def __init__(self, gpu: FakeGpu, source: CropSource, *, start: int = 0, **_: object) -> None:
        self._gpu = gpu
        with unset_fake_temporarily():
            super().__init__(source, start=start, threads=0)

    def __next__(self) -> Crops:
        if self._gpu.arriving:
            raise DeviceError("crops are overwritten before they are copied")
        with unset_fake_temporarily():
            return super().__next__()


def _check_fused_sgd(parameters: Any, gradients: Any, buffers: Any, **_: Any) -> None:
    """Check what the fused kernel requires: equal types and sizes, and equal strides of dimensions above 1."""
    for tensors in zip(parameters, gradients, buffers or parameters, strict=True):
        layouts = {
            (t.dtype, t.shape, tuple(s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1)) for t in tensors
        }
        if len(layouts) > 1:
            raise DeviceError(f"the optimiser's tensors differ in layout: {layouts}")


@contextmanager
def fake_gpu() -> Iterator[FakeGpu]:
    """Inside the context, trainers on `CUDA` run on a fake GPU. Those that are captured come from `FakeGpu.on`."""
    with pytest.MonkeyPatch.context() as patch, FakeTensorMode(allow_non_fake_inputs=True), FakeGpu() as gpu:
        patch.setattr(feed_module, "CropStream", partial(HostCrops, gpu))
        patch.setattr(feed_module, "_copies_to", gpu.stream)
        patch.setattr(torch.cuda, "stream", gpu.on_stream)
        patch.setattr(torch.cuda, "current_stream", lambda _: None)
        patch.setattr(Tensor, "record_stream", lambda tensor, stream: gpu.record_stream(tensor, stream))
        patch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
        patch.setattr(torch.cuda, "is_bf16_supported", lambda *_: True)
        patch.setattr(torch.cuda, "get_rng_state", lambda *_: torch.zeros(16, dtype=torch.uint8))
        for module in (torch, torch.cuda):
            patch.setattr(module, "set_rng_state", lambda *_: None)
        patch.setattr(torch.autograd, "backward", backward)  # torch's own needs a CUDA context
        # `Module.to` swaps fake parameters, and refuses those with weak references, which fake tensors have.
        patch.setattr(torch.utils, "weakref", SimpleNamespace(getweakrefs=lambda _: []))
        yield gpu


@torch.no_grad()
def backward(loss: Tensor, gradient: Tensor | None = None, *_: Any, **__: Any) -> None:
    """Do what `torch.autograd.backward` does, node by node in Python."""
    arrived: dict[Any, dict[int, Tensor]] = defaultdict(dict)
    arrived[loss.grad_fn][loss.output_nr] = gradient if gradient is not None else torch.ones_like(loss)
    for node in _from_the_loss(loss.grad_fn):
        found = arrived.pop(node, {})
        inputs = [
            found[i].sum_to_size(like.shape).to(like.dtype) if i in found else None
            for i, like in enumerate(node._input_metadata)
        ]
        if hasattr(node, "variable"):
            _accumulate(node.variable, inputs[0])
            continue
        outputs = node.apply(*inputs) if isinstance(node, torch.autograd.function.BackwardCFunction) else node(*inputs)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        # A function of ours also returns a None for each argument after its tensors.
        for (successor, number), value in zip(node.next_functions, outputs, strict=False):
            if successor is not None and value is not None:
                earlier = arrived[successor].get(number)
                arrived[successor][number] = value if earlier is None else earlier + value


def _from_the_loss(last: Any) -> list[Any]:
    """Return the nodes of the graph, each before those that need its result."""
    order: list[Any] = []
    seen, stack = {last}, [(last, iter(last.next_functions))]
    while stack:
        node, successors = stack[-1]
        new = next((n for n, _ in successors if n is not None and n not in seen), None)
        if new is None:
            order.append(node)
            stack.pop()
        else:
            seen.add(new)
            stack.append((new, iter(new.next_functions)))
    return order[::-1]


def _accumulate(parameter: Tensor, gradient: Tensor | None) -> None:
    if gradient is None:
        return
    if gradient.device != parameter.device:
        raise DeviceError("a gradient is on another device than its parameter")
    if parameter.grad is not None:
        parameter.grad += gradient
    else:  # in the parameter's layout, as torch does it
        parameter.grad = torch.empty_like(parameter).copy_(gradient)
