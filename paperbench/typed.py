"""Types declared once: what files are checked against, and what their JSON schemas are generated from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, cast, dataclass_transform, get_args, get_origin, get_type_hints

import pydantic
import pydantic_core
from pydantic import AfterValidator, ConfigDict, StringConstraints, TypeAdapter, ValidationError

from paperbench.errors import PaperbenchError, nearest

T = TypeVar("T")
KeyPath = tuple[str | int, ...]
"""Keys and indices that lead to a value."""

_TEXT, _ID = r"^[^\x00-\x08\x0b-\x1f\x7f-\x9f]*$", r"^[a-z0-9_]+$"

Text = Annotated[str, StringConstraints(pattern=_TEXT)]
"""Text that a terminal can print: no control characters but tab and newline."""

Id = Annotated[str, StringConstraints(pattern=_ID)]
"""A name that can stand in file names, shell patterns and `row/column`."""

Count = Annotated[int, pydantic.Field(ge=1)]
Positive = Annotated[float, pydantic.Field(gt=0)]


_STRICT = ConfigDict(strict=True, allow_inf_nan=False)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, pydantic.Field))
def typed(kind: type[T]) -> type[T]:
    """Make a class a frozen dataclass that refuses unknown keys, wrong types, NaN and infinity."""
    config = ConfigDict(extra="forbid", defer_build=True, **_STRICT)
    return cast(type[T], pydantic.dataclasses.dataclass(frozen=True, config=config)(kind))


@dataclass(frozen=True)
class Problem:
    """One way in which a value does not fit its type.

    Attributes:
        path: Where the value stands.
        message: What is wrong there: "must be a whole number, not 'x'."
    """

    path: KeyPath
    message: str

    def __str__(self) -> str:
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path)
        return f"{place.removeprefix('.')}: {self.message}" if place else self.message


class TypedError(PaperbenchError, ValueError):
    """A value that does not fit its type."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


def check(problems: Iterable[Problem]) -> None:
    """What a typed class calls in `__post_init__` with what is wrong with its fields taken together.

    Raises:
        TypedError: There is a problem.
    """
    found = list(problems)
    if found:
        raise TypedError(found)


def unknown(what: str, words: Iterable[tuple[KeyPath, str]], known: Iterable[str]) -> Iterator[Problem]:
    """Problems of words, given with their paths, that are not among the known ones."""
    legal = list(known)
    for path, word in words:
        if word not in legal:
            yield Problem(path, f"unknown {what} {word!r}. {nearest(word, legal)}")


def one_of(what: str, known: Iterable[str]) -> AfterValidator:
    """For `Annotated[str, ...]`: the text must be one of some words."""

    def check_word(word: str) -> str:
        check(unknown(what, [((), word)], known))
        return word

    return AfterValidator(check_word)


adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
"""What reads, writes and describes values of a typed class; building one takes far longer than using it."""

_strict_adapter: Callable[[Any], TypeAdapter[Any]] = cache(lambda kind: TypeAdapter(kind, config=_STRICT))


def from_json(kind: type[T], text: str | bytes) -> T:
    """The value that a JSON text holds.

    Raises:
        TypedError: The text is not JSON, or does not fit the type.
    """
    try:
        value: T = adapter(kind).validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "json_invalid":
            raise TypedError([Problem((), f"is not JSON ({first['ctx']['error']}).")]) from error
        raise TypedError(list(_problems(error, kind, pydantic_core.from_json(text)))) from error
    return value


def strict_value(kind: Any, value: Any) -> Any:
    """A value of a type that is no typed class, such as a number within bounds.

    Raises:
        TypedError: The value does not fit the type.
    """
    try:
        return _strict_adapter(kind).validate_python(value)
    except ValidationError as error:
        raise TypedError(list(_problems(error, kind, value))) from error


def to_json(value: Any, indent: int | None = None) -> str:
    """The JSON text of a typed value: `from_json` of it is equal."""
    return adapter(type(value)).dump_json(value, indent=indent).decode()


