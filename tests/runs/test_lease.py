from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path, PosixPath
from typing import Any, Self

import pytest

from paperbench.errors import PaperbenchError
from paperbench.runs.lease import LEASE_SECONDS, Lease, LeaseLostError, acquire_any
from paperbench.runs.limits import Limits
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Record
from paperbench.runs.session import SessionSetting
from paperbench.runs.store import RunDirectory, Store
from paperbench.runs.worker import Worker
from tests.limits import limit_address_space, limit_file_size
from tests.runs.running import CPU, Log, assert_same, train

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

RUN = "abc-s0"


class Clock:
    """A monotonic clock that advances instead of sleeping."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the lease files are."""
    return tmp_path / "results" / "leases"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def new_lease(directory: Path, clock: Clock) -> Iterator[Callable[..., Lease]]:
    """Makes leases by that clock, and releases them after the test."""
    leases = []

    def make(name: str = RUN, directory: Path = directory, **values: Any) -> Lease:
        leases.append(Lease(directory, name, **{"clock": clock.monotonic, **values}))
        return leases[-1]

    yield make
    for lease in leases:
        lease.release()


def edit(file: Path, **values: Any) -> None:
    """Change what a lease file says of its holder."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    except (ProcessLookupError, ChildProcessError):
        pass  # already dead


@pytest.fixture
def holder(directory: Path) -> Iterator[Callable[..., int]]:
    """Starts a process that holds the lease until it is killed; `remote` makes that look like another machine's."""
    children = []

    def start(*, remote: bool = False) -> int:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(writer, b"y" if Lease(directory, RUN).acquire() else b"n")
                time.sleep(100)
            finally:
                os._exit(0)
        children.append(child)
        assert os.read(reader, 1) == b"y"
        if remote:
            edit(directory / "abc-s0.1", machine="another machine")
        return child

    yield start
    for child in children:
        kill(child)


def files(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_lease_is_held_until_released(directory: Path, new_lease: Callable[..., Lease]) -> None:
    for _ in range(2):
        lease = new_lease()
        assert lease.acquire()
        assert files(directory) == ["abc-s0.1"]
        assert socket.gethostname() not in (directory / "abc-s0.1").read_text()
        lease.check()
        lease.release()
        assert files(directory) == []


def test_leases_of_runs_are_independent(new_lease: Callable[..., Lease]) -> None:
    leases = [new_lease(name) for name in ("abc-s1", "abc-s11", "abc-s1.x")]
    assert all(lease.acquire() for lease in leases)
    for lease in leases:
        lease.check()


def test_lease_is_free_once_its_process_is_dead(
    directory: Path, holder: Callable[..., int], new_lease: Callable[..., Lease]
) -> None:
    process, lease = holder(), new_lease()
    assert not lease.acquire()
    assert lease.shows_life
    assert lease.holder == f"process {process}"
    os.kill(process, signal.SIGKILL)
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)  # leaves a zombie
    assert lease.acquire()
    assert files(directory) == ["abc-s0.2"]


def test_reused_process_id_does_not_hold_the_lease(
    directory: Path, holder: Callable[..., int], new_lease: Callable[..., Lease]
) -> None:
    kill(holder())
    edit(directory / "abc-s0.1", pid=os.getpid())
    assert new_lease().acquire()


def test_remote_lease_lasts_while_its_heart_beats(
    directory: Path, holder: Callable[..., int], new_lease: Callable[..., Lease]
) -> None:
    holder(remote=True)
    lease, waits = new_lease(), []
    beating = acquire_any({RUN: lease}, lambda: False, waits.append, lambda _: os.utime(directory / "abc-s0.1"))
    assert (beating, lease.shows_life, waits) == (None, True, [1])


def test_remote_lease_expires_after_a_silent_minute(
    directory: Path, holder: Callable[..., int], new_lease: Callable[..., Lease], clock: Clock
) -> None:
    kill(holder(remote=True))
    os.utime(directory / "abc-s0.1", (clock.now + 1e9, clock.now + 1e9))  # its clock was wrong
    lease, started = new_lease(), clock.now
    assert acquire_any({RUN: lease}, lambda: False, print, clock.sleep) == RUN
    assert not lease.shows_life
    assert lease.holder == "a process on another machine, or one hidden from this user,"
    assert LEASE_SECONDS <= clock.now - started < LEASE_SECONDS + 2
    lease.check()


class Counted(PosixPath):
    """A directory that counts how often it is listed."""

    listed = 0

    def iterdir(self) -> Iterator[Self]:
        Counted.listed += 1
        return super().iterdir()


def test_waiting_for_many_runs_reads_their_directory_once_a_poll(
    directory: Path, new_lease: Callable[..., Lease], clock: Clock
) -> None:
    directory.mkdir(parents=True)
    names = [f"abc-s{seed}" for seed in range(30)]
    for name in names:
        (directory / f"{name}.1").write_text("of another machine")
    leases = {name: new_lease(name, Counted(directory)) for name in names}
    ends = iter([False] * 5)
    assert acquire_any(leases, lambda: next(ends, True), print, clock.sleep) is None
    assert Counted.listed == 5


