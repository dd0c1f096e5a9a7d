"""Leases on runs, which ensure that only one process trains a run, on any shared file system.

A lease is a small file that its holder touches every few seconds. A process on the same machine can see directly
whether the holder is alive. A holder on another machine counts as dead if its file has not changed for a minute by the
observer's own monotonic clock, so clocks that differ or jump do not matter.

The file system only has to support exclusive creation of files, as network file systems do. A process takes over a
lease by creating the file with the next number; the highest number belongs to the holder. A holder that was suspended
for too long notices this before it writes anything.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Event, Thread
from typing import Annotated, NamedTuple

from pydantic import Field

from paperbench.errors import PaperbenchError, RunError
from paperbench.files import list_directory, open_regular, read_at_most, refuse_links, report_write_errors
from paperbench.specs.run_spec import Precision, RunSpec
from paperbench.typed import Line, TypedError, from_json, to_json, typed

LEASE_SECONDS = 60.0
"""Seconds without a heartbeat after which a holder counts as dead."""
HEARTBEAT_SECONDS = 5.0
_POLL_SECONDS = 0.2
_MAX_PAUSE_SECONDS = 1.0
_MAX_BYTES = 1_000


class LeaseLostError(RunError):
    """Another process may be training this run, so this process must not write any more."""


@typed
class Holder:
    """The contents of a lease file. They identify a process, but not the machine or its user by name.

    Leases of earlier versions lack the attributes from `job` on, which only `paperbench status` reads.

    Attributes:
        token: Random; distinguishes the leases of one process.
        inode: Inode number of the file; a copy of the file has another.
        machine: Result of `_machine_id()`.
        started: Result of `_start_time(pid)`.
        job: Number of the process's Slurm job, if it has one.
        since: When the lease was acquired, in Unix seconds.
        data, precision: Those of the run's spec.
    """

    token: str
    inode: int
    machine: str | None
    pid: Annotated[int, Field(ge=1, lt=2**31)]
    started: str | None
    job: Line | None = None
    since: float | None = None
    data: Line | None = None
    precision: Precision | None = None

    def is_alive(self) -> bool | None:
        """Whether the process is alive; None if this process cannot see that."""
        if self.machine is None or self.machine != _machine_id():
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return None  # the process belongs to another user
        started = _start_time(self.pid)
        return None if started is None else started == self.started


class _Sighting(NamedTuple):
    """A lease file at some moment. A holder that is alive changes the times."""

    path: Path
    content: bytes
    inode: int
    mtime: int
    ctime: int


def _sight(path: Path) -> _Sighting | None:
    """Return a lease file as it is now, or None if it does not exist."""
    try:
        try:
            with open_regular(path, _MAX_BYTES) as stream:  # network file systems refresh the times of an opened file
                content, status = stream.read(), os.fstat(stream.fileno())
        except OSError:  # not a lease, or not readable for this user
            content, status = b"", path.lstat()
    except FileNotFoundError:
        return None
    return _Sighting(path, content, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)


def _holder(seen: _Sighting) -> tuple[Holder | None, bool | None]:
    """Return the holder and whether it is alive; None for what cannot be told."""
    with suppress(TypedError):
        holder = from_json(Holder, seen.content)
        return holder, holder.is_alive() if holder.inode == seen.inode else None
    return None, None


def _numbers_by_run(files: Iterable[Path]) -> dict[str, list[int]]:
    """Return the numbers of the lease files of each run."""
    numbers: dict[str, list[int]] = {}
    for path in files:
        run_id, _, tail = path.name.rpartition(".")
        if re.fullmatch("[1-9][0-9]*", tail):
            numbers.setdefault(run_id, []).append(int(tail))
    return numbers


class Lease:
    """A lease on one run: acquire it before you write to the run's directory, then release it.

    Args:
        directory: That of the lease files.
        spec: The run's, for `paperbench status`.
        clock: Returns seconds, and never goes back.

    Attributes:
        is_lost: Whether a heartbeat noticed that another process holds the lease. Unlike this flag, `check` reads the
            disk.
        shows_life: Whether the holder is known to be alive, as of the last attempt to acquire the lease.
        holder: Description of the holder for messages, as of the last attempt to acquire the lease.
    """

    def __init__(
        self, directory: Path, run_id: str, spec: RunSpec | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.directory, self._run_id, self._spec, self._clock = directory, run_id, spec, clock
        self._file: Path | None = None
        self._content = b""
        self._stop = Event()
        self._heartbeat: Thread | None = None
        self._seen: _Sighting | None = None
        self._seen_at = self._silence = 0.0
        self.is_lost = self.shows_life = False
        self.holder = ""

    def acquire(self, numbers: Sequence[int] | None = None) -> bool:
        """Acquire the lease, without waiting, if it is free or its holder is known to be dead; return whether it was.

        Args:
            numbers: Those of the run's lease files, if they are known; otherwise the directory is read.
        """
        refuse_links(self.directory)
        with report_write_errors(self.directory / self._run_id):
            self.directory.mkdir(parents=True, exist_ok=True)
            number = max(self._numbers() if numbers is None else numbers, default=0)
            if number and not self._is_dead(self._numbered(number)):
                return False
            if not self._create(number + 1):
                return False
        heartbeat = Thread(target=self._beat, daemon=True)
        try:
            heartbeat.start()
        except RuntimeError as error:
            self.release()
            raise PaperbenchError(f"{error}: free memory, or raise the limits of this user (`ulimit -a`).") from error
        self._heartbeat = heartbeat
        return True

    def release(self) -> None:
        """Release the lease, unless another process has taken it over."""
        self._stop.set()
        if self._heartbeat is not None:
            self._heartbeat.join()
        with suppress(OSError):
            if self._file is not None and self._is_ours() and self._delete_earlier():
                self._file.unlink()
        self._file = None

    def check(self) -> None:
        """Check on disk that this process still holds the lease."""
        with report_write_errors(self.directory / self._run_id):
            is_ours = not self.is_lost and self._is_ours()
        if not is_ours:
            raise LeaseLostError(
                "this process lost its lease on the run: it was suspended so long that another process took over, or "
                f"someone emptied {self.directory}. Its work since the last checkpoint is lost."
            )

    def _numbers(self) -> list[int]:
        """Return the numbers of the lease files. The highest is the holder's; the lease is free if there is none."""
        # Unlike glob, iterdir raises an error if the directory cannot be read.
        return _numbers_by_run(self.directory.iterdir()).get(self._run_id, [])

    def _numbered(self, number: int) -> Path:
        return self.directory / f"{self._run_id}.{number}"

    def _create(self, number: int) -> bool:
        """Create the file with this number, and delete the earlier ones; return whether this process is the holder."""
        path, predecessor = self._numbered(number), self._numbered(number - 1)
        try:
            with open(path, "xb") as stream:
                inode, pid = os.fstat(stream.fileno()).st_ino, os.getpid()
                process = secrets.token_hex(8), inode, _machine_id(), pid, _start_time(pid)
                work = (self._spec.data, self._spec.precision) if self._spec else ()
                found = re.fullmatch("[0-9]{1,20}", os.environ.get("SLURM_JOB_ID", ""))
                content = to_json(Holder(*process, found and found[0], round(time.time(), 3), *work)).encode()
                stream.write(content)
            self._file, self._content = path, content
            # Another process may have created a higher number; or the lease was released and acquired meanwhile.
            is_holder = self._is_ours() and (number == 1 or _sight(predecessor) == self._seen)
        except FileExistsError:
            return False
        except OSError:  # a full disk: the file would block other processes
            with suppress(OSError):
                path.unlink()
            raise
        if not is_holder:
            path.unlink(missing_ok=True)
            self._file = None
            return False
        self._delete_earlier()
        return True

    def _delete_earlier(self) -> bool:
        """Delete the files of earlier holders; return whether none is left, which could become the highest again."""
        with suppress(OSError):
            for number in sorted(self._numbers())[:-1]:
                with suppress(OSError):
                    self._numbered(number).unlink()
            return len(self._numbers()) == 1
        return False

    def _is_dead(self, file: Path) -> bool:
        """Whether the holder is known to be dead, judging by this attempt and all earlier ones."""
        before, self._seen = self._seen, _sight(file)
        if self._seen is None:
            return False  # just released: the next attempt will succeed
        holder, is_alive = _holder(self._seen)
        if holder and is_alive is not None:
            self.holder, self.shows_life = f"process {holder.pid}", is_alive
            return not is_alive
        self.holder = "a process on another machine, or one hidden from this user,"
        now = self._clock()
        if self._seen != before:
            self.shows_life, self._silence = before is not None, 0.0
        else:
            # If this process was suspended between two attempts, the holder may have been suspended too.
            self._silence += min(now - self._seen_at, _MAX_PAUSE_SECONDS)
        self._seen_at = now
        return self._silence >= LEASE_SECONDS

    def _beat(self) -> None:
        """Touch the file until the lease is released or lost. Runs in its own thread."""
        while not self._stop.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):  # the file server may be down for a moment
                if self._file is None or not self._is_ours():
                    self.is_lost = True
                    return
                os.utime(self._file)

    def _is_ours(self) -> bool:
        try:
            path = self._numbered(max(self._numbers(), default=0))
            return path == self._file and read_at_most(path, _MAX_BYTES) == self._content
        except FileNotFoundError:
            return False


