from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paperbench.errors import PaperbenchError
from paperbench.runs.external import ExternalResult, read_externals, write_external
from tests.helpers import json_with_hash

RESULT = ExternalResult(1, "external", "table2", "preact/resnet110", "", "ab" * 32, 3, 6.41, "A. Author, arXiv:1234")
SOURCE = hashlib.sha256(b"A. Author, arXiv:1234").hexdigest()[:8]
FOREIGN_REMEDY = "Use the version that wrote it, or move the file away."
REMEDY = "Restore it; or delete it and enter the result again (`paperbench record`)."


def edit_result(path: Path, **values: Any) -> None:
    """Change values in a file, and update their hash."""
    path.write_text(json_with_hash({**json.loads(path.read_text()), **values}))


def only_complaint(root: Path) -> str:
    results, (complaint,) = read_externals(root)
    assert results == []
    return complaint


def test_external_file_name_and_hash(tmp_path: Path) -> None:
    path = write_external(tmp_path, RESULT)
    assert path == tmp_path / "external" / f"abababababab-{SOURCE}-s3.json"
    value = json.loads(path.read_text())
    assert list(value) == [
        *("schema", "kind", "table", "cell", "setting", "experiment", "seed", "error", "source", "sha256"),
    ]
    assert json.loads(json_with_hash(value)) == value


def test_external_results_are_read_in_order(tmp_path: Path) -> None:
    results = [
        RESULT,
        replace(RESULT, seed=20, error=None),
        replace(RESULT, source="Müller (2019), «Übung», Tab. 1", error=100.0),
        replace(RESULT, cell="preact/resnet164", experiment="cd" * 32),
    ]
    for result in reversed(results):
        write_external(tmp_path, result)
    assert read_externals(tmp_path) == (results, [])
    assert read_externals(tmp_path / "nowhere") == ([], [])


def test_entering_a_result_twice_changes_nothing(tmp_path: Path) -> None:
    path = write_external(tmp_path, RESULT)
    before = path.stat()
    assert write_external(tmp_path, replace(RESULT, table="table3", cell="pre/resnet110")) == path
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert read_externals(tmp_path) == ([RESULT], [])


@pytest.mark.parametrize(
    ("there", "entered", "message"),
    [
        (6.41, 6.5, "already: 6.41 %, where you enter 6.5 %. If that was wrong, delete the file"),
        (None, 7.0, "already: diverged, where you enter 7.0 %."),
    ],
)
def test_contradicting_result_is_refused(
    tmp_path: Path, there: float | None, entered: float | None, message: str
) -> None:
    path = write_external(tmp_path, replace(RESULT, error=there))
    before = path.read_bytes()
    with pytest.raises(PaperbenchError) as caught:
        write_external(tmp_path, replace(RESULT, error=entered))
    assert str(caught.value).startswith(f"{path} holds the result of seed 3 from 'A. Author, arXiv:1234' {message}")
    assert path.read_bytes() == before


def test_concurrent_contradicting_result_is_not_overwritten(tmp_path: Path) -> None:
    class Late(ExternalResult):
        def to_json(self) -> str:
            write_external(tmp_path, replace(RESULT, error=6.5))
            return super().to_json()

    with pytest.raises(PaperbenchError, match=r"already: 6\.5 %, where you enter 6\.41 %"):
        write_external(tmp_path, Late(**vars(RESULT)))
    assert read_externals(tmp_path) == ([replace(RESULT, error=6.5)], [])
    assert len(list((tmp_path / "external").iterdir())) == 1


def test_damaged_result_is_not_overwritten(tmp_path: Path) -> None:
    path = write_external(tmp_path, RESULT)
    path.write_text("{")
    with pytest.raises(PaperbenchError, match=r"is not JSON .* delete it .*Nothing was entered\."):
        write_external(tmp_path, RESULT)
    assert path.read_text() == "{"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"error": 101}, "error: must be at most 100, not 101."),
        ({"source": ""}, "source: must not be empty."),
        ({"source": "x\ny"}, "source: must be one line of text without control characters, not 'x\\ny'."),
        ({"source": "x\u2028y"}, "source: must be one line of text"),
        ({"kind": "run"}, "kind: must be 'external', not 'run'."),
        ({"experiment": "../x"}, "experiment: must be text that matches ^[0-9a-f]{64}$"),
        ({"schema": 2}, "has schema 2, and this version of paperbench reads 1."),
    ],
)
def test_invalid_result_is_left_out_with_complaint(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write_external(tmp_path, RESULT)
    edit_result(path, **changes)
    complaint = only_complaint(tmp_path)
    assert complaint.startswith(f"{path} ")
    assert message in complaint
    assert complaint.endswith(FOREIGN_REMEDY if "schema" in changes else REMEDY)


def test_renamed_copy_counts_once(tmp_path: Path) -> None:
    path = write_external(tmp_path, RESULT)
    copy = path.with_name(path.name.replace("-s3", "-s4"))
    shutil.copy(path, copy)
    results, (complaint,) = read_externals(tmp_path)
    assert results == [RESULT]
    assert complaint.startswith(f"{copy} holds what belongs in {path.name}: it was copied or renamed.")


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (lambda path: path.write_bytes(b"\xff\xfe"), REMEDY),
        (Path.mkdir, "Restore it or make it readable, then repeat the command."),
        (lambda path: path.symlink_to("nowhere"), REMEDY),
    ],
    ids=["not UTF-8", "directory", "dangling link"],
)
def test_unreadable_files_do_not_hide_other_results(tmp_path: Path, make: Any, remedy: str) -> None:
    path = write_external(tmp_path, RESULT)
    path.with_name(path.name + ".123-ab.tmp").write_text("{")  # is ignored
    odd = tmp_path / "external" / "odd.json"
    make(odd)
    results, (complaint,) = read_externals(tmp_path)
    assert results == [RESULT]
    assert complaint.startswith(f"{odd} ")
    assert complaint.endswith(remedy)


def test_unreadable_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "external").touch()
    with pytest.raises(PaperbenchError, match=r"external cannot be read: Not a directory\. Check its permissions"):
        read_externals(tmp_path)
