"""What a CUDA graph does, on a CPU: a step is recorded once and replayed, its Python values and addresses frozen.

Below autograd a step is a sequence of operators on tensors. The tape writes it down, forward, backward and update
alike, and a replay is the same operators on the same memory. It keeps to what a CUDA graph can and cannot do:

- Recording has no effect. The memory that existed before gets its values back, so does the random generator, and what
  the recording itself made is garbage until the first replay.
- Nothing may depend on values: not the host's code, not a shape. No value may come from the host either.
- Memory from before is not kept alive. If it is gone at a replay, the tape says so; a GPU would compute with garbage.
- Random numbers come from the default generator, from where it stands at the replay.

What it cannot see: that a tensor belongs to the host (here all do), and what the kernels of a GPU would refuse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WARM_UPS = 3
GARBAGE = 0xFF  # in every byte: not a number as a float, out of range as an index

_TO_THE_HOST = {Tensor.cpu, Tensor.numpy, Tensor.tolist, Tensor.__array__}
"""What gets values out of a CPU's tensor past the dispatcher."""


class CaptureError(RuntimeError):
    """A CUDA graph could not hold this, or its replay would compute with garbage."""


class Tape:
    """A `paperbench.training.graph.CudaCapture` for CPUs."""

    def __init__(self) -> None:
        self._recordings: list[_Recording] = []

    def warm_up(self, body: Callable[[], None]) -> None:
        for _ in range(WARM_UPS):
            body()

    def record(self, body: Callable[[], None]) -> Callable[[], None]:
        """Write a run of `body` down.

        Returns:
            Repeats it.

        Raises:
            CaptureError: A CUDA graph could not hold it. The replay raises it where memory is gone.
        """
        recording = _Recording()
        generator = torch.get_rng_state()
        with _NoWayToTheHost(), recording:
            body()
        recording.undo()
        torch.set_rng_state(generator)
        self._recordings.append(recording)
        return recording.replay

    def uses(self, tensor: Tensor) -> bool:
        """Whether this very memory, from before the recording, takes part in the replays."""
        return any(recording.uses(tensor) for recording in self._recordings)


class _NoWayToTheHost(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _TO_THE_HOST:
            raise CaptureError(f"{function.__name__} reads values on the host while the device only records")
        return function(*args, **(kwargs or {}))


class _View(NamedTuple):
    """A tensor, told by its place in memory. `memory` is the address of torch's record of it, not of the values."""

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
    """Memory from before the recording, not kept alive, and what it held."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._reference = StorageWeakRef(storage)  # also keeps the key `_View.memory` from being given away again
        self._values: torch.UntypedStorage | None = storage.clone()

    @property
    def storage(self) -> torch.UntypedStorage:
        # Resurrects it; torch has no public way.
        storage: torch.UntypedStorage | None = torch.UntypedStorage._new_with_weak_ptr(self._reference.cdata)
        if storage is None:
            raise CaptureError("memory that the recorded step uses was freed since: a tensor was replaced or dropped")
        return storage

    def restore(self) -> None:
        if self._values is not None and not self._reference.expired():
            self.storage.copy_(self._values)
        self._values = None


class _Hole(NamedTuple):
    """Where an argument on earlier memory belongs."""

    container: Any
    key: Any
    view: _View


class _Operation(NamedTuple):
    """A call, and its results on memory that it made: the place among all results, and the tensor to be filled."""

    function: Any
    args: list[Any]
    kwargs: dict[str, Any]
    results: list[tuple[int, Tensor]]


class _Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self._operations: list[_Operation] = []
        self._holes: list[_Hole] = []
        self._earlier: dict[int, _Earlier] = {}
        self._own: dict[int, torch.UntypedStorage] = {}
        self._aliases: dict[_View, Tensor] = {}  # of own memory

    def uses(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._earlier

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function.namespace == "profiler":
            return function(*args, **kwargs)
        _refuse(function, args, kwargs)
        for value in tree_leaves((args, kwargs)):
            if isinstance(value, Tensor):
                self._meet(value.untyped_storage())
        arguments, options = self._frozen(list(args)), self._frozen(kwargs)
        output = function(*args, **kwargs)
        results = self._results(output)
        if results or function._schema.is_mutable:  # else it is a view, which needs no repetition
            self._operations.append(_Operation(function, arguments, options, results))
        return output

    def _meet(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self._own and storage._cdata not in self._earlier:
            self._earlier[storage._cdata] = _Earlier(storage)

    def _frozen(self, value: Any) -> Any:
        """A copy of nested containers with the tape's own tensors in them, and holes for those on earlier memory."""
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
        """Notes the memory that an operator made."""
        results = []
        for place, value in enumerate(tree_leaves(output)):
            if value is None:
                continue
            if not isinstance(value, Tensor):
                raise CaptureError(f"the host is given {value!r} while the device only records")
            storage = value.untyped_storage()
            if storage._cdata not in self._own and storage._cdata not in self._earlier:
                self._own[storage._cdata] = storage
                results.append((place, self._alias(_view(value))))
        return results

    def undo(self) -> None:
        """Recording has had no effect."""
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
                for function, args, kwargs, results in self._operations:
                    outputs = tree_leaves(function(*args, **kwargs))
                    for place, recorded in results:
                        recorded.copy_(outputs[place])
        finally:
            for hole in self._holes:
                hole.container[hole.key] = None


def _refuse(function: Any, args: Any, kwargs: Any) -> None:
    """Raise where a CUDA graph would."""
    indexing = function.overloadpacket in (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_)
    if indexing and any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
        raise CaptureError(f"{function}: the number of places in a mask is read on the host")
    if torch.Tag.dynamic_output_shape in function.tags and not indexing:
        raise CaptureError(f"{function}: the shape of its result is read on the host")
    if torch.Tag.data_dependent_output in function.tags:
        raise CaptureError(f"{function} reads values on the host while the device only records")
    if function.overloadpacket is torch.ops.aten.lift_fresh:
        raise CaptureError("a tensor is made of a value of the host")
    generator = kwargs.get("generator")
    if generator is not None and generator._cdata != torch.default_generator._cdata:
        raise CaptureError(f"{function} draws from a generator that the graph does not know")
