"""Estimate the disk space that a command needs before it starts."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from torch import Tensor

from paperbench.catalogue import AnyNet
from paperbench.errors import PaperbenchError, format_bytes
from paperbench.models.building import layout
from paperbench.runs.planning import PlannedRun
from paperbench.runs.store import Store

_BYTES_PER_TENSOR = 160
"""Header bytes for the name, type, shape and offset of a tensor, rounded up."""
_BYTES_PER_LINE = 250
_BYTES_PER_RUN = 50_000
"""Generator states, sessions, and the record."""


def bytes_needed(runs: Sequence[PlannedRun], store: Store, *, start_anew: bool = False) -> int:
    """Return the bytes that all files of runs to be done need beyond the existing ones.

    Args:
        start_anew: Whether runs may be restarted; the old files are then kept, so they do not reduce the estimate.
    """
    needed = largest = 0
    for run in runs:
        checkpoint, files = run_files(run)
        largest = max(largest, checkpoint)
        existing = 0
        for file in [] if start_anew else store.own_directory(run.id).checkpoints.newest_first():
            with suppress(OSError):  # another process has just replaced the file
                existing += file.path.stat().st_size
        needed += max(0, files - existing)
    # The run in training keeps one more checkpoint, and writes the next before it deletes any.
    return needed + 2 * largest


def check_disk_space(needed: int, results: Path) -> None:
    """Check that the disk of a results directory has so many bytes free."""
    if needed > (free := free_bytes(results)):
        raise PaperbenchError(
            f"The remaining runs need about {format_bytes(needed)} in {results}, which has {format_bytes(free)} left. "
            "Free some space, choose another directory (`--results DIR`), or choose fewer cells (`--cells`) or seeds "
            "(`--seeds`)."
        )


def run_files(run: PlannedRun) -> tuple[int, int]:
    """Return the bytes of a checkpoint at the end of a run, and of all files that the run leaves."""
    lines = -(-run.recipe.iterations // min(run.recipe.monitoring.log_every, run.recipe.monitoring.test_every))
    history = lines * _BYTES_PER_LINE
    weights, momentum = _sizes(run.net)
    checkpoint = weights + momentum + history
    return checkpoint, checkpoint + weights + history + _BYTES_PER_RUN


@cache
def _sizes(net: AnyNet) -> tuple[int, int]:
    """Return the file sizes in bytes of a net's weights (parameters, BN averages) and of its momentum."""
    return _size(layout(net).state_dict().values()), _size(layout(net).parameters())


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes + _BYTES_PER_TENSOR for tensor in tensors)


def free_bytes(directory: Path) -> int:
    """Return the free space on the disk of a directory, which need not exist yet."""
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    return shutil.disk_usage(directory).free
