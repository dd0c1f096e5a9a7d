"""How much disk a command is going to need, before it starts."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from paperbench.catalogue import Net
from paperbench.errors import PaperbenchError
from paperbench.models import ResidualNet
from paperbench.runs.planning import PlannedRun
from paperbench.runs.store import Store

_BYTES_PER_TENSOR = 600
"""Headers and alignment of a tensor in torch's files, rounded up."""
_BYTES_PER_LINE = 250
_BYTES_PER_RUN = 50_000
"""States of random generators, sessions, the record."""


def check_room(runs: Sequence[PlannedRun], store: Store, *, begin_anew: bool = False) -> int:
    """Make sure that runs can leave all their files in a store.

    Args:
        runs: Those still to be done.
        begin_anew: Whether some of them may be put aside and begun anew; what they have then frees no room.

    Returns:
        The bytes that they will need beyond what is there.

    Raises:
        PaperbenchError: The disk has less room than that.
    """
    needed = largest = 0
    for run in runs:
        checkpoint = checkpoint_size(run.net)
        lines = -(-run.recipe.iterations // min(run.recipe.monitoring.log_every, run.recipe.monitoring.test_every))
        history = lines * _BYTES_PER_LINE  # as a file, and in the checkpoint
        largest = max(largest, checkpoint + history)
        files = [] if begin_anew else store.directory(run.id).checkpoints.newest_first()
        there = sum(_size(file.path) for file in files)
        needed += max(0, checkpoint + weights_size(run.net) + 2 * history + _BYTES_PER_RUN - there)
    needed += 2 * largest  # the run at work has a checkpoint before the newest, and writes the next one beside them
    free = _free_bytes(store.root)
    if runs and needed > free:
        raise PaperbenchError(
            f"The runs to be done need about {in_words(needed)} in {store.root}, which has {in_words(free)} left. Make "
            "room, choose another folder (`--results DIR`), or take fewer cells (`--cells`) or seeds (`--seeds`)."
        )
    return needed


def checkpoint_size(net: Net) -> int:
    """Bytes of a checkpoint, without its history: parameters and their momentum, BN's averages."""
    parameters, buffers = _parameters_and_buffers(net)
    return 2 * parameters + buffers


def weights_size(net: Net) -> int:
    """Bytes of a trained net as a file: parameters and BN's averages."""
    return sum(_parameters_and_buffers(net))


@cache
def _parameters_and_buffers(net: Net) -> tuple[int, int]:
    """Bytes that each take in a file."""
    with torch.device("meta"):
        model = ResidualNet(net)
    parameters, buffers = (
        sum(t.numel() * t.element_size() + _BYTES_PER_TENSOR for t in tensors)
        for tensors in (model.parameters(), model.buffers())
    )
    return parameters, buffers


def in_words(size: int) -> str:
    """A number of bytes for people."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB")):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size / 1e3:.0f} kB"


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0  # another process has just replaced it


def _free_bytes(folder: Path) -> int:
    """Room on the disk that holds a folder, or would."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free
