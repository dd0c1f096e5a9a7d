"""Which process is working on a run, on any file system that machines share.

A lease is a small file that its holder touches every few seconds. Whether a holder on this machine is alive can be
seen at once. A holder on another machine counts as dead when its file has not changed for a minute of the watcher's own
monotonic clock, so neither wrong clocks nor jumping ones matter.

The file system must only be able to create a file exclusively. Network file systems can do that, while they lack the
exchange of names that libraries build leases on. Taking over means creating the file with the next number; the highest
number is the holder's. A holder that was suspended for too long finds that out before it writes anything.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Event, Thread
from typing import Annotated

from pydantic import Field

from paperbench.errors import RunError
from paperbench.files import writing
from paperbench.typed import TypedError, from_json, to_json, typed

LEASE_SECONDS = 60.0
"""How long a lease lasts without a sign of life."""
HEARTBEAT_SECONDS = 5.0
_POLL_SECONDS = 0.2
_MAX_PAUSE_SECONDS = 1.0
_MAX_BYTES = 1_000


class LeaseLostError(RunError):
    """Another process may be working on this run, and this one must write no more."""


@typed
class _Holder:
    """What a lease file says about the process that wrote it. It names neither the machine nor a person.

    Attributes:
        token: Tells the leases of one process apart.
        inode: Of the file; a copy has another.
        machine: As `_machine`.
        started: As `_start_of`.
    """

    token: str
    inode: int
    machine: str | None
    pid: Annotated[int, Field(ge=1, lt=2**31)]
    started: str | None

    def is_alive(self) -> bool | None:
        """Whether the process lives; None if that cannot be seen from here."""
        if self.machine is None or self.machine != _machine():
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except OSError:
            return None  # of another user
        present = _start_of(self.pid)
        return None if present is None else present == self.started


class Lease:
    """A lease on one run, which this process may take.

    Args:
        folder: Where the leases of the store are.
        run_id: The run's.
    """

    def __init__(self, folder: Path, run_id: str) -> None:
        self._folder, self._run_id = folder, run_id
        self._ours: Path | None = None
        self._content = b""
        self._stop = Event()
        self._heartbeat: Thread | None = None
        self._seen: object = None
        self._seen_at = self._silence = 0.0
        self.is_lost = False
        """Whether a heartbeat found that the lease is no longer ours. Costs nothing; `check` reads the folder again."""
        self.shows_life = False
        """Whether the process that holds it is known to be alive, as of the last attempt to take it."""
        self.holder = ""
        """The process that holds it, for messages, as of the last attempt to take it."""

    def take(self) -> bool:
        """Take the lease if nobody has it, or its holder is known to be dead; whether that worked.

        Raises:
            PaperbenchError: Its file cannot be read or written.
        """
        with writing(self._folder / self._run_id):
            self._folder.mkdir(parents=True, exist_ok=True)
            number = self._highest()
            if number and not self._is_dead(self._file(number)):
                return False
            if not self._create(number + 1):
                return False
        self._heartbeat = Thread(target=self._beat, daemon=True)
        self._heartbeat.start()
        return True

    @contextmanager
    def held(self) -> Iterator[None]:
        """Release the lease at the end, however that comes."""
        try:
            yield
        finally:
            self._stop.set()
            if self._heartbeat is not None:
                self._heartbeat.join()
            with suppress(OSError):
                if self._ours is not None and self._is_ours():
                    self._ours.unlink()
            self._ours = None

    def check(self) -> None:
        """Make sure, on disk, that the lease is still ours.

        Raises:
            LeaseLostError: It is not: this process must write no more.
            PaperbenchError: The folder of leases cannot be read.
        """
        with writing(self._folder / self._run_id):
            is_ours = not self.is_lost and self._is_ours()
        if not is_ours:
            raise LeaseLostError(
                "this process lost its lease on the run: it was silent for so long that another process took the run "
                f"over, or somebody cleared {self._folder}. Its work since the last checkpoint is discarded."
            )

    def _highest(self) -> int:
        """The number of the holder's file; 0 if nobody holds the lease."""
        # Unlike glob, iterdir does not take a folder that cannot be read for an empty one.
        names = [path.name.rpartition(".") for path in self._folder.iterdir()]
        numbers = (tail for run_id, _, tail in names if run_id == self._run_id and tail.isascii() and tail.isdigit())
        return max(map(int, numbers), default=0)

    def _file(self, number: int) -> Path:
        return self._folder / f"{self._run_id}.{number}"

    def _create(self, number: int) -> bool:
        """Create the file with a number, and remove the one below it."""
        path = self._file(number)
        try:
            with open(path, "xb") as stream:
                inode, pid = os.fstat(stream.fileno()).st_ino, os.getpid()
                content = to_json(_Holder(secrets.token_hex(8), inode, _machine(), pid, _start_of(pid))).encode()
                stream.write(content)
        except FileExistsError:
            return False
        except OSError:  # a full disk: others would have to wait for an empty lease to run out
            with suppress(OSError):
                path.unlink()
            raise
        self._ours, self._content = path, content
        if not self._is_ours():  # another process was ahead by more than one number
            path.unlink(missing_ok=True)
            self._ours = None
            return False
        self._file(number - 1).unlink(missing_ok=True)
        return True

    def _is_dead(self, file: Path) -> bool:
        """Whether the holder is known to be dead, from what was seen at this and all earlier attempts."""
        try:
            with open(file, "rb") as stream:  # opening is what makes network file systems ask the server
                content, status = stream.read(_MAX_BYTES), os.fstat(stream.fileno())
        except FileNotFoundError:
            self._seen = None  # just released: the next attempt will take it
            return False
        self.holder, is_alive = "a process on another machine, or one hidden from this user,", None
        with suppress(TypedError):
            holder = from_json(_Holder, content)
            is_alive = holder.is_alive() if holder.inode == status.st_ino else None
            if is_alive is not None:
                self.holder = f"process {holder.pid}"
        if is_alive is not None:
            self.shows_life = is_alive
            return not is_alive
        now, seen = time.monotonic(), (file, content, status.st_mtime_ns, status.st_ctime_ns)
        if seen != self._seen:
            self.shows_life = self._seen is not None
            self._seen, self._silence = seen, 0.0
        else:
            # If this process was suspended between two attempts, the holder or the network may have been as well.
            self._silence += min(now - self._seen_at, _MAX_PAUSE_SECONDS)
        self._seen_at = now
        return self._silence >= LEASE_SECONDS

    def _beat(self) -> None:
        """Touch the file until the lease is released or lost. Runs on a thread of its own."""
        while not self._stop.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):  # a server that is away for a moment
                if self._ours is None or not self._is_ours():
                    self.is_lost = True
                    return
                os.utime(self._ours)

    def _is_ours(self) -> bool:
        try:
            path = self._file(self._highest())
            return path == self._ours and path.read_bytes() == self._content
        except FileNotFoundError:
            return False


