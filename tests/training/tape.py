"""A CPU stand-in for CUDA graphs: records a step once and replays it, with its Python values and addresses frozen.

Below autograd, a step is a sequence of operators on tensors. The tape records all of them, forward, backward and
update, and replays the same operators on the same memory. It has the same restrictions as a CUDA graph:

- Recording has no effect. Existing memory and the random generator are restored, and memory allocated while recording
  holds garbage until the first replay.
- Neither the host's code nor a shape may depend on values, and no value may come from the host.
- The tape does not keep existing memory alive. If it was freed, the replay raises; a GPU would compute with garbage.
- Random numbers come from the default generator, in its state at the replay.
- What was called side by side has no order: a replay does an operation of each call in turn, the last call's first.

It cannot detect tensors on the host (here all are; see `fake_gpu.py`), kernels that a GPU cannot capture, a stream that
does not wait for another, or memory that is freed and given to another call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, groupby, zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WARM_UPS = 3
GARBAGE = 0xFF  # in every byte: NaN as a float, out of range as an index

_HOST_READS = {Tensor.cpu, Tensor.numpy, Tensor.tolist, Tensor.__array__}
"""Functions that read values of a CPU tensor without the dispatcher."""


class CaptureError(RuntimeError):
    """A CUDA graph could not capture this, or its replay would compute with garbage."""


class Tape:
    """Replaces `paperbench.training.graph.CudaCapture` on CPUs."""

    def __init__(self) -> None:
        self._recordings: list[_Recording] = []
        self._call: int | None = None  # of those side by side

    def warm_up(self, body: Callable[[], None]) -> None:
        for _ in range(WARM_UPS):
            body()

    def record(self, body: Callable[[], None]) -> Callable[[], None]:
        """Record `body` and return its replay, which raises a `CaptureError` if its memory was freed.

        Raises:
            CaptureError: A CUDA graph could not capture it.
        """
        recording = _Recording(lambda: self._call)
        generator = torch.get_rng_state()
        with _NoHostReads(), recording:
            body()
        recording.undo()
        torch.set_rng_state(generator)
        self._recordings.append(recording)
        return recording.replay

    def side_by_side(self, calls: Iterable[Callable[[], Any]]) -> list[Any]:
        results = []
        for self._call, call in enumerate(calls):
            results.append(call())
        self._call = None
        return results

    @property
    def branches(self) -> set[int | None]:
        """Numbers of the calls side by side that the replays repeat; None for what is alone."""
        return {one.branch for recording in self._recordings for one in recording._operations}

    def uses(self, tensor: Tensor) -> bool:
        """Whether the replays use the memory of this tensor, which existed before the recording."""
        return any(recording.uses(tensor) for recording in self._recordings)


class _NoHostReads(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _HOST_READS:
            raise CaptureError(f"{function.__name__} reads values on the host during the recording")
        return function(*args, **(kwargs or {}))


class _View(NamedTuple):
    """A tensor identified by its memory. `memory` is the address of torch's storage object, not of the values."""

    memory: int
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def on(self, storage: torch.UntypedStorage) -> Tensor:
        return torch.empty(0, dtype=self.dtype).set_(storage, self.offset, self.size, self.stride)


