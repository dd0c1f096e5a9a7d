"""YAML files as plain data in which every value keeps its line.

Values are read by the core schema of YAML 1.2, so that `010` is ten, `1:30` and `no` are text and `1e-4` is a number.
What could be misread is refused: a key that is given twice, anchors, tags, and characters that no terminal prints.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from yaml.reader import ReaderError

from paperbench.errors import PaperbenchError
from paperbench.reading import UNPRINTABLE, read_at_most
from paperbench.typed import KeyPath, Problem, TypedError, from_json

T = TypeVar("T")

_MAX_BYTES = 2**18
_MAX_LEVELS = 50
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile("[-+]?[0-9]{1,18}|0o[0-7]{1,18}|0x[0-9a-fA-F]{1,15}")  # longer ones become floating-point numbers
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL_FLOAT = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


class SpecError(PaperbenchError):
    """A YAML file that does not say what it should: one line `file:line: message` for each problem."""


@dataclass(frozen=True)
class Document:
    """What a YAML file holds.

    Attributes:
        data: The whole of it, as JSON has values.
        positions: File and line of every value, or of its key, by the path to it.
    """

    data: dict[str, Any]
    positions: dict[KeyPath, tuple[Path, int]]

    def position(self, *path: str | int) -> tuple[Path, int]:
        """File and line of a value, or of what surrounds it if there is no such value."""
        while path not in self.positions:
            path = path[:-1]
        return self.positions[path]

    def error(self, problems: Iterable[Problem]) -> SpecError:
        """What to raise for problems of its values: a line for each, in the order of the file."""
        placed = sorted((*self.position(*problem.path), str(problem)) for problem in problems)
        return SpecError("\n".join(f"{path}:{line}: {message}" for path, line, message in placed))

    def overlaid(self, changes: Document, path: KeyPath) -> Document:
        """This document with a mapping from another one laid over it."""
        patch: Any = changes.data
        for part in path:
            patch = patch[part]
        n = len(path)
        positions = {key[n:]: at for key, at in changes.positions.items() if key[:n] == path and len(key) > n}
        return Document(merge(self.data, patch), {**self.positions, **positions})


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with the keys of `changes` replaced, mappings within mappings too.

    What `base` leaves out by null stays left out where the change is a mapping: a recipe without warm-up gets none.
    """
    merged = dict(base)
    for key, value in changes.items():
        old = base.get(key, {})
        if isinstance(value, dict) and isinstance(old, dict):
            merged[key] = merge(old, value)
        elif not isinstance(value, dict) or old is not None:
            merged[key] = value
    return merged


def load(path: Path) -> Document:
    """Parse a file that holds a mapping.

    Raises:
        SpecError: The file is missing, no UTF-8, no YAML, or no mapping, or uses what is refused here.
    """
    try:
        text = read_at_most(path, _MAX_BYTES).decode()
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: is no UTF-8 text (byte {error.start}).") from error
    try:
        return _Reader(path, text).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = ": ".join(part for part in (error.context, error.problem) if part)
        raise SpecError(f"{path}:{mark.line + 1 if mark else 1}: no valid YAML: {reason}.") from error
    except ReaderError as error:
        line = text.encode()[: error.position].count(b"\n") + 1
        raise SpecError(f"{path}:{line}: no valid YAML: {error.reason}.") from error


def bind(document: Document, kind: type[T]) -> T:
    """The value of a document as a typed class.

    Raises:
        SpecError: The document does not fit; every problem has a line.
    """
    try:
        return from_json(kind, json.dumps(document.data))
    except TypedError as error:
        raise document.error(error.problems) from error


class _Reader:
    """Builds plain data from the parser's events: libyaml crashes when it has to build deeply nested nodes itself."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._events = self._accepted(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
        self._positions: dict[KeyPath, tuple[Path, int]] = {}

    def document(self) -> Document:
        """The file's only document."""
        events = self._events
        if not any(isinstance(event, yaml.DocumentStartEvent) for event in events) or not isinstance(
            root := next(events), yaml.MappingStartEvent
        ):
            raise SpecError(f"{self._path}:1: must be a mapping of keys to values.")
        data = self._value(root, ())
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                raise self._error(event, "begins a second document; a file holds one.")
        return Document(data, self._positions)

    def _accepted(self, events: Iterator[Any]) -> Iterator[Any]:
        for event in events:
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
                raise self._error(event, "anchors (`&`) and aliases (`*`) are not read here; write the value out.")
            if getattr(event, "tag", None) is not None:
                raise self._error(event, f"the tag {event.tag} means nothing here; leave it out.")
            if isinstance(event, yaml.ScalarEvent) and (found := UNPRINTABLE.search(event.value)):
                raise self._error(event, f"holds {found.group()!r}, which cannot be printed; leave it out.")
            yield event

    def _value(self, event: Any, path: KeyPath) -> Any:
        self._positions.setdefault(path, (self._path, event.start_mark.line + 1))
        if len(path) > _MAX_LEVELS:
            raise self._error(event, f"nested in over {_MAX_LEVELS} levels.")
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event)
        if isinstance(event, yaml.SequenceStartEvent):
            return [self._value(item, (*path, i)) for i, item in enumerate(self._until(yaml.SequenceEndEvent))]
        mapping: dict[str, Any] = {}
        for key_event in self._until(yaml.MappingEndEvent):
            key = _scalar(key_event) if isinstance(key_event, yaml.ScalarEvent) else None
            if not isinstance(key, str):
                remedy = f"; quote {key_event.value!r}" if isinstance(key_event, yaml.ScalarEvent) else ""
                raise self._error(key_event, f"keys must be text{remedy}.")
            if key in mapping:
                first = self._positions[*path, key][1]
                raise self._error(key_event, f"the key {key!r} stands twice (first in line {first}).")
            self._positions[*path, key] = self._path, key_event.start_mark.line + 1
            mapping[key] = self._value(next(self._events), (*path, key))
        return mapping

    def _until(self, end: type[yaml.Event]) -> Iterator[Any]:
        while not isinstance(event := next(self._events), end):
            yield event

    def _error(self, event: Any, message: str) -> SpecError:
        return SpecError(f"{self._path}:{event.start_mark.line + 1}: {message}")


def _scalar(event: yaml.ScalarEvent) -> str | int | float | bool | None:
    text: str = event.value
    if not event.implicit[0]:  # quoted, or a block
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text):
        return int(text, 0 if text[:2] in ("0o", "0x") else 10)
    if _SPECIAL_FLOAT.fullmatch(text):
        return float(text.replace(".", ""))
    return float(text) if _FLOAT.fullmatch(text) else text
