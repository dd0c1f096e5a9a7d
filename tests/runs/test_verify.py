from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from paperbench.runs.history import HistoryLine, history_bytes
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Record
from paperbench.runs.rerun import NotRepeatableError, Rerun, rerun_prefix
from paperbench.runs.store import RunDirectory, Store
from paperbench.runs.verify import VerifiedRun, verify
from paperbench.specs.recipe import Drops
from paperbench.training.trainer import Trainer
from tests.helpers import json_with_hash
from tests.runs.running import CPU, plan_run, train


@pytest.fixture
def directory(finished: RunDirectory) -> RunDirectory:
    return finished


@pytest.fixture
def store(directory: RunDirectory) -> Store:
    return Store(directory.path.parents[1])


def record_of(directory: RunDirectory) -> Record:
    record = directory.read_record()
    assert record
    return record


def problems(store: Store) -> list[str]:
    return [problem for run in verify(store) for problem in run.problems]


def problem(store: Store) -> str:
    (text,) = problems(store)
    return text


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the pause before a run with problems is verified again."""
    monkeypatch.setattr("paperbench.runs.verify._PAUSE_SECONDS", 0)


def test_finished_run_verifies(store: Store, directory: RunDirectory) -> None:
    assert verify(store) == [VerifiedRun("finished", [], [], record_of(directory))]


def test_paused_run_verifies(run: PlannedRun, tmp_path: Path) -> None:
    drops = Drops((10,), 0.1)  # right after a line of history
    train(plan_run(replace(run.recipe, drops=drops), run.dataset), tmp_path, stop_at=13)
    assert [(found.status, found.problems) for found in verify(Store(tmp_path))] == [("partial", [])]


def test_diverged_run_verifies(run: PlannedRun, tmp_path: Path) -> None:
    train(plan_run(replace(run.recipe, learning_rate=1e30, warm_up=None), run.dataset), tmp_path)
    assert [(found.status, found.problems) for found in verify(Store(tmp_path))] == [("diverged", [])]


@pytest.mark.parametrize(
    ("key", "update_hash", "message"),
    [
        ("test_error", False, "does not have the sha256 of its values"),
        ("moving_average_test_loss", True, "its last or best test error differs"),
        ("best_test_error", True, "its last or best test error differs"),
    ],
)
def test_edited_record_is_found(
    store: Store, directory: RunDirectory, key: str, update_hash: bool, message: str
) -> None:
    record = json.loads(directory.record_file.read_text())
    record["result"][key] = 6.37
    directory.record_file.write_text(json_with_hash(record) if update_hash else json.dumps(record))
    assert message in problem(store)


def test_invalid_spec_is_found(store: Store, directory: RunDirectory) -> None:
    record = record_of(directory)
    odd = replace(record.spec, recipe={**record.spec.recipe, "momentum": 2.0})
    target = store.directory(odd.run_id(0))
    directory.path.rename(target.path)
    target.write_record(replace(record, spec=odd, run=odd.run_id(0)))
    assert "has an invalid spec: momentum: must be below 1" in problems(store)[0]


def cut_checkpoint(run: RunDirectory) -> None:
    (file,) = run.checkpoints.newest_first()
    file.path.write_bytes(file.read()[:-1])


def edit_history(change: Callable[[list[HistoryLine]], list[HistoryLine]]) -> Callable[[RunDirectory], object]:
    """Edit the history, and update its hash in the record."""

    def damage(run: RunDirectory) -> None:
        lines = change(run.history())
        run.write_history(lines)
        record, digest = record_of(run), hashlib.sha256(history_bytes(lines)).hexdigest()
        run.write_record(replace(record, files=replace(record.files, history_lines=len(lines), history_sha256=digest)))

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: run.history_file.unlink(), "was cut short: it has 0 of the 4 lines"),
        (edit_history(lambda lines: [replace(lines[0], lr=0.2), *lines[1:]]), ":1: lr is 0.2, but the recipe has 0.1."),
        (
            edit_history(lambda lines: [*lines[:-1], replace(lines[-1], iteration=21)]),
            ":4: iteration is 21, but the record is at 20.",
        ),
        (cut_checkpoint, "is damaged: its hash does not match its name."),
        (
            lambda run: run.checkpoints.write(19, run.checkpoints.newest_first()[0].read()),
            "contains a different iteration from",
        ),
        (
            lambda run: shutil.copytree(run.path, run.path.with_name("0123456789ab-s0")),
            "Rename the directory to match, or move it away.",
        ),
    ],
)
def test_changed_files_are_found(
    store: Store, directory: RunDirectory, damage: Callable[[RunDirectory], object], message: str
) -> None:
    damage(directory)
    assert message in problems(store)[0]


def test_damaged_line_of_unfinished_run_is_found(run: PlannedRun, tmp_path: Path) -> None:
    directory, _ = train(run, tmp_path, stop_at=8)
    with open(directory.history_file, "a") as stream:
        stream.write("{}\n")
    assert f"{directory.history_file}:2: iteration: is missing." in problem(Store(tmp_path))


def test_checkpoint_of_another_run_is_found(store: Store, directory: RunDirectory, run: PlannedRun) -> None:
    other, _ = train(replace(run, seed=1), store.root, stop_at=2)
    shutil.copy(other.checkpoints.newest_first()[0].path, directory.path)
    assert f"belongs to run {other.path.name}." in problem(store)


def test_checkpoint_of_finished_run_may_be_missing(store: Store, directory: RunDirectory) -> None:
    directory.checkpoints.newest_first()[0].path.unlink()
    assert problems(store) == []


def test_missing_checkpoint_of_paused_run_is_found(run: PlannedRun, tmp_path: Path) -> None:
    directory, _ = train(run, tmp_path, stop_at=8)
    directory.checkpoints.newest_first()[0].path.unlink()
    assert "is missing: the run cannot resume." in problem(Store(tmp_path))


def test_unreadable_run_does_not_hide_others(
    store: Store, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = directory.path.parent / "0-s0"
    locked.mkdir()
    (locked / "record.json").write_text("{")
    listing = Path.iterdir

    def forbidden(self: Path) -> object:
        if self == locked:
            raise PermissionError(13, "Permission denied")
        return listing(self)

    monkeypatch.setattr(Path, "iterdir", forbidden)
    unreadable, sound = verify(store)
    assert unreadable.problems == [f"{locked} cannot be read: Permission denied. Check its permissions."]
    assert sound.record == record_of(directory)


def test_temporary_and_damaged_files_are_remarks(store: Store, directory: RunDirectory) -> None:
    (directory.path / "record.json.1-2.tmp").touch()
    directory.checkpoints.set_aside(directory.checkpoints.newest_first()[0])
    (found,) = verify(store)
    assert found.problems == []
    temporary, aside = found.remarks
    assert aside.endswith(".damaged was set aside as damaged.")
    assert temporary.endswith("record.json.1-2.tmp is incomplete: a killed process left it. You can delete it.")


def test_run_with_problems_is_checked_twice(
    store: Store, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = directory.record_file.read_bytes()
    directory.record_file.write_bytes(record[:-7])
    monkeypatch.setattr("paperbench.runs.verify.time.sleep", lambda _: directory.record_file.write_bytes(record))
    assert problems(store) == []


def repeated(run: PlannedRun, record: Record, history: list[HistoryLine], seed: int = 0) -> Rerun:
    return rerun_prefix(record, history, run.dataset, CPU, random.Random(seed))


def test_rerun_is_bit_identical(run: PlannedRun, directory: RunDirectory) -> None:
    record, history = record_of(directory), directory.history()
    lengths = set()
    for seed in range(5):
        rerun = repeated(run, record, history, seed)
        assert (rerun.is_identical, rerun.is_same_machine, rerun.deviation, rerun.holds) == (True, True, 0.0, True)
        lengths.add(rerun.iterations)
    assert len(lengths) > 1


def test_rerun_contradicts_edited_numbers(run: PlannedRun, directory: RunDirectory) -> None:
    history = directory.history()
    history[0] = replace(history[0], train_error=1.0)
    rerun = repeated(run, record_of(directory), history)
    assert not rerun.is_identical
    assert not rerun.holds


def first_session(record: Record, **changes: Any) -> Record:
    """Return the record with changes to its first session."""
    session = record.sessions[0]
    code, environment = (
        replace(part, **{key: changes.pop(key) for key in list(changes) if hasattr(part, key)})
        for part in (session.code, session.environment)
    )
    first = replace(session, code=code, environment=environment, **changes)
    return replace(record, sessions=(first, replace(first, last=record.iteration)))


def test_rerun_on_other_machine_allows_small_differences(run: PlannedRun, directory: RunDirectory) -> None:
    record = first_session(record_of(directory), device="another CPU")
    history = directory.history()
    for factor, holds in ((1.01, True), (1.05, False)):
        changed = [replace(line, train_loss=line.train_loss * factor) for line in history]
        rerun = repeated(run, record, changed)
        assert (rerun.is_same_machine, rerun.is_identical, rerun.holds) == (False, False, holds)
        assert rerun.deviation == pytest.approx(1 - 1 / factor)


def test_rerun_uses_recorded_thread_count(run: PlannedRun, directory: RunDirectory) -> None:
    before = torch.get_num_threads()
    rerun = repeated(run, first_session(record_of(directory), threads=before + 1), directory.history())
    assert rerun.is_same_machine
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("session", "message"),
    [({"numerics": 0}, "it has numerics version 0"), ({"last": 4}, "its first session logged no history line")],
)
def test_run_that_cannot_be_rerun_says_why(
    run: PlannedRun, directory: RunDirectory, session: dict[str, int], message: str
) -> None:
    with pytest.raises(NotRepeatableError, match=message):
        repeated(run, first_session(record_of(directory), **session), directory.history())


@pytest.mark.parametrize(
    ("recorded", "has_it", "trains", "is_same_machine"),
    [
        ("eager", False, "eager", True),
        ("graph", False, "eager", True),
        ("compile", False, "eager", False),
        ("compile", True, "compile", True),
        ("of the future", False, "eager", False),
    ],
)
def test_rerun_uses_recorded_engine_if_available(
    run: PlannedRun,
    directory: RunDirectory,
    monkeypatch: pytest.MonkeyPatch,
    recorded: str,
    has_it: bool,
    trains: str,
    is_same_machine: bool,
) -> None:
    engines: list[str] = []

    def training(*arguments: object, engine: str) -> Trainer:
        engines.append(engine)
        return Trainer(*arguments)

    here = {"eager": None, "graph": "no GPU", "compile": None if has_it else "no compiler"}
    monkeypatch.setattr("paperbench.runs.rerun.available_engines", lambda _: here)
    monkeypatch.setattr("paperbench.runs.rerun.Trainer", training)
    rerun = repeated(run, first_session(record_of(directory), engine=recorded), directory.history())
    assert engines == [trains]
    assert (rerun.is_same_machine, rerun.is_identical) == (is_same_machine, True)
