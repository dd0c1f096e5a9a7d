"""The choice of the engine of a run."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from paperbench.errors import EngineError, PaperbenchError
from paperbench.runs.limits import Limits
from paperbench.runs.planning import PlannedRun
from paperbench.runs.resume import Checkpoint
from paperbench.runs.store import RunDirectory
from paperbench.training.engines import ENGINES
from paperbench.training.graph import GraphEngine
from paperbench.training.memory import memory_needed
from paperbench.training.trainer import Trainer
from tests.runs.running import Log, assert_same, edit_checkpoint, train
from tests.training.tape import Tape


def test_engine_is_reported_and_recorded(run: PlannedRun, tmp_path: Path) -> None:
    directory, log = train(run, tmp_path)
    assert log.engine == ("eager", "the fastest on a CPU")
    record = directory.read_record()
    assert record
    assert [s.engine for s in record.sessions] == ["eager"]


@pytest.mark.parametrize(("engine", "message"), [("graph", "CUDA graphs need"), ("fast", "Unknown engine 'fast'")])
def test_unavailable_engine_is_an_error(run: PlannedRun, tmp_path: Path, engine: str, message: str) -> None:
    with pytest.raises(PaperbenchError, match=message):
        train(run, tmp_path, engine=engine)
    assert list((tmp_path / "leases").iterdir()) == []
    assert not (tmp_path / "runs").exists()


def set_engine(directory: RunDirectory, engine: str) -> None:
    """Change the engine of the last session in the checkpoint of a paused run."""

    def change(checkpoint: Checkpoint) -> Checkpoint:
        *sessions, last = checkpoint.facts.sessions
        return replace(checkpoint, facts=replace(checkpoint.facts, sessions=(*sessions, replace(last, engine=engine))))

    edit_checkpoint(directory, change)


@pytest.mark.parametrize("engine", ["eager", "graph", "streams"])
def test_engines_of_equal_bits_resume_each_other(
    run: PlannedRun, expected: RunDirectory, tmp_path: Path, engine: str
) -> None:
    directory, _ = train(run, tmp_path, stop_at=8)
    set_engine(directory, engine)
    directory, log = train(run, tmp_path)
    assert ([s.engine for s in log.record.sessions], log.warnings) == ([engine, "eager"], [])
    assert_same(directory, expected)


def test_run_of_the_former_compile_goes_on_by_request_and_warns(run: PlannedRun, tmp_path: Path) -> None:
    directory, _ = train(run, tmp_path, stop_at=8)
    set_engine(directory, "compile")
    _, log = train(run, tmp_path)
    assert "last trained with engine compile" in log.failure
    _, log = train(run, tmp_path, engine="eager")
    (warning,) = log.warnings
    assert "threads, engine compile; resumes with torch" in warning
    assert "not bit-identical" in warning
    assert [s.engine for s in log.record.sessions] == ["compile", "eager"]


Capture = Callable[[torch.device], Any]


@pytest.fixture
def _captures_work_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "graph", ENGINES["graph"]._replace(why_not=lambda _: None))


def captures(capture: Capture = lambda _: Tape(), trainer: type[Trainer] = Trainer) -> dict[str, Any]:
    """The setting of a session in which tapes, or another capture, stand for CUDA graphs."""
    return {"new_trainer": partial(trainer, capture=capture)}


@pytest.mark.usefixtures("_captures_work_here")
def test_sound_engine_is_taken_after_a_comparison(run: PlannedRun, expected: RunDirectory, tmp_path: Path) -> None:
    """In each session: it may be on another machine."""
    for stop in (3, None):
        directory, log = train(run, tmp_path, stop_at=stop, setting=captures())
        assert log.checks == ["graph"]
    assert [session.fallback for session in log.record.sessions] == [None, None]
    assert_same(directory, expected)


class Wrong(Tape):
    """Replays nothing."""

    def record(self, body: Callable[[], None]) -> Callable[[], None]:
        super().record(body)
        return lambda: None


def fails(kind: type[Exception], text: str) -> Capture:
    def capture(_: torch.device) -> Any:
        raise kind(text)

    return capture


@pytest.mark.usefixtures("_captures_work_here")
@pytest.mark.parametrize(
    ("capture", "reason"),
    [
        (
            fails(RuntimeError, "CUDA error: no luck in /folder/of/mine\nmore"),
            "RuntimeError: CUDA error: no luck in [path]",
        ),
        (fails(EngineError, "no capture (/folder/of/mine/x.cpp:3: no such file)"), "no capture ([path] no such file)"),
        (fails(torch.OutOfMemoryError, "CUDA out of memory."), "OutOfMemoryError: CUDA out of memory."),
        (lambda _: Wrong(), "The first steps of engine graph are not those of eager on this machine (step 1: loss"),
    ],
)
def test_eager_is_taken_and_the_reason_recorded(
    run: PlannedRun, expected: RunDirectory, tmp_path: Path, capture: Capture, reason: str
) -> None:
    made: list[weakref.ref[Trainer]] = []

    class Watched(Trainer):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            assert [one() for one in made] == [None] * len(made), "the memory of the one before is free"
            made.append(weakref.ref(self))
            super().__init__(*arguments, **options)

    directory, log = train(run, tmp_path, stop_at=8, setting=captures(capture, Watched))
    assert len(made) == 2
    assert log.engine[0] == "eager"
    assert log.engine[1].startswith(f"engine graph was not used: {reason}")
    assert log.record.sessions[0].fallback == log.engine[1]
    _, log = train(run, tmp_path, setting=captures())
    assert [session.fallback is None for session in log.record.sessions] == [False, True]
    assert_same(directory, expected)


@pytest.mark.usefixtures("_captures_work_here")
def test_eager_is_taken_where_only_its_memory_is_free(run: PlannedRun, expected: RunDirectory, tmp_path: Path) -> None:
    """It keeps one group, and the captured step all."""
    free = memory_needed(run.net, run.recipe, "fp32", run.side, recompute=True)
    directory, log = train(run, tmp_path, setting={**captures(), "memory_free": lambda _: free})
    (warning,) = log.warnings
    assert "it trains with engine eager and the backward pass recomputes the residual units, which needs" in warning
    (session,) = log.record.sessions
    assert (session.engine, session.fallback) == ("eager", log.engine[1])
    assert session.fallback == "engine graph was not used: the memory is too short for it"
    assert_same(directory, expected)


@pytest.mark.usefixtures("_captures_work_here")
def test_eager_goes_on_where_the_memory_runs_out(run: PlannedRun, expected: RunDirectory, tmp_path: Path) -> None:
    class Exhausting(Trainer):
        def step(self, rate: float | None = None) -> None:
            if self.iteration == 9 and isinstance(self._engine, GraphEngine):
                torch.empty(2**60, dtype=torch.uint8)
            super().step(rate)

    directory, log = train(run, tmp_path, setting=captures(trainer=Exhausting))
    changes = "the backward pass recomputes the residual units", "it trains with engine eager"
    assert all(change in warning for change, warning in zip(changes, log.warnings, strict=True))
    assert log.record.sessions[-1].engine == "eager"
    assert_same(directory, expected)


@pytest.mark.usefixtures("_captures_work_here")
def test_engine_asked_for_by_name_fails_with_the_reason(run: PlannedRun, tmp_path: Path) -> None:
    """It does not stop other runs."""
    directory, log = train(run, tmp_path, engine="graph", setting=captures(lambda _: Wrong()))
    assert "The first steps of engine graph are not those of eager on this machine (step 1: loss" in log.failure
    assert "takes the fastest engine that works with `--engine auto`" in log.failure
    assert directory.read_record() is None


@pytest.mark.usefixtures("_captures_work_here")
def test_signal_during_the_comparison_leaves_no_run(run: PlannedRun, tmp_path: Path) -> None:
    limits = Limits()

    class Stopping(Log):
        def checking(self, run: PlannedRun, engine: str, processes: int) -> None:
            super().checking(run, engine, processes)
            limits.signal = 15

    directory, log = train(run, tmp_path, limits, Stopping(), setting=captures())
    assert (log.checks, log.records, log.failures) == (["graph"], [], [])
    assert not directory.path.exists()
    assert list((tmp_path / "leases").iterdir()) == []
