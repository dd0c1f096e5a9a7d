"""The whole measurement: carries out the plan and keeps JSON and page up to date after every part."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paperbench.atomic import write_atomically
from paperbench.bench.anatomy.document import document, to_json
from paperbench.bench.anatomy.job import Job
from paperbench.bench.anatomy.page import page
from paperbench.bench.anatomy.plan import Task
from paperbench.bench.anatomy.scale import Scale
from paperbench.bench.anatomy.schedule import Outcome, Schedule
from paperbench.catalogue import Net
from paperbench.errors import PaperbenchError

RESERVE_SECONDS = 2.0
"""Kept for writing."""


def measure(
    tasks: Sequence[Task],
    nets: Mapping[str, Net],
    scale: Scale,
    device: str,
    minutes: float,
    folder: Path,
    code: Mapping[str, Any],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Carry out the tasks and write `anatomy.json` and `anatomy.md`.

    Args:
        device: As torch writes it.
        minutes: For everything.
        folder: Where to write.
        code: Version and commit of paperbench.
        say: Takes a line on how far it is.

    Returns:
        The document. Its `signal` tells whether a signal has ended it early.

    Raises:
        PaperbenchError: The files cannot be written.
    """
    start = time.monotonic()
    job = Job("", "", None, tuple(nets), scale.name, device, 0.0, "")
    schedule = Schedule(job, 60 * minutes - RESERVE_SECONDS, say)
    outcomes: list[Outcome] = []

    def write() -> dict[str, Any]:
        seconds = time.monotonic() - start
        content = document(outcomes, nets, scale, device, minutes, seconds, code, schedule.signal)
        _make(folder)
        write_atomically(folder / "anatomy.json", to_json(content).encode())
        write_atomically(folder / "anatomy.md", page(content).encode())
        return content

    write()  # a folder that cannot be written is found before the machine has worked for ten minutes
    for outcome in schedule.run(tasks):
        outcomes.append(outcome)
        write()
    return write()


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PaperbenchError(f"{folder} cannot be made: {error.strerror}. Choose another one (`--out DIR`).") from None
    if not os.access(folder, os.W_OK):
        raise PaperbenchError(f"{folder} cannot be written to. Choose another one (`--out DIR`).")
