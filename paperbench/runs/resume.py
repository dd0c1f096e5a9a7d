"""Checkpoints as values, and the choice of the checkpoint that a run resumes from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

import torch
from pydantic import FailFast, Field
from torch import Tensor

from paperbench.catalogue import Net
from paperbench.errors import PaperbenchError, RunError
from paperbench.models import ResidualNet
from paperbench.runs.checkpoints import CheckpointFile, DamagedCheckpointError
from paperbench.runs.history import HistoryLine
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Divergence, Record, Session, major_version
from paperbench.runs.store import RunDirectory
from paperbench.tensor_file import TensorFileError, read_tensor_file, tensor_file_bytes
from paperbench.training.trainer import NUMERICS_VERSION
from paperbench.typed import Percent, TypedError, from_json, to_json, typed

RESTART = "`--incompatible restart` restarts it and keeps the old files"


class ResumeError(RunError):
    """A run that cannot be resumed."""


class CheckpointError(PaperbenchError):
    """Bytes that are not a checkpoint of this run and format; the message completes a sentence about the file."""


@typed
class CheckpointFacts:
    """The values in a checkpoint that are not tensors.

    Attributes:
        best_test_error: Lowest moving-average error so far, in percent.
        sessions: All sessions so far; the last one wrote the checkpoint.
        history: All lines so far.
    """

    format: Literal[1]
    run: str
    best_test_error: Percent | None
    divergence: Divergence | None
    sessions: Annotated[tuple[Session, ...], FailFast(), Field(min_length=1)]
    history: Annotated[tuple[HistoryLine, ...], FailFast()]


@dataclass(frozen=True)
class Checkpoint:
    """The complete state of a run after some iteration.

    Attributes:
        state: Result of `Trainer.state_dict()`.
    """

    facts: CheckpointFacts
    state: dict[str, Tensor]

    @property
    def iteration(self) -> int:
        """Number of iterations done."""
        return int(self.state["iteration"])

    @property
    def net(self) -> dict[str, Tensor]:
        """The tensors of the net."""
        return {name.removeprefix("model."): t for name, t in self.state.items() if name.startswith("model.")}

    def to_bytes(self) -> bytes:
        """Return a safetensors file, with the facts as JSON in its metadata."""
        return tensor_file_bytes(self.state, {"paperbench": to_json(self.facts)})

    @classmethod
    def from_bytes(cls, data: bytes, run_id: str) -> Checkpoint:
        """Parse a checkpoint, with the tensors on the CPU."""
        try:
            state, metadata = read_tensor_file(data)
            facts = from_json(CheckpointFacts, metadata["paperbench"])
        except (TensorFileError, KeyError, TypedError) as error:
            raise CheckpointError(f"is not a checkpoint that this version of paperbench can read ({error})") from error
        if facts.run != run_id:
            raise CheckpointError(f"belongs to run {facts.run}")
        done = state.get("iteration")
        if done is None or done.dtype != torch.int64 or done.numel() != 1:
            raise CheckpointError("lacks the number of iterations done")
        ends, lines = [part.last for part in facts.sessions], [line.iteration for line in facts.history]
        is_in_order = ends == sorted(ends) and lines == sorted(set(lines))
        if not is_in_order or ends[-1:] != [int(done)] or max(lines, default=0) > done:
            raise CheckpointError("contradicts itself: its iteration, sessions and history do not fit each other")
        return cls(facts, state)


@cache
def tensors_of(net: Net) -> Mapping[str, Tensor]:
    """Return the tensors of a net without values."""
    with torch.device("meta"):
        return ResidualNet(net).state_dict()


def newest_checkpoint(
    run: PlannedRun, directory: RunDirectory, record: Record | None, warn: Callable[[str], None]
) -> Checkpoint | None:
    """Return the newest undamaged checkpoint of a run, or None if the run has not saved one yet.

    Damaged checkpoints are set aside.

    Args:
        run: The run to resume.
        directory: The run's directory.
        record: The run's record, if it exists.
        warn: Called with a message for each damaged checkpoint.
    """
    checkpoints = directory.checkpoints
    for file in checkpoints.newest_first():
        try:
            checkpoint = Checkpoint.from_bytes(file.read(), run.id)
            if not checkpoint.iteration == file.iteration <= run.recipe.iterations:
                raise CheckpointError(
                    f"holds iteration {checkpoint.iteration:,}, which contradicts its name or the recipe"
                )
            facts = checkpoint.facts
            logged = facts.history[-1].iteration if facts.history else 0
            is_tested = bool(logged) and None not in (facts.history[-1].test_error, facts.best_test_error)
            if logged == run.recipe.iterations and not facts.divergence and not is_tested:
                raise CheckpointError("contradicts itself: its last iteration was not tested")
            now, then = (run.recipe.images_before(i, run.dataset.num_train) for i in (checkpoint.iteration, logged))
            images = torch.tensor(now - then)
            if not torch.equal(checkpoint.state.get("window.images", images), images):
                raise CheckpointError("contradicts itself: its training loss does not begin at its last history line")
        except DamagedCheckpointError as error:
            aside = checkpoints.set_aside(file)
            warn(f"{error}. It is kept as {aside.name}.")
            continue
        except CheckpointError as error:  # its hash is right, so it is not damaged
            raise ResumeError(
                f"{file.path} {error}. Use the version that wrote it, delete it, or restart this run: {RESTART}."
            ) from error
        _check_versions(file, checkpoint.facts.sessions)
        if checkpoints.damaged():
            warn(f"resuming from {file.path.name}.")
        return checkpoint
    if checkpoints.damaged() or (record and record.iteration) or _has_complete_history(directory, run):
        reached = f", although its record is at iteration {record.iteration:,}" if record else ""
        raise ResumeError(
            f"{directory.path} has no readable checkpoint{reached}. Restore one, or restart this run: {RESTART}."
        )
    return None


def _has_complete_history(directory: RunDirectory, run: PlannedRun) -> bool:
    """Whether the history shows that the run had reached its last iteration."""
    try:
        lines = directory.history()
    except RunError:
        return False
    return bool(lines) and lines[-1].iteration >= run.recipe.iterations


def _check_versions(file: CheckpointFile, sessions: Iterable[Session]) -> None:
    """Refuse a checkpoint with a session of another numerics version or major version of torch."""
    for session in sessions:
        numerics, torch_version, differences = session.code.numerics, session.environment.torch, []
        if numerics != NUMERICS_VERSION:
            differences.append(f"numerics version {numerics} (this is {NUMERICS_VERSION})")
        if major_version(torch_version) != major_version(torch.__version__):
            differences.append(f"torch {torch_version} (this is {torch.__version__})")
        if differences:
            raise ResumeError(
                f"{file.path} was trained by {' and '.join(differences)}. Resuming would mix versions. Resume with the "
                f"versions that began the run, or restart it: {RESTART}."
            )
