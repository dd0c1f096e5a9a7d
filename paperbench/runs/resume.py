"""What a checkpoint holds, and which one a run resumes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field
from safetensors import SafetensorError
from torch import Tensor

from paperbench.errors import PaperbenchError, RunError
from paperbench.runs.checkpoints import CheckpointFile, DamagedCheckpointError
from paperbench.runs.history import HistoryLine
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Divergence, Record, Session, major_version
from paperbench.runs.store import RunDirectory
from paperbench.tensor_file import read_tensor_file, tensor_file_bytes
from paperbench.training.trainer import NUMERICS_VERSION
from paperbench.typed import from_json, to_json, typed

RESTART = "`--incompatible restart` trains it anew and keeps the old files aside"


class ResumeError(RunError):
    """A run that cannot be resumed."""


class CheckpointError(PaperbenchError):
    """Bytes that are no checkpoint of this run and format; the message continues a sentence about the file."""


@typed
class CheckpointFacts:
    """What a checkpoint says beside its tensors.

    Attributes:
        best_test_error: Lowest moving-average error so far, in percent.
        sessions: All so far; the last wrote it.
        history: All lines so far.
    """

    format: Literal[1]
    run: str
    best_test_error: float | None
    divergence: Divergence | None
    sessions: Annotated[tuple[Session, ...], Field(min_length=1)]
    history: tuple[HistoryLine, ...]


@dataclass(frozen=True)
class Checkpoint:
    """A run at one moment.

    Attributes:
        state: `Trainer.state_dict()`.
    """

    facts: CheckpointFacts
    state: dict[str, Tensor]

    @property
    def iteration(self) -> int:
        """Iterations done."""
        return int(self.state["iteration"])

    def to_bytes(self) -> bytes:
        """A safetensors file, with the facts as JSON in its metadata."""
        return tensor_file_bytes(self.state, {"paperbench": to_json(self.facts)})

    @classmethod
    def from_bytes(cls, data: bytes, run_id: str) -> Checkpoint:
        """Read a checkpoint back, tensors on the CPU.

        Raises:
            CheckpointError: The bytes are damaged, of another format, or of another run.
        """
        try:
            state, metadata = read_tensor_file(data)
            facts = from_json(CheckpointFacts, metadata["paperbench"])
        except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise CheckpointError(f"is no checkpoint that this version of paperbench reads ({error})") from error
        if facts.run != run_id:
            raise CheckpointError(f"belongs to run {facts.run}")
        done = state.get("iteration")
        if done is None or done.dtype != torch.int64 or done.numel() != 1:
            raise CheckpointError("does not say how many iterations were done")
        ends, lines = [part.last for part in facts.sessions], [line.iteration for line in facts.history]
        is_in_order = ends == sorted(ends) and lines == sorted(set(lines))
        if not is_in_order or ends[-1:] != [int(done)] or max(lines, default=0) > done:
            raise CheckpointError("contradicts itself: its iteration, sessions and history do not fit each other")
        return cls(facts, state)


def newest_checkpoint(
    run: PlannedRun, directory: RunDirectory, record: Record | None, *, mixes: bool, warn: Callable[[str], None]
) -> Checkpoint | None:
    """The newest undamaged checkpoint of a run; None for a run that has none yet.

    Args:
        record: The directory's, if there is one.
        mixes: Whether one of another numerics version or major version of torch will do.
        warn: Receives what happened to damaged checkpoints, which are set aside, and a note on mixing.

    Raises:
        ResumeError: There was a checkpoint once, and none is left that can be resumed from.
        PaperbenchError: A file cannot be read, or not be set aside.
    """
    checkpoints = directory.checkpoints
    for file in checkpoints.newest_first():
        try:
            checkpoint = Checkpoint.from_bytes(file.read(), run.id)
            if not checkpoint.iteration == file.iteration <= run.recipe.iterations:
                raise CheckpointError(f"holds iteration {checkpoint.iteration:,}; its name or its run contradicts that")
        except DamagedCheckpointError as error:
            aside = checkpoints.set_aside(file)
            warn(f"{error}. It is kept as {aside.name}.")
            continue
        except CheckpointError as error:  # its hash is right: it is what somebody wrote, only not for this
            raise ResumeError(
                f"{file.path} {error}. Use the version that wrote it, remove it, or start this run again: {RESTART}."
            ) from error
        _check_versions(file, checkpoint.facts.sessions[-1], mixes, warn)
        if checkpoints.damaged():
            warn(f"resuming from {file.path.name}.")
        return checkpoint
    if checkpoints.damaged() or (record and record.iteration) or _has_whole_history(directory, run):
        reached = f", while its record says {record.iteration:,} iterations" if record else ""
        raise ResumeError(
            f"{directory.path} has no readable checkpoint{reached}. Restore one, or start this run again: {RESTART}."
        )
    return None


def _has_whole_history(directory: RunDirectory, run: PlannedRun) -> bool:
    """Whether the run had reached its end, and somebody has removed the rest."""
    try:
        lines = directory.history()
    except RunError:
        return False
    return bool(lines) and lines[-1].iteration >= run.recipe.iterations


def _check_versions(file: CheckpointFile, session: Session, mixes: bool, warn: Callable[[str], None]) -> None:
    numerics, torch_version, differences = session.code.numerics, session.environment.torch, []
    if numerics != NUMERICS_VERSION:
        differences.append(f"numerics version {numerics}, and this is {NUMERICS_VERSION}")
    if major_version(torch_version) != major_version(torch.__version__):
        differences.append(f"torch {torch_version}, and this is {torch.__version__}")
    if not differences:
        return
    made_by = f"{file.path} was trained by {'; by '.join(differences)}"
    if not mixes:
        raise ResumeError(
            f"{made_by}. Resuming would mix them. {RESTART}; `--incompatible continue` resumes, and marks the run as "
            "mixed, so that it is never pooled with others."
        )
    warn(f"{made_by}. The run continues, and is marked as mixed.")
