from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from paperbench.errors import PaperbenchError, nearest
from paperbench.specs.strict_yaml import FieldError, SpecError, bind, overlay, position_of, read_mapping
from tests.limits import frugal


@dataclass(frozen=True)
class Inner:
    rate: float
    steps: int = 1


@dataclass(frozen=True)
class Net:
    name: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_scalar(cls, value: Any) -> Net:
        return cls(str(value))

    def __post_init__(self) -> None:
        if self.name == "nonsense":
            raise PaperbenchError("no such net.")


@dataclass(frozen=True)
class Outer:
    title: str
    count: int = 0
    rate: float = 0.0
    flag: bool = False
    kind: Literal["near", "far"] = "near"
    inner: Inner | None = None
    steps: tuple[int, ...] = ()
    nets: Mapping[str, Net] = field(default_factory=dict)
    number: float | Literal["fail"] = 0.0
    schema: Literal[1] = 1
    later: yaml.MappingNode | None = None
    where: str = ""

    def __post_init__(self) -> None:
        if self.count < 0:
            raise FieldError("count", f"count must not be negative, as {self.count} is.")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a.yaml"


def read(file: Path, text: str, kind: type = Outer) -> Any:
    file.write_text(text, encoding="utf-8")
    return bind(read_mapping(file), kind)


def complaint(file: Path, text: str) -> str:
    with pytest.raises(SpecError) as caught:
        read(file, text)
    return str(caught.value).replace(str(file), "a.yaml")


def test_every_kind_of_value_is_read(file: Path) -> None:
    text = """
title: "1603.05027"
count: 3
rate: 2
flag: true
kind: far
inner: {rate: 1.0e-4, steps: 2}
steps: [1, 2, 3]
nets:
  a: resnet
  b: {name: resnet, kwargs: {depth: 8, bias: [0, -1], scale: 0.5, on: null}}
number: fail
""".replace("on:", "'on':")
    outer = read(file, text)
    assert outer == Outer(
        title="1603.05027",
        count=3,
        rate=2.0,
        flag=True,
        kind="far",
        inner=Inner(0.0001, 2),
        steps=(1, 2, 3),
        nets={"a": Net("resnet"), "b": Net("resnet", {"depth": 8, "bias": [0, -1], "scale": 0.5, "on": None})},
        number="fail",
        where=f"{file}:2",
    )
    assert type(outer.rate) is float


def test_defaults_stand_in_for_keys_left_out_and_null_means_none(file: Path) -> None:
    assert read(file, "title: x\ninner: null\nnumber: 6.61") == Outer("x", number=6.61, where=f"{file}:1")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title: x\ncuont: 1", "a.yaml:2: unknown key 'cuont'. Did you mean 'count'?"),
        ("title: x\ninner:\n  rate: 1\n  stepz: 2", "a.yaml:4: unknown key 'stepz'. Did you mean 'steps'?"),
        ("title: x\ninner: {rate: 1, zzz: 2}", "a.yaml:2: unknown key 'zzz'. Known: rate, steps."),
        ("title: x\nwhere: here", "a.yaml:2: unknown key 'where'. Known: count, flag"),
        ("# a comment\ncount: 1", "a.yaml:2: the key 'title' is missing."),
        ("title: x\ninner:\n  steps: 2", "a.yaml:3: the key 'rate' is missing."),
        ("title: x\ncount: 1\n\ncount: 2", "a.yaml:4: key 'count' stands twice (first in line 2)."),
        ("title: x\nnets:\n  a: b\n  a: c", "a.yaml:4: key 'a' stands twice (first in line 3)."),
        ("title: x\n1: 2", "a.yaml:2: keys must be text; quote '1'."),
        ("title: x\nno: 2", "a.yaml:2: keys must be text; quote 'no'."),
        ("title: x\n? [a]\n: 2", "a.yaml:2: keys must be text."),
    ],
)
def test_keys_are_checked_with_line_and_nearest_valid_key(file: Path, text: str, message: str) -> None:
    assert message in complaint(file, text)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("count: '3'", "must be a whole number, not '3' (text)."),
        ("count: 3.0", "must be a whole number, not '3.0' (a number)."),
        ("count: true", "must be a whole number, not 'true' (true or false)."),
        ("count: [3]", "must be a whole number, not a list."),
        ("count:", "must be a whole number, not empty."),
        ("count: null", "must be a whole number, not 'null' (nothing)."),
        ("rate: fast", "must be a number, not 'fast' (text)."),
        ("rate: true", "must be a number, not 'true' (true or false)."),
        ("rate: {a: 1}", "must be a number, not a mapping."),
        ("rate: .inf", "must be a finite number, not '.inf' (a number)."),
        ("rate: -.inf", "must be a finite number, not '-.inf' (a number)."),
        ("rate: .nan", "must be a finite number, not '.nan' (a number)."),
        ("flag: 1", "must be true or false, not '1' (a whole number)."),
        ("inner: 3", "must be a mapping with the keys rate, steps, not '3' (a whole number)."),
        ("inner: [1]", "must be a mapping with the keys rate, steps, not a list."),
        ("steps: 3", "must be a list, not '3' (a whole number)."),
        ("steps: [1, two]", "must be a whole number, not 'two' (text)."),
        ("nets: [a]", "must be a mapping, not a list."),
        ("later: 3", "must be a mapping, not '3' (a whole number)."),
        ("kind: nera", "'nera' is not allowed here. Did you mean 'near'?"),
        ("kind: 7", "7 is not allowed here. Known: far, near."),
        ("kind: [near]", "['near'] is not allowed here."),
        ("schema: 2", "2 is not allowed here. Known: 1."),
        ("schema: true", "True is not allowed here."),
        ("schema: 1.0", "1.0 is not allowed here."),
        ("number: fial", "must be a number, not 'fial' (text). Or: 'fial' is not allowed here. Did you mean 'fail'?"),
        ("nets: {a: nonsense}", "no such net."),
        ("nets: {a: {name: nonsense}}", "no such net."),
        ("nets: {a: {name: r, kwargs: {day: 2016-03-16}}}", "'2016-03-16' is neither text, number, true, false nor"),
    ],
)
def test_values_of_a_wrong_type_are_refused_with_the_line(file: Path, line: str, message: str) -> None:
    told = complaint(file, f"title: x\n\n{line}")
    assert told.startswith("a.yaml:3: ")
    assert message in told