def acquire_any(
    leases: dict[str, Lease],
    is_cancelled: Callable[[], bool],
    on_wait: Callable[[int], None],
    sleep: Callable[[float], object] = time.sleep,
) -> str | None:
    """Try to acquire leases that other processes hold, until one succeeds or all holders are known to be alive.

    Args:
        leases: The leases by run id, all in one directory.
        is_cancelled: Polled; stops the wait once it returns true.
        on_wait: Called once, with the number of leases to wait for, if there are any.

    Returns:
        The id of the run whose lease was acquired; None if all holders are alive, or the wait was cancelled.
    """
    silent, has_waited = leases, False
    while silent and not is_cancelled():
        numbers = _numbers_by_run(list_directory(next(iter(silent.values())).directory))
        for name, lease in silent.items():
            if lease.acquire(numbers.get(name, [])):
                return name
        silent = {name: lease for name, lease in silent.items() if not lease.shows_life}
        if silent and not has_waited:
            on_wait(len(silent))
            has_waited = True
        sleep(_POLL_SECONDS if silent else 0)
    return None


class HeldRun(NamedTuple):
    """A lease that somebody seems to hold.

    Attributes:
        holder: None if the file cannot be read.
        silent: Seconds since the holder's last sign of life; None if it is alive.
    """

    holder: Holder | None
    silent: float | None


def held_runs(directory: Path) -> dict[str, HeldRun]:
    """Return the runs whose leases are held, by id, without those whose holder is known to be dead.

    A holder on another machine is silent once its file is older than `LEASE_SECONDS` by this machine's clock.
    """
    held = {}
    for run_id, numbers in _numbers_by_run(list_directory(directory)).items():
        if seen := _sight(directory / f"{run_id}.{max(numbers)}"):
            holder, is_alive = _holder(seen)
            age = time.time() - seen.mtime / 1e9
            if is_alive is not False:
                held[run_id] = HeldRun(holder, None if is_alive or age < LEASE_SECONDS else age)
    return held


@cache
def _machine_id() -> str | None:
    """Return the ids of this boot and of the PID namespace; None if they are unknown (not on Linux)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return None


def _start_time(pid: int) -> str | None:
    """Return when a process started, in ticks since boot; "dead" for a zombie; None if the process is hidden."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "dead" if fields[0] in "ZX" else fields[19]
