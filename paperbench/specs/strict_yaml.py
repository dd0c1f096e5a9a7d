"""YAML bound to frozen dataclasses, with nothing ignored and nothing guessed.

Every error names the file, the line and, for a misspelt key, the nearest valid one. Traps of YAML 1.1 are errors too: a
key given twice (PyYAML keeps the last), a number like `1e-4`, which YAML reads as text, and numbers like `010` and
`1:30`, which it reads as 8 and 90.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import yaml
from yaml.reader import ReaderError

from paperbench.errors import PaperbenchError, nearest
from paperbench.reading import UNPRINTABLE, read_at_most

T = TypeVar("T")

WHERE = "where"
"""A dataclass field of this name receives "file:line" of what the object was read from."""

_MOST_BYTES = 2**18
_MOST_LEVELS = 50
_MOST_NODES = 50_000
_LONGEST_NUMBER = 40

_TAG = "tag:yaml.org,2002:"
_KINDS = {
    f"{_TAG}str": "text",
    f"{_TAG}int": "a whole number",
    f"{_TAG}float": "a number",
    f"{_TAG}bool": "true or false",
    f"{_TAG}null": "nothing",
}
_SCALARS: dict[type, tuple[str, ...]] = {str: ("str",), int: ("int",), float: ("float", "int"), bool: ("bool",)}
_OTHER_BASE = re.compile(r"[-+]?0[0-9_]+|.*:.*")
_NUMBER = re.compile(r"[-+]?([0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+")


class SpecError(PaperbenchError):
    """A YAML file that does not say what it should; the message starts with file and line."""


class FieldError(PaperbenchError):
    """Raised by a dataclass's `__post_init__` to blame one of its fields; the reader adds file and line."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def position(node: yaml.Node) -> str:
    """Where a node stands, as "file:line"."""
    return f"{node.start_mark.name}:{node.start_mark.line + 1}"


def read_mapping(path: Path) -> yaml.MappingNode:
    """Parse a file whose document is a mapping.

    Raises:
        SpecError: The file is missing, no UTF-8, no YAML, or no mapping.
    """
    try:
        text = read_at_most(path, _MOST_BYTES).decode()
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: is no UTF-8 text (byte {error.start}).") from error
    try:
        node = _compose(text, str(path))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        reason = ": ".join(part for part in (error.context, error.problem) if part)
        raise SpecError(f"{path}{line}: no valid YAML: {reason}.") from error
    except ReaderError as error:
        number, character = text[: error.position].count("\n") + 1, text[error.position]
        raise SpecError(f"{path}:{number}: no valid YAML: holds the control character {character!r}.") from error
    except RecursionError as error:
        raise SpecError(f"{path}: no valid YAML: nested too deeply.") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # such as for the escape `\UFFFFFFFF`
        raise SpecError(f"{path}: no valid YAML: {(str(error) or type(error).__name__).splitlines()[0]}.") from error
    if not isinstance(node, yaml.MappingNode):
        raise SpecError(f"{path}:1: must be a mapping of keys to values.")
    _refuse_excess(node, path)
    return node


def _compose(text: str, name: str) -> yaml.Node | None:
    loader = yaml.SafeLoader(text)
    loader.name = name
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


def _refuse_excess(root: yaml.Node, path: Path) -> None:
    """Refuse what a small file can blow up to by aliases, and text that cannot be printed."""
    pending, visited = [(root, 1)], 0
    while pending:
        node, level = pending.pop()
        visited += 1
        if level > _MOST_LEVELS:
            raise SpecError(f"{position(node)}: nested in over {_MOST_LEVELS} levels, or contains itself by an alias.")
        if visited > _MOST_NODES:
            raise SpecError(
                f"{path}: holds over {_MOST_NODES:,} values, those repeated by aliases (`*`) counted again."
            )
        if isinstance(node, yaml.ScalarNode):
            unprintable = UNPRINTABLE.search(node.value)
            if unprintable:
                what = f"the character {unprintable.group()!r}, which cannot be printed; leave it out"
                raise SpecError(f"{position(node)}: holds {what}.")
            continue
        parts = node.value if isinstance(node, yaml.SequenceNode) else [part for pair in node.value for part in pair]
        pending.extend((part, level + 1) for part in parts)


def position_of(node: yaml.MappingNode, *keys: str) -> str:
    """Where the value under nested keys stands, or as far on the way to it as the file goes."""
    place: yaml.Node = node
    value: yaml.Node = node
    for key in keys:
        if not isinstance(value, yaml.MappingNode) or key not in items(value):
            break
        place, value = items(value)[key]
    return position(place)