def take_any(leases: dict[str, Lease], is_cancelled: Callable[[], bool], on_wait: Callable[[int], None]) -> str | None:
    """Watch leases of other processes until one can be taken.

    Args:
        leases: By the names of their runs. Those whose holders show a sign of life are watched no longer.
        is_cancelled: Polled; ends the watch once it returns true.
        on_wait: Called once with the number of leases to wait for, if there are any.

    Returns:
        The name of the run whose lease was taken; None if all holders are alive, or the watch was cancelled.

    Raises:
        PaperbenchError: A lease cannot be written.
    """
    silent, has_waited = leases, False
    while silent and not is_cancelled():
        for name, lease in silent.items():
            if lease.take():
                return name
        silent = {name: lease for name, lease in silent.items() if not lease.shows_life}
        if silent and not has_waited:
            on_wait(len(silent))
            has_waited = True
        time.sleep(_POLL_SECONDS if silent else 0)
    return None


@cache
def _machine() -> str | None:
    """This boot of this machine and the namespace of its process numbers; None where they are unknown (not Linux)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return None


def _start_of(pid: int) -> str | None:
    """When a process started, in ticks since boot; "dead" if only its parent has yet to collect it; None if hidden."""
    try:
        facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "dead" if facts[0] in "ZX" else facts[19]
