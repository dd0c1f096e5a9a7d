"""YAML files as plain data in which every value knows its line.

Values follow the core schema of YAML 1.2: `010` is ten, `1:30` and `no` are text, and `1e-4` is a number. Duplicate
keys, anchors, aliases, tags and unprintable characters are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from yaml.reader import ReaderError

from paperbench.errors import UNPRINTABLE, PaperbenchError
from paperbench.files import read_at_most
from paperbench.typed import KeyPath, Problem, TypedError, from_json

T = TypeVar("T")

_MAX_BYTES = 2**18

_CORE_SCHEMA: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "null": ("~|null|Null|NULL|", lambda _: None),
    "bool": ("true|True|TRUE|false|False|FALSE", lambda text: text.lower() == "true"),
    "int": ("[-+]?[0-9]{1,18}", int),  # longer ones are floating-point numbers
    "octal or hex": ("0o[0-7]{1,18}|0x[0-9a-fA-F]{1,15}", lambda text: int(text, 0)),
    "float": (r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", float),
    "inf or nan": (r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", lambda text: float(text.replace(".", ""))),
}
"""The tags of unquoted scalars that are not text: pattern and conversion."""


class SpecError(PaperbenchError):
    """Problems in a YAML file, one line `file:line: message` each."""


@dataclass(frozen=True)
class Document:
    """The contents of a YAML file: a tree of nodes with their file and line."""

    root: yaml.MappingNode

    @property
    def data(self) -> dict[str, Any]:
        """The contents as JSON values."""
        return {key.value: _to_json_value(value) for key, value in self.root.value}

    def position(self, *path: str | int) -> tuple[str, int]:
        """Return file and line of a value, or of its nearest enclosing value that exists."""
        node: yaml.Node = self.root
        children = _children(node)
        for part in path:
            if part not in children:
                break
            node, value = children[part]
            children = _children(value)
        return node.start_mark.name, node.start_mark.line + 1

    def error(self, problems: Iterable[Problem]) -> SpecError:
        """Return an error that lists problems in the order of the file."""
        placed = sorted((*self.position(*problem.path), str(problem)) for problem in problems)
        return SpecError("\n".join(f"{path}:{line}: {message}" for path, line, message in placed))

    def parse(self, kind: type[T]) -> T:
        """Return the contents as a typed class."""
        try:
            return from_json(kind, json.dumps(self.data))
        except TypedError as error:
            raise self.error(error.problems) from error

    def with_changes(self, changes: Document, path: KeyPath) -> Document:
        """Return this document with the mapping at a path of another document merged in, nested mappings included.

        Without such a mapping, it is this document. A mapping does not replace null: a recipe with `warm_up: null` gets
        no warm-up from a profile.
        """
        patch: Any = changes.root
        for part in path:
            if part not in (children := _children(patch)):
                return self
            _, patch = children[part]
        return Document(_merged(self.root, patch))


def read_yaml(path: Path) -> Document:
    """Read a YAML file that contains a mapping."""
    try:
        text = read_at_most(path, _MAX_BYTES).decode()
    except OSError as error:
        raise SpecError(f"{path}: cannot read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: is not UTF-8 text (byte {error.start}).") from error
    try:
        loader = _Loader(text)
        loader.name = str(path)
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = ": ".join(part for part in (error.context, error.problem) if part)
        raise SpecError(f"{path}:{mark.line + 1 if mark else 1}: not valid YAML: {reason}.") from error
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise SpecError(f"{path}:{line}: not valid YAML: {error.reason}.") from error
    except (ValueError, OverflowError, RecursionError) as error:  # impossible characters, versions or nesting
        raise SpecError(f"{path}:{loader.line + 1}: not valid YAML: {error}.") from error
    if not isinstance(root, yaml.MappingNode):
        raise SpecError(f"{path}:1: must be a mapping of keys to values.")
    return Document(root)


class _Loader(yaml.SafeLoader):
    """PyYAML's loader in Python, because libyaml crashes on deep nesting."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012  (replaces YAML 1.1's)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise _error(event, "anchors (`&`) and aliases (`*`) are not supported; write the value out.")
        if event.tag is not None:
            raise _error(event, f"tags are not supported; remove {event.tag}.")
        if isinstance(event, yaml.ScalarEvent) and (found := UNPRINTABLE.search(event.value)):
            raise _error(event, f"contains the unprintable character {found.group()!r}; remove it.")
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        first: dict[str, int] = {}
        for key, _ in node.value:
            if key.tag != self.DEFAULT_SCALAR_TAG:
                remedy = f"; quote {key.value!r}" if isinstance(key, yaml.ScalarNode) else ""
                raise _error(key, f"keys must be text{remedy}.")
            if key.value in first:
                raise _error(key, f"duplicate key {key.value!r} (first on line {first[key.value]}).")
            first[key.value] = key.start_mark.line + 1
        return node


for _tag, (_pattern, _) in _CORE_SCHEMA.items():
    _Loader.add_implicit_resolver(_tag, re.compile(rf"({_pattern})\Z"), None)


def _error(node: Any, message: str) -> SpecError:
    return SpecError(f"{node.start_mark.name}:{node.start_mark.line + 1}: {message}")


def _children(node: yaml.Node) -> dict[str | int, tuple[yaml.Node, yaml.Node]]:
    """Return the children by key or index: the node at which each begins, and its value."""
    if isinstance(node, yaml.MappingNode):
        return {key.value: (key, value) for key, value in node.value}
    return {i: (item, item) for i, item in enumerate(node.value)} if isinstance(node, yaml.SequenceNode) else {}


def _to_json_value(node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return {key.value: _to_json_value(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_to_json_value(item) for item in node.value]
    return _CORE_SCHEMA[node.tag][1](node.value) if node.tag in _CORE_SCHEMA else node.value


def _merged(base: yaml.MappingNode, changes: yaml.MappingNode) -> yaml.MappingNode:
    merged = {key.value: (key, value) for key, value in base.value}
    for key, value in changes.value:
        _, old = merged.get(key.value, (key, None))
        if isinstance(value, yaml.MappingNode) and isinstance(old, yaml.MappingNode):
            merged[key.value] = key, _merged(old, value)
        elif not (isinstance(value, yaml.MappingNode) and old is not None and old.tag == "null"):
            merged[key.value] = key, value
    return yaml.MappingNode(base.tag, list(merged.values()), base.start_mark)
