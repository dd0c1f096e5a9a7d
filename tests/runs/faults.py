"""Disturb trainings at the calls that they make to the C library, and check what is left.

    LD_PRELOAD=SHIM python -m tests.runs.faults SHIM ROOT TASK...

SHIM is `faulty_libc.c`, compiled. One process imports torch and forks a training per case, in a folder below ROOT. Each
`Task` is JSON, and is answered by a line of JSON, an `Answer`. Limits on the memory come first if at all.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import shutil
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, cast
from unittest.mock import patch

import torch

from paperbench.data.imagenet.index import PhotoDataset
from paperbench.data.photos import load_photos
from paperbench.errors import PaperbenchError
from paperbench.runs import lease as lease_module
from paperbench.runs.checkpoints import Checkpoints
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Record
from paperbench.runs.session import RunSession
from paperbench.runs.store import RunDirectory, Store
from paperbench.specs.recipe import BatchNormSettings, Drops, Monitoring
from paperbench.specs.table import read_table
from paperbench.training import engines as engines_module
from tests.helpers import ROOT, random_dataset
from tests.runs.running import Log, assert_same, photographs_recipe, plan_run, tiny_recipe, train

Kind = Literal["fail", "kill before", "kill after", "suspend", "limit memory", "fail at images", "kill with images"]
_ACTIONS = {"fail": 0, "kill before": 1, "kill after": 2, "suspend": 3, "fail at images": 0, "kill with images": 1}
_ERRORS = ("EIO", "ENOSPC", "ESTALE", "EMFILE", "EROFS", "EINTR", "EACCES", "EDQUOT", "ENOMEM")
_MOMENTS = range(3)
"""When a suspended process goes on: after its successor's first step, when that is done, or when it is gone."""
_MAX_SECONDS = 60
_MAX_MEGABYTES = 24


@dataclass(frozen=True)
class Task:
    """Which cases to try, of a run that starts and of one that a killed process left.

    Attributes:
        stride: Disturb every n-th call; of memory limits, the distance in MB.
        variants: Errors per call, or moments at which a suspended process goes on. The choice rotates.
    """

    kind: Kind
    stride: int
    variants: int = 1


@dataclass
class Answer:
    """What came of a task.

    Attributes:
        ends: How often each kind of end occurred, in trainings that were disturbed.
        problems: What went wrong, one text per case.
    """

    ends: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


class Child:
    """A training in a forked process.

    Args:
        prepare: Called in the process before the training, with a file descriptor that takes lines for the report.

    Attributes:
        is_suspended: Whether the process has suspended itself.
        report: Lines: the call that was disturbed, the iterations that were saved, and how the training ended.
    """

    def __init__(self, run: PlannedRun, root: Path, prepare: Callable[[int], object]) -> None:
        self._reader, writer = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            signal.alarm(_MAX_SECONDS)  # a process that hangs ends by SIGALRM
            try:
                _train_and_report(run, root, prepare, writer)
            finally:
                os._exit(0)
        os.close(writer)
        self.report: list[str] = []
        self._wait()

    def _wait(self) -> None:
        """Wait until the process ends or suspends itself."""
        _, status = os.waitpid(self._process, os.WUNTRACED)
        self.is_suspended = os.WIFSTOPPED(status)
        if not self.is_suspended:
            with open(self._reader, encoding="utf-8") as stream:
                self.report = stream.read().splitlines()
            if os.WIFSIGNALED(status):
                self.report.append(f"end {signal.Signals(os.WTERMSIG(status)).name}")

    def go_on(self) -> None:
        os.kill(self._process, signal.SIGCONT)
        self._wait()

    def reported(self, what: str) -> list[str]:
        """Return the report's lines that start with a word, without it."""
        return [line.removeprefix(f"{what} ") for line in self.report if line.startswith(f"{what} ")]


def _train_and_report(run: PlannedRun, root: Path, prepare: Callable[[int], object], writer: int) -> None:
    def say(text: str) -> None:
        os.write(writer, (text.replace("\n", " | ")[:6_000] + "\n").encode())

    write_record = RunDirectory.write_record

    def saving(directory: RunDirectory, record: Record) -> None:
        write_record(directory, record)
        say(f"saved {record.iteration}")

    threading.excepthook = lambda hook: say(f"crash of a thread: {hook.exc_value!r}")

    def unraisable(hook: sys.UnraisableHookArgs) -> None:
        if not isinstance(hook.exc_value, MemoryError):  # with no memory left, even closing pathlib's generators fails
            say(f"crash of {hook.object!r}: {hook.exc_value!r}")

    sys.unraisablehook = unraisable
    try:
        prepare(writer)
        with patch.object(RunDirectory, "write_record", saving):
            _, log = train(run, root)
        end = "skipped" if log.skips else "failed" if log.failures else "trained"
        reasons = [*log.warnings, *(why for _, why in log.skips + log.failures)]
    except (PaperbenchError, MemoryError) as error:
        end, reasons = "refused", [str(error)]
    except BaseException as error:
        end, reasons = "crashed", [*traceback.format_tb(error.__traceback__), repr(error)]
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    for reason in reasons:
        say(f"because {reason}")
    say(f"end {end}")


