"""Which process is at a run, on any file system that machines share.

A claim is a small file that its holder touches every few seconds. A holder on this machine is known to be alive or dead
at once. That of another machine is taken for dead when its file has not changed for a minute of the watcher's own
steady clock, so that neither wrong clocks nor jumping ones matter.

All that is asked of the file system is that a file can be created exclusively: network file systems can, while they
lack the locks, and the exchange of names, that libraries for locks build on. To take over is to create the file of the
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
"""How long a claim lasts without a sign of life."""
HEARTBEAT_SECONDS = 5.0
_POLL_SECONDS = 0.2
_LARGEST = 1_000


class ClaimLostError(RunError):
    """Another process has taken this run over, as it seemed to be abandoned."""


class Claim:
    """A claim to one run, which this process may take.

    Args:
        folder: Where the claims of the store are.
        run_id: The run's.
    """

    def __init__(self, folder: Path, run_id: str) -> None:
        self._folder, self._run_id = folder, run_id
        self._ours: Path | None = None
        self._content = b""
        self._lost = False
        self._stop = Event()
        self._beats: Thread | None = None
        self._seen: object = None
        self._seen_at = 0.0
        self.shows_life = False
        """Whether the process that holds it is known to be alive, as of the last attempt to take it."""

    def take(self) -> bool:
        """Take the claim if nobody has it, or its holder is known to be dead; whether that worked.

        Raises:
            PaperbenchError: Its file cannot be written.
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
        """Release the claim at the end, however that comes."""
        try:
            yield
        finally:
            self._stop.set()
            if self._beats is not None:
                self._beats.join()
            with suppress(OSError):
                if self._ours is not None and self._is_ours(self._ours):
                    self._ours.unlink()
            self._ours = None

    @property
    def is_lost(self) -> bool:
        """Whether the last heartbeat found that the claim is another's. Costs nothing; `check` looks again."""
        return self._lost

    def check(self) -> None:
        """Make sure, on disk, that the claim is still ours. What somebody has removed is made again.

        Raises:
            ClaimLostError: It is another's: this process must write no more.
            PaperbenchError: The folder of claims cannot be used.
        """
        try:
            is_ours = not self._lost and self._confirm()
        except OSError as error:
            raise unwritable(self._folder / self._run_id, error) from error
        if not is_ours:
            raise ClaimLostError(
                f"another process took this run over, as this one gave no sign of life for {LEASE_SECONDS:g} s"
            )

    def _files(self) -> dict[int, Path]:
        """The claim's files by number."""
        found = {}
        for path in self._folder.glob(f"{self._run_id}.*"):
            number = path.name.removeprefix(f"{self._run_id}.")
            if number.isascii() and number.isdigit():
                found[int(number)] = path
        return found

    def _highest(self) -> tuple[int, Path | None]:
        files = self._files()
        number = max(files, default=0)
        return number, files.get(number)

    def _create(self, number: int) -> bool:
        """Create the file of a number, and remove those below it."""
        path = self._folder / f"{self._run_id}.{number}"
        content = json.dumps({"token": secrets.token_hex(8), **_this_process()}).encode()
        try:
            with open(path, "xb") as stream:
                stream.write(content)
        except FileExistsError:
            return False
        if self._highest()[0] != number:  # another was faster by more than one
            path.unlink(missing_ok=True)
            return False
        self._ours, self._content = path, content
        for lower, file in self._files().items():
            if lower < number:
                file.unlink(missing_ok=True)
        return True

    def _is_dead(self, file: Path) -> bool:
        """Whether the holder is known to be dead, by this look or by all looks so far together."""
        try:
            with open(file, "rb") as stream:  # opening is what makes network file systems ask the server
                content, status = stream.read(_LARGEST), os.fstat(stream.fileno())
        except FileNotFoundError:
            self._seen = None  # it was released in this moment: the next look will take it
            return False
        is_alive = _is_alive_here(content)
        if is_alive is not None:
            self.shows_life = is_alive
            return not is_alive
        now, seen = time.monotonic(), (file, content, status.st_mtime_ns, status.st_ctime_ns)
        if seen != self._seen:
            self.shows_life = self._seen is not None
            self._seen, self._seen_at = seen, now
        return now - self._seen_at >= LEASE_SECONDS

    def _beat(self) -> None:
        """The heartbeats, on a thread of their own."""
        while not self._stop.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):  # a server that is away for a moment
                if not self._confirm():
                    self._lost = True
                    return
                if self._ours is not None:
                    os.utime(self._ours)

    def _confirm(self) -> bool:
        if self._ours is None:
            return False
        _, highest = self._highest()
        if highest is None:  # somebody has cleared the folder; whoever is first to make it again has the run
            self._folder.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError), open(self._ours, "xb") as stream:
                stream.write(self._content)
            return self._is_ours(self._ours)
        return highest == self._ours and self._is_ours(highest)

    def _is_ours(self, path: Path) -> bool:
        try:
            return path.read_bytes() == self._content
        except FileNotFoundError:
            return False


def take_any(claims: dict[str, Claim], is_cancelled: Callable[[], bool]) -> str | None:
    """Watch claims of others until one can be taken.

    Args:
        claims: By the names of their runs. Those whose holders show a sign of life are taken out.
        is_cancelled: Asked every moment; ends the watch once it is true.

    Returns:
        The name of the run whose claim was taken; None if all holders are alive, or the watch was cancelled.

    Raises:
        PaperbenchError: No claim can be written.
    """
    while claims and not is_cancelled():
        for name, claim in list(claims.items()):
            if claim.take():
                return name
            if claim.shows_life:
                del claims[name]
        if claims:
            time.sleep(_POLL_SECONDS)
    return None


def _this_process() -> dict[str, object]:
    """What tells other processes on this machine whether this one lives. Names neither the machine nor a person."""
    return {"machine": _machine(), "pid": os.getpid(), "started": _start_of(os.getpid())}


def _is_alive_here(content: bytes) -> bool | None:
    """Whether a holder on this machine is alive; None for one of another machine, or of an unreadable claim."""
    try:
        holder = json.loads(content)
        machine, pid, started = holder["machine"], holder["pid"], holder["started"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if machine is None or machine != _machine() or not isinstance(pid, int):
        return None
    return bool(_start_of(pid) == started)


@cache
def _machine() -> str | None:
    """This boot of this machine and what processes see of each other, where the system tells (Linux)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return None


def _start_of(pid: int) -> str | None:
    """When a process started, in ticks since boot; None if there is no such process, or it is dead but not fetched."""
    try:
        facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if facts[0] in "ZX" else facts[19]
