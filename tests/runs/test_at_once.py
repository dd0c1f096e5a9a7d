"""Runs that take turns on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from paperbench.errors import DataError, RunError
from paperbench.runs.lease import Lease
from paperbench.runs.limits import Limits
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Record
from paperbench.runs.session import RunSession, SessionSetting
from paperbench.runs.store import RunDirectory, Store
from paperbench.runs.worker import Worker
from paperbench.training.engines import ENGINES
from paperbench.training.memory import memory_needed
from paperbench.training.trainer import Trainer
from tests.runs.running import CPU, Log, assert_same, plan_run, train
from tests.training.tape import Tape

full = pytest.mark.full


class Turns(Log):
    """Records, too, which run makes each iteration, by its number among all, and how many are trained at once."""

    def __init__(self, runs: list[PlannedRun], on_turn: Callable[[int, int], object] = lambda *_: None) -> None:
        super().__init__()
        self._numbers, self._on_turn = {run.id: number for number, run in enumerate(runs)}, on_turn
        self.turns: list[tuple[int, int]] = []
        self.active: set[str] = set()
        self.most = 0

    def started(self, run: PlannedRun, *of: Any) -> None:
        super().started(run, *of)
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
    runs: list[PlannedRun],
    root: Path,
    log: Turns,
    at_once: int = 3,
    limits: Limits | None = None,
    new_session: Callable[..., RunSession] = RunSession,
    **setting: Any,
) -> list[PlannedRun]:
    """Return the runs that failed."""
    whole = SessionSetting(**{"device": CPU, **setting}, limits=limits or Limits(), observer=log, at_once=at_once)
    return Worker(Store(root), whole, new_session=new_session).run_all(runs)


@pytest.fixture(scope="module")
def runs(run: PlannedRun) -> list[PlannedRun]:
    """Different nets and lengths. The first and the last three draw no random numbers; the fourth diverges."""

    def planned(net: str, iterations: int = 20, rate: float = 0.1, **changes: Any) -> PlannedRun:
        warm_up = run.recipe.warm_up if rate == 0.1 else None
        recipe = replace(run.recipe, iterations=iterations, learning_rate=rate, warm_up=warm_up)
        return plan_run(recipe, run.dataset, net, **changes)

    noisy = [planned("resnet110_dropout_shortcut"), planned("preact_resnet20", 14, residual_dropout=0.3)]
    return [run, *noisy, planned("preact_resnet20", rate=1e30), planned("original_resnet20", 13), replace(run, seed=1)]


@pytest.fixture(scope="module")
def alone(runs: list[PlannedRun], tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDirectory]:
    """What each run leaves alone, by its id."""
    root = tmp_path_factory.mktemp("alone")
    return {run.id: train(run, root)[0] for run in runs}


def assert_as_alone(runs: list[PlannedRun], root: Path, alone: dict[str, RunDirectory]) -> None:
    assert list((root / "leases").iterdir()) == []
    for run in runs:
        assert_same(Store(root).directory(run.id), alone[run.id])


@pytest.mark.parametrize(
    ("engine", "at_once", "number"),
    [
        ("auto", 2, 6),
        pytest.param("auto", 3, 6, marks=full),
        ("graph", 3, 4),
        pytest.param("graph", 2, 6, marks=full),
    ],
)
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
    setting: Any = {
        "engine": engine,
        "new_trainer": lambda *of, **options: Trainer(*of, **options, capture=lambda _: Tape()),
    }
    runs = runs[:number]
    train(runs[2], tmp_path, stop_at=3)
    paused = Turns(runs)
    train_at_once(runs[1:3], tmp_path, paused, at_once, Limits(stop_at=5), **setting)
    assert [record.iteration for record in paused.records] == [5, 5]
    log = Turns(runs)
    assert train_at_once(runs, tmp_path, log, at_once, **setting) == []
    assert log.most == at_once
    assert [one for one, _ in log.turns[: 3 * at_once]] == [*range(at_once)] * 3, "a step each"
    for one, (first, last) in zip(range(number), [(1, 20), (6, 20), (6, 14), (1, 5), (1, 13), (1, 20)], strict=False):
        assert log.of(one) == [*range(first, last + 1)]
    assert {record.sessions[-1].at_once for record in log.records} == {at_once}
    assert_as_alone(runs, tmp_path, alone)


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ENGINES)
def test_runs_on_a_gpu_are_those_alone(runs: list[PlannedRun], tmp_path: Path, engine: str) -> None:
    gpu = torch.device("cuda", 0)
    alone = {run.id: train(run, tmp_path / "alone", device=gpu, engine=engine)[0] for run in runs}
    train_at_once(runs, tmp_path / "paused", Turns(runs), 3, Limits(stop_at=7), device=gpu, engine=engine)
    for root, at_once in (("paused", 2), ("whole", 3)):
        assert train_at_once(runs, tmp_path / root, Turns(runs), at_once, device=gpu, engine=engine) == []
        assert_as_alone(runs, tmp_path / root, alone)


@pytest.mark.parametrize("error", [RunError("a fault of this run"), DataError("an image is gone"), OSError("no disk")])
def test_error_of_a_run_costs_others_nothing(
    runs: list[PlannedRun], alone: dict[str, RunDirectory], tmp_path: Path, error: Exception
) -> None:
    """One that is the run's own stops no other. All others are saved after one that may have a common cause."""
    first, failing, second, last = chosen = [runs[1], runs[5], runs[2], runs[4]]
    pending = [error]

    class Failing(Trainer):
        def step(self, rate: float | None = None) -> None:
            if self.seed == failing.seed and self.iteration == 6 and pending:
                raise pending.pop()
            super().step(rate)

    log = Turns(chosen)
    if isinstance(error, RunError):
        assert train_at_once(chosen, tmp_path, log, new_trainer=Failing) == [failing]
        assert log.failures == [(failing.id, str(error))]
        assert log.turns.index((3, 1)) == log.turns.index((2, 7)) + 1, "the next has its place"
    else:
        with pytest.raises(type(error), match=str(error)):
            train_at_once(chosen, tmp_path, log, new_trainer=Failing)
        found = {record.run: record.iteration for record in Store(tmp_path).records()[0]}
        own = {failing.id: 6} if isinstance(error, DataError) else {}
        assert found == {first.id: 7, second.id: 6, **own}
        assert (log.turns[-1], log.active) == ((0, 7), {failing.id}), "nothing more is trained"
        assert last.id not in found
    train_at_once(chosen, tmp_path, Turns(chosen), 1)
    assert_as_alone(chosen, tmp_path, alone)


