"""The choice of the engine of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paperbench.errors import PaperbenchError
from paperbench.runs import session as session_module
from paperbench.runs.planning import PlannedRun
from paperbench.runs.resume import Checkpoint
from paperbench.runs.store import RunDirectory
from paperbench.training.engine import EngineChoice, available_engines, choose_engine
from tests.runs.running import CPU, assert_same, edit_checkpoint, train


def test_engine_is_reported_and_recorded(run: PlannedRun, tmp_path: Path) -> None:
    directory, log = train(run, tmp_path)
    choice = choose_engine("auto", CPU, run.recipe.iterations)
    assert log.engine == (choice.name, choice.reason)
    record = directory.read_record()
    assert record
    assert [s.engine for s in record.sessions] == ["eager"]


@pytest.mark.parametrize(("engine", "message"), [("graph", "CUDA graphs need"), ("fast", "Unknown engine 'fast'")])
def test_unavailable_engine_is_an_error(run: PlannedRun, tmp_path: Path, engine: str, message: str) -> None:
    with pytest.raises(PaperbenchError, match=message):
        train(run, tmp_path, engine=engine)
    assert list((tmp_path / "leases").iterdir()) == []
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Records the arguments of each choice of an engine."""
    calls: list[tuple[Any, ...]] = []

    def choosing(wanted: str, device: object, iterations: int, earlier: str | None = None) -> EngineChoice:
        calls.append((wanted, device, iterations, earlier))
        return choose_engine("eager", CPU, iterations)

    monkeypatch.setattr(session_module, "choose_engine", choosing)
    return calls


def test_engine_choice_gets_request_length_and_earlier_engine(
    run: PlannedRun, tmp_path: Path, asked: list[tuple[Any, ...]]
) -> None:
    directory, _ = train(run, tmp_path, stop_at=3)
    train(run, tmp_path, stop_at=4, engine="eager")
    set_engine(directory, "compile")
    train(run, tmp_path)
    assert asked == [("auto", CPU, 20, None), ("eager", CPU, 20, "eager"), ("auto", CPU, 20, "compile")]


def set_engine(directory: RunDirectory, engine: str) -> None:
    """Change the engine of the last session in the checkpoint of a paused run."""

    def change(checkpoint: Checkpoint) -> Checkpoint:
        *sessions, last = checkpoint.facts.sessions
        return replace(checkpoint, facts=replace(checkpoint.facts, sessions=(*sessions, replace(last, engine=engine))))

    edit_checkpoint(directory, change)


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(("engine", "warns"), [("eager", False), ("graph", False), ("compile", True)])
def test_resuming_with_other_arithmetic_warns(
    run: PlannedRun, expected: RunDirectory, tmp_path: Path, engine: str, warns: bool
) -> None:
    directory, _ = train(run, tmp_path, stop_at=8)
    set_engine(directory, engine)
    directory, log = train(run, tmp_path)
    assert [s.engine for s in log.record.sessions] == [engine, "eager"]
    if warns:
        (warning,) = log.warnings
        assert "threads, engine compile; resumes with torch" in warning
        assert "not bit-identical" in warning
    else:
        assert log.warnings == []
    assert_same(directory, expected)


def test_chosen_engine_trains_and_replay_is_eager(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer of a replay is eager, which takes the least memory."""
    made = []
    original = session_module.Trainer

    def record(*arguments: Any, engine: str) -> Any:
        made.append(engine)
        return original(*arguments, engine="eager")

    monkeypatch.setattr(session_module, "choose_engine", lambda *_: EngineChoice("compile", "a test"))
    monkeypatch.setattr(session_module, "Trainer", record)
    hot = replace(run, recipe=replace(run.recipe, learning_rate=1e30, warm_up=None))
    train(hot, tmp_path, stop_at=4)
    _, log = train(hot, tmp_path)
    assert log.record.status == "diverged"
    assert made == ["compile", "compile", "eager"]


@pytest.mark.full
@pytest.mark.skipif(available_engines(CPU)["compile"] is not None, reason="needs a C++ compiler")
def test_resumed_compiled_run_equals_uninterrupted_one(run: PlannedRun, tmp_path: Path) -> None:
    expected, _ = train(run, tmp_path / "uninterrupted", engine="compile")
    train(run, tmp_path / "part", engine="compile", stop_at=7)
    part, log = train(run, tmp_path / "part")
    assert log.engine[0] == "compile"
    assert [s.engine for s in log.record.sessions] == ["compile", "compile"]
    assert_same(part, expected)