def set_values(value: Any) -> dict[str, Any]:
    """The fields of a typed value that are set, as JSON values: those that are None are left out.

    What enters a digest is made of these, so that a field which a type gains changes no digest until it is set.
    """
    values: dict[str, Any] = adapter(type(value)).dump_python(value, mode="json", exclude_none=True)
    return values


def json_schema(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a type (draft 2020-12)."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **adapter(kind).json_schema()}


_WANTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "dataclass_type": "a mapping",
    "literal_error": "{expected}",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "string_pattern_mismatch": "text that matches {pattern}",
}
"""What pydantic would have taken, in the words of a sentence that begins with "must be"."""

_MAX_PROBLEMS = 20
"""So many are explained: a damaged file can have as many as it has keys."""

_WANTED_PATTERNS = {_TEXT: "text without control characters", _ID: "made of small letters, digits and underscores"}


def _problems(error: ValidationError, kind: Any, data: Any) -> Iterator[Problem]:
    alternatives: dict[KeyPath, tuple[list[str], Any]] = {}  # members of a union each say what they would have taken
    errors = error.errors(include_url=False)
    for found in errors[:_MAX_PROBLEMS]:
        cause, path = found["type"], _path_in(data, found["loc"])
        context = {key: _plain(value) for key, value in found.get("ctx", {}).items()}
        match cause:
            case "unexpected_keyword_argument":
                keys = [field.name for of in _classes_at(kind, path[:-1]) for field in dataclasses.fields(of)]
                yield Problem(path, f"unknown key. {nearest(str(path[-1]), keys)}")
            case "missing":
                yield Problem((*path, found["loc"][-1]), "is missing.")
            case "value_error" if isinstance(context["error"], TypedError):
                yield from (Problem((*path, *inner.path), inner.message) for inner in context["error"].problems)
            case "value_error":
                yield Problem(path, str(context["error"]))
            case "too_short" | "string_too_short" if context["min_length"] == 1:
                yield Problem(path, "must not be empty.")
            case "too_long":
                most, there_are = context["max_length"], context["actual_length"]
                yield Problem(path, f"must have at most {most} entries, not {there_are}.")
            case _:
                wanted = _WANTED_PATTERNS.get(context.get("pattern", "")) or _WANTED.get(cause, "")
                options, _ = alternatives.setdefault(path, ([], found["input"]))
                options.append(wanted.format(**context) or f"right ({found['msg']})")
    if len(errors) > _MAX_PROBLEMS:
        yield Problem((), f"has {len(errors):,} problems; these are the first {_MAX_PROBLEMS}.")
    for path, (options, value) in alternatives.items():
        remedy = " Put it in quotes." if options == ["text"] and isinstance(value, (bool, int, float)) else ""
        yield Problem(path, f"must be {' or '.join(dict.fromkeys(options))}, not {_shown(value)}.{remedy}")


def _plain(bound: Any) -> Any:
    """100.0 as 100."""
    return int(bound) if isinstance(bound, float) and bound.is_integer() else bound


def _shown(value: Any) -> str:
    match value:
        case None | bool():
            return "nothing" if value is None else str(value).lower()
        case dict() | list():
            return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _path_in(data: Any, location: KeyPath) -> KeyPath:
    """Where a location leads in the data; pydantic puts the names of union members into it too."""
    path: list[str | int] = []
    for part in location:
        known: Any = data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
        if part in known:
            data = data[part]
            path.append(part)
    return tuple(path)


def _classes_at(kind: Any, path: KeyPath) -> Iterator[Any]:
    """The typed classes that a value can be of where a path leads from a value of a type."""
    if dataclasses.is_dataclass(kind):
        fields = get_type_hints(kind)
        if not path:
            yield kind
        elif path[0] in fields:
            yield from _classes_at(fields[str(path[0])], path[1:])
    else:
        rest = path if get_origin(kind) in (Union, UnionType) else path[1:]
        for argument in get_args(kind):
            yield from _classes_at(argument, rest)
