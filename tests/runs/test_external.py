from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from paperbench.errors import PaperbenchError
from paperbench.runs import external
from paperbench.runs.external import ExternalResult, read_externals, write_external
from paperbench.runs.record import RecordError
from tests.fuzz.strategies import JSON_TOKENS, damaged, hundreds, refused

RESULT = ExternalResult(1, "external", "table2", "preact/resnet110", "", "ab" * 32, 3, 6.41, "A. Author, arXiv:1234")
SOURCE = hashlib.sha256(b"A. Author, arXiv:1234").hexdigest()[:8]
REMEDY = "Restore it; or delete it, and enter the result again (`paperbench record`)."


def edited(path: Path, *, sign: bool = True, **values: Any) -> None:
    """Change a result, with the checksum of the new values or the old one."""
    value = {**json.loads(path.read_text()), **values}
    checksum = value.pop("sha256")
    value = {key: item for key, item in value.items() if item is not ...}
    if sign:
        checksum = hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    path.write_text(json.dumps({**value, "sha256": checksum}))


def only_complaint(root: Path) -> str:
    results, (complaint,) = read_externals(root)
    assert results == []
    return complaint


def test_a_folder_without_results_has_none(tmp_path: Path) -> None:
    assert read_externals(tmp_path) == ([], [])
    assert list(tmp_path.iterdir()) == [], "looking makes no folder"


@pytest.mark.parametrize(
    "result",
    [
        RESULT,
        replace(RESULT, error=None),
        replace(RESULT, error=0.0, seed=0, setting="gate_bias=-3"),
        replace(RESULT, error=100.0, source="Müller (2019), «Übung», Tab. 1"),
    ],
)
def test_a_result_comes_back_as_it_was(tmp_path: Path, result: ExternalResult) -> None:
    write_external(tmp_path, result)
    assert read_externals(tmp_path) == ([result], [])


def test_the_file_is_named_by_experiment_source_and_seed_and_signed_at_its_end(tmp_path: Path) -> None:
    path = write_external(tmp_path, RESULT)
    assert path == tmp_path / "external" / f"abababababab-{SOURCE}-s3.json"
    value = json.loads(path.read_text())
    assert list(value) == [
        *("schema", "kind", "table", "cell", "setting", "experiment", "seed", "error", "source", "sha256"),
    ]
    del value["sha256"]
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    assert json.loads(path.read_text())["sha256"] == hashlib.sha256(canonical.encode()).hexdigest()


def test_results_of_other_experiments_sources_and_seeds_stand_beside_each_other_in_order(tmp_path: Path) -> None:
    results = [
        RESULT,
        replace(RESULT, seed=20),
        replace(RESULT, source="B. Author"),
        replace(RESULT, cell="preact/resnet164", experiment="cd" * 32),
    ]
    for result in reversed(results):
        write_external(tmp_path, result)
    assert read_externals(tmp_path) == (results, [])


def test_the_same_result_again_changes_nothing(tmp_path: Path) -> None:
    path = write_external(tmp_path, RESULT)
    before = path.stat()
    assert write_external(tmp_path, replace(RESULT, table="table3", cell="pre/resnet110")) == path
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert read_externals(tmp_path) == ([RESULT], [])


@pytest.mark.parametrize(
    ("there", "entered", "message"),
    [
        (6.41, 6.5, "already: 6.41 %, where you enter 6.5 %. If that was wrong, delete the file"),
        (6.41, None, "already: 6.41 %, where you enter diverged."),
        (None, 7.0, "already: diverged, where you enter 7.0 %."),
    ],
)
def test_another_error_of_the_same_run_is_refused(
    tmp_path: Path, there: float | None, entered: float | None, message: str
) -> None:
    path = write_external(tmp_path, replace(RESULT, error=there))
    before = path.read_bytes()
    with pytest.raises(PaperbenchError) as caught:
        write_external(tmp_path, replace(RESULT, error=entered))
    assert str(caught.value).startswith(f"{path} holds the result of seed 3 from 'A. Author, arXiv:1234' {message}")
    assert path.read_bytes() == before


def test_another_error_that_arrives_while_one_is_written_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = external.write_atomically

    def late(path: Path, data: bytes, guard: Any) -> None:
        monkeypatch.setattr(external, "write_atomically", write)
        write_external(tmp_path, replace(RESULT, error=6.5))
        write(path, data, guard)

    monkeypatch.setattr(external, "write_atomically", late)
    with pytest.raises(PaperbenchError, match=r"already: 6\.5 %, where you enter 6\.41 %"):
        write_external(tmp_path, RESULT)
    assert read_externals(tmp_path) == ([replace(RESULT, error=6.5)], [])
    assert len(list((tmp_path / "external").iterdir())) == 1


def test_two_sources_with_one_file_name_do_not_replace_each_other(tmp_path: Path) -> None:
    path = write_external(tmp_path, RESULT)
    other = replace(RESULT, experiment=RESULT.experiment[:12] + "c" * 52)
    assert other.file_name == RESULT.file_name
    with pytest.raises(PaperbenchError, match=r"would have the same file name\. Word the source differently"):
        write_external(tmp_path, other)
    assert read_externals(tmp_path) == ([RESULT], [])
    assert path.exists()


