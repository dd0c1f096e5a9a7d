from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paperbench.errors import PaperbenchError
from paperbench.runs import lease as lease_module
from paperbench.runs.checkpoints import Checkpoints
from paperbench.runs.executor import Executor
from paperbench.runs.lease import LEASE_SECONDS, Lease, LeaseLostError, take_any
from paperbench.runs.limits import Limits
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Record
from paperbench.runs.store import RunDirectory, Store
from paperbench.training.trainer import Trainer
from tests.runs.running import CPU, Log, go

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

RUN = "abc-s0"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "results" / "leases"


class Clock:
    """A monotonic clock on which waiting takes no time."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lease_module, "time", clock)
    return clock


def end(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    except (ProcessLookupError, ChildProcessError):
        pass  # it was ended before


@pytest.fixture
def holder(folder: Path) -> Iterator[Callable[..., int]]:
    """Starts a process that holds the lease until it is killed, here or on what looks like another machine."""
    children = []

    def start(*, elsewhere: bool = False) -> int:
        ready, told = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                if elsewhere:
                    lease_module._machine = lambda: "another machine"
                mine = Lease(folder, RUN)
                os.write(told, b"y" if mine.take() else b"n")
                time.sleep(100)
            finally:
                os._exit(0)
        children.append(child)
        assert os.read(ready, 1) == b"y"
        return child

    yield start
    for child in children:
        end(child)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_lease_is_held_until_it_is_released_whatever_happens(folder: Path) -> None:
    for _ in range(2):
        mine = Lease(folder, RUN)
        assert mine.take()
        with suppress(KeyboardInterrupt), mine.held():
            assert files(folder) == ["abc-s0.1"]
            assert socket.gethostname() not in (folder / "abc-s0.1").read_text()
            mine.check()
            raise KeyboardInterrupt
        assert files(folder) == []


def test_leases_of_other_runs_are_others(folder: Path) -> None:
    leases = [Lease(folder, name) for name in ("abc-s1", "abc-s11", "abc-s1.x")]
    assert all(lease.take() for lease in leases)
    for lease in leases:
        with lease.held():
            lease.check()


def test_a_living_process_keeps_its_lease_and_a_dead_ones_is_free_at_once(
    folder: Path, holder: Callable[..., int]
) -> None:
    process = holder()
    contender = Lease(folder, RUN)
    assert not contender.take()
    assert contender.shows_life
    assert contender.holder == f"process {process}"
    os.kill(process, signal.SIGKILL)
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)  # dead, and not collected by its parent
    assert contender.take()
    with contender.held():
        assert files(folder) == ["abc-s0.2"]


def test_another_process_with_the_number_of_a_dead_one_does_not_hold_its_lease(
    folder: Path, holder: Callable[..., int]
) -> None:
    end(holder())
    (file,) = folder.iterdir()
    file.write_text(json.dumps({**json.loads(file.read_text()), "pid": os.getpid()}))
    contender = Lease(folder, RUN)
    assert contender.take()
    with contender.held():
        pass


def test_a_lease_on_another_machine_lasts_while_its_holder_beats(
    folder: Path, holder: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "HEARTBEAT_SECONDS", 0.2)
    holder(elsewhere=True)
    contender, waited = Lease(folder, RUN), []
    assert take_any({RUN: contender}, lambda: False, waited.append) is None
    assert contender.shows_life
    assert waited == [1]


def test_a_lease_on_another_machine_is_taken_once_its_holder_was_silent_for_a_minute(
    folder: Path, holder: Callable[..., int], clock: Clock
) -> None:
    end(holder(elsewhere=True))
    os.utime(folder / "abc-s0.1", (clock.now + 1e9, clock.now + 1e9))  # its clock was wrong
    contender, began = Lease(folder, RUN), clock.now
    assert take_any({RUN: contender}, lambda: False, print) == RUN
    assert not contender.shows_life
    assert contender.holder == "a process on another machine, or one hidden from this user,"
    assert LEASE_SECONDS <= clock.now - began < LEASE_SECONDS + 2
    with contender.held():
        contender.check()


def test_a_pause_of_the_watcher_is_no_silence_of_the_holder(
    folder: Path, holder: Callable[..., int], clock: Clock
) -> None:
    """A file server that is away, or a batch system that suspends, stops both."""
    os.kill(holder(elsewhere=True), signal.SIGSTOP)
    contender = Lease(folder, RUN)
    for _ in range(3):
        assert not contender.take()
        clock.now += 1_000
    taken = []
    for _ in range(60):
        clock.now += 1
        taken.append(contender.take())
    assert taken.index(True) > 50
    with contender.held():
        pass


def test_a_process_that_cannot_be_seen_is_not_taken_for_dead(
    folder: Path, holder: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where /proc hides the processes of other users."""
    holder()

    def hidden(*_: object) -> None:
        raise PermissionError(1, "not yours")

    monkeypatch.setattr(os, "kill", hidden)
    contender = Lease(folder, RUN)
    assert not contender.take()
    assert not contender.shows_life, "so it is watched"
    monkeypatch.undo()


