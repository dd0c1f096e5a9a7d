from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from paperbench.errors import PaperbenchError, RunError
from paperbench.runs.hashed import ForeignRecordError, RecordError
from paperbench.runs.history import HISTORY_REMEDY, HistoryLine, history_bytes
from paperbench.runs.record import Record
from paperbench.runs.store import RunDirectory, Store
from tests.helpers import a_record, write_record


def line(iteration: int, test_error: float | None = None) -> HistoryLine:
    return HistoryLine(iteration, iteration / 390.625, 0.1, 2.25, 87.5, None, test_error, iteration * 0.5)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = Store(tmp_path).directory(a_record().run)
    directory.path.mkdir(parents=True)
    return directory


def test_paths_of_a_run(tmp_path: Path) -> None:
    directory = Store(tmp_path).directory("abc-s0")
    assert directory.record_file == tmp_path / "runs" / "abc-s0" / "record.json"
    assert directory.history_file == tmp_path / "runs" / "abc-s0" / "history.jsonl"
    assert not directory.path.exists(), "it is created on demand"
    assert directory.read_record() is None
    assert directory.history() == []


def test_unreadable_record_is_an_error(run: RunDirectory) -> None:
    run.record_file.mkdir()
    with pytest.raises(RunError, match=r"record\.json cannot be read: .* Restore it or make it readable") as caught:
        run.read_record()
    assert not isinstance(caught.value, RecordError), "it may be sound"


def test_record_of_other_schema_or_run_is_foreign(run: RunDirectory) -> None:
    run = RunDirectory(run.path.rename(run.path.with_name("abc-s0")))
    run.record_file.write_text('{"schema": 5}')
    with pytest.raises(ForeignRecordError, match=r"has schema 5, .* Use the version that wrote it, or another results"):
        run.read_record()
    run.write_record(a_record())
    with pytest.raises(
        ForeignRecordError, match=f"holds what belongs in {a_record().run}/record.json: it was copied or renamed"
    ):
        run.read_record()


LINES = [line(100), line(200)]


@pytest.mark.parametrize(
    "found",
    [None, history_bytes(LINES[:1]), history_bytes(LINES), history_bytes([*LINES, line(300)]), b"\xff"],
    ids=["missing", "short", "right", "long", "damaged"],
)
def test_write_history_replaces_any_contents(run: RunDirectory, found: bytes | None) -> None:
    if found:
        run.history_file.write_bytes(found)
    run.write_history(LINES)
    assert run.history() == LINES
    run.append_history(line(300))
    assert run.history() == [*LINES, line(300)]
    assert [path.name for path in run.path.iterdir()] == ["history.jsonl"]


def test_line_is_never_appended_to_the_file_of_a_successor(run: RunDirectory) -> None:
    """The check comes first, but the process may be suspended after it."""
    successor = RunDirectory(run.path)
    run.write_history(LINES[:1])
    successor.write_history(LINES)
    run.append_history(line(300))
    assert run.history() == LINES


def test_only_temporary_files_are_cleared(run: RunDirectory) -> None:
    (run.path / "checkpoint-8-0123456789abcdef.safetensors.123-0123abcd.tmp").write_text("half a checkpoint")
    (run.path / "thesis.tmp").write_text("mine")
    run.clear_leftovers()
    assert [path.name for path in run.path.iterdir()] == ["thesis.tmp"]


@pytest.mark.parametrize("link", ["runs", "runs/abc-s0", "leases", "superseded"])
def test_nothing_is_written_through_a_link(tmp_path: Path, link: str) -> None:
    """The results directory of somebody else may link to one of mine."""
    store, mine = Store(tmp_path / "results"), tmp_path / "mine"
    mine.mkdir()
    (store.root / link).parent.mkdir(parents=True)
    (store.root / link).symlink_to(mine)
    with pytest.raises(RunError, match=f"{link} is a link, and nothing is written through"):  # noqa: PT012
        assert store.lease("abc-s0").acquire()
        directory = store.directory("abc-s0", lambda: None)
        directory.write_history(LINES)
        directory.supersede()
    assert list(mine.iterdir()) == []


