from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paperbench.errors import PaperbenchError
from paperbench.runs.history import HistoryLine, history_bytes
from paperbench.runs.record import ForeignRecordError, RecordError
from paperbench.runs.store import RunDirectory, Store
from tests.helpers import a_record, write_record


def line(iteration: int, test_error: float | None = None) -> HistoryLine:
    return HistoryLine(iteration, iteration / 390.625, 0.1, 2.25, 87.5, None, test_error, iteration * 0.5)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = Store(tmp_path).directory(a_record().run)
    directory.path.mkdir(parents=True)
    return directory


def test_a_run_has_a_folder_under_runs(tmp_path: Path) -> None:
    directory = Store(tmp_path).directory("abc-s0")
    assert directory.record_file == tmp_path / "runs" / "abc-s0" / "record.json"
    assert directory.history_file == tmp_path / "runs" / "abc-s0" / "history.jsonl"
    assert not directory.path.exists(), "looking does not make it"
    assert directory.read_record() is None
    assert directory.history() == []


def test_a_record_is_written_and_read_back(run: RunDirectory) -> None:
    run.write_record(a_record(status="partial"))
    run.write_record(a_record())
    assert run.read_record() == a_record()
    assert [p.name for p in run.path.iterdir()] == ["record.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe"])
def test_a_damaged_record_is_named_with_what_to_do(run: RunDirectory, content: bytes) -> None:
    run.record_file.write_bytes(content)
    with pytest.raises(RecordError) as caught:
        run.read_record()
    assert str(caught.value).startswith(str(run.record_file))
    assert "Restore the file; where there is a checkpoint, the same `paperbench run` makes it again." in str(
        caught.value
    )


def test_a_record_of_another_schema_or_run_is_not_called_damaged(run: RunDirectory) -> None:
    run = RunDirectory(run.path.rename(run.path.with_name("abc-s0")))
    run.record_file.write_text('{"schema": 4}')
    with pytest.raises(ForeignRecordError, match=r"has schema 4, .* Use the version that wrote it, or another folder"):
        run.read_record()
    run.write_record(a_record())
    with pytest.raises(ForeignRecordError, match=f"holds the record of run {a_record().run}"):
        run.read_record()


def test_history_lines_come_back_in_order(run: RunDirectory) -> None:
    lines = [line(100), line(200, 12.5), replace(line(300), train_loss=None, train_error=None)]
    for one in lines:
        run.append_history(one)
    assert run.history() == lines
    assert len(run.history_file.read_text(encoding="utf-8").splitlines()) == 3


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_last_line_cut_short_is_left_out(run: RunDirectory, cut: int) -> None:
    run.append_history(line(100))
    run.append_history(line(200))
    text = run.history_file.read_text(encoding="utf-8")
    run.history_file.write_text(text[:-cut], encoding="utf-8")
    assert run.history() == [line(100)]


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        ("{", "is no JSON"),
        ("", "is no JSON"),
        ("[1]", "line is no object"),
        ("3", "line is no object"),
        ('{"iteration": 1}', "line lacks the key 'epoch'"),
        (line(1).to_json().strip().replace("lr", "rate"), "line has an unknown key 'rate'"),
        (line(1).to_json().strip().replace(": 1,", ': "1",'), "line.iteration is '1', which is no whole number"),
        (line(1).to_json().strip().replace("2.25", "NaN"), "NaN is no number of JSON"),
    ],
)
def test_a_damaged_line_before_the_last_is_named(run: RunDirectory, damaged: str, message: str) -> None:
    run.history_file.write_text(line(100).to_json() + damaged + "\n" + line(300).to_json(), encoding="utf-8")
    with pytest.raises(PaperbenchError) as caught:
        run.history()
    assert str(caught.value).startswith(f"{run.history_file}:2 is no history line: ")
    assert message in str(caught.value)
    assert "Restore it; or move record.json away, and `paperbench run` makes both again" in str(caught.value)


def test_a_history_of_bytes_that_are_no_text_is_named(run: RunDirectory) -> None:
    run.history_file.write_bytes(b"\xff\xff\n")
    with pytest.raises(PaperbenchError, match=r"history\.jsonl:1 is no text .*Restore it; or move"):
        run.history()


LINES = [line(100), line(200)]


@pytest.mark.parametrize(
    "found",
    [
        None,
        "",
        history_bytes(LINES[:1]),
        history_bytes(LINES),
        history_bytes([*LINES, line(300)]),
        history_bytes(LINES) + b'{"iteration": 2',
        history_bytes(LINES[::-1]),
        b"\xff",
    ],
)
def test_settling_a_history_makes_it_what_it_should_be(run: RunDirectory, found: bytes | None) -> None:
    if found:
        run.history_file.write_bytes(found)
    run.settle_history(LINES)
    assert run.history() == LINES
    run.append_history(line(300))
    assert run.history() == [*LINES, line(300)]
    assert [path.name for path in run.path.iterdir()] == ["history.jsonl"]


def test_a_line_for_a_folder_that_vanished_waits_for_the_settling(tmp_path: Path) -> None:
    directory = Store(tmp_path).directory("abc-s0")
    directory.append_history(line(100))
    assert not directory.path.exists()
    directory.settle_history(LINES)
    assert directory.history() == LINES


def test_leftovers_of_a_killed_process_are_cleared_and_nothing_else(run: RunDirectory) -> None:
    (run.path / "checkpoint-8-0123456789abcdef.pt.123.tmp").write_text("half a checkpoint")
    (run.path / "notes.txt").write_text("mine")
    run.clear_leftovers()
    assert [path.name for path in run.path.iterdir()] == ["notes.txt"]


def test_a_superseded_run_is_kept_under_a_free_name(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in (1, 2):
        write_record(store, a_record(), "abc-s0")
        assert store.supersede("abc-s0") == tmp_path / "superseded" / f"abc-s0-{number}"
        assert not store.directory("abc-s0").path.exists()
    assert store.records().records == []


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    directory = Store(tmp_path / "file").directory("abc-s0")
    assert directory.read_record() is None
    message = r"cannot be written: Not a directory\. Choose another folder"
    with pytest.raises(PaperbenchError, match=message):
        directory.write_record(a_record())
    with pytest.raises(PaperbenchError, match=message):
        directory.append_history(line(1))


def test_a_store_gives_its_readable_records_and_complains_of_the_others(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.records().records == []
    records = sorted([a_record(seed=seed) for seed in (0, 1)], key=lambda record: record.run)
    for record in records:
        write_record(store, record)
    store.directory("begun-s0").path.mkdir()
    write_record(store, records[0], "damaged-s0").record_file.write_text("{")
    write_record(store, records[0], "copied-s0")
    (tmp_path / "runs" / "notes.txt").touch()
    found = store.records()
    assert found.records == records
    copied, damaged = found.complaints
    assert f"copied-s0 holds the record of run {records[0].run}. Rename the folder to match, or move it away." in copied
    assert "damaged-s0" in damaged
    assert "is no JSON" in damaged