class _Attempt(NamedTuple):
    """A training in a folder that was disturbed.

    Attributes:
        is_new: Whether it started the run.
        choice: Which error it met, or when it goes on.
    """

    path: Path
    is_new: bool
    choice: int
    child: Child


class Faults:
    """The cases of one run.

    Args:
        shim: Path of the library that is preloaded.
        root: A new directory for results.
        run: The run.
    """

    def __init__(self, shim: str, root: Path, run: PlannedRun) -> None:
        self._shim, self._root, self._run = ctypes.CDLL(shim), root, run
        self._shim.count.restype = ctypes.c_long
        root.mkdir()
        # Fake tensors make autograd start threads, after which forked processes cannot train.
        engines_module.memory_needed = lambda *_, recompute: int(not recompute)
        assert Child(self._run, root / "undisturbed", lambda _: None).report[-1] == "end trained"
        self._expected = Store(root / "undisturbed").directory(self._run.id)
        self._started = root / "started"
        self._start()

    def _arm(self, root: Path, call: int, kind: Kind, error: int, report: int) -> None:
        if kind == "fail at images":
            root = cast(PhotoDataset, self._run.dataset).directory
        only_changes = kind.startswith("kill")  # between two changes, it does not matter when a process dies
        self._shim.arm(bytes(root), ctypes.c_long(call), _ACTIONS[kind], error, only_changes, report)

    def _start(self) -> None:
        """Leave a run as a process does that is killed while it writes its second checkpoint."""
        write = Checkpoints.write

        def prepare(report: int) -> None:
            def killed(checkpoints: Checkpoints, iteration: int, data: bytes) -> object:
                if iteration == 2:
                    self._arm(self._started, 3, "kill after", 0, report)
                return write(checkpoints, iteration, data)

            Checkpoints.write = killed  # type: ignore[method-assign,assignment]

        child = Child(self._run, self._started, prepare)
        assert child.report[-1] == "end SIGKILL", child.report
        (leftover,) = Store(self._started).directory(self._run.id).path.glob("*.tmp")
        assert leftover.stat().st_size > 100_000

    def answer(self, task: Task) -> Answer:
        answer = Answer()
        attempts: Iterable[_Attempt] = self._attempts(task)
        if task.kind == "limit memory":  # a process that has trained before needs little more memory
            attempts = list(attempts)
        for attempt in attempts:
            path, child = attempt.path, attempt.child
            try:
                if child.is_suspended:
                    self._succeed(child, path / "results", attempt.choice % len(_MOMENTS))
                if child.reported("at") or task.kind == "limit memory":
                    answer.ends[child.reported("end")[0]] += 1
                self._check(attempt)
                shutil.rmtree(path)
            except Exception:
                report = "\n".join(child.report)
                answer.problems.append(f"{path.name}:\n{report}\n{traceback.format_exc(limit=-2)}")
        return answer

    def _attempts(self, task: Task) -> Iterator[_Attempt]:
        """Disturb trainings, one after another."""
        for is_new in (True, False):
            last = _MAX_MEGABYTES if task.kind == "limit memory" else self._calls(task.kind, is_new)
            for number, point in enumerate(range(1, last + 1, task.stride)):
                for choice in range(number, number + task.variants):
                    yield self._disturb(task.kind, is_new, point, choice)

    def _calls(self, kind: Kind, is_new: bool) -> int:
        """Return how many calls an undisturbed training makes."""
        path = self._prepare(f"{kind} never", is_new)
        self._arm(path / "results", 0, kind, 0, 0)
        train(self._run, path / "results")
        return int(self._shim.count())

    def _prepare(self, name: str, is_new: bool) -> Path:
        """Make a folder for a case, in which only the results directory may change."""
        path = self._root / f"{name}, {'new' if is_new else 'resumed'}"
        path.mkdir()
        if not is_new:
            shutil.copytree(self._started, path / "results", copy_function=_copy)
        os.chdir(path)
        return path

    def _disturb(self, kind: Kind, is_new: bool, point: int, choice: int) -> _Attempt:
        """Disturb a training at the n-th call, or by a limit of n MB."""
        error, moment = _ERRORS[choice % len(_ERRORS)], choice % len(_MOMENTS)
        is_failure = kind.startswith("fail")
        variant = f" with {error}" if is_failure else f" until moment {moment}" if kind == "suspend" else ""
        path = self._prepare(f"{kind} {point}{variant}", is_new)

        def prepare(report: int) -> None:
            if kind == "limit memory":
                _limit_memory(point)
            else:
                self._arm(path / "results", point, kind, getattr(errno, error), report)

        return _Attempt(path, is_new, choice, Child(self._run, path / "results", prepare))

    def _succeed(self, child: Child, root: Path, moment: int) -> None:
        """Finish the run of a suspended process, and let it go on meanwhile or afterwards."""

        def reached(now: int) -> None:
            if child.is_suspended and now >= moment:
                before = _files(root)
                child.go_on()
                if now and log.records:
                    _assert_unchanged(before, _files(root))

        class Successor(Log):
            def stepped(self, run: PlannedRun, iteration: int) -> None:
                super().stepped(run, iteration)
                reached(0)

            def ended(self, run: PlannedRun, record: Record) -> None:
                super().ended(run, record)
                reached(1)

        log = Successor()
        with patch.object(lease_module.Holder, "is_alive", lambda _: False):
            train(self._run, root, log=log)
        reached(2)
        assert log.failures == log.warnings == [], "the successor works as usual"
        if not log.records:
            assert "finished at" in log.skips[0][1]
        else:
            assert child.reported("end") == ["skipped"]
            assert not child.reported("saved") or "lost its lease" in child.reported("because")[0]

    def _check(self, attempt: _Attempt) -> None:
        """Train undisturbed, and compare with a run that was never disturbed."""
        path, child = attempt.path, attempt.child
        assert child.reported("end")[0] not in ("crashed", "SIGALRM"), "it ends with a clear error"
        assert not child.reported("crash"), "so do its other threads"
        assert {entry.name for entry in path.iterdir()} <= {"results"}, "nothing else is touched"
        saved = max([0 if attempt.is_new else 1, *map(int, child.reported("saved"))])
        directory, log = train(self._run, path / "results")
        assert log.failures == log.warnings == []
        assert not log.steps or log.steps[0] > saved, f"fell back from {saved}"
        assert_same(directory, self._expected)
        kinds = {file.name.partition("-")[0] for file in directory.path.iterdir()}
        assert kinds == {"checkpoint", "history.jsonl", "model.safetensors", "record.json"}, kinds


