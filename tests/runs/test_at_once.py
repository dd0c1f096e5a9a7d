"""Runs that take turns on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from paperbench.errors import DataError, RunError
from paperbench.runs.lease import LeaseLostError
from paperbench.runs.limits import Limits
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Record
from paperbench.runs.session import SessionSetting
from paperbench.runs.store import RunDirectory, Store
from paperbench.runs.worker import Worker
from paperbench.specs.recipe import Drops
from paperbench.training.engines import ENGINES
from paperbench.training.memory import memory_needed
from paperbench.training.trainer import Trainer
from tests.runs.running import CPU, Log, assert_same, plan_run, train
from tests.training.tape import Tape


class Turns(Log):
    """Records, too, which run makes each iteration, by its number among all, and how many are trained at once."""

    def __init__(self, runs: list[PlannedRun], on_turn: Callable[[int, int], object] = lambda *_: None) -> None:
        super().__init__()
        self._numbers, self._on_turn = {run.id: number for number, run in enumerate(runs)}, on_turn
        self.turns: list[tuple[int, int]] = []
        self.active: set[str] = set()
        self.most = 0

    def started(self, run: PlannedRun, *of: Any) -> None:
        self.active.add(run.id)
        self.most = max(self.most, len(self.active))

    def stepped(self, run: PlannedRun, iteration: int) -> None:
        self.turns.append((self._numbers[run.id], iteration))
        self._on_turn(*self.turns[-1])

    def ended(self, run: PlannedRun, record: Record) -> None:
        super().ended(run, record)
        self.active.remove(run.id)

    def of(self, number: int) -> list[int]:
        return [iteration for one, iteration in self.turns if one == number]


def train_at_once(
    runs: list[PlannedRun], root: Path, at_once: int, log: Log | None = None, limits: Limits | None = None, **of: Any
) -> list[PlannedRun]:
    """Return the runs that failed."""
    setting = {"device": CPU, "limits": limits or Limits(), "observer": log or Log(), "at_once": at_once, **of}
    return Worker(Store(root), SessionSetting(**setting)).run_all(runs)


@pytest.fixture(scope="module")
def runs(run: PlannedRun) -> list[PlannedRun]:
    """Different nets and lengths. The second and third draw random numbers in each step, and the fourth diverges."""

    def planned(net: str, iterations: int, **changes: Any) -> PlannedRun:
        recipe = replace(run.recipe, iterations=iterations, drops=Drops((7,), 0.1))
        return plan_run(recipe, run.dataset, net, **changes)

    plain = planned("preact_resnet20", 14)
    noisy = planned("resnet110_dropout_shortcut", 14), planned("preact_resnet20", 11, residual_dropout=0.3)
    hot = plan_run(replace(run.recipe, learning_rate=1e30, warm_up=None), run.dataset)
    return [plain, *noisy, hot, planned("original_resnet20", 9), replace(plain, seed=1)]


@pytest.fixture(scope="module")
def alone(runs: list[PlannedRun], tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDirectory]:
    """What each run leaves alone, by its id."""
    root = tmp_path_factory.mktemp("alone")
    return {run.id: train(run, root)[0] for run in runs}


def assert_as_alone(runs: list[PlannedRun], root: Path, alone: dict[str, RunDirectory]) -> None:
    assert list((root / "leases").iterdir()) == []
    for run in runs:
        assert_same(Store(root).directory(run.id), alone[run.id])


@pytest.mark.parametrize(("engine", "at_once", "number"), [("auto", 2, 6), ("graph", 3, 4)])
def test_runs_are_those_alone(
    runs: list[PlannedRun],
    alone: dict[str, RunDirectory],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    at_once: int,
    number: int,
) -> None:
    """Also those that are resumed in other places. Tapes stand for CUDA graphs."""
    if engine == "graph":
        monkeypatch.setitem(ENGINES, "graph", ENGINES["graph"]._replace(why_not=lambda _: None))
    setting: Any = {"engine": engine, "new_trainer": partial(Trainer, capture=lambda _: Tape())}
    runs = runs[:number]
    train(runs[2], tmp_path, stop_at=3)
    train_at_once(runs[1:3], tmp_path, at_once, limits=Limits(stop_at=5), **setting)
    log = Turns(runs)
    assert train_at_once(runs, tmp_path, at_once, log, **setting) == []
    assert log.most == at_once
    assert [one for one, _ in log.turns[: 3 * at_once]] == [*range(at_once)] * 3, "a step each"
    expected = [(1, 14), (6, 14), (6, 11), (1, 5), (1, 9), (1, 14)][:number]
    assert [log.of(one) for one in range(number)] == [[*range(first, last + 1)] for first, last in expected]
    assert {record.sessions[-1].at_once for record in log.records} == {at_once}
    assert_as_alone(runs, tmp_path, alone)


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ENGINES)
def test_runs_on_a_gpu_are_those_alone(runs: list[PlannedRun], tmp_path: Path, engine: str) -> None:
    setting: Any = {"device": torch.device("cuda", 0), "engine": engine}
    alone = {run.id: train(run, tmp_path / "alone", **setting)[0] for run in runs}
    train_at_once(runs, tmp_path / "paused", 3, limits=Limits(stop_at=7), **setting)
    for name, at_once in (("paused", 2), ("whole", 3)):
        assert train_at_once(runs, tmp_path / name, at_once, **setting) == []
        assert_as_alone(runs, tmp_path / name, alone)


@pytest.mark.parametrize(
    ("error", "at"),
    [
        (RunError("a fault of this run"), 0),
        (RunError("a fault of this run"), 6),
        (LeaseLostError("another process has it"), 9),
        (DataError("an image is gone"), 6),
        pytest.param(OSError("no disk"), 6, marks=pytest.mark.full),
        (SystemExit(130), 6),
    ],
)
def test_error_of_a_run_costs_others_nothing(
    runs: list[PlannedRun], alone: dict[str, RunDirectory], tmp_path: Path, error: BaseException, at: int
) -> None:
    """One of the run stops no other. After one that may have a common cause, others are saved; an exit frees them."""
    first, failing, second, _ = chosen = [runs[1], runs[5], runs[2], runs[4]]
    pending = [error]

    class Failing(Trainer):
        def step(self, rate: float | None = None) -> None:
            if self.seed == failing.seed and self.iteration == at and pending:
                raise pending.pop()
            super().step(rate)

    log, is_lost = Turns(chosen), isinstance(error, LeaseLostError)
    if isinstance(error, RunError):
        failed = train_at_once(chosen, tmp_path, 3, log, new_trainer=Failing)
        assert (failed, log.failures) == (([], []) if is_lost else ([failing], [(failing.id, str(error))]))
        assert log.turns.index((3, 1)) == log.turns.index((2, at + 1)) + 1, "the next has its place"
        assert (log.of(0), log.of(2), log.of(3)) == tuple([*range(1, last + 1)] for last in (14, 11, 9))
        assert log.of(1) == [*range(1, at + 1), *(range(9, 15) if is_lost else ())]
    else:
        with pytest.raises(type(error), match=str(error)):
            train_at_once(chosen, tmp_path, 3, log, new_trainer=Failing)
        saved = {} if isinstance(error, SystemExit) else {first.id: 7, second.id: 6}
        saved |= {failing.id: 6} if isinstance(error, DataError) else {}
        assert {record.run: record.iteration for record in Store(tmp_path).records()[0]} == saved
        assert log.turns[-1] == (0, 7), "nothing more is trained"
        assert list((tmp_path / "leases").iterdir()) == []
    train_at_once(chosen, tmp_path, 1)
    assert_as_alone(chosen, tmp_path, alone)


def test_run_without_memory_beside_another_goes_on_when_that_has_ended(
    runs: list[PlannedRun], alone: dict[str, RunDirectory], tmp_path: Path
) -> None:
    chosen, pending = [runs[4], runs[5]], [torch.OutOfMemoryError("no memory")]

    class Failing(Trainer):
        def step(self, rate: float | None = None) -> None:
            if self.seed and self.iteration == 3 and pending:
                raise pending.pop()
            super().step(rate)

    assert train_at_once(chosen, tmp_path, 2, log := Turns(chosen), new_trainer=Failing) == []
    assert [warning.split("; ")[1:] for warning in log.warnings] == [["it goes on when another run has ended."]]
    assert log.of(1) == [1, 2, 3, *range(1, 15)]
    assert log.turns.index((0, 9)) == len(log.turns) - 14 - 1
    assert_as_alone(chosen, tmp_path, alone)


@pytest.mark.parametrize("max_seconds", [None, 10])
def test_limit_saves_all_runs(
    runs: list[PlannedRun], alone: dict[str, RunDirectory], tmp_path: Path, max_seconds: float | None
) -> None:
    now = 0
    limits = Limits(max_seconds=max_seconds, clock=lambda: now)

    def stop(*at: int) -> None:
        nonlocal now
        if at == (1, 6):
            now, limits.signal = (20, None) if max_seconds else (0, 15)

    train_at_once(runs, tmp_path, 3, log := Turns(runs, stop), limits)
    assert log.turns[-1] == (1, 6)
    found = {record.run: record.iteration for record in Store(tmp_path).records()[0]}
    assert found == {runs[0].id: 6, runs[1].id: 6, runs[2].id: 5}
    train_at_once(runs[:3], tmp_path, 1)
    assert_as_alone(runs[:3], tmp_path, alone)


@pytest.mark.parametrize(("taken", "most"), [(0, 2), (1, 2), (1.5, 1)])
def test_run_waits_for_memory_beside_others(
    runs: list[PlannedRun], alone: dict[str, RunDirectory], tmp_path: Path, taken: float, most: int
) -> None:
    """Whether others have taken none of what they need, all or more. One that fits not even alone fails."""
    recipe = replace(runs[0].recipe, batch_size=80, batch_norm=replace(runs[0].recipe.batch_norm, group=80))
    chosen = [runs[0], runs[4], runs[5], large := plan_run(recipe, runs[0].dataset)]
    needed = {run.id: memory_needed(run.net, run.recipe, "fp32", run.side) for run in chosen}
    enough = needed[runs[0].id] + needed[runs[4].id]
    log = Turns(chosen)

    def free(_: torch.device) -> int:
        return int(enough - taken * sum(needed[one] for one in log.active))

    assert train_at_once(chosen, tmp_path, 3, log, memory_free=free) == [large]
    assert "for a training step" in log.failure
    assert log.most == most
    assert sum(warning.startswith("waits until another run has ended: ") for warning in log.warnings) == 4 - most
    assert len(log.warnings) == 4 - most, "told once"
    assert [one for one, _ in log.turns].index(2) == (19 if most == 2 else 23), "once its place is free"
    assert_as_alone(chosen[:3], tmp_path, alone)


def test_workers_share_runs(runs: list[PlannedRun], alone: dict[str, RunDirectory], tmp_path: Path) -> None:
    chosen = [runs[0], runs[1], runs[4]]
    other = Turns(chosen)
    log = Turns(chosen, lambda *at: train_at_once(chosen, tmp_path, 2, other) if at == (0, 3) else None)
    train_at_once(chosen, tmp_path, 2, log)
    assert {number for number, _ in log.turns} == {0, 1}
    assert {number for number, _ in other.turns} == {2}
    assert ["is training it" in why for _, why in other.skips] == [True, True]
    assert log.skips == [(runs[4].id, "finished at iteration 9 already")]
    assert_as_alone(chosen, tmp_path, alone)
