"""Which engine a run trains on, and what is told of it."""

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
from tests.runs.running import CPU, assert_same, go


def test_the_engine_is_told_and_recorded(run: PlannedRun, tmp_path: Path) -> None:
    directory, log = go(run, tmp_path)
    choice = choose_engine("auto", CPU, run.recipe.iterations)
    assert log.engine == (choice.name, choice.reason)
    record = directory.read_record()
    assert record
    assert [s.engine for s in record.sessions] == ["eager"]


@pytest.mark.parametrize(("engine", "message"), [("graph", "CUDA graphs need"), ("fast", "Unknown engine 'fast'")])
def test_an_engine_that_there_is_not_ends_the_command(
    run: PlannedRun, tmp_path: Path, engine: str, message: str
) -> None:
    with pytest.raises(PaperbenchError, match=message):
        go(run, tmp_path, engine=engine)
    assert list((tmp_path / "leases").iterdir()) == []
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the choice of an engine was asked for, each time."""
    calls: list[tuple[Any, ...]] = []

    def choosing(wanted: str, device: object, iterations: int, earlier: str | None = None) -> EngineChoice:
        calls.append((wanted, device, iterations, earlier))
        return choose_engine("eager", CPU, iterations)

    monkeypatch.setattr(session_module, "choose_engine", choosing)
    return calls


def test_the_choice_knows_the_wish_the_length_of_the_run_and_how_it_was_begun(
    run: PlannedRun, tmp_path: Path, asked: list[tuple[Any, ...]]
) -> None:
    directory, _ = go(run, tmp_path, stop_at=3)
    go(run, tmp_path, stop_at=4, engine="eager")
    set_engine(directory, "compile")
    go(run, tmp_path)
    assert asked == [("auto", CPU, 20, None), ("eager", CPU, 20, "eager"), ("auto", CPU, 20, "compile")]


def set_engine(directory: RunDirectory, engine: str) -> None:
    """Change what the checkpoint of a paused run says of the engine of its last session."""
    files = directory.checkpoints.newest_first()
    checkpoint = Checkpoint.from_bytes(files[0].read(), directory.path.name)
    *sessions, last = checkpoint.facts.sessions
    facts = replace(checkpoint.facts, sessions=(*sessions, replace(last, engine=engine)))
    for file in files:
        file.path.unlink()
    directory.checkpoints.write(checkpoint.iteration, replace(checkpoint, facts=facts).to_bytes())


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(("engine", "is_remarked"), [("eager", False), ("graph", False), ("compile", True)])
def test_to_go_on_with_an_engine_of_other_arithmetic_is_remarked(
    run: PlannedRun, whole: RunDirectory, tmp_path: Path, engine: str, is_remarked: bool
) -> None:
    directory, _ = go(run, tmp_path, stop_at=8)
    set_engine(directory, engine)
    directory, log = go(run, tmp_path)
    assert [s.engine for s in log.record.sessions] == [engine, "eager"]
    if is_remarked:
        (warning,) = log.warnings
        assert "threads, engine compile; resumes with torch" in warning
        assert "not bit for bit" in warning
    else:
        assert log.warnings == []
    assert_same(directory, whole)


def test_the_engine_of_the_choice_is_the_one_that_trains(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The untrained twin that a search for a divergence may start from is the one that takes the least memory."""
    made = []
    original = session_module.Trainer

    def noting(*arguments: Any, engine: str) -> Any:
        made.append(engine)
        return original(*arguments, engine="eager")

    monkeypatch.setattr(session_module, "choose_engine", lambda *_: EngineChoice("compile", "a test"))
    monkeypatch.setattr(session_module, "Trainer", noting)
    hot = replace(run, recipe=replace(run.recipe, learning_rate=1e30, warm_up=None))
    go(hot, tmp_path, stop_at=4)
    _, log = go(hot, tmp_path)
    assert log.record.status == "diverged"
    assert made == ["compile", "compile", "eager"]


@pytest.mark.skipif(available_engines(CPU)["compile"] is not None, reason="needs a C++ compiler")
def test_a_compiled_run_paused_and_continued_is_the_uninterrupted_one(
    run: PlannedRun, tmp_path: Path, full: bool
) -> None:
    if not full:
        pytest.skip("--full: Inductor takes its time")
    whole, _ = go(run, tmp_path / "whole", engine="compile")
    go(run, tmp_path / "part", engine="compile", stop_at=7)
    part, log = go(run, tmp_path / "part")
    assert log.engine[0] == "compile"
    assert [s.engine for s in log.record.sessions] == ["compile", "compile"]
    assert_same(part, whole)
