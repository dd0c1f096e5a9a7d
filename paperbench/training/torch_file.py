"""Files of `torch.save`, read without torch's unpickler: in bounded time and memory, and calling nothing they name."""

from __future__ import annotations

import pickletools
import struct
from io import BytesIO
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import torch
from torch import Tensor

_MAX_PARTS = 100_000
_MAX_STEPS = 2_000_000  # a checkpoint of ResNet-1202 with momentum and averages takes 0.7 million
_MAX_DIMS = 64
MAX_NAME = 300


def read_torch_file(data: bytes) -> Any:
    """Return what a file of `torch.save` holds: dense tensors, and mappings of them by name.

    Other objects become empty mappings. Mappings lack what is no tensor or mapping, or has no name of at most
    `MAX_NAME` characters.

    Raises:
        Exception: The file is damaged, or was made to waste time or memory.
    """
    reader = _Reader(len(data))
    parts: dict[str, memoryview] = {}
    if data[:2] == b"PK":
        parts = _parts(data)
        loaded = reader.read(BytesIO(parts["data.pkl"]))
    else:
        stream = BytesIO(data)
        for _ in ("magic number", "version", "system"):
            reader.read(stream)
        loaded = reader.read(stream)
        for key in reader.read(stream):
            if isinstance(key, str):  # the hash of another could take for ever
                size = int.from_bytes(stream.read(8), "little") * reader.storages[key].itemsize
                begin = stream.tell()
                parts[f"data/{key}"] = memoryview(data)[begin : stream.seek(begin + size)]
    for key, storage in reader.storages.items():
        values = storage.view(torch.uint8).numpy()
        if len(parts[f"data/{key}"]) != len(values):
            raise ValueError("values of a tensor are missing")
        values.data[:] = parts[f"data/{key}"]
        if bytes(parts.get("byteorder", b"")) == b"big":
            values.view(f"u{storage.itemsize // (1 + storage.is_complex())}").byteswap(inplace=True)
    return loaded


def _parts(data: bytes) -> dict[str, memoryview]:
    """Return the parts of a zip archive, which must not be compressed, by name below their common directory."""
    if data.count(b"PK\1\2") > _MAX_PARTS:
        raise ValueError("too many parts")
    infos = ZipFile(BytesIO(data)).infolist()
    if any(info.compress_type != ZIP_STORED for info in infos):
        raise ValueError("its parts are compressed, unlike those of torch.save")
    parts = {}
    for info in infos:  # read here, as torch may have left out the checksums
        begin = info.header_offset + 30 + sum(struct.unpack_from("<HH", data, info.header_offset + 26))
        parts[info.filename.partition("/")[2]] = memoryview(data)[begin : begin + info.file_size]
    return parts


class _Reader:
    """Reads pickles one after the other, and makes the storages of their tensors, which are yet to be filled."""

    def __init__(self, room: int) -> None:
        self.storages: dict[str, Tensor] = {}
        self._room = room
        self._steps = 0

    def read(self, stream: BytesIO) -> Any:
        """Return what the next pickle holds."""
        stack: list[Any] = []
        marks: list[int] = []
        memo: dict[int | None, Any] = {}
        for opcode, argument, _ in pickletools.genops(stream):
            self._steps += 1
            if self._steps > _MAX_STEPS:
                raise ValueError("its pickle is too long")
            taken, value = opcode.stack_before, argument
            begin = len(stack) - len(taken)
            if pickletools.markobject in taken:
                begin = marks.pop() - taken.index(pickletools.markobject)
            items = stack[begin:]
            del stack[begin:]
            match opcode.name:
                case "BINPUT" | "LONG_BINPUT" | "PUT":
                    memo[argument] = stack[-1]
                case "BINGET" | "LONG_BINGET" | "GET":
                    value = memo[argument]
                case "MEMOIZE":
                    value = memo[len(memo)] = items[0]
                case "MARK":
                    marks.append(len(stack))
                    continue
                case "EMPTY_TUPLE" | "TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3" | "STACK_GLOBAL":
                    value = tuple(items)
                case "GLOBAL":
                    value = tuple(str(argument).split(" ", 1))
                case "REDUCE" | "NEWOBJ":
                    value = self._call(items[0], items[1][:9])
                case "BINPERSID":
                    value = self._call(items[0][0], items[0][1:9])
                case "EMPTY_LIST" | "LIST":
                    value = items
                case "APPEND" | "APPENDS" | "SETITEM" | "SETITEMS" | "BUILD" | "STOP":
                    value = _add(items[0], items[1:])
                case _ if argument is None:
                    value = {}
            if opcode.stack_after:
                stack.append(value)
        return value

    def _call(self, function: Any, arguments: Any) -> Any:
        """Return the result of a call in a pickle, or the storage that it refers to."""
        match function, arguments:
            case "storage", ((_, str(kind)), str(key), _, int(count), *view) if len(key) <= MAX_NAME and not any(view):
                if key not in self.storages:
                    dtype = getattr(vars(torch).get(kind), "_dtype", torch.uint8)  # of UntypedStorage
                    self._room -= count * dtype.itemsize
                    if self._room < 0:
                        raise ValueError("its tensors are larger than the file")
                    self.storages[key] = torch.empty(count, dtype=dtype, device="cpu")
                return self.storages[key]
            case (_, "_rebuild_parameter" | "_rebuild_parameter_with_state" | "Parameter"), (Tensor() as tensor, *_):
                return tensor
            case (_, "_rebuild_tensor" | "_rebuild_tensor_v2"), (Tensor() as stored, at, tuple(size), stride, *others):
                if len(size) <= _MAX_DIMS and not any(others[2:]):  # which say that values are conjugated or negated
                    return stored.as_strided(size, stride, at)
            case (_, "_rebuild_tensor_v3"), (Tensor() as stored, *view, _, _, (_, str(kind))):
                return self._call(("", "_rebuild_tensor"), (stored.view(vars(torch)[kind]), *view))
            case (_, "_rebuild_from_type_v2"), (inner, _, tuple(inner_arguments), *_):
                return self._call(inner, inner_arguments[:9])
            case (_, "OrderedDict"), (list(pairs),):  # of Python 2
                items = [item for pair in pairs for item in pair[:2]]
                pairs.clear()  # lest a long list is read again and again
                return _add({}, items)
        return {}


def _add(target: Any, items: list[Any]) -> Any:
    """Append to a list, or add keys and values in turn to a mapping, and return it."""
    if isinstance(target, list):
        target += items
    elif isinstance(target, dict):
        for key, value in zip(items[::2], items[1::2], strict=False):
            if isinstance(key, str) and len(key) <= MAX_NAME and isinstance(value, dict | Tensor):
                target[key] = value
    return target
