"""What a run can be gone on from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from paperbench.errors import RunError
from paperbench.runs.checkpoints import CheckpointFile, DamagedCheckpointError
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Record, major_version
from paperbench.runs.store import RunDirectory
from paperbench.training.checkpoint import CheckpointError, ForeignFormatError, read_checkpoint
from paperbench.training.trainer import NUMERICS_VERSION

RESTART = "`--incompatible restart` trains it anew and keeps the old files aside"


class UncontinuableError(RunError):
    """What was trained of a run cannot be gone on from."""


def newest_contents(
    run: PlannedRun, directory: RunDirectory, record: Record | None, *, mixes: bool, warn: Callable[[str], None]
) -> dict[str, Any] | None:
    """What the newest undamaged checkpoint of a run holds; None for a run that has none yet.

    Args:
        record: What the directory's record says, if there is one.
        mixes: Whether that of another numerics version or major version of torch will do.
        warn: Told of damaged checkpoints, which are set aside, and of mixing.

    Raises:
        UncontinuableError: There was a checkpoint once, and none is left that can be gone on from.
        PaperbenchError: A file cannot be read, or not be set aside.
    """
    checkpoints = directory.checkpoints
    for file in checkpoints.newest_first():
        try:
            contents, torch_version = read_checkpoint(file.read(), run.id)
        except DamagedCheckpointError as error:
            aside = checkpoints.set_aside(file)
            warn(f"{error}. It is kept as {aside.name}.")
            continue
        except CheckpointError as error:  # what was written is there, only not by this version or for this run
            remedy = "Continue with that which wrote it" if isinstance(error, ForeignFormatError) else "Remove it"
            raise UncontinuableError(f"{file.path} {error}. {remedy}, or start this run again: {RESTART}.") from error
        _check_versions(file, contents, torch_version, mixes, warn)
        if checkpoints.damaged():
            warn(f"going on from {file.path.name}.")
        return contents
    if checkpoints.damaged() or (record and record.iteration) or _has_whole_history(directory, run):
        reached = f", while its record speaks of {record.iteration:,} iterations" if record else ""
        raise UncontinuableError(
            f"{directory.path} has no checkpoint that can be read{reached}. Restore one, or start this run again: "
            f"{RESTART}."
        )
    return None


def _has_whole_history(directory: RunDirectory, run: PlannedRun) -> bool:
    """Whether the run was at its end once, and somebody has removed the rest."""
    try:
        lines = directory.history()
    except RunError:
        return False
    return bool(lines) and lines[-1].iteration >= run.recipe.iterations


def _check_versions(
    file: CheckpointFile, contents: dict[str, Any], torch_version: str, mixes: bool, warn: Callable[[str], None]
) -> None:
    differences = []
    if contents.get("numerics") != NUMERICS_VERSION:
        differences.append(f"numerics version {contents.get('numerics')}, and this is {NUMERICS_VERSION}")
    if major_version(torch_version) != major_version(str(torch.__version__)):
        differences.append(f"torch {torch_version}, and this is {torch.__version__}")
    if not differences:
        return
    made_by = f"{file.path} was trained by {'; by '.join(differences)}"
    if not mixes:
        raise UncontinuableError(
            f"{made_by}. Going on would mix them. {RESTART}; `--incompatible continue` goes on, and marks the run as "
            "mixed, so that it is never pooled with others."
        )
    warn(f"{made_by}. The run goes on, and is marked as mixed.")
