"""Executors start copies of one `paperbench run`. They pull: the leases of the store divide its runs among them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path


def name_of_store(results: Path) -> str:
    """Return the name that jobs on a results directory begin with."""
    return f"paperbench-{_digest(str(results.resolve()))}"


@dataclass(frozen=True)
class Workers:
    """Copies of a `paperbench run` command.

    Attributes:
        arguments: Those of `paperbench`, without the options of executors.
        results: The results directory that they share.
        count: How many copies, each of which trains one run after another.
        gpus_per_run: Number of GPUs that train each run together; 0 to train on the CPU.
    """

    arguments: tuple[str, ...]
    results: Path
    count: int
    gpus_per_run: int

    @property
    def command(self) -> Sequence[str]:
        """The command of one process, with this interpreter."""
        return (sys.executable, "-m", "paperbench", *self.arguments)

    @property
    def processes(self) -> int:
        """Number of processes of each copy, which share its runs."""
        return max(1, self.gpus_per_run)

    @property
    def name(self) -> str:
        """The name of the jobs: the same for the same command on the same results directory."""
        return f"{name_of_store(self.results)}-{_digest(repr(self.arguments))}"


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:8]