def test_lost_lease_disturbs_no_other_run(
    runs: list[PlannedRun], alone: dict[str, RunDirectory], tmp_path: Path
) -> None:
    leases: dict[str, Lease] = {}

    def new_session(run: PlannedRun, directory: RunDirectory, lease: Lease, setting: SessionSetting) -> RunSession:
        leases.setdefault(run.id, lease)
        return RunSession(run, directory, lease, setting)

    log = Turns(runs, lambda *at: setattr(leases[runs[1].id], "is_lost", True) if at == (1, 12) else None)
    assert train_at_once(runs[:3], tmp_path, log, new_session=new_session) == []
    assert (log.of(0), log.of(2)) == ([*range(1, 21)], [*range(1, 15)])
    assert log.of(1) == [*range(1, 13), *range(9, 21)], "it goes on last, from its checkpoint"
    assert log.turns[-12][1] == 9
    assert_as_alone(runs[:3], tmp_path, alone)


@pytest.mark.parametrize("max_seconds", [None, 10])
def test_limit_saves_all_runs(
    runs: list[PlannedRun], alone: dict[str, RunDirectory], tmp_path: Path, max_seconds: float | None
) -> None:
    now = 0.0
    limits = Limits(max_seconds=max_seconds, clock=lambda: now)

    def stop(number: int, iteration: int) -> None:
        nonlocal now
        if (number, iteration) == (1, 6):
            now, limits.signal = (20, None) if max_seconds else (0, 15)

    log = Turns(runs, stop)
    train_at_once(runs, tmp_path, log, limits=limits)
    assert log.turns[-1] == (1, 6)
    assert {record.run: record.iteration for record in log.records} == {
        run.id: iteration for run, iteration in zip(runs, (6, 6, 5), strict=False)
    }
    assert {record.run for record in Store(tmp_path).records()[0]} == {run.id for run in runs[:3]}
    train_at_once(runs[:3], tmp_path, Turns(runs), 1)
    assert_as_alone(runs[:3], tmp_path, alone)


@pytest.mark.parametrize("is_shown", [False, True])
def test_run_waits_for_memory_beside_others(
    runs: list[PlannedRun], alone: dict[str, RunDirectory], tmp_path: Path, is_shown: bool
) -> None:
    """Whether or not the system shows at once what the others will need. One that fits not even alone fails."""
    recipe = runs[0].recipe
    recipe = replace(recipe, batch_size=80, batch_norm=replace(recipe.batch_norm, group=80))
    chosen = [runs[0], runs[4], runs[5], large := plan_run(recipe, runs[0].dataset)]
    needed = {run.id: memory_needed(run.net, run.recipe, "fp32", run.side) for run in chosen}
    enough = needed[runs[0].id] + needed[runs[4].id]
    assert memory_needed(large.net, recipe, "fp32", large.side, recompute=True) > enough
    log = Turns(chosen)

    def free(_: torch.device) -> int:
        return enough - is_shown * sum(needed[one] for one in log.active)

    assert train_at_once(chosen, tmp_path, log, memory_free=free) == [large]
    assert "free" in log.failure
    assert log.most == 2
    assert [warning.startswith("waits until another run has ended: ") for warning in log.warnings] == [True, True]
    assert log.turns.index((2, 1)) > log.turns.index((1, 13)), "once a run has ended"
    assert (2, 2) in log.turns[: log.turns.index((0, 20))], "beside the other"
    assert_as_alone(chosen[:3], tmp_path, alone)


def test_workers_share_runs(runs: list[PlannedRun], alone: dict[str, RunDirectory], tmp_path: Path) -> None:
    trio = [runs[0], runs[1], runs[4]]
    other = Turns(trio)
    log = Turns(trio, lambda *at: train_at_once(trio, tmp_path, other, 2) if at == (0, 3) else None)
    train_at_once(trio, tmp_path, log, 2)
    assert {number for number, _ in log.turns} == {0, 1}
    assert {number for number, _ in other.turns} == {2}
    assert sum("is training it" in why for _, why in other.skips) == 2
    assert (trio[2].id, "finished at iteration 13 already") in log.skips
    assert_as_alone(trio, tmp_path, alone)