def items(node: yaml.MappingNode) -> dict[str, tuple[yaml.Node, yaml.Node]]:
    """Keys of a mapping with their key and value nodes.

    Raises:
        SpecError: A key is no text, or stands twice, or the mapping has a tag of its own.
    """
    _refuse_tag(node, "map")
    found: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag != f"{_TAG}str":
            remedy = f"; quote {key.value!r}" if isinstance(key, yaml.ScalarNode) else ""
            raise SpecError(f"{position(key)}: keys must be text{remedy}.")
        if key.value in found:
            first = found[key.value][0].start_mark.line + 1
            raise SpecError(f"{position(key)}: key {key.value!r} stands twice (first in line {first}).")
        found[key.value] = key, value
    return found


def _elements(node: yaml.SequenceNode) -> list[yaml.Node]:
    _refuse_tag(node, "seq")
    elements: list[yaml.Node] = node.value
    return elements


def _refuse_tag(node: yaml.CollectionNode, usual: str) -> None:
    if node.tag != _TAG + usual:
        raise SpecError(f"{position(node)}: the tag {node.tag} means nothing here; leave it out.")


def overlay(base: yaml.MappingNode, changes: yaml.MappingNode) -> yaml.MappingNode:
    """`base` with the keys of `changes` replaced, mappings within mappings too. Positions stay those of the files.

    What `base` leaves out by `null` stays left out where the change is a mapping: a recipe without warm-up gets none.
    """
    merged = items(base)
    for key, (key_node, value) in items(changes).items():
        old = merged.get(key)
        if old and isinstance(old[1], yaml.MappingNode) and isinstance(value, yaml.MappingNode):
            value = overlay(old[1], value)
        elif old and isinstance(value, yaml.MappingNode) and _is_null(old[1]):
            continue
        merged[key] = key_node, value
    return yaml.MappingNode(base.tag, list(merged.values()), base.start_mark, base.end_mark)


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == f"{_TAG}null"


def bind(node: yaml.Node, kind: type[T]) -> T:
    """The value of a node as `kind`: a dataclass, a scalar type, Literal, tuple[X, ...], Mapping[str, X] or a union.

    A dataclass with a classmethod `from_scalar` may also be written as one scalar. `Any` stands for a plain value, and
    `yaml.MappingNode` for a mapping to be bound later.

    Raises:
        SpecError: The node does not fit; the message says where and what would.
    """
    return cast(T, _bind(node, kind))


def _bind(node: yaml.Node, kind: Any) -> Any:
    origin = get_origin(kind)
    if kind is Any:
        return _plain(node)
    if kind is yaml.MappingNode:
        if not isinstance(node, yaml.MappingNode):
            raise _mismatch(node, "a mapping")
        return node
    if is_dataclass(kind):
        return _bind_dataclass(node, cast(type, kind))
    if origin in (Union, types.UnionType):
        return _bind_union(node, get_args(kind))
    if origin is Literal:
        return _bind_literal(node, get_args(kind))
    if origin is tuple:
        if not isinstance(node, yaml.SequenceNode):
            raise _mismatch(node, "a list")
        return tuple(_bind(item, get_args(kind)[0]) for item in _elements(node))
    if origin in (dict, Mapping):
        if not isinstance(node, yaml.MappingNode):
            raise _mismatch(node, "a mapping")
        return {key: _bind(value, get_args(kind)[1]) for key, (_, value) in items(node).items()}
    return _bind_scalar(node, kind)


def _bind_scalar(node: yaml.Node, kind: type) -> Any:
    wanted = _KINDS[f"{_TAG}{_SCALARS[kind][0]}"]
    if not isinstance(node, yaml.ScalarNode):
        raise _mismatch(node, wanted)
    if node.tag.removeprefix(_TAG) not in _SCALARS[kind]:
        raise _mismatch(node, wanted)
    value = _construct(node)
    if kind is float and not math.isfinite(value):
        raise _mismatch(node, "a finite number")
    return float(value) if kind is float else value


def _bind_literal(node: yaml.Node, legal: tuple[Any, ...]) -> Any:
    value = _plain(node)
    if not any(value == allowed and type(value) is type(allowed) for allowed in legal):
        hint = nearest(str(value), map(str, legal))
        raise SpecError(f"{position(node)}: {value!r} is not allowed here. {hint}")
    return value


def _bind_union(node: yaml.Node, members: tuple[Any, ...]) -> Any:
    if _is_null(node) and type(None) in members:
        return None
    rest = [m for m in members if m is not type(None)]
    if len(rest) == 1:
        return _bind(node, rest[0])
    errors = []
    for member in rest:
        try:
            return _bind(node, member)
        except SpecError as error:
            errors.append(str(error).removeprefix(position(node) + ": "))
    raise SpecError(f"{position(node)}: {' Or: '.join(dict.fromkeys(errors))}")


