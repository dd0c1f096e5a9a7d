"""Carries out the parts one after the other, each in a process of its own and within its share of the time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Literal, get_args

import paperbench
from paperbench.bench.anatomy.job import Job
from paperbench.bench.anatomy.plan import Task
from paperbench.bench.anatomy.recorder import Recorded, Row
from paperbench.bench.words import without_paths

Status = Literal["complete", "killed", "crashed", "interrupted", "not run"]
STATUSES: tuple[Status, ...] = get_args(Status)

LEAST_SECONDS = 2.0
"""A part that would have less than this is not begun."""

POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Outcome:
    """What became of a task.

    Attributes:
        status: complete: the process came to its end; some rows may be left out all the same. killed: it was still
            running at its limit. crashed: it ended before its end.
        why: Unless it is complete.
        seconds: That it took.
        limit_seconds: That it might have taken; None if it was not begun.
        rows, left_out: What it wrote.
    """

    task: Task
    status: Status
    why: str | None = None
    seconds: float = 0.0
    limit_seconds: float | None = None
    rows: list[Row] = field(default_factory=list)
    left_out: list[Row] = field(default_factory=list)


class Schedule:
    """The time there is, and what it is spent on.

    Args:
        job: Of any task; `part`, `module`, `model`, `seconds` and `output` are filled in for each.
        seconds: For everything.
        say: Takes a line on how far it is.
        worker: Module that a part's process runs, with the job as its argument.
    """

    def __init__(
        self,
        job: Job,
        seconds: float,
        say: Callable[[str], None],
        worker: str = "paperbench.bench.anatomy.worker",
    ) -> None:
        self._job, self._say, self._worker = job, say, worker
        self._clock = time.monotonic
        self._end = self._clock() + seconds
        self.signal: int | None = None
        """What has ended it early."""

    def run(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        """Carry out the tasks; what one does not use, the later ones get."""
        on_gpu = self._job.device.startswith("cuda")
        with tempfile.TemporaryDirectory(prefix="paperbench-anatomy-") as folder, self._listening():
            for number, task in enumerate(tasks):
                if task.part.needs_gpu and not on_gpu:
                    yield Outcome(task, "not run", f"needs a GPU: {task.part.needs_gpu}")
                    continue
                if self.signal is not None:
                    yield Outcome(task, "not run", "the command was interrupted before")
                    continue
                left = self._end - self._clock()
                waiting = [t.weight for t in tasks[number:] if on_gpu or not t.part.needs_gpu]
                limit = left * task.weight / sum(waiting)
                if limit < LEAST_SECONDS:
                    yield Outcome(task, "not run", "no time was left")
                    continue
                self._say(f"{number + 1} of {len(tasks)}: {task.label}, at most {limit:.0f} s")
                outcome = self._carry_out(task, limit, Path(folder) / str(number))
                lost = "" if outcome.status == "complete" else f", {outcome.status}: {outcome.why}"
                self._say(f"{task.label}: {len(outcome.rows)} rows in {outcome.seconds:.1f} s{lost}")
                yield outcome

    def _carry_out(self, task: Task, limit: float, base: Path) -> Outcome:
        output, said, errors = (base.with_suffix(suffix) for suffix in (".jsonl", ".out", ".err"))
        # Before its limit a part is asked to begin nothing new, so that it can end by itself.
        seconds = max(limit / 2, limit - max(3.0, 0.12 * limit))
        job = Job(
            part=task.part.name,
            module=task.part.module,
            model=task.model,
            models=self._job.models,
            scale=self._job.scale,
            device=self._job.device,
            seconds=seconds,
            output=str(output),
        )
        start = self._clock()
        with open(said, "wb") as stdout, open(errors, "wb") as stderr:
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", self._worker, job.to_json()],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=_environment(),
                start_new_session=True,  # so that the compiler's processes can be ended with it
            )
            status, why = self._watch(process, start + limit)
        taken = self._clock() - start
        found = Recorded(output)
        if status == "complete" and (process.returncode != 0 or not found.is_complete):
            status, why = "crashed", _reason(process.returncode, errors)
        elif status == "killed":
            why = f"still running after {limit:.0f} s" + (f"; last said: {last}" if (last := _last_line(said)) else "")
        return Outcome(task, status, why, taken, limit, found.rows, found.left_out)

    def _watch(self, process: subprocess.Popen[bytes], until: float) -> tuple[Status, str | None]:
        try:
            while process.poll() is None:
                if self.signal is not None:
                    return "interrupted", f"by {signal.Signals(self.signal).name}"
                if self._clock() >= until:
                    return "killed", None
                time.sleep(POLL_SECONDS)
            return "complete", None
        finally:
            _end(process)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Take note of signals that ask for the end."""

        def note(number: int, _frame: FrameType | None) -> None:
            self.signal = number

        numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
        previous = {number: signal.signal(number, note) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # a driver that hangs can keep a process from ending
        process.wait(timeout=10)


def _environment() -> dict[str, str]:
    """For a part's process: finds this package, and keeps the profiler from being torn down beneath CUDA graphs."""
    top = str(Path(paperbench.__file__).resolve().parents[1])
    paths = [top, *filter(None, [os.environ.get("PYTHONPATH")])]
    given = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **given, "TEARDOWN_CUPTI": "0", "DISABLE_CUPTI_LAZY_REINIT": "1"}


def _reason(code: int | None, errors: Path) -> str:
    """Why a process has ended, by its status and the last of what it wrote as errors."""
    if code is not None and code < 0:
        try:
            how = f"ended by {signal.Signals(-code).name}"
        except ValueError:
            how = f"ended by signal {-code}"
    else:
        how = f"ended with status {code}"
    last = _last_line(errors)
    return f"{how}: {last}" if last else how


def _last_line(log: Path) -> str:
    try:
        lines = log.read_bytes()[-20_000:].decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return without_paths(lines[-1].strip())[:300] if lines else ""
