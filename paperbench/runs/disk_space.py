"""How much disk a command is going to need, before it starts."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

from paperbench.catalogue import Net
from paperbench.errors import PaperbenchError
from paperbench.models import ResidualNet
from paperbench.runs.planning import PlannedRun
from paperbench.runs.store import Store

_BYTES_PER_TENSOR = 160
"""Of the header, for a tensor's name, type, shape and place, rounded up."""
_BYTES_PER_LINE = 250
_BYTES_PER_RUN = 50_000
"""States of random generators, sessions, the record."""


def check_disk_space(runs: Sequence[PlannedRun], store: Store, *, start_anew: bool = False) -> int:
    """Make sure that runs can leave all their files in a store.

    Args:
        runs: Those still to be done.
        start_anew: Whether some of them may be set aside and started again; what they have then frees no room.

    Returns:
        The bytes that they will need beyond what is there.

    Raises:
        PaperbenchError: The disk has less room than that.
    """
    needed = largest = 0
    for run in runs:
        lines = -(-run.recipe.iterations // min(run.recipe.monitoring.log_every, run.recipe.monitoring.test_every))
        history = lines * _BYTES_PER_LINE
        weights, momentum = _sizes(run.net)
        checkpoint = weights + momentum + history
        largest = max(largest, checkpoint)
        there = 0
        for file in [] if start_anew else store.directory(run.id).checkpoints.newest_first():
            with suppress(OSError):  # another process has just replaced it
                there += file.path.stat().st_size
        needed += max(0, checkpoint + weights + history + _BYTES_PER_RUN - there)
    needed += 2 * largest  # the run that trains has a checkpoint before the newest, and writes the next one beside them
    free = _free_bytes(store.root)
    if runs and needed > free:
        raise PaperbenchError(
            f"The runs to be done need about {format_bytes(needed)} in {store.root}, which has {format_bytes(free)} "
            "left. Make room, choose another folder (`--results DIR`), or take fewer cells (`--cells`) or seeds "
            "(`--seeds`)."
        )
    return needed


@cache
def _sizes(net: Net) -> tuple[int, int]:
    """Bytes that a trained net (parameters, BN's averages) and its momentum take in a file."""
    with torch.device("meta"):
        model = ResidualNet(net)
    momentum = sum(p.numel() * p.element_size() + _BYTES_PER_TENSOR for p in model.parameters())
    averages = sum(b.numel() * b.element_size() + _BYTES_PER_TENSOR for b in model.buffers())
    return momentum + averages, momentum


def format_bytes(size: int) -> str:
    """A number of bytes for people."""
    for factor, unit in ((1e9, "GB"), (1e6, "MB")):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size / 1e3:.0f} kB"


def _free_bytes(folder: Path) -> int:
    """Room on the disk that holds a folder, or would."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free
