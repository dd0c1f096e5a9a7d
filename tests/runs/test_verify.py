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
from paperbench.specs.recipe import Drops, Recipe
from paperbench.training.trainer import Trainer
from tests.runs.running import CPU, assert_same, go, planned, tiny


@pytest.fixture(scope="module")
def finished(
    paper_recipe: Recipe, small_dataset: object, tmp_path_factory: pytest.TempPathFactory
) -> tuple[PlannedRun, Path]:
    run, root = planned(tiny(paper_recipe), small_dataset), tmp_path_factory.mktemp("finished")
    go(run, root)
    return run, root


@pytest.fixture
def store(finished: tuple[PlannedRun, Path], tmp_path: Path) -> Store:
    """A store with one finished run, for a test to spoil."""
    shutil.copytree(finished[1], tmp_path / "results")
    return Store(tmp_path / "results")


@pytest.fixture
def directory(store: Store) -> RunDirectory:
    (directory,) = store.directories()
    return directory


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
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause before runs with problems are verified again."""
    monkeypatch.setattr("paperbench.runs.verify._PAUSE_SECONDS", 0)


def test_what_a_run_leaves_is_sound(store: Store, directory: RunDirectory) -> None:
    assert verify(store) == [VerifiedRun("finished", [], [], record_of(directory))]


@pytest.mark.parametrize("stop_at", [3, 13])
def test_what_a_paused_run_leaves_is_sound(run: PlannedRun, tmp_path: Path, stop_at: int) -> None:
    drops = Drops((10,), 0.1)  # right after a line of history
    go(planned(replace(run.recipe, drops=drops), run.dataset), tmp_path, stop_at=stop_at)
    assert [(found.status, found.problems) for found in verify(Store(tmp_path))] == [("partial", [])]


def test_a_diverged_run_is_sound(run: PlannedRun, tmp_path: Path) -> None:
    go(planned(replace(run.recipe, learning_rate=1e30, warm_up=None), run.dataset), tmp_path)
    assert [(found.status, found.problems) for found in verify(Store(tmp_path))] == [("diverged", [])]


@pytest.mark.parametrize(
    ("part", "values", "is_signed", "message"),
    [
        ("result", {"test_error": 6.37}, False, "does not have the sha256 of its values"),
        ("result", {"moving_average_test_error": 6.37}, True, "its last or its best test error is not that of"),
        ("result", {"moving_average_test_loss": 6.37}, True, "its last or its best test error is not that of"),
        ("result", {"best_test_error": 6.37}, True, "its last or its best test error is not that of"),
        ("spec", {"profile": "smoke"}, True, "its spec and seed give"),
    ],
)
def test_an_edited_record_shows(
    store: Store, directory: RunDirectory, part: str, values: dict[str, object], is_signed: bool, message: str
) -> None:
    record = json.loads(directory.record_file.read_text())
    checksum = record.pop("sha256")
    record[part].update(values)
    if is_signed:
        checksum = hashlib.sha256(json.dumps(record, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    directory.record_file.write_text(json.dumps({**record, "sha256": checksum}))
    assert message in problem(store)


def test_a_spec_of_no_recipe_shows(store: Store, directory: RunDirectory) -> None:
    record = record_of(directory)
    odd = replace(record.spec, recipe={**record.spec.recipe, "momentum": 2.0})
    target = store.directory(odd.run_id(0))
    directory.path.rename(target.path)
    target.write_record(replace(record, spec=odd, run=odd.run_id(0)))
    assert "has a spec that no table makes: momentum: must be below 1" in problems(store)[0]


def rewrite_history(change: Callable[[str], str]) -> Callable[[RunDirectory], object]:
    return lambda run: run.history_file.write_text(change(run.history_file.read_text()))


def cut_checkpoint(run: RunDirectory) -> None:
    (file,) = run.checkpoints.newest_first()
    file.path.write_bytes(file.read()[:-1])


def vouch_for(change: Callable[[list[HistoryLine]], list[HistoryLine]]) -> Callable[[RunDirectory], object]:
    """Give the run another history, and its record the hash of that."""

    def spoil(run: RunDirectory) -> None:
        lines = change(run.history())
        run.settle_history(lines)
        record, digest = record_of(run), hashlib.sha256(history_bytes(lines)).hexdigest()
        run.write_record(replace(record, files=replace(record.files, history_lines=len(lines), history_sha256=digest)))

    return spoil


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            rewrite_history(lambda text: text.replace('"train_loss":2.', '"train_loss":1.', 1)),
            "was edited: its first",
        ),
        (rewrite_history(lambda text: text + "{}\n"), "has 1 lines that were added"),
        (lambda run: run.history_file.unlink(), "was cut short: it has 0 of the 4 lines"),
        (vouch_for(lambda lines: [replace(lines[0], lr=0.2), *lines[1:]]), ":1: lr is 0.2, and the recipe has 0.1."),
        (
            vouch_for(lambda lines: [*lines[:-1], replace(lines[-1], iteration=21)]),
            ":4: iteration is 21, and the record is at 20.",
        ),
        (cut_checkpoint, "does not hold what was written: its hash is another."),
        (lambda run: run.checkpoints.write(19, run.checkpoints.newest_first()[0].read()), "is not of the iteration in"),
        (
            lambda run: shutil.copytree(run.path, run.path.with_name("0123456789ab-s0")),
            "Rename the folder to match, or move it away.",
        ),
    ],
)
def test_files_that_are_not_as_the_run_left_them_show(
    store: Store, directory: RunDirectory, spoil: Callable[[RunDirectory], object], message: str
) -> None:
    spoil(directory)
    assert message in problems(store)[0]


def test_a_damaged_line_that_a_run_in_progress_added_shows(run: PlannedRun, tmp_path: Path) -> None:
    directory, _ = go(run, tmp_path, stop_at=8)
    with open(directory.history_file, "a") as stream:
        stream.write("{}\n")
    assert f"{directory.history_file}:2: iteration: is missing." in problem(Store(tmp_path))


def test_a_checkpoint_of_another_run_shows(store: Store, directory: RunDirectory, run: PlannedRun) -> None:
    other, _ = go(replace(run, seed=1), store.root, stop_at=2)
    shutil.copy(other.checkpoints.newest_first()[0].path, directory.path)
    assert f"belongs to run {other.path.name}." in problem(store)


def test_weights_of_an_ended_run_need_not_be_there(store: Store, directory: RunDirectory) -> None:
    """Published results may leave them out."""
    directory.checkpoints.newest_first()[0].path.unlink()
    assert problems(store) == []


def test_a_paused_run_without_its_checkpoint_shows(run: PlannedRun, tmp_path: Path) -> None:
    directory, _ = go(run, tmp_path, stop_at=8)
    directory.checkpoints.newest_first()[0].path.unlink()
    assert "is missing: the run cannot resume from where its record is." in problem(Store(tmp_path))


def test_a_run_that_cannot_be_read_hides_no_other(
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


def test_what_a_killed_process_left_or_set_aside_is_remarked(store: Store, directory: RunDirectory) -> None:
    (directory.path / "record.json.1-2.tmp").touch()
    directory.checkpoints.set_aside(directory.checkpoints.newest_first()[0])
    (found,) = verify(store)
    assert found.problems == []
    temporary, aside = found.remarks
    assert aside.endswith(".damaged was set aside as damaged.")
    assert temporary.endswith("record.json.1-2.tmp is what a killed process was writing: it can be deleted.")


def test_a_run_that_is_being_written_is_looked_at_again(
    store: Store, directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = directory.record_file.read_bytes()
    directory.record_file.write_bytes(record[:-7])
    monkeypatch.setattr("paperbench.runs.verify.time.sleep", lambda _: directory.record_file.write_bytes(record))
    assert problems(store) == []


def test_the_remedy_for_a_damaged_history_works(
    finished: tuple[PlannedRun, Path], store: Store, directory: RunDirectory
) -> None:
    directory.history_file.unlink()
    assert "move record.json away, and `paperbench run` makes both again." in problem(store)
    directory.record_file.rename(directory.path / "elsewhere.json")
    go(finished[0], store.root)
    assert problems(store) == []
    assert_same(directory, Store(finished[1]).directories()[0])


def repeated(run: PlannedRun, record: Record, history: list[HistoryLine], seed: int = 0) -> Rerun:
    return rerun_prefix(record, history, run.dataset, CPU, random.Random(seed))


def test_the_beginning_of_a_run_repeats_bit_for_bit(finished: tuple[PlannedRun, Path], directory: RunDirectory) -> None:
    record, history = record_of(directory), directory.history()
    lengths = set()
    for seed in range(8):
        rerun = repeated(finished[0], record, history, seed)
        assert (rerun.is_identical, rerun.is_same_machine, rerun.deviation, rerun.holds) == (True, True, 0.0, True)
        lengths.add(rerun.iterations)
    assert lengths == {5, 10, 15}


@pytest.mark.parametrize("change", [{"train_loss": 1.5}, {"train_error": 1.0}])
def test_a_record_of_other_numbers_does_not_hold(
    finished: tuple[PlannedRun, Path], directory: RunDirectory, change: dict[str, float]
) -> None:
    history = directory.history()
    history[0] = replace(history[0], **change)
    rerun = repeated(finished[0], record_of(directory), history)
    assert not rerun.is_identical
    assert not rerun.holds


def first_session(record: Record, **changes: Any) -> Record:
    """The record with other facts about its first session."""
    session = record.sessions[0]
    code, environment = (
        replace(part, **{key: changes.pop(key) for key in list(changes) if hasattr(part, key)})
        for part in (session.code, session.environment)
    )
    first = replace(session, code=code, environment=environment, **changes)
    return replace(record, sessions=(first, replace(first, last=record.iteration)))


def test_elsewhere_a_little_difference_is_allowed_and_a_large_one_is_not(
    finished: tuple[PlannedRun, Path], directory: RunDirectory
) -> None:
    record = first_session(record_of(directory), device="another CPU")
    history = directory.history()
    for factor, holds in ((1.01, True), (1.05, False)):
        changed = [replace(line, train_loss=line.train_loss * factor) for line in history]
        rerun = repeated(finished[0], record, changed)
        assert (rerun.is_same_machine, rerun.is_identical, rerun.holds) == (False, False, holds)
        assert rerun.deviation == pytest.approx(1 - 1 / factor)


def test_threads_are_those_of_the_record(finished: tuple[PlannedRun, Path], directory: RunDirectory) -> None:
    before = torch.get_num_threads()
    rerun = repeated(finished[0], first_session(record_of(directory), threads=before + 1), directory.history())
    assert rerun.is_same_machine
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("session", "message"),
    [({"numerics": 0}, "it has numerics version 0"), ({"last": 4}, "its first session wrote no line")],
)
def test_what_cannot_be_repeated_says_why(
    finished: tuple[PlannedRun, Path], directory: RunDirectory, session: dict[str, int], message: str
) -> None:
    with pytest.raises(NotRepeatableError, match=message):
        repeated(finished[0], first_session(record_of(directory), **session), directory.history())


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
def test_a_run_is_repeated_on_its_engine_where_there_is_one(
    finished: tuple[PlannedRun, Path],
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
    rerun = repeated(finished[0], first_session(record_of(directory), engine=recorded), directory.history())
    assert engines == [trains]
    assert (rerun.is_same_machine, rerun.is_identical) == (is_same_machine, True)
