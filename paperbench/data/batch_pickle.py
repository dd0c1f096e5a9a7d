"""Reads the pickle of a CIFAR batch with a stack machine that knows what a batch needs, and nothing else.

Python's own unpickler will not do, however few names it may look up: a few bytes make it take all memory (a memo of
2^30 entries), crash (the hash of tuples in tuples), never end (tuples that hold each other twice), or write attributes
of the functions that it may name. Here names are only marks, keys are text, and arrays are described until one is asked
for, so that a file cannot make more of them than it has bytes.
"""

from __future__ import annotations

import math
import pickletools
import re
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

_MOST_STEPS = 1_000_000
"""Several times those of the training set of CIFAR-100, the longest of the original pickles."""

_SIMPLE_DTYPE = re.compile("[bifuc][0-9]{1,2}")


_IS_VALUE = re.compile(
    "INT|BININT[12]?|LONG[14]?|(BIN)?FLOAT|(SHORT_)?(BIN)?(STRING|UNICODE|BYTES)|BINUNICODE8|BINBYTES8|BYTEARRAY8"
).fullmatch
"""Whether an operation puts a value on the stack that stands in the pickle itself."""


class _Name(Enum):
    RECONSTRUCT = "numpy.core.multiarray _reconstruct"
    FROMBUFFER = "numpy.core.numeric _frombuffer"  # pickle protocol 5
    NDARRAY = "numpy ndarray"
    DTYPE = "numpy dtype"
    ENCODE = "_codecs encode"


@dataclass
class _Latin1:
    """Bytes as older protocols write them: as text, one character a byte."""

    text: str


@dataclass
class _Dtype:
    code: str
    order: str = "="


@dataclass
class PickledArray:
    """An array as it stands in the pickle; nothing is checked yet."""

    shape: Any = ()
    dtype: Any = None
    is_fortran: Any = False
    data: Any = b""

    def to_numpy(self) -> np.ndarray:
        """The array, of a simple kind of number.

        Raises:
            ValueError: Its parts do not fit together.
        """
        data = self.data.text if isinstance(self.data, _Latin1) else self.data
        if isinstance(data, str):  # of Python 2, which had no other bytes
            data = data.encode("latin-1")
        if not isinstance(self.dtype, _Dtype) or not isinstance(data, (bytes, bytearray)):
            raise ValueError("it has an array without kind or without values")
        if not isinstance(self.shape, tuple) or not all(type(n) is int and 0 <= n < 2**31 for n in self.shape):
            raise ValueError("it has an array without a proper shape")
        dtype = np.dtype(self.dtype.order + self.dtype.code)
        if math.prod(self.shape) * dtype.itemsize != len(data):
            raise ValueError(f"it has an array of shape {self.shape} with {len(data)} bytes of values")
        return np.ndarray(self.shape, dtype, data, order="F" if self.is_fortran else "C")


