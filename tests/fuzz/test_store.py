"""Damaged leases, external results and weights; results directories with several damages at once."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from paperbench.catalogue import resolve
from paperbench.cli.main import main
from paperbench.errors import UNPRINTABLE, PaperbenchError
from paperbench.models.weights_file import check_weights
from paperbench.report import FORMATS
from paperbench.runs.external import read_externals
from paperbench.runs.lease import Lease
from paperbench.runs.record import Record
from paperbench.tensor_file import tensor_file_bytes
from tests.fuzz.conftest import COMPARE, RUN, VERIFY
from tests.fuzz.strategies import (
    JSON_TOKENS,
    JSON_VALUES,
    TENSOR_TOKENS,
    altered_trees,
    damaged,
    is_refused,
    share_of_examples,
    times_examples,
)
from tests.helpers import json_with_hash
from tests.limits import limit_address_space, limit_seconds

STATE = {"iteration": torch.tensor(80), "weight": torch.ones(3, 2), "random": torch.ones(5, dtype=torch.uint8)}
WEIGHTS = {"architecture": "preact_resnet20", "arguments": '{"depth": 8}', "run": "abc-s0"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def holder(place: Path) -> bytes:
    """The lease file of this process."""
    lease = Lease(place / "held", "run")
    assert lease.acquire()
    content = (place / "held" / "run.1").read_bytes()
    lease.release()
    return content


@times_examples(1)
@given(data=st.data())
def test_any_lease_file_is_a_holder(place: Path, holder: bytes, data: st.DataObject) -> None:
    number = st.sampled_from(["1", "2", "01", "0", "-1", "1.1", "", "9" * 200, "\u00b2", "1.tmp"])
    contents = damaged(holder, JSON_TOKENS) | altered_trees(json.loads(holder)).map(json.dumps).map(str.encode)
    directory = place / "leases"
    files = data.draw(st.dictionaries(number, contents | st.binary(), max_size=3))
    directory.mkdir()
    try:
        for name, content in files.items():
            (directory / f"run.{name}").write_bytes(content)
        lease = Lease(directory, "run")

        def acquire() -> None:
            if lease.acquire():
                lease.check()

        is_refused(PaperbenchError, acquire)
        lease.release()
    finally:
        shutil.rmtree(directory)


@times_examples(1)
@example(content=tensor_file_bytes(STATE, {**WEIGHTS, "arguments": "[" * 5000}))
@given(
    content=damaged(tensor_file_bytes(STATE, WEIGHTS), (*TENSOR_TOKENS, *JSON_TOKENS))
    | st.fixed_dictionaries(
        {},
        optional={
            "architecture": st.sampled_from(["preact_resnet20", "resnet50", ""])
            | st.text(st.characters(codec="utf-8")),
            "arguments": (altered_trees({"depth": 8, "num_classes": 10}) | JSON_VALUES).map(json.dumps)
            | st.sampled_from(["[" * 5000, '{"a":' * 5000, "NaN", '[["depth", 8]]', '{"name": "x"}', "9" * 5000]),
        },
    ).map(lambda metadata: tensor_file_bytes(STATE, metadata))
)
def test_damaged_weights_are_accepted_or_refused(place: Path, content: bytes) -> None:
    file = place / "model.safetensors"
    file.write_bytes(content)
    is_refused(PaperbenchError, check_weights, file, resolve("preact_resnet20"))


@times_examples(1)
@given(data=st.data())
def test_damaged_external_result_is_left_out(place: Path, untouched: Path, data: st.DataObject) -> None:
    (original,) = (untouched / "results" / "external").iterdir()
    content = original.read_bytes()
    altered = altered_trees(json.loads(content)).map(json_with_hash_if_mapping)
    file = place / "external" / data.draw(st.sampled_from([original.name, "a.json"]))
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(data.draw(damaged(content, JSON_TOKENS) | altered))
    results, complaints = read_externals(place)
    assert len(results) + len(complaints) == 1
    file.unlink()


def json_with_hash_if_mapping(tree: Any) -> bytes:
    return (json_with_hash(tree) if isinstance(tree, dict) else json.dumps(tree)).encode()


@st.composite
def damages(draw: st.DrawFn, results: Path) -> set[Path]:
    """Change up to four files of a results directory; return their old and new paths."""
    changed = set()
    for _ in range(draw(st.integers(1, 4))):
        files = sorted(path for path in results.rglob("*") if path.is_file() and "superseded" not in path.parts)
        path, other = draw(st.sampled_from(files)), draw(st.sampled_from(files))
        content = path.read_bytes()
        changed.add(path)
        match draw(st.sampled_from(["bytes", "values", "values", "values", "copy", "rename", "remove"])):
            case "copy":
                path.write_bytes(other.read_bytes())
            case "rename":
                suffix = draw(st.sampled_from([".tmp", ".damaged", ".1", "\n\x1b[2J.json", "\u202e.safetensors"]))
                changed.add(path.rename(path.with_name(path.name + suffix)))
            case "remove":
                path.unlink()
            case "values" if path.suffix == ".json":
                path.write_bytes(draw(altered_json(content).map(json_with_hash_if_mapping)))
            case "values" if path.suffix == ".jsonl":
                lines = content.splitlines()
                number = draw(st.integers(0, max(0, len(lines) - 1)))
                if lines and (line := draw(altered_json(lines[number]))) is not None:
                    lines[number] = json.dumps(line).encode()
                    path.write_bytes(b"\n".join([*lines, b""]))
            case "values" if path.name.startswith("checkpoint"):
                changed.add(rewrite_checkpoint(draw, path))
            case _:
                path.write_bytes(draw(damaged(content, JSON_TOKENS)))
    return changed


def altered_json(content: bytes) -> st.SearchStrategy[Any]:
    try:
        return altered_trees(json.loads(content)) | JSON_VALUES
    except (ValueError, RecursionError):
        return JSON_VALUES


def rewrite_checkpoint(draw: st.DrawFn, path: Path) -> Path:
    """Change a checkpoint's facts, and name the file after its new hash, as only someone would on purpose."""
    content = path.read_bytes()
    try:
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        facts = draw(altered_json(header["__metadata__"]["paperbench"].encode()))
        header["__metadata__"]["paperbench"] = json.dumps(facts)
    except (ValueError, KeyError, TypeError, RecursionError):
        return path
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + content[8 + size :]
    path.unlink()
    new = path.with_name(f"{path.name.rpartition('-')[0]}-{sha256(content).hexdigest()[:16]}.safetensors")
    new.write_bytes(content)
    return new