def test_a_copy_of_a_lease_is_not_held_by_the_process_that_wrote_it(
    folder: Path, tmp_path: Path, holder: Callable[..., int]
) -> None:
    holder()
    shutil.copytree(folder, tmp_path / "copy")
    contender = Lease(tmp_path / "copy", RUN)
    assert not contender.take()
    assert not contender.shows_life, "so it is watched, for a minute"


def test_a_full_disk_leaves_no_empty_lease(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(lease_module, "to_json", full)
    with pytest.raises(PaperbenchError, match=r"No space left on device\. Make room or choose"):
        Lease(folder, RUN).take()
    assert files(folder) == []


def test_of_many_that_wait_for_a_dead_holder_one_gets_the_lease(
    folder: Path, holder: Callable[..., int], clock: Clock
) -> None:
    end(holder(elsewhere=True))
    contenders = [Lease(folder, RUN) for _ in range(8)]
    for _ in range(60):
        assert not any(contender.take() for contender in contenders)
        clock.now += 1
    barrier = threading.Barrier(8)

    def take(contender: Lease) -> bool:
        barrier.wait()
        return contender.take()

    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(take, contenders))
    assert sum(taken) == 1
    with contenders[taken.index(True)].held():
        assert files(folder) == ["abc-s0.2"]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("content", [b"", b'{"machine": 1}'])
def test_an_unreadable_lease_is_no_dead_end(folder: Path, content: bytes) -> None:
    """Left by a power cut, or a kill between opening and writing."""
    folder.mkdir(parents=True)
    (folder / "abc-s0.7").write_bytes(content)
    contender = Lease(folder, RUN)
    assert not contender.take()
    assert take_any({RUN: contender}, lambda: False, print) == RUN
    with contender.held():
        assert files(folder) == ["abc-s0.8"]


def test_a_watch_can_be_cancelled(folder: Path, holder: Callable[..., int]) -> None:
    holder(elsewhere=True)
    assert take_any({RUN: Lease(folder, RUN)}, lambda: True, print) is None


@pytest.mark.parametrize("theirs", [None, "abc-s0.1", "abc-s0.2"])
def test_a_lease_that_is_gone_or_anothers_is_lost(folder: Path, theirs: str | None) -> None:
    mine = Lease(folder, RUN)
    mine.take()
    with mine.held():
        mine.check()
        shutil.rmtree(folder)
        if theirs:
            folder.mkdir()
            (folder / theirs).write_text("another's")
        with pytest.raises(LeaseLostError, match="lost its lease"):
            mine.check()
    assert not theirs or files(folder) == [theirs], "what is another's is not released"


def test_a_heartbeat_finds_that_the_lease_is_lost(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "HEARTBEAT_SECONDS", 0.01)
    mine = Lease(folder, RUN)
    mine.take()
    with mine.held():
        (folder / "abc-s0.2").write_text("another's")
        assert mine._heartbeat
        mine._heartbeat.join(20)
        assert mine.is_lost


