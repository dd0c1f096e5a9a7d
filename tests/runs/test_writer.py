"""Checkpoints that are written while the training goes on."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from paperbench.errors import PaperbenchError
from paperbench.runs import writer as writer_module
from paperbench.runs.checkpoints import Checkpoints
from paperbench.runs.executor import Executor
from paperbench.runs.lease import Lease, LeaseLostError
from paperbench.runs.limits import Limits, stopping_on_signals
from paperbench.runs.planning import PlannedRun
from paperbench.runs.session import RunSession
from paperbench.runs.store import RunDirectory, Store
from paperbench.runs.writer import THREAD, Writer
from paperbench.specs.recipe import Monitoring
from paperbench.training.checkpoint import read_checkpoint
from paperbench.training.snapshot import Snapshot, is_finite
from paperbench.training.trainer import Trainer
from tests.helpers import at_each_dealing_with_the_disk
from tests.runs.running import CPU, Log, assert_equal, assert_same, go, state, writers


class Hasty(Log):
    """Waits for no writer."""

    def stepped(self, iteration: int) -> None:
        self.steps.append(iteration)


class Gate:
    """Stops the thread that writes checkpoints at some place, until it is opened."""

    def __init__(self) -> None:
        self._reached, self._opened = threading.Event(), threading.Event()
        self.passed: list[str] = []

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def gated(*arguments: Any, **names: Any) -> Any:
            self.passed.append(threading.current_thread().name)
            if self.passed[-1] == THREAD:
                self._reached.set()
                assert self._opened.wait(60)
            return function(*arguments, **names)

        return gated

    def wait_until_reached(self) -> None:
        assert self._reached.wait(60)

    def open(self) -> None:
        self._opened.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open()


PLACES = [
    (Snapshot, "on_host"),
    (writer_module, "checkpoint_bytes"),
    (Checkpoints, "write"),
    (RunDirectory, "settle_history"),
    (RunDirectory, "write_record"),
    (Checkpoints, "prune"),
]


@pytest.mark.parametrize(("owner", "name"), PLACES, ids=lambda value: getattr(value, "__name__", value))
def test_the_training_goes_on_while_a_checkpoint_is_written(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate, owner: Any, name: str
) -> None:
    """The one due at 8 takes until after 18: that due at 16 is left out, and lines wait with their writing."""
    whole, _ = go(run, tmp_path / "whole")
    directory = Store(tmp_path / "part").directory(run.id)
    monkeypatch.setattr(owner, name, gate.before(getattr(owner, name)))
    seen: dict[int, list[int]] = {}

    class Slow(Hasty):
        def stepped(self, iteration: int) -> None:
            super().stepped(iteration)
            if iteration == 9:
                gate.wait_until_reached()
            seen[iteration] = [line.iteration for line in directory.history()]
            if iteration == 18:
                gate.open()
                (thread,) = writers()
                thread.join()

    _, log = go(run, tmp_path / "part", log=Slow())
    assert [line.iteration for line in log.lines] == [5, 10, 15, 20], "they are told at once"
    assert (seen[8], seen[18], seen[20]) == ([5], [5], [5, 10, 15])
    assert gate.passed.count(THREAD) == 1, "the checkpoint at 16 is left out"
    assert_same(directory, whole)


@pytest.mark.parametrize(("owner", "name"), PLACES[:2], ids=lambda value: getattr(value, "__name__", value))
def test_what_is_saved_is_the_state_of_its_moment(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate, owner: Any, name: str
) -> None:
    paused, _ = go(run, tmp_path / "paused", stop_at=8)
    monkeypatch.setattr(owner, name, gate.before(getattr(owner, name)))

    class Slow(Hasty):
        def stepped(self, iteration: int) -> None:
            super().stepped(iteration)
            if iteration == 14:
                gate.open()
                (thread,) = writers()
                thread.join()
                contents = read_checkpoint(directory.checkpoints.newest_first()[0].read(), run.id)[0]
                assert_equal(contents["trainer"], state(paused))
                assert [line["iteration"] for line in contents["history"]] == [5]
                record = directory.read_record()
                assert record
                assert (record.iteration, record.sessions[-1].last, record.files.history_lines) == (8, 8, 1)

    directory = Store(tmp_path / "part").directory(run.id)
    _, log = go(run, tmp_path / "part", log=Slow())
    assert log.record.status == "finished"


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException, nth: int = 1) -> Iterator[list[str]]:
    """Let the n-th writing of a checkpoint fail; yields the names of the threads that wrote."""
    write, threads = Checkpoints.write, []

    def broken(self: Checkpoints, *arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        if len(threads) == nth:
            raise error
        return write(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "write", broken)
        yield threads


def test_what_goes_wrong_in_writing_ends_the_run_at_the_next_step(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    error = PaperbenchError("no room")
    with failing(monkeypatch, error) as threads, pytest.raises(PaperbenchError, match="no room") as caught:
        go(run, tmp_path, log=log)
    assert caught.value is error
    assert threads == [THREAD]
    assert log.steps[-1] == 9
    assert writers() == []
    assert list((tmp_path / "leases").iterdir()) == []
    assert_same(go(run, tmp_path)[0], go(run, tmp_path / "whole")[0])


def test_what_goes_wrong_in_writing_just_before_a_pause_is_told_too(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with failing(monkeypatch, PaperbenchError("no room")) as threads, pytest.raises(PaperbenchError, match="no room"):
        go(run, tmp_path, log=Hasty(), stop_at=8)
    assert threads == [THREAD], "and nothing is written after it"


def test_what_went_wrong_is_told_once(run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = Store(tmp_path).directory(run.id)
    session = RunSession(run, directory, CPU, None, engine="eager", mixes=False, logged=print, warn=print)
    with failing(monkeypatch, PaperbenchError("no room")):
        session._writer.begin(session._save())
        with pytest.raises(PaperbenchError, match="no room"):
            session._writer.wait()
    session._writer.look()
    session._writer.wait()
    assert session.save().status == "partial"
    session.close()


def test_a_lease_lost_in_writing_is_no_failure(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with failing(monkeypatch, LeaseLostError("another is at it")):
        _, log = go(run, tmp_path)
    assert log.skips == [(run.id, "another is at it")]
    assert log.steps[-1] == 9


@pytest.mark.parametrize("where", ["paperbench.training.snapshot.Snapshot.take", "torch.save"])
@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory.")])
def test_too_little_memory_for_a_copy_says_what_to_change(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception
) -> None:
    part, _ = go(run, tmp_path / "part", stop_at=8)

    def exhausted(*_: object) -> None:
        raise error

    class Poor(Log):
        def stepped(self, iteration: int) -> None:
            super().stepped(iteration)
            if iteration == 16:
                monkeypatch.setattr(where, exhausted)

    _, log = go(run, tmp_path / "part", log=Poor())
    assert "cpu ran out of memory with preact_resnet20(depth=8) in fp32. The last checkpoint is kept" in log.failure
    assert log.steps[-1] == (16 if "Snapshot" in where else 17)
    record = part.read_record()
    assert record
    assert record.iteration == 8
    monkeypatch.undo()
    assert_same(go(run, tmp_path / "part")[0], go(run, tmp_path / "whole")[0])


class Stop(BaseException):
    """As a second signal raises."""


@pytest.mark.parametrize("error", [RuntimeError("a bug"), SystemExit(143), Stop()])
@pytest.mark.parametrize("fails", [False, True])
def test_whatever_ends_the_training_no_thread_is_left_and_a_save_under_way_is_completed(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate, error: BaseException, fails: bool
) -> None:
    """If the save fails as well, what ended the training is told."""
    write = Checkpoints.write

    def ending(self: Checkpoints, *arguments: Any) -> Any:
        if fails:
            raise PaperbenchError("no room")
        return write(self, *arguments)

    monkeypatch.setattr(Checkpoints, "write", gate.before(ending))

    class Broken(Hasty):
        def stepped(self, iteration: int) -> None:
            super().stepped(iteration)
            if iteration == 11:
                gate.wait_until_reached()
                threading.Timer(0.3, gate.open).start()
                raise error

    with pytest.raises(type(error)) as caught:
        go(run, tmp_path / "part", log=Broken())
    assert caught.value is error
    assert writers() == []
    assert list((tmp_path / "part" / "leases").iterdir()) == []
    record = Store(tmp_path / "part").directory(run.id).read_record()
    assert (record.iteration if record else None) == (None if fails else 8)
    monkeypatch.undo()
    assert_same(go(run, tmp_path / "part")[0], go(run, tmp_path / "whole")[0])


@pytest.mark.parametrize("signals", [2, 3])
def test_the_lease_is_held_until_a_save_has_ended_however_many_signals_come(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate, signals: int
) -> None:
    """The first lets the training wait for the save; each one after it raises in that wait."""
    at_work: list[object] = []
    at_release: list[int] = []
    write, held = Writer._write, Lease.held

    def noting(self: Writer, save: Any) -> Any:
        at_work.append(save)
        try:
            return write(self, save)
        finally:
            at_work.remove(save)

    @contextmanager
    def watched(self: Lease) -> Iterator[None]:
        with held(self):
            try:
                yield
            finally:
                at_release.append(len(at_work))

    monkeypatch.setattr(Writer, "_write", noting)
    monkeypatch.setattr(Lease, "held", watched)
    monkeypatch.setattr(Checkpoints, "prune", gate.before(Checkpoints.prune))
    limits = Limits()

    class Slow(Hasty):
        def stepped(self, iteration: int) -> None:
            super().stepped(iteration)
            if iteration == 9:
                gate.wait_until_reached()
                os.kill(os.getpid(), signal.SIGTERM)
                for number in range(1, signals):
                    threading.Timer(0.4 * number, os.kill, (os.getpid(), signal.SIGTERM)).start()
                threading.Timer(0.4 * signals, gate.open).start()

    log = Slow()
    with stopping_on_signals(limits), pytest.raises(SystemExit) as caught:
        go(run, tmp_path / "part", limits, log)
    assert caught.value.code == 128 + signal.SIGTERM
    assert (log.steps[-1], at_release) == (9, [0])
    assert list((tmp_path / "part" / "leases").iterdir()) == []
    record = Store(tmp_path / "part").directory(run.id).read_record()
    assert record
    assert record.iteration == 8
    monkeypatch.undo()
    assert_same(go(run, tmp_path / "part")[0], go(run, tmp_path / "whole")[0])


@pytest.mark.parametrize("has_begun", [False, True])
def test_a_signal_while_the_thread_is_started_leaves_none_at_work(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_begun: bool
) -> None:
    start = threading.Thread.start

    def interrupted(self: threading.Thread) -> None:
        if self.name != THREAD:
            start(self)
            return
        if has_begun:
            start(self)
        raise Stop

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(Stop):
        go(run, tmp_path / "part")
    assert writers() == []
    record = Store(tmp_path / "part").directory(run.id).read_record()
    assert (record.iteration if record else None) == (8 if has_begun else None)
    monkeypatch.undo()
    assert_same(go(run, tmp_path / "part")[0], go(run, tmp_path / "whole")[0])


def test_where_no_thread_can_be_started_the_training_writes_its_checkpoints_itself(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start
    names: list[str] = []
    write = Checkpoints.write

    def refusing(self: threading.Thread) -> None:
        if self.name == THREAD:
            raise RuntimeError("can't start new thread")
        start(self)

    def noting(self: Checkpoints, *arguments: Any) -> Any:
        names.append(threading.current_thread().name)
        return write(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refusing)
        patch.setattr(Checkpoints, "write", noting)
        part, log = go(run, tmp_path / "part")
    assert log.record.status == "finished"
    assert names == [threading.current_thread().name] * 3, "at 8, 16 and the end"
    assert_same(part, go(run, tmp_path / "whole")[0])


def test_lines_that_waited_for_a_save_that_failed_are_in_the_next(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Store(tmp_path).directory(run.id)
    session = RunSession(run, directory, CPU, None, engine="eager", mixes=False, logged=print, warn=print)
    with failing(monkeypatch, PaperbenchError("no room")):
        session._writer.begin(session._save())
        for _ in range(5):
            session.trainer.step()
        session._watch.look(lambda: None)
        session.settle(lambda: None)
        with pytest.raises(PaperbenchError, match="no room"):
            session._writer.wait()
    session.save()
    session._writer.begin(session._save())
    session._writer.wait()
    session.close()
    assert [line.iteration for line in directory.history()] == [5], "once"


@pytest.mark.parametrize("how", ["pause", "signal"])
def test_a_pause_lets_the_save_under_way_end_and_writes_its_own_after_it(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate, how: str
) -> None:
    limits = Limits(stop_at=12) if how == "pause" else Limits()
    order: list[tuple[int, str]] = []
    write = Checkpoints.write

    def noting(self: Checkpoints, iteration: int, data: bytes) -> Any:
        written = write(self, iteration, data)
        order.append((iteration, threading.current_thread().name))
        return written

    monkeypatch.setattr(Checkpoints, "write", gate.before(noting))

    class Slow(Hasty):
        def stepped(self, iteration: int) -> None:
            super().stepped(iteration)
            if iteration == 12:
                limits.signal = signal.SIGTERM if how == "signal" else None
                threading.Timer(0.3, gate.open).start()

    directory, log = go(run, tmp_path / "part", limits, Slow())
    assert order == [(8, THREAD), (12, threading.current_thread().name)]
    assert (log.record.status, log.record.iteration) == ("partial", 12)
    assert [line.iteration for line in directory.history()] == [5, 10]
    assert [file.iteration for file in directory.checkpoints.newest_first()] == [12, 8]
    monkeypatch.undo()
    assert_same(go(run, tmp_path / "part")[0], go(run, tmp_path / "whole")[0])


def test_a_divergence_while_a_save_is_under_way_is_searched_for_after_it(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    """The net breaks at 10 after its loss was measured: only the checkpoint that is being written shows the place."""
    step = Trainer.step

    def breaking(self: Trainer) -> None:
        step(self)
        if self.iteration == 10:
            with torch.no_grad():
                self.model.fc.bias.fill_(float("inf"))

    monkeypatch.setattr(Trainer, "step", breaking)
    run = replace(run, recipe=replace(run.recipe, monitoring=Monitoring(5, 10, 4, 1.0)))
    whole, _ = go(run, tmp_path / "whole")
    monkeypatch.setattr(Checkpoints, "write", gate.before(Checkpoints.write))

    class Slow(Hasty):
        def stepped(self, iteration: int) -> None:
            super().stepped(iteration)
            if iteration == 15:
                threading.Timer(0.3, gate.open).start()

    part, log = go(run, tmp_path / "part", log=Slow())
    assert log.record.divergence
    assert (log.record.divergence.iteration, log.record.divergence.module) == (10, "fc")
    assert_same(part, whole)


def test_waiting_for_the_disk_is_not_counted_as_time_that_a_checkpoint_takes(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []
    write, saves = Checkpoints.write, Writer.begin

    def slow(self: Checkpoints, *arguments: Any) -> Any:
        time.sleep(1)
        return write(self, *arguments)

    def noting(self: Writer, save: Any) -> None:
        saves(self, save)
        taken.append(self)

    monkeypatch.setattr(Checkpoints, "write", slow)
    monkeypatch.setattr(Writer, "begin", noting)
    go(run, tmp_path)
    assert len(taken) == 2
    assert 0 < taken[0].seconds < 0.9


def test_a_checkpoint_is_not_written_twice(run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither when a run goes on from one, nor when one is due at the end, which has its own."""
    written: list[int] = []
    write = Checkpoints.write
    monkeypatch.setattr(Checkpoints, "write", lambda self, *of: written.append(of[0]) or write(self, *of))
    often = replace(run, recipe=replace(run.recipe, monitoring=Monitoring(5, 10, 10, 1.0)))
    go(often, tmp_path, stop_at=10)
    assert written == [10, 10], "the one that was due, and the last of the session"
    go(often, tmp_path)
    assert written == [10, 10, 20]


