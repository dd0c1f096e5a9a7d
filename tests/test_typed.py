from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from pydantic import Field, ValidationError

from paperbench.typed import (
    Count,
    Id,
    Line,
    Positive,
    Problem,
    Text,
    TypedError,
    dump_set_fields,
    from_json,
    json_schema,
    to_json,
    typed,
)


@typed
class Innermost:
    length: Count = 1


@typed
class Inner:
    rate: Positive
    steps: Count = 1
    within: Innermost | None = None


@typed
class Outer:
    title: Text
    id: Id = "x"
    count: int = 0
    flag: bool = False
    kind: Literal["near", "far"] = "near"
    inner: Inner | None = None
    steps: tuple[int, ...] = ()
    pair: tuple[float, float] = (0.0, 1.0)
    by_name: Mapping[str, Inner] = field(default_factory=dict)
    by_id: Mapping[Id, Inner] = field(default_factory=dict)
    number: Annotated[float, Field(le=100)] | Literal["fail"] = 0.0
    anything: Any = None
    line: Line = ""

    def problems(self) -> Iterator[Problem]:
        if self.count < 0:
            yield Problem(("count",), "must not be negative.")
        if self.flag and self.steps:
            yield Problem(("steps", 0), "flags take no steps.")


FULL = {
    "title": "x",
    "id": "a_1",
    "count": 3,
    "flag": True,
    "kind": "far",
    "inner": {"rate": 1e-4, "steps": 2},
    "steps": [],
    "pair": [0.5, 2],
    "by_name": {"one": {"rate": 1}},
    "number": "fail",
    "anything": {"a": [1, None]},
}


def problems(**changes: Any) -> list[str]:
    with pytest.raises(TypedError) as caught:
        from_json(Outer, json.dumps({"title": "x", **changes}))
    return [str(problem) for problem in caught.value.problems]


def test_lines_have_a_maximum() -> None:
    assert from_json(Outer, json.dumps({"title": "x", "line": "a" * 10_000}))
    assert problems(line="a" * 10**6) == ["line: must have at most 10,000 characters."]


def test_json_round_trip() -> None:
    value = from_json(Outer, json.dumps(FULL))
    assert value == Outer(
        "x", "a_1", 3, True, "far", Inner(1e-4, 2), (), (0.5, 2.0), {"one": Inner(1.0)}, {}, "fail", {"a": [1, None]}
    )
    assert from_json(Outer, to_json(value)) == value
    assert "\n" in to_json(value, indent=1)


def test_generated_schema_agrees_with_the_type() -> None:
    schema = json_schema(Outer)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid(FULL)
    for change in (
        {"cuont": 1},
        {"inner": {"rate": 0}},
        {"id": "a/b"},
        {"number": 101},
        {"title": "\0"},
        {"line": "a\tb"},
        {"line": "a" * 10_001},
    ):
        assert not validator.is_valid({**FULL, **change}), change


def test_unset_fields_are_omitted_at_every_depth() -> None:
    @typed
    class Gained:
        inner: Inner | None = None
        steps: tuple[int, ...] | None = (1, 2)
        zero: float | None = 0.0

    @typed
    class Holder:
        gained: Gained
        later: str | None = None

    assert dump_set_fields(Holder(Gained())) == {"gained": {"steps": [1, 2], "zero": 0.0}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": "3"}, "count: must be a whole number, not '3'."),
        ({"count": [3]}, "count: must be a whole number, not a list."),
        ({"count": True}, "count: must be a whole number, not true."),
        ({"count": 3.0}, "count: must be a whole number, not 3.0."),
        ({"count": None}, "count: must be a whole number; it is empty."),
        ({"number": None}, "number: must be a number, or 'fail'; it is empty."),
        ({"flag": 1}, "flag: must be true or false, not 1."),
        ({"title": 3}, "title: must be text, not 3. Put it in quotes."),
        ({"title": "a\x1b[2J"}, "title: must be text without control characters, not 'a\\x1b[2J'."),
        ({"title": "a\u202eb"}, "title: must be text without control characters, not 'a\\u202eb'."),
        ({"line": "a\nb"}, "line: must be one line of text without control characters, not 'a\\nb'."),
        (
            {"x\nOK": 1},
            "x\\nOK: unknown key. Known: anything, by_id, by_name, count, flag, id, inner, kind, line, number, "
            "pair and 2 others.",
        ),
        ({"id": "a/b"}, "id: must be made of lowercase letters, digits and underscores, not 'a/b'."),
        ({"kind": "nera"}, "kind: must be 'near' or 'far', not 'nera'."),
        ({"inner": {"rate": float("nan")}}, "inner.rate: must be a finite number, not nan."),
        ({"inner": {"rate": 0}}, "inner.rate: must be above 0, not 0."),
        ({"inner": {}}, "inner.rate: is missing."),
        ({"steps": 3}, "steps: must be a list, not 3."),
        ({"steps": [1, "two"]}, "steps[1]: must be a whole number, not 'two'."),
        ({"pair": [1]}, "pair[1]: is missing."),
        ({"pair": [1, 2, 3]}, "pair: must have at most 2 entries, not 3."),
        ({"number": 101}, "number: must be a number of at most 100, or 'fail', not 101."),
        ({"number": "x" * 100}, f"number: must be a number, or 'fail', not '{'x' * 76}...."),
        ({"cuont": 1}, "cuont: unknown key. Did you mean 'count'?"),
        ({"inner": {"rate": 1, "within": {"lenght": 2}}}, "inner.within.lenght: unknown key. Did you mean 'length'?"),
        ({"by_id": {"a": {"rate": 1, "stepz": 2}}}, "by_id.a.stepz: unknown key. Did you mean 'steps'?"),
        ({"count": -1}, "count: must not be negative."),
    ],
)
def test_problem_message(changes: dict[str, Any], message: str) -> None:
    assert problems(**changes) == [message]


def test_all_problems_are_reported() -> None:
    assert len(problems(count="x", kind="x", inner={"rate": 0, "steps": 0}, cuont=1)) == 5
    assert problems(count=-1, flag=True, steps=[1]) == [
        "count: must not be negative.",
        "steps[0]: flags take no steps.",
    ]


@pytest.mark.parametrize("text", ["", "{", "[1, 2", '{"title": "x"', "[" * 100_000, b"\xff"])
def test_invalid_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(TypedError, match=r"^is not JSON \("):
        from_json(Outer, text)


def test_values_made_in_python_are_validated() -> None:
    for wrong in ({"count": 1.0}, {"steps": [1]}, {"inner": {"rate": 1.0}}):
        with pytest.raises(ValidationError):
            Outer("x", **wrong)  # type: ignore[arg-type]


def test_only_the_first_of_many_problems_are_listed() -> None:
    with pytest.raises(TypedError) as caught:
        from_json(Outer, json.dumps({"title": "x", **{f"key{n}": n for n in range(1_000)}}))
    assert str(caught.value).startswith("key0: unknown key.")
    assert "has 1,000 problems; these are the first 20." in str(caught.value)
    assert len(str(caught.value)) < 5_000