def _view(tensor: Tensor) -> _View:
    assert tensor.layout == torch.strided
    memory = tensor.untyped_storage()._cdata
    return _View(memory, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


class _Earlier:
    """Memory from before the recording, not kept alive, and its values."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._reference = StorageWeakRef(storage)  # also prevents reuse of the address `_View.memory`
        self._values: torch.UntypedStorage | None = storage.clone()

    @property
    def storage(self) -> torch.UntypedStorage:
        # torch has no public way to get a storage from a weak reference.
        storage: torch.UntypedStorage | None = torch.UntypedStorage._new_with_weak_ptr(self._reference.cdata)
        if storage is None:
            raise CaptureError("the memory of the recorded step was freed: a tensor was replaced or deleted")
        return storage

    def restore(self) -> None:
        if self._values is not None and not self._reference.expired():
            self.storage.copy_(self._values)
        self._values = None


class _Hole(NamedTuple):
    """The position of an argument on earlier memory."""

    container: Any
    key: Any
    view: _View


class _Operation(NamedTuple):
    """The number of the call side by side, the operator, and its new results: index among all, and tensor to fill."""

    branch: int | None
    function: Any
    args: list[Any]
    kwargs: dict[str, Any]
    results: list[tuple[int, Tensor]]


class _Recording(TorchDispatchMode):
    def __init__(self, branch: Callable[[], int | None]) -> None:
        super().__init__()
        self._branch = branch
        self._operations: list[_Operation] = []
        self._holes: list[_Hole] = []
        self._earlier: dict[int, _Earlier] = {}
        self._own: dict[int, torch.UntypedStorage] = {}
        self._aliases: dict[_View, Tensor] = {}  # of memory allocated while recording

    def uses(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._earlier

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function.namespace == "profiler":
            return function(*args, **kwargs)
        refuse_uncapturable(function, args, kwargs)
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, Tensor):
                self._register(value.untyped_storage())
        arguments, options = self._frozen(list(args)), self._frozen(kwargs)
        output = function(*args, **kwargs)
        results = self._results(output)
        if results or function._schema.is_mutable:  # otherwise a view, which need not be repeated
            self._operations.append(_Operation(self._branch(), function, arguments, options, results))
        return output

    def _register(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self._own and storage._cdata not in self._earlier:
            self._earlier[storage._cdata] = _Earlier(storage)

    def _frozen(self, value: Any) -> Any:
        """Copy nested containers, with aliases of tensors on new memory and holes for those on earlier memory."""
        if isinstance(value, dict):
            copied: Any = dict(value)
        elif isinstance(value, (list, tuple)):
            copied = list(value)
        else:
            return value
        for key, item in copied.items() if isinstance(copied, dict) else enumerate(copied):
            if not isinstance(item, Tensor):
                copied[key] = self._frozen(item)
            elif (view := _view(item)).memory in self._own:
                copied[key] = self._alias(view)
            else:
                copied[key] = None
                self._holes.append(_Hole(copied, key, view))
        return copied

    def _alias(self, view: _View) -> Tensor:
        if view not in self._aliases:
            self._aliases[view] = view.on(self._own[view.memory])
        return self._aliases[view]

    def _results(self, output: Any) -> list[tuple[int, Tensor]]:
        """Register the memory that an operator allocated, and return the results on it."""
        results = []
        for index, value in enumerate(tree_leaves(output)):
            if value is None:
                continue
            if not isinstance(value, Tensor):
                raise CaptureError(f"the host reads {value!r} during the recording")
            storage = value.untyped_storage()
            if storage._cdata not in self._own and storage._cdata not in self._earlier:
                self._own[storage._cdata] = storage
                results.append((index, self._alias(_view(value))))
        return results

    def undo(self) -> None:
        """Undo the effects of recording, and forget the order of what was called side by side."""
        parts = groupby(self._operations, lambda one: one.branch is not None)
        self._operations = [one for is_split, part in parts for one in (_mixed(part) if is_split else part)]
        for earlier in self._earlier.values():
            earlier.restore()
        for storage in self._own.values():
            storage.fill_(GARBAGE)

    @torch.no_grad()
    def replay(self) -> None:
        aliases: dict[_View, Tensor] = {}
        try:
            for hole in self._holes:
                if hole.view not in aliases:
                    aliases[hole.view] = hole.view.on(self._earlier[hole.view.memory].storage)
                hole.container[hole.key] = aliases[hole.view]
            with torch.autocast("cpu", enabled=False):
                for _, function, args, kwargs, results in self._operations:
                    outputs = tree_leaves(function(*args, **kwargs))
                    for index, recorded in results:
                        recorded.copy_(outputs[index])
        finally:
            for hole in self._holes:
                hole.container[hole.key] = None


def _mixed(operations: Iterable[_Operation]) -> list[_Operation]:
    """Interleave the calls side by side, unless they draw random numbers, which a CUDA graph gives to each in order."""
    found = list(operations)
    if any(torch.Tag.nondeterministic_seeded in one.function.tags for one in found):
        return found
    branches = [list(one) for _, one in groupby(found, lambda one: one.branch)]
    return [one for one in chain.from_iterable(zip_longest(*reversed(branches))) if one is not None]


def refuse_uncapturable(function: Any, args: Any, kwargs: Any) -> None:
    """Raise if a CUDA graph could not capture the operator."""
    indexing = function.overloadpacket in (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_)
    if indexing and any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
        raise CaptureError(f"{function}: the number of places in a mask is read on the host")
    if torch.Tag.dynamic_output_shape in function.tags and not indexing:
        raise CaptureError(f"{function}: the shape of its result is read on the host")
    if torch.Tag.data_dependent_output in function.tags:
        raise CaptureError(f"{function} reads values on the host during the recording")
    if function.overloadpacket is torch.ops.aten.lift_fresh:
        raise CaptureError("a tensor is created from a value on the host")
    generator = kwargs.get("generator")
    if generator is not None and generator._cdata != torch.default_generator._cdata:
        raise CaptureError(f"{function} uses a generator that the graph does not know")
