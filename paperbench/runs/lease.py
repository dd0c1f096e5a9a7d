"""Which process is at a run, on any file system that machines share.

A lease is a small file that its holder touches every few seconds. A holder on this machine is known to be alive or dead
at once. That of another machine is taken for dead when its file has not changed for a minute of the watcher's own
steady clock, so that neither wrong clocks nor jumping ones matter.

All that is asked of the file system is that a file can be created exclusively. Network file systems can do that, while
they lack the exchange of names that libraries build leases on. To take over is to create the file of the
next number; the highest number is the holder's. A holder that was suspended for too long finds that out before it
writes anything.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Event, Thread

from paperbench.atomic import unwritable
from paperbench.errors import RunError

LEASE_SECONDS = 60.0
"""How long a lease lasts without a sign of life."""
HEARTBEAT_SECONDS = 5.0
_POLL_SECONDS = 0.2
_LONGEST_PAUSE = 1.0
_LARGEST = 1_000


class LeaseLostError(RunError):
    """Another process may be at this run, and this one must write no more."""


class Lease:
    """A lease to one run, which this process may take.

    Args:
        folder: Where the leases of the store are.
        run_id: The run's.
    """

    def __init__(self, folder: Path, run_id: str) -> None:
        self._folder, self._run_id = folder, run_id
        self._ours: Path | None = None
        self._content = b""
        self._stop = Event()
        self._beats: Thread | None = None
        self._seen: object = None
        self._looked_at = self._silence = 0.0
        self.is_lost = False
        """Whether a heartbeat found that the lease is no longer ours. Costs nothing to ask; `check` looks again."""
        self.shows_life = False
        """Whether the process that holds it is known to be alive, as of the last attempt to take it."""
        self.holder = ""
        """Who holds it, in words, as of the last attempt to take it."""

    def take(self) -> bool:
        """Take the lease if nobody has it, or its holder is known to be dead; whether that worked.

        Raises:
            PaperbenchError: Its file cannot be read or written.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            number, file = self._highest()
            if file is not None and not self._is_dead(file):
                return False
            taken = self._create(number + 1)
        except OSError as error:
            raise unwritable(self._folder / self._run_id, error) from error
        if taken:
            self._beats = Thread(target=self._beat, daemon=True)
            self._beats.start()
        return taken

    @contextmanager
    def held(self) -> Iterator[None]:
        """Release the lease at the end, however that comes."""
        try:
            yield
        finally:
            self._stop.set()
            if self._beats is not None:
                self._beats.join()
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
        try:
            is_ours = not self.is_lost and self._is_ours()
        except OSError as error:
            raise unwritable(self._folder / self._run_id, error) from error
        if not is_ours:
            raise LeaseLostError(
                "this process no longer holds its lease: after a long silence of it another process took the run over, "
                f"or somebody cleared {self._folder}. What it did since its last checkpoint is left out."
            )

    def _highest(self) -> tuple[int, Path | None]:
        """The number of the lease's present file, and that file; 0 and None if there is none."""
        # Unlike glob, this does not take a folder that cannot be read for an empty one.
        numbers = [int(tail) for path in self._folder.iterdir() if (tail := self._number_in(path.name))]
        number = max(numbers, default=0)
        return number, self._file(number) if number else None

    def _number_in(self, name: str) -> str | None:
        run_id, _, tail = name.rpartition(".")
        return tail if run_id == self._run_id and tail.isascii() and tail.isdigit() else None

    def _file(self, number: int) -> Path:
        return self._folder / f"{self._run_id}.{number}"

    def _create(self, number: int) -> bool:
        """Create the file of a number, and remove the one below it."""
        path = self._file(number)
        try:
            with open(path, "xb") as stream:
                inode = os.fstat(stream.fileno()).st_ino
                content = json.dumps({"token": secrets.token_hex(8), "inode": inode, **_this_process()}).encode()
                stream.write(content)
        except FileExistsError:
            return False
        except OSError:  # a full disk: an empty lease would keep everybody waiting
            with suppress(OSError):
                path.unlink()
            raise
        self._ours, self._content = path, content
        if not self._is_ours():  # another was faster by more than one
            path.unlink(missing_ok=True)
            self._ours = None
            return False
        self._file(number - 1).unlink(missing_ok=True)
        return True

    def _is_dead(self, file: Path) -> bool:
        """Whether the holder is known to be dead, by this look or by all looks so far together."""
        try:
            with open(file, "rb") as stream:  # opening is what makes network file systems ask the server
                content, status = stream.read(_LARGEST), os.fstat(stream.fileno())
        except FileNotFoundError:
            self._seen = None  # it was released in this moment: the next look will take it
            return False
        self.holder, is_alive = _holder(content, status.st_ino)
        if is_alive is not None:
            self.shows_life = is_alive
            return not is_alive
        now, seen = time.monotonic(), (file, content, status.st_mtime_ns, status.st_ctime_ns)
        if seen != self._seen:
            self.shows_life = self._seen is not None
            self._seen, self._silence = seen, 0.0
        else:
            # If this process was suspended between two looks, the holder may have been with it, or their network.
            self._silence += min(now - self._looked_at, _LONGEST_PAUSE)
        self._looked_at = now
        return self._silence >= LEASE_SECONDS

    def _beat(self) -> None:
        """The heartbeats, on a thread of their own."""
        while not self._stop.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):  # a server that is away for a moment
                if self._ours is None or not self._is_ours():
                    self.is_lost = True
                    return
                os.utime(self._ours)

    def _is_ours(self) -> bool:
        try:
            _, highest = self._highest()
            return highest is not None and highest == self._ours and highest.read_bytes() == self._content
        except FileNotFoundError:
            return False