def test_a_damaged_file_is_not_replaced_by_entering_the_result_again(tmp_path: Path) -> None:
    path = write_external(tmp_path, RESULT)
    path.write_text("{")
    with pytest.raises(PaperbenchError, match=r"is no JSON .* delete it, .*Nothing was entered\."):
        write_external(tmp_path, RESULT)
    assert path.read_text() == "{"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"error": 101}, "error: must be at most 100, not 101."),
        ({"error": -0.5}, "error: must be at least 0"),
        ({"error": "6.41"}, "error: must be a number, not '6.41'."),
        ({"error": True}, "error: must be a number"),
        ({"seed": 3.0}, "seed: must be a whole number"),
        ({"seed": -1}, "seed: must be at least 0"),
        ({"seed": 2**63}, "seed: must be below 9223372036854775808"),
        ({"source": None}, "source: must be text"),
        ({"source": ""}, "source must be one line of text without space around it, not ''."),
        ({"source": " x"}, "source must be one line of text"),
        ({"source": "x\ny"}, "source must be one line of text"),
        ({"source": "x\ty"}, "source must be one line of text"),
        ({"source": "x\u2028y"}, "source must be one line of text"),
        ({"source": "x\x1b[2Jy"}, "source: must be text without control characters"),
        ({"source": "x\ud800"}, "is no JSON"),
        ({"kind": "run"}, "kind: must be 'external', not 'run'."),
        ({"experiment": "../x"}, "experiment: must be text that matches ^[0-9a-f]{64}$"),
        ({"eror": 5.0}, "eror: unknown key. Did you mean 'error'?"),
        ({"error": ...}, "error: is missing."),
    ],
)
def test_values_of_no_result_are_left_out_and_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write_external(tmp_path, RESULT)
    edited(path, **changes)
    complaint = only_complaint(tmp_path)
    assert complaint.startswith(f"{path} ")
    assert message in complaint
    assert complaint.endswith(REMEDY)


@pytest.mark.parametrize("changes", [{"error": 6.14}, {"cell": "original/resnet110"}])
def test_an_edited_result_is_left_out_and_named(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = write_external(tmp_path, RESULT)
    edited(path, sign=False, **changes)
    assert only_complaint(tmp_path) == (
        f"{path} does not have the sha256 of its values: it was edited or damaged. {REMEDY}"
    )


def test_a_result_of_another_schema_is_left_out_and_not_called_damaged(tmp_path: Path) -> None:
    path = write_external(tmp_path, RESULT)
    edited(path, schema=2)
    assert only_complaint(tmp_path) == (
        f"{path} has schema 2, and this version of paperbench reads 1. Use the version that wrote it, or move the "
        "file away."
    )


def test_a_copy_under_another_name_counts_once(tmp_path: Path) -> None:
    path = write_external(tmp_path, RESULT)
    copy = path.with_name(path.name.replace("-s3", "-s4"))
    shutil.copy(path, copy)
    results, (complaint,) = read_externals(tmp_path)
    assert results == [RESULT]
    assert complaint.startswith(f"{copy} holds the result that belongs into {path.name}: it is a copy, or was renamed.")
    assert "Delete it" in complaint


def test_a_signed_change_of_the_seed_shows_by_the_name(tmp_path: Path) -> None:
    path = write_external(tmp_path, RESULT)
    edited(path, seed=4)
    assert f"belongs into abababababab-{SOURCE}-s4.json" in only_complaint(tmp_path)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_bytes(b"\xff\xfe"),
        lambda path: path.write_bytes(b"0" * 10_000_001),
        Path.mkdir,
        lambda path: path.symlink_to("/nowhere"),
        os.mkfifo,
    ],
    ids=["no text", "huge", "folder", "link", "pipe"],
)
def test_what_holds_no_result_leaves_the_others_alone(tmp_path: Path, make: Any) -> None:
    write_external(tmp_path, RESULT)
    odd = tmp_path / "external" / "odd.json"
    make(odd)
    results, (complaint,) = read_externals(tmp_path)
    assert results == [RESULT]
    assert complaint.startswith(f"{odd} ")
    assert complaint.endswith(REMEDY)


def test_what_a_killed_process_was_writing_is_passed_over(tmp_path: Path) -> None:
    path = write_external(tmp_path, RESULT)
    path.with_name(path.name + ".123-ab.tmp").write_text("{")
    assert read_externals(tmp_path) == ([RESULT], [])


def test_a_folder_that_cannot_be_listed_is_told(tmp_path: Path) -> None:
    (tmp_path / "external").touch()
    with pytest.raises(PaperbenchError, match=r"external cannot be read: Not a directory\. Check its permissions"):
        read_externals(tmp_path)


@hundreds(2)
@given(content=damaged(RESULT.to_json().encode(), JSON_TOKENS).map(lambda data: data.decode(errors="replace")))
def test_a_damaged_result_is_refused_or_the_same(content: str) -> None:
    if not refused(RecordError, ExternalResult.from_json, content):
        assert ExternalResult.from_json(content) == RESULT
