"""The choice of the engine of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paperbench.errors import PaperbenchError
from paperbench.runs import session as session_module
from paperbench.runs.limits import Limits
from paperbench.runs.planning import PlannedRun
from paperbench.runs.resume import Checkpoint
from paperbench.runs.store import RunDirectory
from paperbench.training import trainer as trainer_module
from paperbench.training.batch_norm import GroupedBatchNorm2d
from paperbench.training.engine import EngineChoice, EngineError, available_engines, engine_candidates
from tests.runs.running import CPU, Log, assert_same, edit_checkpoint, train
from tests.training.tape import Tape


def test_engine_is_reported_and_recorded(run: PlannedRun, tmp_path: Path) -> None:
    directory, log = train(run, tmp_path)
    (choice,) = engine_candidates("auto", CPU, run.recipe.iterations)
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
    """Records the arguments of each choice of an engine; all runs are eager."""
    calls: list[tuple[Any, ...]] = []

    def choosing(
        wanted: str, device: object, iterations: int, *, has_dropout: bool, earlier: str | None
    ) -> list[EngineChoice]:
        calls.append((wanted, device, iterations, has_dropout, earlier))
        return engine_candidates("eager", CPU, iterations)

    monkeypatch.setattr(session_module, "engine_candidates", choosing)
    return calls


def test_engine_choice_gets_request_net_and_earlier_engine(
    run: PlannedRun, tmp_path: Path, asked: list[tuple[Any, ...]]
) -> None:
    directory, _ = train(run, tmp_path, stop_at=3)
    train(run, tmp_path, stop_at=4, engine="eager")
    set_engine(directory, "compile")
    train(run, tmp_path)
    assert asked == [
        ("auto", CPU, 20, False, None),
        ("eager", CPU, 20, False, "eager"),
        ("auto", CPU, 20, False, "compile"),
    ]


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


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates as on a GPU; CUDA graphs become tapes, and compiled units run unchanged."""
    choices = [EngineChoice("compile", "best"), EngineChoice("graph", "next"), EngineChoice("eager", "last")]
    chosen = {
        "auto": choices,
        **{choice.name: [EngineChoice(choice.name, "as requested")] for choice in choices},
    }
    monkeypatch.setattr(session_module, "engine_candidates", lambda wanted, *_, **__: chosen[wanted])
    monkeypatch.setattr(trainer_module, "CudaCapture", lambda _: Tape())
    monkeypatch.setattr(trainer_module, "compile_units", lambda _: None)


@pytest.mark.usefixtures("on_a_gpu")
def test_sound_engine_is_taken_after_a_comparison(run: PlannedRun, expected: RunDirectory, tmp_path: Path) -> None:
    directory, log = train(run, tmp_path, engine="graph")
    assert log.checks == ["graph"]
    assert log.record.sessions[0].fallback is None
    assert_same(directory, expected)


def broken_step(_: object) -> None:
    raise RuntimeError("CUDA error: no luck in /folder/of/mine\nmore")


def no_compiler(_: object) -> None:
    raise EngineError("torch.compile failed (/folder/of/mine/x.cpp:3: no such file)")


def short_of_memory(_: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory.")


def normalise_wrongly(module: nn.Module) -> None:
    for layer in module.modules():
        if isinstance(layer, GroupedBatchNorm2d):
            layer.eps = 1.0


@pytest.mark.usefixtures("on_a_gpu")
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (broken_step, "RuntimeError: CUDA error: no luck in [path]"),
        (no_compiler, "torch.compile failed ([path] no such file)"),
        (short_of_memory, "OutOfMemoryError: CUDA out of memory."),
        (normalise_wrongly, "The first steps of engine compile are not those of eager on this machine (step 1: loss"),
    ],
)
def test_next_engine_is_taken_and_the_reason_recorded(
    run: PlannedRun,
    expected: RunDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[..., None],
    reason: str,
) -> None:
    released: list[torch.device] = []
    monkeypatch.setattr(session_module, "release_memory", released.append)
    monkeypatch.setattr(trainer_module, "compile_units", fault)
    directory, log = train(run, tmp_path, stop_at=8)
    assert released == [CPU]
    assert log.engine[0] == "graph"
    assert log.engine[1].startswith(f"engine compile was not used: {reason}")
    assert log.record.sessions[0].fallback == log.engine[1]
    _, log = train(run, tmp_path, engine="graph")
    assert [session.fallback is None for session in log.record.sessions] == [False, True]
    assert_same(directory, expected)


@pytest.mark.usefixtures("on_a_gpu")
def test_engine_asked_for_by_name_fails_with_the_reason(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "compile_units", normalise_wrongly)
    directory, log = train(run, tmp_path, engine="compile")
    assert "The first steps of engine compile are not those of eager on this machine (step 1: loss" in log.failure
    assert "takes the fastest engine that works with `--engine auto`;" in log.failure
    assert directory.read_record() is None


@pytest.mark.usefixtures("on_a_gpu")
def test_resumed_run_is_not_compared_again(run: PlannedRun, tmp_path: Path) -> None:
    train(run, tmp_path, engine="graph", stop_at=3)
    _, log = train(run, tmp_path, engine="graph")
    assert log.checks == []


@pytest.mark.usefixtures("on_a_gpu")
def test_signal_during_the_comparison_leaves_no_run(run: PlannedRun, tmp_path: Path) -> None:
    limits = Limits()

    class Stopping(Log):
        def checking(self, run: PlannedRun, engine: str, processes: int) -> None:
            super().checking(run, engine, processes)
            limits.signal = 15

    directory, log = train(run, tmp_path, limits, Stopping())
    assert (log.checks, log.records, log.failures) == (["compile"], [], [])
    assert not directory.path.exists()
    assert list((tmp_path / "leases").iterdir()) == []


@pytest.mark.full
@pytest.mark.skipif(available_engines(CPU)["compile"] is not None, reason="needs a C++ compiler")
def test_resumed_compiled_run_equals_uninterrupted_one(run: PlannedRun, tmp_path: Path) -> None:
    expected, _ = train(run, tmp_path / "uninterrupted", engine="compile")
    train(run, tmp_path / "part", engine="compile", stop_at=7)
    part, log = train(run, tmp_path / "part")
    assert log.engine[0] == "compile"
    assert [s.engine for s in log.record.sessions] == ["compile", "compile"]
    assert_same(part, expected)
