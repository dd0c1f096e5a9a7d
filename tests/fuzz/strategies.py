"""Fuzzing inputs: valid files and values with a few changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st


def times_examples(factor: int) -> settings:
    """Run a test on a multiple of the number of examples that its tier has by default."""
    return settings(max_examples=factor * settings.default.max_examples)


def share_of_examples(divisor: int) -> settings:
    """Run a slow test on a fraction of the number of examples that its tier has by default."""
    return settings(max_examples=settings.default.max_examples // divisor)


def is_refused(kind: type[Exception], call: Callable[..., Any], *arguments: Any) -> bool:
    """Whether a call raises the given kind of exception; any other exception fails the test."""
    try:
        call(*arguments)
    except kind as error:
        message = str(error)
    else:
        return False
    assert message.strip()
    return True


@st.composite
def damaged(draw: st.DrawFn, original: bytes, tokens: Sequence[bytes], max_changes: int = 4) -> bytes:
    """Return `original` with a few bytes changed, removed, repeated, moved, or replaced by a token."""
    content = original
    for _ in range(draw(st.integers(1, max_changes))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.integers(0, 60)))
        before, part, after = content[:start], content[start:end], content[end:]
        match draw(st.sampled_from(["flip", "remove", "repeat", "move", "insert", "replace", "cut"])):
            case "flip" if part:
                content = before + bytes([part[0] ^ draw(st.integers(1, 255))]) + part[1:] + after
            case "remove":
                content = before + after
            case "repeat":
                content = before + part * draw(st.integers(2, 4)) + after
            case "move":
                place = draw(st.integers(0, len(after)))
                content = before + after[:place] + part + after[place:]
            case "insert":
                content = before + draw(st.sampled_from(tokens) | st.binary(max_size=8)) + part + after
            case "replace":
                content = before + draw(st.sampled_from(tokens)) + after
            case "cut":
                content = before
    return content


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, -(2**64), 10**400, 1e308, -0.0, "", "\0", "\ud800", "\x1b[2J", "x" * 10_000])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)

JSON_TOKENS = (
    *(b'"', b"{", b"}", b"[", b"]", b",", b":", b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"-0", b"1.5", b"\\"),
    *(b'"\\ud800"', b'"\\u0000"', b"\xff", b"\xc3", b"\xef\xbb\xbf", b"9" * 400, b"9" * 5000, b"\n", b"\r\n", b"\0"),
    *(b"[" * 200 + b"]" * 200, b"[" * 100_000, b'{"a":' * 800 + b"1" + b"}" * 800, b'"schema": 1,', b"{}", b"[]"),
)

TENSOR_TOKENS = (
    *(b'"dtype":"F64"', b'"BF16"', b'"shape":[]', b"[9223372036854775807,9]", b'"data_offsets":[0,99999999]', b"-1"),
    *(b"\xff" * 8, bytes(8), b"\xff\xff\xff\x7f" + bytes(4), b"{}", b'"__metadata__":{}', b"[" * 5000, b'{"a":' * 500),
)


def nodes_of(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in a JSON tree."""
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path, *(place for key, value in inner for place in nodes_of(value, (*path, key)))]


@st.composite
def altered_trees(draw: st.DrawFn, original: Any) -> Any:
    """Return a JSON tree with a few values replaced, removed or renamed."""
    tree = deepcopy(original)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(nodes_of(tree)))
        if not path:
            continue
        *way, last = path
        parent = tree
        for key in way:
            parent = parent[key]
        match draw(st.sampled_from(["replace", "replace", "remove", "rename"])):
            case "remove":
                del parent[last]
            case "rename" if isinstance(parent, dict):
                parent[draw(st.text(max_size=8))] = parent.pop(last)
            case _:
                parent[last] = draw(JSON_VALUES)
    return tree
