"""Which process is at a run, on any file system that machines share.

A claim is a lease: a small file that its holder touches every few seconds. On its own machine a dead holder is seen to
be dead at once. On another, its claim may be taken once its file has not changed for a minute of the watcher's own
steady clock, so that neither wrong clocks nor jumping ones matter.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import SoftFileLease, Timeout

from paperbench.atomic import unwritable
from paperbench.errors import RunError

LEASE_SECONDS = 60.0
"""How long a claim lasts without a heartbeat. All processes on a store must agree on it."""
HEARTBEAT_SECONDS = 5.0
_POLL_SECONDS = 0.2


class ClaimLostError(RunError):
    """Another process has taken this run over, as it seemed to be abandoned."""


class Claim:
    """A claim to one run, which this process may take.

    Args:
        path: The file of the claim. It names the holder's host and process, and is gone once the claim is released.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lease = SoftFileLease(path, lease_duration=LEASE_SECONDS, heartbeat_interval=HEARTBEAT_SECONDS)

    def take(self) -> bool:
        """Take the claim if nobody has it, or its holder is known to be dead; whether that worked.

        Raises:
            PaperbenchError: Its file cannot be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lease.acquire(blocking=False)
        except Timeout:
            return False
        except OSError as error:
            raise unwritable(self.path, error) from error
        return True

    @contextmanager
    def held(self) -> Iterator[None]:
        """Release the claim at the end, however that comes."""
        try:
            yield
        finally:
            self._lease.release()

    def check(self) -> None:
        """Make sure that it is still ours.

        Raises:
            ClaimLostError: It is not: this process must write no more.
        """
        if self._lease.compromise is not None:
            raise ClaimLostError(
                f"another process took this run over, as this one gave no sign of life for {LEASE_SECONDS:g} s"
            )

    def heartbeat(self) -> object:
        """Something that is another after each of the holder's heartbeats; None if nobody holds the claim."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino


def take_any(claims: dict[str, Claim], is_cancelled: Callable[[], bool]) -> str | None:
    """Watch claims of others until one can be taken.

    Args:
        claims: By the names of their runs. Those that show a sign of life are taken out.
        is_cancelled: Asked every moment; ends the watch once it is true.

    Returns:
        The name of the run whose claim was taken; None if all are alive, or the watch was cancelled.
    """
    seen = {name: claim.heartbeat() for name, claim in claims.items()}
    while claims and not is_cancelled():
        for name, claim in list(claims.items()):
            if claim.take():
                return name
            if claim.heartbeat() != seen[name]:
                del claims[name]
        time.sleep(_POLL_SECONDS)
    return None
