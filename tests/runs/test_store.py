from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paperbench.errors import PaperbenchError
from paperbench.runs.record import RecordError
from paperbench.runs.store import HistoryLine, RunBusyError, RunDirectory, Store
from tests.helpers import ROOT, a_record


def line(iteration: int, test_error: float | None = None) -> HistoryLine:
    return HistoryLine(iteration, iteration / 390.625, 0.1, 2.25, 87.5, None, test_error, iteration * 0.5)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    directory = Store(tmp_path).directory("abc-s0")
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
    run.write_record(a_record(status="partial", result=None))
    run.write_record(a_record())
    assert run.read_record() == a_record()
    assert [p.name for p in run.path.iterdir()] == ["record.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"schema": 2}'])
def test_a_damaged_record_is_named_with_what_to_do(run: RunDirectory, content: bytes) -> None:
    run.record_file.write_bytes(content)
    with pytest.raises(RecordError) as caught:
        run.read_record()
    assert str(caught.value).startswith(str(run.record_file))
    assert "Restore the file, or delete it: the same `paperbench run` then makes it again" in str(caught.value)


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
    assert "Restore the file, or delete it: the run goes on without" in str(caught.value)


def test_a_history_of_bytes_that_are_no_text_is_named(run: RunDirectory) -> None:
    run.history_file.write_bytes(b"\xff\xff\n")
    with pytest.raises(PaperbenchError, match=r"history\.jsonl cannot be read .*Restore the file"):
        run.history()


@pytest.mark.parametrize(
    ("iteration", "left"), [(0, []), (99, []), (100, [100]), (250, [100, 200]), (900, [100, 200, 300])]
)
def test_cutting_a_history_drops_what_came_after_an_iteration(
    run: RunDirectory, iteration: int, left: list[int]
) -> None:
    for one in (100, 200, 300):
        run.append_history(line(one))
    run.cut_history(iteration)
    assert run.history() == [line(one) for one in left]
    run.append_history(line(iteration + 1))
    assert run.history()[-1] == line(iteration + 1)


def test_cutting_drops_a_line_cut_short_so_that_the_next_stands_alone(run: RunDirectory) -> None:
    run.history_file.write_text(line(100).to_json() + '{"iteration": 2', encoding="utf-8")
    run.cut_history(100)
    run.append_history(line(200))
    assert run.history() == [line(100), line(200)]


def test_cutting_where_there_is_no_history_leaves_none(run: RunDirectory) -> None:
    run.cut_history(0)
    assert run.history() == []


HOLDER = """
import sys
from pathlib import Path
from paperbench.runs.store import RunDirectory
assert "torch" not in sys.modules
with RunDirectory(Path(sys.argv[1])).claimed():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_run_held_by_another_process_is_busy_until_that_ends(run: RunDirectory) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", HOLDER, str(run.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RunBusyError, match="is in use by another paperbench process"), run.claimed():
            pytest.fail("held by both")
        holder.kill()
        holder.wait()
    with run.claimed():
        pass


def test_a_claim_makes_the_folder_and_can_be_taken_again(tmp_path: Path) -> None:
    directory = Store(tmp_path / "results").directory("abc-s0")
    for _ in range(2):
        with directory.claimed():
            assert directory.path.is_dir()


def test_a_claim_clears_what_a_killed_process_was_writing(run: RunDirectory) -> None:
    with run.claimed():
        (run.path / "checkpoint.pt.123.tmp").write_text("half a checkpoint")
        run.checkpoint_file.write_text("a whole one")
    with run.claimed():
        assert not list(run.path.glob("*.tmp"))
        assert run.checkpoint_file.read_text() == "a whole one"


@pytest.mark.parametrize("error", [FileNotFoundError(2, "No such file"), TimeoutError("slow"), RuntimeError("x")])
def test_an_error_during_a_claim_is_not_mistaken_for_one_of_claiming(run: RunDirectory, error: Exception) -> None:
    with pytest.raises(type(error)) as caught, run.claimed():
        raise error
    assert caught.value is error
    with run.claimed():
        pass


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    directory = Store(tmp_path / "file").directory("abc-s0")
    assert directory.read_record() is None
    message = r"cannot be written: Not a directory\. Make room or choose another folder"
    with pytest.raises(PaperbenchError, match=message), directory.claimed():
        pytest.fail("claimed")
    with pytest.raises(PaperbenchError, match=message):
        directory.write_record(a_record())
    with pytest.raises(PaperbenchError, match=message):
        directory.append_history(line(1))


def test_a_store_gives_its_readable_records_and_complains_of_the_others(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.records().records == []
    records = sorted([a_record(seed=seed) for seed in (0, 1)], key=lambda record: record.run)
    for record in records:
        with store.directory(record.run).claimed():
            store.directory(record.run).write_record(record)
    with store.directory("begun-s0").claimed():
        pass
    with store.directory("damaged-s0").claimed():
        store.directory("damaged-s0").record_file.write_text("{")
    with store.directory("copied-s0").claimed():
        store.directory("copied-s0").write_record(records[0])
    (tmp_path / "runs" / "notes.txt").touch()
    found = store.records()
    assert found.records == records
    copied, damaged = found.complaints
    assert f"copied-s0 holds the record of run {records[0].run}. Rename the folder to match." in copied
    assert "damaged-s0" in damaged
    assert "is no JSON" in damaged
