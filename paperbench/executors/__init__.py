"""Executors start copies of one `paperbench run`. They pull: the leases of the store divide its runs among them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from paperbench.ambient import same_imports


def name_of_store(results: Path) -> str:
    """Return what the names of all Slurm jobs on a results directory begin with."""
    return f"paperbench-{_digest(str(results.resolve()))}"


@dataclass(frozen=True)
class Workers:
    """Copies of a `paperbench run` command on one results directory, each of which trains one run after another.

    Attributes:
        arguments: Those of `paperbench`, without the options of executors.
        gpus_per_run: Number of GPUs that train each run together; 0 to train on the CPU.
        imports: Variables with which they import what this process does.
    """

    arguments: tuple[str, ...]
    results: Path
    count: int
    gpus_per_run: int
    imports: Mapping[str, str] = field(default_factory=same_imports)

    @property
    def command(self) -> tuple[str, ...]:
        """The command of one process; tests have a shell in its place."""
        return (sys.executable, "-m", "paperbench", *self.arguments)

    @property
    def processes(self) -> int:
        """Number of processes of each copy, which train each run together."""
        return max(1, self.gpus_per_run)

    @property
    def name(self) -> str:
        """The name of the Slurm jobs: the same for the same arguments and GPUs, however the results are spelt."""
        training = [argument for argument in self.arguments if not argument.startswith("--results=")]
        return f"{name_of_store(self.results)}-{_digest(repr((training, self.gpus_per_run)))}"


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:8]