def take_any(leases: dict[str, Lease], is_cancelled: Callable[[], bool], on_wait: Callable[[int], None]) -> str | None:
    """Watch leases of others until one can be taken.

    Args:
        leases: By the names of their runs. Those whose holders show a sign of life are taken out.
        is_cancelled: Asked every moment; ends the watch once it is true.
        on_wait: Told how many there are to wait for, if there are any.

    Returns:
        The name of the run whose lease was taken; None if all holders are alive, or the watch was cancelled.

    Raises:
        PaperbenchError: No lease can be written.
    """
    has_waited = False
    while leases and not is_cancelled():
        for name, lease in list(leases.items()):
            if lease.take():
                return name
            if lease.shows_life:
                del leases[name]
        if leases and not has_waited:
            on_wait(len(leases))
            has_waited = True
        time.sleep(_POLL_SECONDS if leases else 0)
    return None


def _this_process() -> dict[str, object]:
    """What tells other processes on this machine whether this one lives. Names neither the machine nor a person."""
    return {"machine": _machine(), "pid": os.getpid(), "started": _start_of(os.getpid())}


def _holder(content: bytes, inode: int) -> tuple[str, bool | None]:
    """Who wrote a lease, in words, and whether that process is alive; None for what cannot be known from here."""
    unknown = "a process on another machine, or one that this cannot see,"
    try:
        lease = json.loads(content)
        machine, pid, started, own_inode = (lease[key] for key in ("machine", "pid", "started", "inode"))
    except (ValueError, KeyError, TypeError, RecursionError):
        return unknown, None
    if machine is None or machine != _machine() or own_inode != inode or type(pid) is not int:
        return unknown, None  # another inode: a copy of a lease
    name = f"process {pid}"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return name, False
    except (OSError, OverflowError):
        return name, None  # of another user
    present = _start_of(pid)
    return name, None if present is None else present == started


@cache
def _machine() -> str | None:
    """This boot of this machine and what processes see of each other, where the system tells (Linux)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return None


def _start_of(pid: int) -> str | None:
    """When a process started, in ticks since boot; "dead" if nobody has fetched it yet; None if that is hidden."""
    try:
        facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "dead" if facts[0] in "ZX" else facts[19]
