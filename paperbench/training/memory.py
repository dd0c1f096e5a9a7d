"""GPU and main memory of training: the peak memory of a step, and out-of-memory errors."""

from __future__ import annotations

import copy
import gc
import weakref
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paperbench.catalogue import FAMILIES, AnyNet, Net, OwnNet
from paperbench.models import ResidualNet
from paperbench.models.building import layout, macs, parameters
from paperbench.specs.recipe import Recipe
from paperbench.specs.run_spec import Precision
from paperbench.training.precision import autocast

_OUT_OF_MEMORY_MESSAGES = ("out of memory", "can't allocate memory", "ALLOC_FAILED", "could not create a primitive")
"""Parts of the messages of plain RuntimeErrors raised by CUDA, by torch on CPUs, by cuDNN or cuBLAS, and by oneDNN."""
_LITTLE_BYTES = 32 * 2**20
_LINEAR_FROM = 12
"""Weight layers per stage from which each further unit takes the same memory; with recomputation they are more."""
_WORKSPACE = 1.25
"""What the tensors of a step are multiplied by for the workspace of kernels and for gaps in the memory. In steps of
ResNet-50 on 224 x 224 pixels on a CPU, it was 1.2 to 1.45."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that the GPU or the machine is out of memory.

    Libraries may raise anything then, such as a SystemError. So any error counts while hardly any memory is left.
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    if isinstance(error, RuntimeError) and any(message in str(error) for message in _OUT_OF_MEMORY_MESSAGES):
        return True
    try:
        bytearray(_LITTLE_BYTES)
    except MemoryError:
        return True
    return False


def step_memory(
    net: AnyNet, batch_size: int, precision: Precision, *, side: int | None = None, recompute: bool = False
) -> int:
    """Return the peak, in bytes, of the tensors of a training step on a batch that goes through the net at once.

    Computes nothing. Includes parameters, gradients, momentum, images and the activations kept for the backward pass.

    Args:
        side: Of the images, in pixels; by default that of the net's family.
        recompute: Whether the net recomputes its units; see `ResidualNet.set_grad_checkpointing`.
    """
    side = side or (FAMILIES[net.family].size if isinstance(net, Net) else net.size)
    model = copy.deepcopy(layout(net))
    with FakeTensorMode(allow_non_fake_inputs=True), _MemoryCounter() as counter:
        model.to_empty(device="cpu")
        if isinstance(model, ResidualNet):
            model.set_grad_checkpointing(recompute, model.net.has_dropout)
        momentum = [torch.zeros_like(parameter) for parameter in model.parameters()]
        images = torch.zeros(batch_size, net.in_chans, side, side).to(memory_format=torch.channels_last)
        labels = torch.zeros(batch_size, dtype=torch.long)
        with autocast(precision, torch.device("cpu")):
            logits = model(images).float()
        F.cross_entropy(logits, labels).backward()
        del momentum
    return int(counter.peak)


@cache
def _group_memory(net: AnyNet, group: int, precision: Precision, side: int | None, *, recompute: bool) -> int:
    if isinstance(net, OwnNet):
        try:
            macs(net, side)  # fails more quietly
            return step_memory(net, group, precision, side=side, recompute=recompute)
        except Exception:  # what a net does with values cannot be done without them
            return 0
    family, number = FAMILIES[net.family], net.units[0]
    start = _LINEAR_FROM // len(family.kernels)
    if family.layers_per_n and number > start and not recompute:  # the whole count would take seconds
        nets = [replace(net, depth=family.layers_per_n * n + 2) for n in (start - 1, start)]
        few, more = (_group_memory(one, group, precision, side, recompute=False) for one in nets)
        return more + (number - start) * (more - few)
    return step_memory(net, group, precision, side=side, recompute=recompute)


def memory_needed(
    net: AnyNet,
    recipe: Recipe,
    precision: Precision,
    side: int | None = None,
    at_once: int = 1,
    *,
    recompute: bool = False,
) -> int:
    """Return about how many bytes a training step needs; of some nets of the user's, only what is beside their tensors.

    Args:
        side: Of the images, in pixels; by default that of the net's family; photographs have the recipe's crops.
        at_once: Of how many groups an engine keeps activations and gradients; see `engines.EngineKind`.
        recompute: Whether the backward pass recomputes the residual units.
    """
    group, photographs = recipe.batch_norm.group, recipe.photographs
    side = photographs.crop if photographs else side
    needed = at_once * _group_memory(net, group, precision, side, recompute=recompute)
    # `TreeSum` has as many sums, when the last group comes, as the number of groups before has binary ones.
    sums = max(groups.bit_count() for groups in range(recipe.groups))
    needed += 4 * parameters(net) * sums
    if photographs:  # beside the group, the bytes of the whole batch, and the float32 values of its other groups
        pixels = 3 * photographs.crop**2
        needed += pixels * recipe.batch_size + 4 * pixels * (recipe.batch_size - group)
    return int(needed * _WORKSPACE)


def memory_free(device: torch.device) -> int | None:
    """Return how many bytes a training can still allocate on the device; None if the system does not say."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return None


def release_memory(device: torch.device) -> None:
    """Free what nothing refers to any more, also in torch's cache, which CUDA graphs cannot use."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


class _MemoryCounter(TorchDispatchMode):
    """Tracks the memory of all live tensors.

    Attributes:
        peak: The largest sum so far, in bytes.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = self._allocated = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        for value in tree_leaves(output):
            if isinstance(value, Tensor):
                self._add(value.untyped_storage())
        return output

    def _add(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata in self._sizes:
            return
        self._sizes[storage._cdata] = storage.nbytes()
        self._allocated += storage.nbytes()
        self.peak = max(self.peak, self._allocated)
        weakref.finalize(storage, self._remove, storage._cdata)

    def _remove(self, key: int) -> None:
        self._allocated -= self._sizes.pop(key)
