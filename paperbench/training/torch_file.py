"""Files of `torch.save`, read without torch's unpickler: in bounded time and memory, and calling nothing they name."""

from __future__ import annotations

import pickletools
import struct
from io import BytesIO
from typing import Any
from zipfile import ZIP_STORED, ZipFile

import numpy as np
import torch
from torch import Tensor

_MAX_PARTS = 100_000
_MAX_STEPS = 2_000_000  # a checkpoint of ResNet-1202 with momentum and averages takes 0.7 million
_MAX_DIMS = 64
_MAX_REPEATED = 2**20  # of a tensor that repeats its values
MAX_NAME = 300


def read_torch_file(data: bytes) -> Any:
    """Return what a file of `torch.save` holds: dense tensors, and mappings of them by name.

    Other objects become empty mappings. Mappings lack what is no tensor or mapping, or has no name of at most
    `MAX_NAME` characters.

    Raises:
        Exception: The file is damaged, or was made to waste time or memory.
    """
    types: dict[str, torch.dtype] = {}
    storages: dict[str, Tensor] = {}
    if data[:2] == b"PK":
        parts = _parts(data)
        _unpickle(BytesIO(parts["data.pkl"]), types, {})
        is_swapped = bytes(parts.get("byteorder", b"")) == b"big"
        for key, kind in types.items():
            storages[key] = _storage(parts[f"data/{key}"], kind, is_swapped=is_swapped)
        return _unpickle(BytesIO(parts["data.pkl"]), types, storages)
    stream = BytesIO(data)
    for _ in ("magic number", "version", "system"):
        _unpickle(stream, {}, {})
    begin = stream.tell()
    _unpickle(stream, types, {})
    for key in _unpickle(stream, {}, {}):
        size = int.from_bytes(stream.read(8), "little") * types[key].itemsize
        storages[key] = _storage(stream.read(size), types[key])
    stream.seek(begin)
    return _unpickle(stream, types, storages)


def _parts(data: bytes) -> dict[str, memoryview]:
    """Return the parts of a zip archive, which must not be compressed, by name below their common directory."""
    if data.count(b"PK\1\2") > _MAX_PARTS:
        raise ValueError("too many parts")
    with ZipFile(BytesIO(data)) as archive:
        infos = archive.infolist()
    if any(info.compress_type != ZIP_STORED for info in infos) or sum(info.file_size for info in infos) > len(data):
        raise ValueError("its parts are compressed or too large, unlike those of torch.save")
    parts = {}
    for info in infos:  # read here, as torch may have left out the checksums
        begin = info.header_offset + 30 + sum(struct.unpack_from("<HH", data, info.header_offset + 26))
        parts[info.filename.partition("/")[2]] = memoryview(data)[begin : begin + info.file_size]
    return parts


def _storage(data: bytes | memoryview, kind: torch.dtype, *, is_swapped: bool = False) -> Tensor:
    values = torch.from_numpy(np.frombuffer(bytearray(data), np.uint8))
    return (values.view(len(data) // kind.itemsize, kind.itemsize).flip(1).flatten() if is_swapped else values).view(
        kind
    )


def _unpickle(stream: BytesIO, types: dict[str, torch.dtype], storages: dict[str, Tensor]) -> Any:
    """Return what a pickle holds without the tensors in other storages, and add the types of all storages."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int | None, Any] = {}
    value: Any
    for step, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        if step > _MAX_STEPS:
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
                value = _call(items[0], items[1][:9], types, storages)
            case "BINPERSID":
                value = _call(items[0][0], items[0][1:9], types, storages)
            case "EMPTY_LIST" | "LIST":
                value = items
            case "APPEND" | "APPENDS" | "SETITEM" | "SETITEMS" | "BUILD" | "STOP":
                value = items[0]
                _add(value, items[1:])
            case _ if argument is None:
                value = {}
        if opcode.stack_after:
            stack.append(value)
    return value


def _call(function: Any, arguments: Any, types: dict[str, torch.dtype], storages: dict[str, Tensor]) -> Any:
    """Return the result of a call in a pickle, or a reference to a storage."""
    match function, arguments:
        case "storage", ((_, str(kind)), str(key), _, _, *view) if len(key) <= MAX_NAME:
            types[key] = getattr(vars(torch).get(kind), "_dtype", torch.uint8)  # of UntypedStorage
            if key in storages:
                return storages[key][view[0][1] if view and view[0] else 0 :]  # once, storages were parts of others
        case ("torch._utils", "_rebuild_parameter" | "_rebuild_parameter_with_state"), (Tensor() as tensor, *_):
            return tensor
        case (
            ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2" | "_rebuild_tensor_v3"),
            (Tensor() as stored, int(offset), tuple(size), tuple(stride), *others),
        ) if len(size) <= _MAX_DIMS:
            if function[1] == "_rebuild_tensor_v3":
                stored = stored.view(vars(torch)[others[2][1]])
            tensor = stored[offset:].as_strided(size, stride)
            if tensor.numel() > len(stored) + _MAX_REPEATED:
                raise ValueError("a tensor is much larger than what is stored of it")
            return tensor
        case ("torch._tensor", "_rebuild_from_type_v2"), (inner, _, tuple(inner_arguments), *_):
            return _call(inner, inner_arguments[:9], types, storages)
        case ("collections", "OrderedDict"), (list(pairs),):  # of Python 2
            ordered: dict[str, Any] = {}
            for pair in pairs:
                _add(ordered, pair[:2])
            pairs.clear()  # lest a long list is read again and again
            return ordered
    return {}


def _add(target: Any, items: list[Any]) -> None:
    """Append to a list, or add keys and values in turn to a mapping."""
    if isinstance(target, list):
        target += items
    elif isinstance(target, dict):
        for key, value in zip(items[::2], items[1::2], strict=False):
            if isinstance(key, str) and len(key) <= MAX_NAME and isinstance(value, dict | Tensor):
                target[key] = value