@pytest.mark.parametrize("value", ["1603.05027", "2016-03-16", "no", "6"])
def test_text_that_yaml_takes_for_something_else_is_to_be_quoted(file: Path, value: str) -> None:
    told = complaint(file, f"title: {value}")
    assert told.startswith(f"a.yaml:1: must be text, not '{value}' (")
    assert told.endswith("; quote it.")
    assert read(file, f"title: '{value}'").title == value


@pytest.mark.parametrize(
    ("written", "proposed"),
    [
        ("1e-4", "1.0e-4"),
        ("1E-4", "1.0e-4"),
        ("1e4", "1.0e+4"),
        ("1.5e3", "1.5e+3"),
        ("-2.e3", "-2.e+3"),
        (".5e1", ".5e+1"),
        ("+1e+2", "+1.0e+2"),
    ],
)
def test_a_number_that_yaml_reads_as_text_comes_with_the_right_spelling(
    file: Path, written: str, proposed: str
) -> None:
    assert complaint(file, f"title: x\nrate: {written}") == (
        f"a.yaml:2: YAML reads {written} as text; write {proposed}."
    )
    assert read(file, f"title: x\nrate: {proposed}").rate == float(written)


def test_the_right_spelling_of_a_whole_number_is_whole(file: Path) -> None:
    assert complaint(file, "title: x\ncount: 64e3").endswith("write 64000.")
    assert complaint(file, "title: x\nsteps: [1.5e3]").endswith("write 1500.")


@pytest.mark.parametrize("where", ["number: 1e-4", "nets: {a: {name: b, kwargs: {scale: 1e-4}}}", "kind: 1e-4"])
def test_a_mistaken_number_is_found_wherever_a_value_stands(file: Path, where: str) -> None:
    assert complaint(file, f"title: x\n{where}") == "a.yaml:2: YAML reads 1e-4 as text; write 1.0e-4."


def test_text_that_merely_looks_like_a_number_is_text_where_text_is_wanted(file: Path) -> None:
    assert read(file, "title: 1e-4").title == "1e-4"
    assert complaint(file, "title: x\ncount: e5").endswith("must be a whole number, not 'e5' (text).")


@pytest.mark.parametrize(("written", "read_as"), [("010", 8), ("1:30", 90), ("-012", -10)])
def test_whole_numbers_in_other_bases_are_refused(file: Path, written: str, read_as: int) -> None:
    told = complaint(file, f"title: x\ncount: {written}")
    assert told == f"a.yaml:2: YAML reads {written} as {read_as}; write the number plainly."


@pytest.mark.parametrize("value", ["0", "-3", "1_000"])
def test_plain_whole_numbers_are_read(file: Path, value: str) -> None:
    assert read(file, f"title: x\nsteps: [{value}]").steps == (int(value),)