def _run(*, on_photographs: bool) -> PlannedRun:
    """Return a run of three iterations of four images, with a drop and a test after two."""
    changes = {
        "iterations": 3,
        "batch_size": 4,
        "drops": Drops((2,), 0.1),
        "batch_norm": BatchNormSettings(4, 1e-5, 0.1, "moving_average"),
        "monitoring": Monitoring(1, 2, 1, 1.0),
    }
    if on_photographs:
        return plan_run(photographs_recipe(**changes), load_photos())
    table = read_table("table2", ROOT)
    recipe = tiny_recipe(table.recipe_in(table.profiles.named("paper")), warm_up=None, **changes)
    return plan_run(recipe, random_dataset(8))


def _copy(source: str, target: str) -> object:
    """Copy a file, but link a lease: it knows its inode."""
    return (os.link if "/leases/" in source else shutil.copy)(source, target)


def _files(root: Path) -> dict[str, bytes]:
    """Return the contents of all files but the leases."""
    paths = (path for path in root.rglob("*") if path.is_file() and path.parent.name != "leases")
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def _assert_unchanged(before: dict[str, bytes], after: dict[str, bytes]) -> None:
    changed = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    assert changed == [], "a late process is harmless"


def _limit_memory(megabytes: int) -> None:
    """Let this process have that much more address space than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


if __name__ == "__main__":
    torch.set_num_threads(1)
    lease_module.LEASE_SECONDS = 0.0  # a lease that was cut short expires at once
    with patch.object(RunSession, "_is_checkpoint_due", lambda _: True):
        faults: dict[bool, Faults] = {}
        for task in (Task(**json.loads(text)) for text in sys.argv[3:]):
            on_photographs = task.kind.endswith("images")
            if on_photographs not in faults:
                run = _run(on_photographs=on_photographs)
                faults[on_photographs] = Faults(sys.argv[1], Path(sys.argv[2], run.id), run)
            print(json.dumps(vars(faults[on_photographs].answer(task))), flush=True)