def test_what_a_run_held_is_free_once_it_is_over(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without waiting for Python to look for cycles: the next run needs the memory of the device."""
    held: list[weakref.ref[object]] = []

    class Noting(RunSession):
        def __init__(self, *arguments: Any, **names: Any) -> None:
            super().__init__(*arguments, **names)
            held.extend(
                weakref.ref(part) for part in (self, self.trainer, self._watch, self._writer, self._watch._last_line)
            )

        def _save(self) -> Any:
            save = super()._save()
            held.append(weakref.ref(save.state))
            return save

    monkeypatch.setattr("paperbench.runs.executor.RunSession", Noting)
    gc.disable()
    try:
        Executor(Store(tmp_path), CPU, Limits(), Log()).work_off([run])
        assert len(held) == 8
        assert [ref() for ref in held] == [None] * 8
    finally:
        gc.enable()


def kill_beside_the_writer(point: int) -> Log:
    """Stop the writing thread at the n-th of its dealings with the disk; three steps later this process is killed."""
    count = itertools.count(1)
    stopped = threading.Event()

    def tick() -> bool:
        if threading.current_thread().name == THREAD and next(count) == point:
            stopped.set()
            time.sleep(600)
        return True

    at_each_dealing_with_the_disk(tick)

    class Killing(Hasty):
        left = 3

        def stepped(self, iteration: int) -> None:
            for thread in writers():
                while thread.is_alive() and not stopped.is_set():
                    time.sleep(0.001)
            if stopped.is_set():
                self.left -= 1
                if self.left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

    return Killing()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_kill_while_the_training_is_ahead_of_a_save_loses_nothing(
    run: PlannedRun, tmp_path: Path, full: bool
) -> None:
    whole, _ = go(run, tmp_path / "whole")
    killed = 0
    for point in itertools.count(1, 1 if full else 5):
        root = tmp_path / f"killed at {point}"
        child = os.fork()
        if child == 0:
            try:
                go(run, root, log=kill_beside_the_writer(point))
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        part, log = go(run, root)
        if not os.WIFSIGNALED(status):
            assert os.WEXITSTATUS(status) == 0
            break
        assert log.steps[0] in (1, 9, 17)
        assert_same(part, whole)
        assert not list(part.path.glob("*.tmp"))
        killed += 1
    assert killed > 30 / (1 if full else 5)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_state_is_finite_if_all_its_numbers_are(value: float) -> None:
    sound = {"a": [torch.ones(3), torch.tensor(2)], "b": {"c": torch.zeros((), dtype=torch.float64)}, "d": value}
    assert is_finite(sound)
    assert not is_finite({**sound, "e": (torch.tensor([1.0, value]),)})


@pytest.mark.gpu
def test_a_snapshot_is_copied_from_a_gpu_beside_its_work(run: PlannedRun) -> None:
    """The copy is of the moment of the snapshot, and does not wait for what the device was given after it."""
    device = torch.device("cuda")
    trainer = Trainer(run.net, run.recipe, run.dataset, 0, "fp32", device)
    for _ in range(3):
        trainer.step()
    torch.cuda.synchronize()
    snapshot = Snapshot(trainer)
    expected = snapshot.state()
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # a second of work
    ended = torch.cuda.Event()
    trainer.step()
    ended.record()
    copies: list[Any] = []
    thread = threading.Thread(target=lambda: copies.append(snapshot.on_host()))
    thread.start()
    thread.join()
    assert not ended.query(), "the step had not ended yet"
    (copy,) = copies
    assert all(t.device.type == "cpu" for t in copy["model"].values())
    assert_equal(copy["model"], {name: t.cpu() for name, t in expected["model"].items()})