@pytest.mark.parametrize(
    "value", ["!!int word", "!!int ''", "!!bool maybe", "!!float word", "!!binary x", "!local x", "!!python/name:os.x"]
)
def test_tags_that_do_not_fit_are_refused(file: Path, value: str) -> None:
    for line in (
        f"count: {value}",
        f"flag: {value}",
        f"rate: {value}",
        f"nets: {{a: {{name: b, kwargs: {{c: {value}}}}}}}",
    ):
        assert complaint(file, f"title: x\n{line}").startswith("a.yaml:2: ")


@pytest.mark.parametrize(
    "line", ["inner: !other {rate: 1}", "steps: !!set [1]", "nets: {a: {name: b, kwargs: !!omap {}}}"]
)
def test_tags_on_collections_are_not_passed_over(file: Path, line: str) -> None:
    assert "means nothing here" in complaint(file, f"title: x\n{line}")


def test_aliases_are_followed_and_one_that_contains_itself_is_refused(file: Path) -> None:
    outer = read(file, "title: x\nnets:\n  a: &net {name: r, kwargs: {depth: 8}}\n  b: *net")
    assert outer.nets["a"] == outer.nets["b"]
    told = complaint(file, "title: x\nnets:\n  a: {name: r, kwargs: &k {again: *k}}")
    assert "contains itself" in told


def test_a_dataclass_that_blames_a_field_gets_the_line_of_that_field(file: Path) -> None:
    assert complaint(file, "title: x\nrate: 1\ncount: -1\nflag: true") == (
        "a.yaml:3: count must not be negative, as -1 is."
    )


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "must be a mapping of keys to values"),
        ("# only a comment", 1, "must be a mapping of keys to values"),
        ("- a\n- b", 1, "must be a mapping of keys to values"),
        ("just text", 1, "must be a mapping of keys to values"),
        ("title: x\n\tcount: 1", 2, "no valid YAML: .*cannot start any token"),
        ("title: x\ninner: {rate: 1", 2, "no valid YAML: while parsing a flow mapping"),
        ("title: x\ncount: 1\n wrong: 2", 3, "no valid YAML: mapping values are not allowed here"),
        ("title: *nowhere", 1, "no valid YAML: found undefined alias"),
        ("title: x\n---\ntitle: y", 2, "no valid YAML: expected a single document in the stream: but found another"),
        ("title: x\ncount: \x00", 2, "no valid YAML: holds the control character"),
    ],
)
def test_what_is_no_mapping_or_no_yaml_is_refused(file: Path, text: str, line: int, message: str) -> None:
    assert re.match(f"a.yaml:{line}: .*{message}", complaint(file, text))


def test_yaml_nested_too_deeply_is_refused(file: Path) -> None:
    assert complaint(file, "title: " + "[" * 20_000).startswith("a.yaml: no valid YAML: ")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"
    with pytest.raises(SpecError, match=re.escape(f"{missing}: cannot be read: No such file or directory.")):
        read_mapping(missing)
    with pytest.raises(SpecError, match=re.escape(f"{tmp_path}: cannot be read: Is a directory.")):
        read_mapping(tmp_path)
    latin = tmp_path / "latin.yaml"
    latin.write_bytes("title: Übung".encode("latin-1"))
    with pytest.raises(SpecError, match=re.escape(f"{latin}: is no UTF-8 text (byte 7).")):
        read_mapping(latin)


def nodes(tmp_path: Path, base: str, changes: str) -> tuple[yaml.MappingNode, yaml.MappingNode]:
    for name, text in (("base.yaml", base), ("changes.yaml", changes)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    return read_mapping(tmp_path / "base.yaml"), read_mapping(tmp_path / "changes.yaml")


def test_an_overlay_replaces_keys_and_merges_mappings_within(tmp_path: Path) -> None:
    base, changes = nodes(
        tmp_path,
        "title: x\ncount: 1\ninner: {rate: 1, steps: 5}\nsteps: [1, 2]",
        "count: 2\ninner: {rate: 3}\nsteps: [9]",
    )
    merged = bind(overlay(base, changes), Outer)
    assert (merged.title, merged.count, merged.inner, merged.steps) == ("x", 2, Inner(3.0, 5), (9,))
    before = bind(base, Outer)
    assert (before.count, before.inner) == (1, Inner(1.0, 5)), "the base is left as it was"


def test_null_in_an_overlay_takes_a_mapping_away(tmp_path: Path) -> None:
    base, changes = nodes(tmp_path, "title: x\ninner: {rate: 1}", "inner: null")
    assert bind(overlay(base, changes), Outer).inner is None


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        ("title: x\ninner: {rate: 1}", "count: 1\ninner:\n  raet: 2", "changes.yaml:3: unknown key 'raet'"),
        ("title: x\ninner:\n  raet: 1", "count: 1", "base.yaml:3: unknown key 'raet'"),
        ("title: x\ncount: one", "\n\nrate: 1", "base.yaml:2: must be a whole number"),
        ("title: x\ncount: 1", "\n\ncount: one", "changes.yaml:3: must be a whole number"),
        ("title: x\ncount: 1", "\n\ncount: -1", "changes.yaml:3: count must not be negative"),
        ("title: x\ninner: {rate: 1}", "inner: {rate: 2, rate: 3}", "changes.yaml:1: key 'rate' stands twice"),
    ],
)
def test_errors_in_an_overlay_name_the_file_that_is_wrong(
    tmp_path: Path, base: str, changes: str, message: str
) -> None:
    below, above = nodes(tmp_path, base, changes)
    with pytest.raises(SpecError, match=re.escape(f"{tmp_path}/{message}")):
        bind(overlay(below, above), Outer)


