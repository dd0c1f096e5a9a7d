"""How much memory a training step takes, and which errors mean that there was too little."""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paperbench.catalogue import FAMILIES, Net
from paperbench.models import ResidualNet
from paperbench.specs.run_spec import Precision
from paperbench.training.precision import autocast, set_arithmetic

_WORDS = ("out of memory", "can't allocate memory", "ALLOC_FAILED")
"""What CUDA, torch on CPUs, and cuDNN or cuBLAS say where they raise a plain RuntimeError."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was lacking, on a GPU or in the machine."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


def step_memory(
    net: Net, batch_size: int, precision: Precision, device: torch.device, *, grad_checkpointing: bool = False
) -> int:
    """Bytes at the fullest moment of a step: parameters, gradients, momentum, images and what is kept of the forward.

    Args:
        batch_size: Images that go through the net at once.
        device: On "cuda" a step is made and the allocator asked. On "cpu" nothing is computed: the tensors that a step
            would make are added up, without the workspace of its kernels.
        grad_checkpointing: Whether the net recomputes its units; see `ResidualNet.set_grad_checkpointing`.

    Raises:
        torch.OutOfMemoryError: The GPU has too little.
    """
    if device.type == "cuda":
        set_arithmetic(precision)
        torch.cuda.empty_cache()
        before: int = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        _step(net, batch_size, precision, device, grad_checkpointing)
        most: int = torch.cuda.max_memory_allocated(device)
        return most - before
    with FakeTensorMode(), _LiveTensors() as live:
        _step(net, batch_size, precision, device, grad_checkpointing)
    return int(live.most)


def _step(net: Net, batch_size: int, precision: Precision, device: torch.device, grad_checkpointing: bool) -> None:
    size = FAMILIES[net.family].size
    with device:
        model = ResidualNet(net)
        model.set_grad_checkpointing(grad_checkpointing)
        momentum = [torch.zeros_like(parameter) for parameter in model.parameters()]
        images = torch.zeros(batch_size, net.in_chans, size, size).to(memory_format=torch.channels_last)
        labels = torch.zeros(batch_size, dtype=torch.long)
        with autocast(precision, device):
            logits = model(images).float()
        F.cross_entropy(logits, labels).backward()
    del momentum


class _LiveTensors(TorchDispatchMode):
    """Adds up the memory of the tensors that exist at once.

    Attributes:
        most: The largest sum so far, in bytes.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most = self._now = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        for value in tree_leaves(output):
            if isinstance(value, Tensor):
                self._note(value.untyped_storage())
        return output

    def _note(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata in self._sizes:
            return
        self._sizes[storage._cdata] = storage.nbytes()
        self._now += storage.nbytes()
        self.most = max(self.most, self._now)
        weakref.finalize(storage, self._forget, storage._cdata)

    def _forget(self, key: int) -> None:
        self._now -= self._sizes.pop(key)