def read_pickle(content: bytes) -> Any:
    """What the pickle holds: text, numbers, containers, and arrays as `PickledArray`.

    Raises:
        ValueError: It is damaged, or asks for something that no batch needs.
    """
    return _Machine().run(content)


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.outer: list[list[Any]] = []  # stacks below each mark
        self.memo: dict[int, Any] = {}

    def run(self, content: bytes) -> Any:
        for step, (operation, argument, _) in enumerate(pickletools.genops(content)):
            if step == _MOST_STEPS:
                raise ValueError(f"it takes more than {_MOST_STEPS:,} steps to read")
            self.step(operation.name, argument)
        return self.pop()

    def step(self, operation: str, argument: Any) -> None:
        match operation:
            case _ if _IS_VALUE(operation):
                self.stack.append(argument)
            case "BINPUT" | "LONG_BINPUT" | "PUT":
                self.memo[argument] = self.top()
            case "MEMOIZE":
                self.memo[len(self.memo)] = self.top()
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "BINGET" | "LONG_BINGET" | "GET":
                if argument not in self.memo:
                    raise ValueError("it refers to something that it does not hold")
                self.stack.append(self.memo[argument])
            case "NONE":
                self.stack.append(None)
            case "NEWTRUE" | "NEWFALSE":
                self.stack.append(operation == "NEWTRUE")
            case "EMPTY_DICT" | "EMPTY_LIST" | "EMPTY_TUPLE":
                self.stack.append({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[operation]())
            case "MARK":
                self.outer.append(self.stack)
                self.stack = []
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                self.stack.append(tuple(reversed([self.pop() for _ in range(int(operation[-1]))])))
            case "TUPLE" | "LIST" | "DICT":
                items = self.pop_mark()
                self.stack.append({"TUPLE": tuple(items), "LIST": items, "DICT": {}}[operation])
                if operation == "DICT":
                    self.set_items(items)
            case "APPEND":
                self.extend([self.pop()])
            case "APPENDS":
                self.extend(self.pop_mark())
            case "SETITEM":
                value, key = self.pop(), self.pop()
                self.set_items([key, value])
            case "SETITEMS":
                self.set_items(self.pop_mark())
            case "GLOBAL":
                self.stack.append(_name(argument))
            case "STACK_GLOBAL":
                name, module = self.pop(), self.pop()
                if type(module) is not str or type(name) is not str:
                    raise ValueError("it asks for something whose name is no text")
                self.stack.append(_name(f"{module} {name}"))
            case "REDUCE":
                arguments, function = self.pop(), self.pop()
                self.stack.append(_called(function, arguments))
            case "BUILD":
                state = self.pop()
                _set_state(self.top(), state)
            case _:
                raise ValueError(f"it uses the operation {operation}, which a CIFAR batch never needs")

    def top(self) -> Any:
        if not self.stack:
            raise ValueError("it takes what it has not put there")
        return self.stack[-1]

    def pop(self) -> Any:
        top = self.top()
        del self.stack[-1]
        return top

    def pop_mark(self) -> list[Any]:
        if not self.outer:
            raise ValueError("it ends what it has not begun")
        items, self.stack = self.stack, self.outer.pop()
        return items

    def extend(self, items: list[Any]) -> None:
        if not isinstance(self.top(), list):
            raise ValueError("it appends to something that is no list")
        self.top().extend(items)

    def set_items(self, items: list[Any]) -> None:
        if not isinstance(self.top(), dict) or len(items) % 2:
            raise ValueError("it sets items of something that is no dictionary")
        keys = items[::2]
        if not all(type(key) is str for key in keys):
            raise ValueError("it has a dictionary with keys that are no text")
        self.top().update(zip(keys, items[1::2], strict=True))


def _name(text: str) -> _Name:
    try:
        return _Name(text.replace("numpy._core.", "numpy.core."))
    except ValueError:
        raise ValueError(f"it asks for {text.replace(' ', '.')!r:.200}, which a CIFAR batch never needs") from None


def _called(function: Any, arguments: Any) -> Any:
    match function, arguments:
        case _Name.RECONSTRUCT, (_Name.NDARRAY, _, _):
            return PickledArray()
        case _Name.FROMBUFFER, (data, dtype, shape, order):
            return PickledArray(shape, dtype, order == "F", data)
        case _Name.DTYPE, (str(code), _, _) if _SIMPLE_DTYPE.fullmatch(code):
            return _Dtype(code)
        case _Name.ENCODE, (str(text), "latin1"):
            return _Latin1(text)
    raise ValueError("it makes something else than an array of numbers, which a CIFAR batch never needs")


def _set_state(value: Any, state: Any) -> None:
    match value, state:
        case _Dtype(), (int(), ("<" | ">" | "|" | "=") as order, None, None, None, *_):
            value.order = order
        case PickledArray(), (int(), shape, dtype, is_fortran, data):
            value.shape, value.dtype, value.is_fortran, value.data = shape, dtype, is_fortran, data
        case _:
            raise ValueError("it gives an array or a kind of number values that none can have")