def test_the_position_of_nested_keys_ends_where_the_file_does(file: Path) -> None:
    file.write_text("title: x\nnets:\n  a:\n    name: b\n", encoding="utf-8")
    node = read_mapping(file)
    assert position_of(node, "nets", "a", "name") == f"{file}:4"
    assert position_of(node, "nets", "b", "name") == f"{file}:2"
    assert position_of(node, "title", "x") == f"{file}:1"
    assert position_of(node, "none") == f"{file}:1"


def test_the_nearest_word_or_else_all_known_ones() -> None:
    assert nearest("smok", ["paper", "smoke"]) == "Did you mean 'smoke'?"
    assert nearest("x", ["paper", "smoke"]) == "Known: paper, smoke."
    assert nearest("x", []) == "There are none."


BOMB = "title: x\nsteps: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\nlater:\n" + "".join(
    f"  {name}: &{name} [{', '.join(['*' + before] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def test_aliases_that_repeat_each_other_are_refused(file: Path) -> None:
    with frugal():
        assert "a.yaml: holds over 50,000 values, those repeated by aliases" in complaint(file, BOMB)


def test_values_nested_deeper_than_any_table_are_refused(file: Path) -> None:
    assert read(file, "title: x\nlater: {a: " + "[" * 47 + "]" * 47 + "}").later
    told = complaint(file, "title: x\nlater: {a: " + "[" * 60 + "]" * 60 + "}")
    assert "a.yaml:2: nested in over 50 levels" in told


@pytest.mark.parametrize("escape", ["UFFFFFFFF", "U00110000"])
def test_an_escape_of_no_character_is_refused(file: Path, escape: str) -> None:
    assert complaint(file, f'title: "\\{escape}"').startswith("a.yaml: no valid YAML: ")


def test_a_version_of_yaml_with_thousands_of_digits_is_refused(file: Path) -> None:
    assert complaint(file, f"%YAML {'9' * 5000}.1\n---\ntitle: x").startswith("a.yaml: no valid YAML: ")


@pytest.mark.parametrize(
    ("escape", "character"), [("ud800", "\\ud800"), ("e[2J", "\\x1b"), ("0", "\\x00"), ("r", "\\r")]
)
def test_characters_that_cannot_be_printed_are_refused(file: Path, escape: str, character: str) -> None:
    told = complaint(file, f'title: x\nlater: {{a: ["\\{escape}"]}}')
    assert told == f"a.yaml:2: holds the character '{character}', which cannot be printed; leave it out."


@pytest.mark.parametrize("key", ["rate", "schema"])
@pytest.mark.parametrize(
    "number", ["9" * 400, "9" * 5000, "0x" + "f" * 5000, "1" + ":59" * 3000, "1" + ":59" * 500 + ".5"]
)
def test_numbers_of_many_digits_are_refused(file: Path, key: str, number: str) -> None:
    told = complaint(file, f"title: x\n{key}: {number}")
    assert told == f"a.yaml:2: a number of {len(number)} characters is too long; write fewer digits."


def test_a_whole_number_has_64_bits(file: Path) -> None:
    assert read(file, f"title: x\ncount: {2**63 - 1}").count == 2**63 - 1
    assert (
        complaint(file, f"title: x\ncount: {2**63}")
        == f"a.yaml:2: {2**63} is too large a number; it must have 64 bits."
    )


def test_text_that_begins_like_a_long_number_is_told_from_one_at_once(file: Path) -> None:
    with frugal(seconds=2):
        assert "must be a whole number" in complaint(file, f"title: x\ncount: {'1' * 100_000}x")


def test_a_file_of_absurd_size_or_a_pipe_is_not_read(file: Path) -> None:
    assert "cannot be read: its 300,000 bytes are more than the 262,144" in complaint(file, "title: " + "x" * 299_993)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(SpecError, match="cannot be read: it is no ordinary file"):
        read_mapping(file)
