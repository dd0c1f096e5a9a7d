"""Types declared once: what files are checked against, and what their JSON schemas are generated from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, cast, dataclass_transform

import pydantic
from pydantic import ConfigDict, StringConstraints, TypeAdapter, ValidationError

from paperbench.errors import PaperbenchError, nearest

T = TypeVar("T")

Text = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x08\x0b-\x1f\x7f-\x9f]*$")]
"""Text that a terminal can print: no control characters but tab and newline."""


@dataclass_transform(frozen_default=True, field_specifiers=(pydantic.Field,))
def typed(kind: type[T]) -> type[T]:
    """Make a class a frozen dataclass that refuses unknown keys, wrong types, NaN and infinity."""
    config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    return cast(type[T], pydantic.dataclasses.dataclass(frozen=True, config=config)(kind))


@dataclass(frozen=True)
class Problem:
    """One way in which a value does not fit its type.

    Attributes:
        path: Keys and indices that lead to it.
        message: What is wrong there, as the rest of a sentence: "must be a whole number, not 'x'".
    """

    path: tuple[str | int, ...]
    message: str

    def __str__(self) -> str:
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path)
        return f"{place.removeprefix('.')}: {self.message}" if place else self.message


class TypedError(PaperbenchError):
    """A value that does not fit its type."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


def adapter(kind: Any) -> TypeAdapter[Any]:
    """What reads, writes and describes values of a type."""
    return _adapter(kind)


@cache  # building one takes far longer than using it
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def from_json(kind: type[T], text: str | bytes) -> T:
    """The value that a JSON text holds.

    Raises:
        TypedError: The text is no JSON, or does not fit the type.
    """
    try:
        value: T = adapter(kind).validate_json(text)
    except ValidationError as error:
        raise TypedError(list(_problems(error, kind))) from error
    return value


def to_json(value: Any, indent: int | None = None) -> str:
    """The JSON text of a typed value: `from_json` of it is equal."""
    return adapter(type(value)).dump_json(value, indent=indent).decode()


def json_schema(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a type (draft 2020-12)."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **adapter(kind).json_schema()}


def _problems(error: ValidationError, kind: Any) -> Iterator[Problem]:
    for found in error.errors(include_url=False):
        path = found["loc"]
        match found["type"]:
            case "unexpected_keyword_argument" | "extra_forbidden":
                keys = _keys_at(adapter(kind).json_schema(), path[:-1])
                yield Problem(path, f"unknown key. {nearest(str(path[-1]), keys)}")
            case "missing" | "missing_argument":
                yield Problem(path, "is missing.")
            case "json_invalid":
                yield Problem(path, f"is no JSON ({found['ctx']['error']}).")
            case "value_error":  # of a __post_init__
                yield Problem(path, str(found["ctx"]["error"]))
            case _:
                yield Problem(path, f"{found['msg']}, not {found['input']!r}.")


def _keys_at(schema: Mapping[str, Any], path: tuple[str | int, ...]) -> list[str]:
    """The keys that a schema allows where a path leads; names of union members in the path are passed over."""
    definitions = schema.get("$defs", {})

    def follow(nodes: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The nodes with references and unions resolved."""
        found: list[Mapping[str, Any]] = []
        for node in nodes:
            if "$ref" in node:
                found += follow([definitions[node["$ref"].rpartition("/")[2]]])
            elif "anyOf" in node or "oneOf" in node:
                found += follow(node.get("anyOf") or node["oneOf"])
            else:
                found.append(node)
        return found

    nodes = follow([schema])
    for part in path:
        inner = [node["items"] for node in nodes if isinstance(part, int) and "items" in node]
        inner += [node["properties"][str(part)] for node in nodes if str(part) in node.get("properties", {})]
        inner += [n["additionalProperties"] for n in nodes if isinstance(n.get("additionalProperties"), Mapping)]
        nodes = follow(inner) or nodes
    return [key for node in nodes for key in node.get("properties", {})]