def _bind_dataclass(node: yaml.Node, kind: type) -> Any:
    if isinstance(node, yaml.ScalarNode) and hasattr(kind, "from_scalar"):
        return _located(node, {}, lambda: kind.from_scalar(_plain(node)))
    if not isinstance(node, yaml.MappingNode):
        raise _mismatch(node, f"a mapping with the keys {', '.join(_keys(kind))}")
    given, keys = items(node), _keys(kind)
    for key, (key_node, _) in given.items():
        if key not in keys:
            raise SpecError(f"{position(key_node)}: unknown key {key!r}. {nearest(key, keys)}")
    for key, required in keys.items():
        if required and key not in given:
            raise SpecError(f"{position(node)}: the key {key!r} is missing.")
    hints = get_type_hints(kind)
    values = {key: _bind(value, hints[key]) for key, (_, value) in given.items()}
    if WHERE in hints:
        values[WHERE] = position(node)
    return _located(node, given, lambda: kind(**values))


def _located(node: yaml.Node, given: Mapping[str, tuple[yaml.Node, yaml.Node]], build: Any) -> Any:
    """Call `build`; what it finds wrong with the values gets the position of the field it blames."""
    try:
        return build()
    except SpecError:
        raise
    except PaperbenchError as error:
        blamed = given.get(error.field, (node,))[0] if isinstance(error, FieldError) else node
        raise SpecError(f"{position(blamed)}: {error}") from error


def _keys(kind: Any) -> dict[str, bool]:
    """Keys of a dataclass, each with whether it must be given."""
    return {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(kind) if f.name != WHERE}


def _plain(node: yaml.Node) -> Any:
    if isinstance(node, yaml.MappingNode):
        return {key: _plain(value) for key, (_, value) in items(node).items()}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item) for item in _elements(node)]
    if node.tag not in _KINDS:
        raise SpecError(f"{position(node)}: {node.value!r} is neither text, number, true, false nor nothing; quote it.")
    if _is_mistaken_number(node):
        raise _mismatch(node, "a number")
    return _construct(node)


def _construct(node: yaml.Node) -> Any:
    if node.tag not in (f"{_TAG}int", f"{_TAG}float"):
        return _constructed(node)
    if len(node.value) > _LONGEST_NUMBER:
        raise SpecError(f"{position(node)}: a number of {len(node.value)} characters is too long; write fewer digits.")
    value = _constructed(node)
    if _OTHER_BASE.fullmatch(node.value):
        raise SpecError(f"{position(node)}: YAML reads {node.value} as {value}; write the number plainly.")
    if isinstance(value, int) and abs(value) >= 2**63:
        raise SpecError(f"{position(node)}: {node.value} is too large a number; it must have 64 bits.")
    return value


def _constructed(node: yaml.Node) -> Any:
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node)
    except (ValueError, OverflowError, LookupError) as error:  # a tag such as `!!int` before something else
        kind = _KINDS.get(node.tag, node.tag)
        raise SpecError(f"{position(node)}: {node.value!r} cannot be read as {kind}.") from error
    finally:
        loader.dispose()


def _is_mistaken_number(node: yaml.Node) -> bool:
    return (
        isinstance(node, yaml.ScalarNode)
        and node.style is None
        and node.tag == f"{_TAG}str"
        and bool(_NUMBER.fullmatch(node.value))
    )


def _mismatch(node: yaml.Node, wanted: str) -> SpecError:
    if isinstance(node, yaml.ScalarNode):
        if _is_mistaken_number(node):
            better = _as_yaml_number(node.value, whole=wanted == _KINDS[f"{_TAG}int"])
            return SpecError(f"{position(node)}: YAML reads {node.value} as text; write {better}.")
        got = f"{node.value!r} ({_KINDS.get(node.tag, node.tag.removeprefix(_TAG))})"
        if node.tag == f"{_TAG}null" and not node.value:
            got = "empty"
        elif wanted == _KINDS[f"{_TAG}str"]:
            got += "; quote it"
    else:
        got = "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"
    return SpecError(f"{position(node)}: must be {wanted}, not {got}.")


def _as_yaml_number(text: str, *, whole: bool) -> str:
    """How YAML 1.1 wants a number with an exponent written: with a point and a sign, or in full if it must be whole."""
    if whole and math.isfinite(float(text)) and float(text).is_integer():
        return str(int(float(text)))
    mantissa, exponent = re.split("[eE]", text)
    sign = "" if exponent[0] in "+-" else "+"
    return f"{mantissa}{'' if '.' in mantissa else '.0'}e{sign}{exponent}"