@contextmanager
def damaged_copy(untouched: Path, place: Path, data: st.DataObject) -> Iterator[set[Path]]:
    """Make a copy of the world with a damaged results directory the current directory; yield the changed files."""
    world = place / "world"
    shutil.rmtree(world, ignore_errors=True)
    world.mkdir()
    for name in ("experiments", "expected"):
        (world / name).symlink_to(untouched / name)
    shutil.copytree(untouched / "results", world / "results")
    with chdir(world):
        yield data.draw(damages(Path("results")))


def call(*command: str) -> int:
    """Run a command that must end soon, in little memory, and print nothing that commands a terminal."""
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output), limit_seconds(60), limit_address_space():
        code = main(command)
    assert not UNPRINTABLE.search(output.getvalue())
    return code


def contents(results: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}


@share_of_examples(4)
@given(data=st.data(), form=st.sampled_from([*FORMATS]), long=st.booleans())
def test_damaged_results_are_verified_and_compared(
    untouched: Path, place: Path, data: st.DataObject, form: str, long: bool
) -> None:
    with damaged_copy(untouched, place, data):
        before = contents(Path("results"))
        as_json = ("--format", "json") * long
        assert call(*VERIFY, *as_json) in (0, 1, 2)
        assert call("status", *COMPARE[1:], *as_json) == 0
        assert call(*COMPARE, "--format", form, *["--long"] * long) in (0, 1)
        assert contents(Path("results")) == before


@share_of_examples(12)
@given(data=st.data())
def test_run_loses_nothing_of_damaged_results(untouched: Path, place: Path, data: st.DataObject) -> None:
    with damaged_copy(untouched, place, data) as changed:
        before = contents(Path("results"))
        assert call(*RUN) in (0, 2)
        after = contents(Path("results"))
    harmed = {path.parent for path in changed}
    finished = {path.parent for path in before if path.name == "model.safetensors"}
    for path, content in before.items():
        if path.parent in finished - harmed or not path.is_relative_to("results/runs"):
            assert after.get(path) == content
        if path in changed and path.name == "record.json" and content not in after.values():
            Record.from_json(content)  # only an undamaged record is replaced