def test_suspension_of_this_process_is_not_silence_of_the_holder(
    holder: Callable[..., int], new_lease: Callable[..., Lease], clock: Clock
) -> None:
    """A file server that is down, or a batch system, may suspend both."""
    os.kill(holder(remote=True), signal.SIGSTOP)
    lease = new_lease()
    for _ in range(3):
        assert not lease.acquire()
        clock.now += 1_000
    acquired = []
    for _ in range(60):
        clock.now += 1
        acquired.append(lease.acquire())
    assert acquired.index(True) > 50


def test_hidden_process_is_not_considered_dead(
    holder: Callable[..., int], new_lease: Callable[..., Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    """/proc may hide the processes of other users."""
    holder()

    def hidden(*_: object) -> None:
        raise PermissionError(1, "not yours")

    monkeypatch.setattr(os, "kill", hidden)
    lease = new_lease()
    assert not lease.acquire()
    assert not lease.shows_life
    monkeypatch.undo()


def test_copied_lease_file_is_not_held_by_its_writer(
    directory: Path, tmp_path: Path, holder: Callable[..., int], new_lease: Callable[..., Lease]
) -> None:
    holder()
    shutil.copytree(directory, tmp_path / "copy")
    lease = new_lease(directory=tmp_path / "copy")
    assert not lease.acquire()
    assert not lease.shows_life, "it expires after a minute"


def test_disk_that_takes_no_more_leaves_no_empty_lease_file(directory: Path, new_lease: Callable[..., Lease]) -> None:
    with limit_file_size(10), pytest.raises(PaperbenchError, match="File too large"):
        new_lease().acquire()
    assert files(directory) == []


def test_only_one_of_many_acquires_an_expired_lease(
    directory: Path, holder: Callable[..., int], new_lease: Callable[..., Lease], clock: Clock
) -> None:
    kill(holder(remote=True))
    leases = [new_lease() for _ in range(8)]
    for _ in range(60):
        assert not any(lease.acquire() for lease in leases)
        clock.now += 1
    barrier = threading.Barrier(8)

    def acquire(lease: Lease) -> bool:
        barrier.wait()
        return lease.acquire()

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(acquire, leases)) == 1
    assert files(directory) == ["abc-s0.2"]


@pytest.mark.parametrize(
    "make",
    [
        Path.touch,
        os.mkfifo,
        Path.mkdir,
        lambda path: path.symlink_to("nowhere"),
        lambda path: path.symlink_to("/dev/zero"),
    ],
    ids=["left by a power cut", "pipe", "directory", "dangling link", "device"],
)
def test_file_that_is_no_lease_expires(
    directory: Path, new_lease: Callable[..., Lease], clock: Clock, make: Callable[[Path], object]
) -> None:
    directory.mkdir(parents=True)
    make(directory / "abc-s0.7")
    lease = new_lease()
    assert not lease.acquire()
    assert acquire_any({RUN: lease}, lambda: False, print, clock.sleep) == RUN
    lease.check()


@pytest.mark.parametrize("name", ["abc-s0.01", "abc-s0.0", "abc-s0.+1", "abc-s0.1.tmp", "abc-s0.\u0661"])
def test_odd_name_is_no_lease(directory: Path, new_lease: Callable[..., Lease], name: str) -> None:
    directory.mkdir(parents=True)
    (directory / name).touch()
    lease = new_lease()
    assert lease.acquire()
    lease.check()


def test_process_suspended_before_it_takes_over_robs_nobody(
    directory: Path, holder: Callable[..., int], new_lease: Callable[..., Lease], clock: Clock
) -> None:
    """It looked at the file of a dead holder; meanwhile another process took over and released, and a third came."""
    kill(holder(remote=True))
    other, third, moments = new_lease(), new_lease(), []

    def suspended() -> float:
        if other.acquire():
            moments.append(clock.now)
            other.release()
            assert third.acquire()
        return clock.now

    late = new_lease(clock=suspended)
    while not moments:
        assert not late.acquire()
        clock.now += 1
    third.check()
    assert files(directory) == ["abc-s0.1"]


def test_file_of_an_earlier_holder_never_holds_again(directory: Path, new_lease: Callable[..., Lease]) -> None:
    """Whoever took over from the suspended first holder was killed before it deleted the first one's file."""
    first, third = new_lease(), new_lease()
    assert first.acquire()
    (directory / "abc-s0.2").write_bytes((directory / "abc-s0.1").read_bytes())
    edit(directory / "abc-s0.2", pid=2**31 - 1, inode=(directory / "abc-s0.2").stat().st_ino)
    assert third.acquire()
    assert files(directory) == ["abc-s0.3"]
    third.release()
    with pytest.raises(LeaseLostError):
        first.check()


def test_lease_stays_if_an_earlier_one_cannot_be_deleted(directory: Path, new_lease: Callable[..., Lease]) -> None:
    """The directory may let each user delete only their own files."""
    first, second = new_lease(), new_lease()
    assert first.acquire()
    (directory / "abc-s0.1").rename(directory / "abc-s0.2")
    directory.joinpath("abc-s0.1").mkdir()  # unlink refuses a directory
    edit(directory / "abc-s0.2", pid=2**31 - 1)
    assert second.acquire()
    second.release()
    assert files(directory) == ["abc-s0.1", "abc-s0.3"]


def test_lease_without_a_heartbeat_is_released(directory: Path, new_lease: Callable[..., Lease]) -> None:
    before = threading.stack_size(2**30)  # more than the limit leaves
    try:
        message = "can't start new thread: free memory, or raise the limits"
        with limit_address_space(), pytest.raises(PaperbenchError, match=message):
            new_lease().acquire()
    finally:
        threading.stack_size(before)
    assert files(directory) == []


def test_run_goes_on_if_its_lease_was_deleted(run: PlannedRun, expected: RunDirectory, tmp_path: Path) -> None:
    """Nobody else trains it, so it is not left to other processes."""
    deletions = [9]

    def delete(iteration: int) -> None:
        if iteration in deletions:
            deletions.remove(iteration)
            shutil.rmtree(tmp_path / "leases")

    directory, log = train(run, tmp_path, log=Log(delete))
    assert ["lost its lease" in why for _, why in log.skips] == [True]
    assert log.failures == log.warnings == []
    assert_same(directory, expected)


@pytest.mark.full
def test_run_that_loses_its_lease_again_has_failed(run: PlannedRun, tmp_path: Path) -> None:
    _, log = train(run, tmp_path, log=Log(lambda _: shutil.rmtree(tmp_path / "leases", ignore_errors=True)))
    assert "lost its lease" in log.failure


@pytest.mark.parametrize("other", [None, "abc-s0.1", "abc-s0.2"])
def test_lease_is_lost_if_its_file_is_gone_or_replaced(
    directory: Path, new_lease: Callable[..., Lease], other: str | None
) -> None:
    lease = new_lease()
    lease.acquire()
    lease.check()
    shutil.rmtree(directory)
    if other:
        directory.mkdir()
        (directory / other).write_text("another process")
    with pytest.raises(LeaseLostError, match="lost its lease"):
        lease.check()
    lease.release()
    assert not other or files(directory) == [other], "the lease of another process is not released"


def test_heartbeat_notices_a_lost_lease(
    directory: Path, new_lease: Callable[..., Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paperbench.runs.lease.HEARTBEAT_SECONDS", 0.01)
    lease = new_lease()
    lease.acquire()
    (directory / "abc-s0.2").write_text("another process")
    until = time.monotonic() + 60
    while not lease.is_lost and time.monotonic() < until:
        time.sleep(0.01)
    assert lease.is_lost


def test_busy_runs_are_retried_after_the_others(run: PlannedRun, tmp_path: Path) -> None:
    """All busy runs are checked again after each run that was trained, since that may have taken days."""
    store = Store(tmp_path)
    runs = [replace(run, seed=seed) for seed in range(5)]
    held = {seed: store.lease(runs[seed].id) for seed in (0, 1, 2, 3)}
    for lease in held.values():
        assert lease.acquire()

    class Meanwhile(Log):
        def ended(self, run: PlannedRun, record: Record) -> None:
            super().ended(run, record)
            if record.seed == 4:  # 0 is released, 1 is finished, 2 remains busy, 3 is released with a damaged record
                RunDirectory(store.directory(runs[1].id).path).write_record(replace(record, run=runs[1].id, seed=1))
                store.directory(runs[3].id).path.mkdir()
                store.directory(runs[3].id).record_file.write_text("{")
                for seed in (0, 1, 3):
                    held[seed].release()

    log = Meanwhile()
    assert Worker(store, SessionSetting(CPU, Limits(), log)).run_all(runs) == [runs[3]]
    assert [record.seed for record in log.records] == [4, 0]
    assert [run_id for run_id, _ in log.failures] == [runs[3].id]
    assert store.directory(runs[3].id).record_file.read_text() == "{"
    assert log.skips == [
        (runs[1].id, "finished at iteration 20 already"),
        (runs[2].id, f"process {os.getpid()} is training it"),
    ]
    held[2].release()


def test_interrupted_wait_reports_no_holder(run: PlannedRun, tmp_path: Path) -> None:
    limits = Limits()

    class Interrupting(Log):
        def waiting(self, runs: int, seconds: float) -> None:
            super().waiting(runs, seconds)
            limits.signal = 15

    (tmp_path / "leases").mkdir()
    (tmp_path / "leases" / f"{run.id}.1").write_text("")
    _, log = train(run, tmp_path, limits, Interrupting())
    assert (log.waits, log.skips, log.failures) == ([1], [], [])