def test_a_place_where_no_lease_can_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PaperbenchError, match=r"cannot be written: Not a directory\. Choose another"):
        Lease(tmp_path / "file" / "leases", RUN).take()


WRITINGS = [
    (Checkpoints, "write", 3),
    *((RunDirectory, "append_history", call) for call in (1, 4)),
    *((RunDirectory, "settle_history", call) for call in (1, 4)),
    *((RunDirectory, "write_record", call) for call in (1, 4)),
    (Checkpoints, "prune", 4),
    (Trainer, "finish", 1),
    *((os, "fsync", call) for call in (2, 6, 10)),
]


@pytest.mark.parametrize("other_is_still_at_it", [True, False])
@pytest.mark.parametrize(("owner", "name", "call"), WRITINGS, ids=lambda value: getattr(value, "__name__", value))
def test_a_woken_process_leaves_its_run_to_the_one_that_took_it_over(
    run: PlannedRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    call: int,
    other_is_still_at_it: bool,
) -> None:
    """It was suspended at, or in, its n-th writing of a kind; meanwhile somebody elsewhere has finished its run."""
    store = Store(tmp_path / "part")
    directory = store.directory(run.id)
    finished: dict[str, bytes] = {}
    original = getattr(owner, name)
    calls = itertools.count(1)

    def suspended(self: object, *arguments: object, **names: object) -> object:
        if next(calls) == call:
            monkeypatch.undo()
            (store.root / "leases" / f"{run.id}.1").unlink()  # as whoever takes over does
            go(run, store.root)
            if other_is_still_at_it:
                (store.root / "leases" / f"{run.id}.2").write_text("the other's")
            finished.update({path.name: path.read_bytes() for path in directory.path.iterdir()})
        return original(self, *arguments, **names)

    monkeypatch.setattr(owner, name, suspended)
    _, log = go(run, store.root)
    assert finished, "there are so many calls"
    ((_, why),) = log.skips
    assert "this process lost its lease" in why
    assert {path.name: path.read_bytes() for path in directory.path.iterdir()} == finished


@pytest.mark.usefixtures("clock")
def test_a_run_whose_holder_dies_or_ends_later_is_done_in_the_end(run: PlannedRun, tmp_path: Path) -> None:
    """Others are looked at anew after each run that was worked on: it may have taken days."""
    store, log = Store(tmp_path), Log()
    runs = [replace(run, seed=seed) for seed in range(5)]
    held = {seed: store.lease(runs[seed].id) for seed in (0, 1, 2, 3)}
    for lease in held.values():
        assert lease.take()

    class Meanwhile(Log):
        def ended(self, record: Record) -> None:
            super().ended(record)
            if record.seed == 4:  # 0 is released, 1 finished by its holder, 2 goes on, 3 is released damaged
                with held[0].held():
                    pass
                with held[1].held():
                    RunDirectory(store.directory(runs[1].id).path).write_record(replace(record, run=runs[1].id, seed=1))
                with held[3].held():
                    store.directory(runs[3].id).path.mkdir()
                    store.directory(runs[3].id).record_file.write_text("{")

    log = Meanwhile()
    assert Executor(store, CPU, Limits(), log).run_all(runs) == [runs[3]]
    assert [record.seed for record in log.records] == [4, 0]
    assert [run_id for run_id, _ in log.failures] == [runs[3].id]
    assert log.skips == [
        (runs[1].id, "finished at iteration 20 already"),
        (runs[2].id, f"process {os.getpid()} works on it"),
    ]
    with held[2].held():
        pass


def test_of_a_holder_that_showed_no_life_before_the_watch_ended_nothing_is_said(
    run: PlannedRun, tmp_path: Path
) -> None:
    limits = Limits()

    class Stopping(Log):
        def waiting(self, runs: int, seconds: float) -> None:
            super().waiting(runs, seconds)
            limits.signal = 15

    (tmp_path / "leases").mkdir()
    (tmp_path / "leases" / f"{run.id}.1").write_text("")
    _, log = go(run, tmp_path, limits, Stopping())
    assert (log.watches, log.skips, log.failures) == ([1], [], [])