def test_superseded_runs_get_unique_names(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in (1, 2):
        write_record(store, a_record(), "abc-s0")
        assert store.directory("abc-s0").supersede() == tmp_path / "superseded" / f"abc-s0-{number}"
        assert not store.directory("abc-s0").path.exists()
    assert store.records() == ([], [])


def test_unwritable_results_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    directory = Store(tmp_path / "file").directory("abc-s0")
    assert directory.read_record() is None
    message = r"cannot be written: Not a directory\. Choose another directory"
    with pytest.raises(PaperbenchError, match=message):
        directory.write_record(a_record())
    with pytest.raises(PaperbenchError, match=message):
        directory.write_history([line(1)])


def with_history(store: Store, lines: list[HistoryLine], **changes: Any) -> Record:
    """Write a record and the history that it was written with."""
    record, data = a_record(**changes), history_bytes(lines)
    files = replace(record.files, history_lines=len(lines), history_sha256=sha256(data).hexdigest())
    record = replace(record, files=files)
    write_record(store, record).history_file.write_bytes(data)
    return record


def append(store: Store, record: Record, new: HistoryLine) -> None:
    with open(store.directory(record.run).history_file, "ab") as stream:
        stream.write(history_bytes([new]))


def test_damaged_records_are_reported_beside_the_others(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.records() == ([], [])
    records = [with_history(store, LINES, seed=seed) for seed in (0, 1)]
    at_work = with_history(store, LINES, seed=2, status="partial")
    append(store, at_work, line(300))
    store.directory("begun-s0").path.mkdir()
    (tmp_path / "runs" / "notes.txt").touch()
    write_record(store, records[0], "damaged-s0").record_file.write_text("{")
    write_record(store, records[0], "copied-s0")
    found, (copied, damaged) = store.records()
    assert found == sorted([*records, at_work], key=lambda record: record.run)
    assert f"copied-s0/record.json holds what belongs in {records[0].run}/record.json: it was copied" in copied
    assert damaged.startswith(f"{store.directory('damaged-s0').record_file} is not JSON")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda file: file.write_bytes(history_bytes([line(99), LINES[1]])), "was edited: its first 2 lines are not"),
        (lambda file: os.truncate(file, 200_000_001), "its 200,000,001 bytes are more than"),
    ],
    ids=["edited", "huge"],
)
def test_record_with_damaged_history_is_left_out(tmp_path: Path, spoil: Callable[[Path], object], message: str) -> None:
    store = Store(tmp_path)
    sound, spoilt = (with_history(store, LINES, seed=seed) for seed in (0, 1))
    file = store.directory(spoilt.run).history_file
    spoil(file)
    found, (complaint,) = store.records()
    assert found == [sound]
    assert complaint.startswith(f"{file} ")
    assert message in complaint
    assert complaint.endswith(f" {HISTORY_REMEDY}")


def test_training_mean_ends_at_the_record(tmp_path: Path) -> None:
    store = Store(tmp_path)
    lines = [replace(line(i), train_loss=float(i), train_error=i / 2) for i in (10, 20, 30, 40)]
    record = with_history(store, lines, status="partial")
    append(store, record, line(60))
    assert store.training_mean(record, "train_loss", 10, 30) == 25.0
    assert store.training_mean(record, "train_error", 0, 40) == 12.5
    assert store.training_mean(record, "train_loss", 30, 60) is None


def test_training_mean_of_diverged_run_is_infinite(tmp_path: Path) -> None:
    store = Store(tmp_path)
    lines = [line(3), line(5), replace(line(7), train_loss=None, train_error=None)]
    record = with_history(store, lines, status="diverged")
    assert store.training_mean(record, "train_loss", 0, 5) == 2.25
    for after, upto in ((0, 7), (5, 40), (10, 40)):
        assert store.training_mean(record, "train_loss", after, upto) == math.inf
    tested = with_history(store, [line(40), line(80)], status="diverged", iteration=80, seed=1)
    assert store.training_mean(tested, "train_loss", 0, 80) == 2.25, "only the final test failed"
