from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from paperbench.specs.yaml_file import Document, SpecError, read_yaml
from paperbench.typed import Text, typed


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.yaml"


def read(file: Path, text: str) -> Document:
    file.write_text(text, encoding="utf-8")
    return read_yaml(file)


def complaint(file: Path, text: str) -> str:
    with pytest.raises(SpecError) as caught:
        read(file, text)
    return str(caught.value).replace(f"{file.parent}/", "")


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("010", 10),
        ("-012", -12),
        ("0o17", 15),
        ("0x1F", 31),
        ("1e-4", 1e-4),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("9" * 400, float("inf")),
        pytest.param("1" * 100_000 + "x", "1" * 100_000 + "x", id="almost a long number"),
        ("true", True),
        ("null", None),
        ("~", None),
        ("", None),
        *((text, text) for text in ("1:30", "yes", "no", "on", "off", "1_000", "2016-03-16", "0b1", "e5", "word", "=")),
        ('"true"', "true"),
        ("|\n  12", "12"),
        ("[1, {a: x}]", [1, {"a": "x"}]),
    ],
)
def test_values_follow_the_yaml_1_2_core_schema(file: Path, written: str, value: Any) -> None:
    found = read(file, f"key: {written}").data["key"]
    assert (found, type(found)) == (value, type(value))


def test_position_of_a_value_or_its_nearest_parent(file: Path) -> None:
    document = read(file, "title: x\nnets:\n  a:\n    - b\n    -\n      c: {d: 1}\n")
    for line, paths in {
        1: [(), ("title",), ("none",)],
        3: [("nets", "a"), ("nets", "a", 7, "c")],
        4: [("nets", "a", 0), ("nets", "a", 0, "x")],
        6: [("nets", "a", 1, "c"), ("nets", "a", 1, "c", "d")],
    }.items():
        assert {document.position(*path) for path in paths} == {(str(file), line)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.yaml:1: must be a mapping of keys to values."),
        ("title: x\ncount: 1\n\ncount: 2", "a.yaml:4: duplicate key 'count' (first on line 2)."),
        ("title: x\n1: 2", "a.yaml:2: keys must be text; quote '1'."),
        ("a: &b {c: d}", "a.yaml:1: anchors (`&`) and aliases (`*`) are not supported; write the value out."),
        ("a: {b: *c}", "a.yaml:1: anchors (`&`) and aliases (`*`) are not supported; write the value out."),
        ("a: !!int 1", "a.yaml:1: tags are not supported; remove tag:yaml.org,2002:int."),
        ("a: b\n---\nc: d", "a.yaml:2: not valid YAML: expected a single document"),
        pytest.param("a:\n  - " + "[" * 200_000, "a.yaml:2: not valid YAML: maximum recursion depth", id="nested"),
        ('a: "\\UFFFFFFFF"', "a.yaml:1: not valid YAML: "),
        pytest.param(f"%YAML {'9' * 5000}.1\n---\na: b", "a.yaml:1: not valid YAML: ", id="version"),
        ('a: "\\e[2J"', "a.yaml:1: contains the unprintable character '\\x1b'; remove it."),
        ("a: b\nc: \x00", "a.yaml:2: not valid YAML: "),
    ],
)
def test_unsupported_yaml_is_refused_at_its_line(file: Path, text: str, message: str) -> None:
    assert complaint(file, text).startswith(message)


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    missing, latin, large, pipe = (tmp_path / name for name in ("missing", "latin", "large", "pipe"))
    latin.write_bytes("title: Übung".encode("latin-1"))
    large.write_text("title: " + "x" * 299_993, encoding="utf-8")
    os.mkfifo(pipe)
    for path, reason in (
        (missing, "cannot read: No such file or directory."),
        (tmp_path, "cannot read: Is a directory."),
        (latin, "is not UTF-8 text (byte 7)."),
        (large, "cannot read: its 300,000 bytes are more than the 262,144"),
        (pipe, "cannot read: it is not a regular file"),
    ):
        with pytest.raises(SpecError, match=re.escape(f"{path}: {reason}")):
            read_yaml(path)


@typed
class Inner:
    rate: float
    steps: int = 1


@typed
class Outer:
    title: Text
    inner: Inner | None = None


def test_type_problems_are_reported_by_line(file: Path) -> None:
    document = read(file, "inner:\n  stepz: 2\n  rate: fast\ntitle: 3\nother: 1\n")
    with pytest.raises(SpecError) as caught:
        document.parse(Outer)
    assert str(caught.value).replace(str(file), "a.yaml").splitlines() == [
        "a.yaml:2: inner.stepz: unknown key. Did you mean 'steps'?",
        "a.yaml:3: inner.rate: must be a number, not 'fast'.",
        "a.yaml:4: title: must be text, not 3. Put it in quotes.",
        "a.yaml:5: other: unknown key. Known: inner, title.",
    ]
    assert read(file, "title: x\ninner: {rate: 2}").parse(Outer) == Outer("x", Inner(2.0))


@pytest.mark.parametrize(
    ("base", "changes", "merged"),
    [
        ("{a: 1, b: {c: 1, d: 2}}", "{b: {c: 3}}", {"a": 1, "b": {"c": 3, "d": 2}}),
        ("{a: [1, 2]}", "{a: [9]}", {"a": [9]}),
        ("{a: null}", "{a: {b: 1}}", {"a": None}),
        ("{a: 1}", "{a: {b: 1}, c: {d: 2}}", {"a": {"b": 1}, "c": {"d": 2}}),
    ],
)
def test_changes_replace_values_and_merge_mappings(file: Path, base: str, changes: str, merged: dict[str, Any]) -> None:
    assert read(file, base).with_changes(read(file, f"x: {{y: {changes}}}"), ("x", "y")).data == merged


def test_changes_keep_the_positions_of_both_files(tmp_path: Path) -> None:
    below, above = tmp_path / "below.yaml", tmp_path / "above.yaml"
    document = read(below, "title: x\ninner:\n  rate: 1\n  steps: 2").with_changes(
        read(above, "\nchanges:\n  inner:\n    steps: 3"), ("changes",)
    )
    assert document.data == {"title": "x", "inner": {"rate": 1, "steps": 3}}
    assert document.position("inner", "steps") == (str(above), 4)
    assert document.position("inner", "rate") == (str(below), 3)
    assert document.position() == (str(below), 1)
