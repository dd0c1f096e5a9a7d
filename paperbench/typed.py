"""Dataclasses that validate files strictly and generate their JSON schemas."""

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

from paperbench.errors import CONTROLS, PaperbenchError, nearest, one_line

T = TypeVar("T")
KeyPath = tuple[str | int, ...]
"""Keys and indices from the root to a value."""

_TEXT, _LINE, _ID = rf"^[^{CONTROLS}]*$", rf"^[^\t\n{CONTROLS}]*$", r"^[a-z0-9_]+$"

Text = Annotated[str, StringConstraints(pattern=_TEXT)]
"""Prose of one or more lines, without control characters other than tab and newline."""

Line = Annotated[str, StringConstraints(pattern=_LINE, max_length=10_000)]
"""Text printed on one line or in a table cell: no tabs or newlines either."""

Id = Annotated[str, StringConstraints(pattern=_ID)]
"""A name that is safe in file names, shell patterns and `row/column`."""

MAX_INT = 10**12
"""Largest number of iterations, images or seeds; every count up to it is exact as a float."""

Natural = Annotated[int, pydantic.Field(ge=0, le=MAX_INT)]
Count = Annotated[int, pydantic.Field(ge=1, le=MAX_INT)]
Positive = Annotated[float, pydantic.Field(gt=0)]
Percent = Annotated[float, pydantic.Field(ge=0, le=100)]
Seconds = Annotated[float, pydantic.Field(ge=0, le=1e12)]
Loss = Annotated[float, pydantic.Field(ge=0, le=1e100)]
"""A mean cross-entropy: one of float32 is below 1e40, and sums of larger ones may overflow."""


_STRICT = ConfigDict(strict=True, allow_inf_nan=False)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, pydantic.Field))
def typed(kind: type[T]) -> type[T]:
    """Turn a class into a frozen dataclass that refuses unknown keys, wrong types, NaN and infinity.

    If the class has a method `problems`, in place of `__post_init__`, values are refused for which it yields any.
    """
    if callable(problems := getattr(kind, "problems", None)):
        assert "__post_init__" not in vars(kind)  # noqa: S101  (it would be lost)
        cast(Any, kind).__post_init__ = lambda value: raise_problems(problems(value))
    config = ConfigDict(extra="forbid", defer_build=True, **_STRICT)
    return cast(type[T], pydantic.dataclasses.dataclass(frozen=True, config=config)(kind))


@dataclass(frozen=True)
class Problem:
    """One reason why a value does not fit its type.

    Attributes:
        path: Path to the offending value.
        message: For example "must be a whole number, not 'x'."
    """

    path: KeyPath
    message: str

    def __str__(self) -> str:
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path)
        return one_line(f"{place.removeprefix('.')}: {self.message}" if place else self.message)


class TypedError(PaperbenchError, ValueError):
    """A value does not fit its type."""

    def __init__(self, problems: list[Problem]) -> None:
        *others, last = map(str, problems)
        super().__init__("; ".join([*(other.removesuffix(".") for other in others), last]))
        self.problems = problems


def raise_problems(problems: Iterable[Problem]) -> None:
    """Raise an error for the problems, if any."""
    found = list(problems)
    if found:
        raise TypedError(found)


def unknown_words(noun: str, words: Iterable[tuple[KeyPath, str]], known: Iterable[str]) -> Iterator[Problem]:
    """Yield a problem with a suggestion for every word that names no known `noun`, such as a recipe."""
    known = list(known)
    for path, word in words:
        if word not in known:
            yield Problem(path, f"unknown {noun} {word!r}. {nearest(word, known)}")


def one_of(noun: str, known: Iterable[str]) -> AfterValidator:
    """Return a validator for `Annotated[str, ...]` that accepts only known words."""

    def check_word(word: str) -> str:
        raise_problems(unknown_words(noun, [((), word)], known))
        return word

    return AfterValidator(check_word)


adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
"""Pydantic's adapter of a type, cached because building one is slow."""

_strict_adapter: Callable[[Any], TypeAdapter[Any]] = cache(lambda kind: TypeAdapter(kind, config=_STRICT))


def from_json(kind: type[T], text: str | bytes) -> T:
    """Parse JSON into a typed value."""
    try:
        value: T = adapter(kind).validate_json(text)
    except ValidationError as error:
        if error.error_count() == 1 and (first := error.errors(include_url=False)[0])["type"] == "json_invalid":
            raise TypedError([Problem((), f"is not JSON ({first['ctx']['error']}).")]) from error
        raise TypedError(list(_problems(error, kind, pydantic_core.from_json(text)))) from error
    return value


