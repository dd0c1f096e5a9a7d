from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paperbench.errors import PaperbenchError
from paperbench.specs.experiment import Experiment
from paperbench.specs.profile import Profiles
from paperbench.specs.table import load_profiles, read_table
from paperbench.specs.yaml_file import SpecError, read_yaml
from tests.fuzz.strategies import damaged, is_refused, share_of_examples, times_examples
from tests.helpers import ROOT, copy_of_specs

FILES = {  # and the table that loads them; together: sweeps, references, literature, footnotes, evaluations
    "experiments/profiles.yaml": "table2",
    "experiments/recipes/cifar.yaml": "table2",
    "experiments/table1.yaml": "table1",
    "expected/table3.yaml": "table3",
    "expected/table4.yaml": "table4",
    "experiments/table5.yaml": "table5",
    "experiments/recipes/imagenet.yaml": "table5",
}

TOKENS = (
    *(b"&a ", b"*a", b"<<: *a\n", b"? ", b"- ", b": ", b"{", b"}", b"[", b"]", b",", b"|\n", b">-\n", b"#", b"'", b'"'),
    *(b"\n", b"\n\n", b"\n  ", b"\t", b"---\n", b"...\n", b"%YAML 1.1\n---\n", b"%TAG ! x:\n", b"@", b"`"),
    *(b"!!int ", b"!!binary ", b"! ", b"!!python/object/apply:os.system [ls]", b"!<tag:yaml.org,2002:int> ", b"!%ff "),
    *(b"null", b"~", b"true", b"yes", b"1", b"0", b"-1", b"1.5", b".nan", b".inf", b"-.inf", b"1e-4", b"1e999", b"010"),
    *(b"1:30", b"1_000", b"0x1F", b"0b1", b"2001-01-01", b"9" * 30, b"9" * 5000, b"0x" + b"f" * 5000),
    *(b"1:" * 2000 + b"1", b"1" * 3000 + b"x", b"[" * 60, b"[" * 5000, b"{a: " * 60, b"- " * 200, b"x" * 2000),
    *(b"\0", b"\xff\xfe", b"\xc3", b"\xc2\x85", b"\xe2\x80\xa8", b"\xef\xbb\xbf", b"\x1b", b"\xf0\x9f\x92\xa9"),
    *(b'"\\UFFFFFFFF"', b'"\\U00110000"', b'"\\ud800"', b'"\\e[2J"', b'"\\0"', b'"\\x8"'),
    b"%YAML " + b"9" * 5000 + b".1\n",
    *(b"same_as: table2/original/resnet110", b"same_as: a/b/c", b"sweep: {depth: [8, 14]}", b"sweep: {}", b"fail"),
    *(b"literature: [{id: a, title: b, cells: {}}]", b"footnotes: {a: b}", b"on_request: true", b"kind: close"),
    *(b"name", b"kwargs: {name: x}", b"kwargs: {depth: 1}", b"cells: {}", b"schema: 1", b"a/b", b"table2", b"where: x"),
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_specs(tmp_path_factory.mktemp("specs"))


@st.composite
def rearranged(draw: st.DrawFn, original: bytes) -> bytes:
    """Swap, repeat, remove or indent lines, and replace values with tokens."""
    lines = original.splitlines(keepends=True)
    for _ in range(draw(st.integers(1, 3))):
        one, other = draw(st.integers(0, len(lines) - 1)), draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(["exchange", "copy", "remove", "indent", "value", "value"])):
            case "exchange":
                lines[one], lines[other] = lines[other], lines[one]
            case "copy":
                lines.insert(one, lines[other])
            case "remove" if len(lines) > 1:
                del lines[one]
            case "indent":
                lines[one] = draw(st.sampled_from([b" ", b"  ", b"\t"])) + lines[one]
            case _:
                key, colon, _ = lines[one].partition(b": ")
                lines[one] = key + colon + draw(st.sampled_from(TOKENS)) + b"\n"
    return b"".join(lines)


def load_everything(root: Path, name: str = "table2") -> None:
    """Load everything that a run needs."""
    load_profiles(root)
    table = read_table(name, root)
    for profile in table.profiles.profiles.values():
        for cell in table.all_cells:
            table.recipe_in(profile, cell.recipe)
            table.evaluation_in(profile, cell)
            for setting in cell.settings:
                cell.net_in(profile, setting)
                str(cell.reference_in(profile, setting))
    for cell in table.all_cells:
        for setting in cell.settings:
            table.experiment_digest(cell, setting)


@pytest.mark.parametrize("name", FILES)
@share_of_examples(2)
@given(data=st.data())
def test_damaged_table_is_loaded_or_refused(root: Path, name: str, data: st.DataObject) -> None:
    original = (ROOT / name).read_bytes()
    try:
        (root / name).write_bytes(data.draw(damaged(original, TOKENS) | rearranged(original)))
        is_refused(PaperbenchError, load_everything, root, FILES[name])
    finally:
        (root / name).write_bytes(original)


@pytest.mark.parametrize("kind", [Experiment, Profiles])
@times_examples(1)
@given(content=st.text().map(str.encode) | st.lists(st.sampled_from(TOKENS), max_size=8).map(b"".join) | st.binary())
def test_any_text_is_parsed_or_refused(tmp_path_factory: pytest.TempPathFactory, kind: Any, content: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_bytes(content)
    is_refused(SpecError, lambda: read_yaml(file).parse(kind))