def validate(kind: Any, value: Any) -> Any:
    """Return a value validated against a type that is not a typed class, such as a number within bounds."""
    try:
        return _strict_adapter(kind).validate_python(value)
    except ValidationError as error:
        raise TypedError(list(_problems(error, kind, value))) from error


def to_json(value: Any, indent: int | None = None) -> str:
    """Return a typed value as JSON, the inverse of `from_json`."""
    return adapter(type(value)).dump_json(value, indent=indent).decode()


def dump_set_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a typed value that are not None, as JSON values.

    Digests are computed from these, so that a new optional field changes no digest until it is set.
    """
    values: dict[str, Any] = adapter(type(value)).dump_python(value, mode="json", exclude_none=True)
    return values


def json_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type (draft 2020-12), in which unknown keys are forbidden by any pydantic."""
    schema = adapter(kind).json_schema()
    for part in schema.get("$defs", {}).values():
        if "properties" in part:
            part["additionalProperties"] = False
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


_EXPECTED = {
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
"""Descriptions of valid values by pydantic's error type, to follow "must be"."""

_BOUNDS = {"greater_than": "", "greater_than_equal": "of ", "less_than": "", "less_than_equal": "of "}
"""Error types of bounds, with the word between "a number" and the bound."""

_EXPECTED_PATTERNS = {
    _TEXT: "text without control characters",
    _LINE: "one line of text without control characters",
    _ID: "made of lowercase letters, digits and underscores",
}

_MAX_PROBLEMS = 20
"""Problems listed per error; a damaged file can have one per key."""

_MAX_ERRORS = 10_000
"""Of more problems only the number is given: pydantic makes a mapping of each one, which takes a kilobyte."""


def _problems(error: ValidationError, kind: Any, data: Any) -> Iterator[Problem]:
    if error.error_count() > _MAX_ERRORS:
        yield Problem((), f"has {error.error_count():,} problems.")
        return
    alternatives: dict[KeyPath, tuple[list[tuple[str, str]], Any]] = {}  # each member of a union has its own error
    errors = error.errors(include_url=False)
    for found in errors[:_MAX_PROBLEMS]:
        cause, path = found["type"], _path_in(data, found["loc"])
        context = {key: _without_fraction(value) for key, value in found.get("ctx", {}).items()}
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
            case "string_too_long":
                yield Problem(path, f"must have at most {context['max_length']:,} characters.")
            case "too_long":
                maximum, actual = context["max_length"], context["actual_length"]
                yield Problem(path, f"must have at most {maximum} entries, not {actual}.")
            case _:
                expected = _EXPECTED_PATTERNS.get(context.get("pattern", "")) or _EXPECTED.get(cause, "")
                options, _ = alternatives.setdefault(path, ([], found["input"]))
                options.append((cause, expected.format(**context) or f"valid ({found['msg']})"))
    if len(errors) > _MAX_PROBLEMS:
        yield Problem((), f"has {len(errors):,} problems; these are the first {_MAX_PROBLEMS}.")
    for path, (options, value) in alternatives.items():
        yield Problem(path, _describe_mismatch(options, value))


def _describe_mismatch(options: list[tuple[str, str]], value: Any) -> str:
    """Return the message for a value that fits none of the options, given as pydantic's error type and description."""
    if len(options) > 1:
        options = [(cause, f"a number {_BOUNDS[cause]}{text}" if cause in _BOUNDS else text) for cause, text in options]
    expected = ", or ".join(dict.fromkeys(text for _, text in options))
    if value is None:
        return f"must be {expected}; it is empty."
    remedy = " Put it in quotes." if expected == "text" and isinstance(value, (bool, int, float)) else ""
    return f"must be {expected}, not {_format_value(value)}.{remedy}"


def _without_fraction(bound: Any) -> Any:
    """Return 100.0 as 100, but 1e+30 as it is."""
    return int(bound) if isinstance(bound, float) and bound.is_integer() and bound <= MAX_INT else bound


def _format_value(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case dict() | list():
            return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _path_in(data: Any, location: KeyPath) -> KeyPath:
    """Return pydantic's location without the names of union members, which are not keys of the data."""
    path: list[str | int] = []
    for part in location:
        keys: Any = data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
        if part in keys:
            data = data[part]
            path.append(part)
    return tuple(path)


def _classes_at(kind: Any, path: KeyPath) -> Iterator[Any]:
    """Yield the typed classes that the value at a path may have, starting from a type."""
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
