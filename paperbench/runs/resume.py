"""Checkpoints as values, and the choice of the checkpoint that a run resumes from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import FailFast, Field
from torch import Tensor

from paperbench.catalogue import AnyNet, Net
from paperbench.errors import Finding, RunError
from paperbench.models.building import layout
from paperbench.options import is_bit_equal
from paperbench.runs.checkpoints import CheckpointFile, DamagedCheckpointError
from paperbench.runs.environment import Surroundings
from paperbench.runs.history import History, HistoryLine
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Divergence, Record, Session, major_version, make_up
from paperbench.runs.store import RunDirectory
from paperbench.specs.facts import Facts, difference
from paperbench.specs.recipe import Recipe
from paperbench.tensor_file import TensorFileError, check_fit, read_tensor_file, tensor_file_bytes
from paperbench.training.facts import facts_of
from paperbench.training.memory import is_out_of_memory
from paperbench.training.trainer import NUMERICS_VERSION, Trainer
from paperbench.typed import Percent, TypedError, from_json, to_json, typed

RESTART = "`--incompatible restart` restarts it and keeps the old files"
_DELETE = f"delete it, or restart an unfinished run: {RESTART}."


class ResumeError(RunError):
    """A run that cannot be resumed."""


class CheckpointError(Finding, ResumeError):
    """A checkpoint that the run did not save, or not in this format. Its hash is right, so it is not damaged."""


@typed
class CheckpointFacts:
    """The values in a checkpoint that are not tensors.

    Attributes:
        best_test_error: Lowest moving-average error so far, in percent.
        sessions: All sessions so far; the last one wrote the checkpoint.
        history: All lines so far.
        facts: Of the net and its training when the run began; None in older checkpoints.
    """

    format: Literal[1]
    run: str
    best_test_error: Percent | None
    divergence: Divergence | None
    sessions: Annotated[tuple[Session, ...], FailFast(), Field(min_length=1)]
    history: Annotated[tuple[HistoryLine, ...], FailFast()]
    facts: Facts | None = None


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
        return int(self.state["iteration"])

    @property
    def net(self) -> dict[str, Tensor]:
        return {name.removeprefix("model."): t for name, t in self.state.items() if name.startswith("model.")}

    def to_bytes(self) -> bytes:
        """Return a safetensors file, with the facts as JSON in its metadata."""
        return tensor_file_bytes(self.state, {"paperbench": to_json(self.facts)})

    @classmethod
    def from_bytes(cls, data: bytes, run_id: str, where: Path | str = "") -> Checkpoint:
        """Parse the checkpoint of a run, which messages call `where`, with the tensors on the CPU."""
        try:
            state, metadata = read_tensor_file(data)
            facts = from_json(CheckpointFacts, metadata["paperbench"])
        except (TensorFileError, KeyError, TypedError) as error:
            what = f"is not a checkpoint that this version of paperbench can read ({error})"
            raise CheckpointError(where, what, f"Use the version that wrote it, {_DELETE}") from error
        if facts.run != run_id:
            raise CheckpointError(where, f"belongs to run {facts.run}", f"Move it there, {_DELETE}")
        done, lines = state.get("iteration"), [line.iteration for line in facts.history]
        if done is None or done.dtype != torch.int64 or done.numel() != 1:
            raise CheckpointError(where, "lacks the number of iterations done", f"Restore it, {_DELETE}")
        if not make_up(facts.sessions, int(done)) or lines != sorted(set(lines)) or max(lines, default=0) > done:
            what = "contradicts itself: its iteration, sessions and history do not fit each other"
            raise CheckpointError(where, what, f"Restore it, {_DELETE}")
        return cls(facts, state)

    @classmethod
    def load(
        cls, file: CheckpointFile, run_id: str, recipe: Recipe | None, images: int | None, net: AnyNet | None = None
    ) -> Checkpoint:
        """Read a checkpoint file, and check that the run can have saved it.

        Args:
            recipe: The run's; None if it is not known.
            images: Size of the training set; None if it is not known.
            net: The net that the checkpoint must hold; None if `Trainer.load_state_dict` checks that.
        """
        checkpoint = cls.from_bytes(file.read(), run_id, file.path)
        done, facts, window = checkpoint.iteration, checkpoint.facts, checkpoint.state.get("window.images")
        last = facts.history[-1] if facts.history else None
        logged = last.iteration if last else 0
        is_tested = last and None not in (last.test_error, facts.best_test_error)
        wrong = ""
        if done != file.iteration or (recipe and done > recipe.iterations):
            wrong = f"holds iteration {done:,}, which contradicts its name or the recipe"
        elif recipe and logged == recipe.iterations and not facts.divergence and not is_tested:
            wrong = "contradicts itself: its last iteration was not tested"
        elif recipe and images and window is not None:
            trained = recipe.images_before(done, images) - recipe.images_before(logged, images)
            if not torch.equal(window, torch.tensor(trained)):
                wrong = "contradicts itself: its training loss does not begin at its last history line"
        if net and not wrong:
            try:
                check_fit(checkpoint.net, layout(net).state_dict())
            except ValueError as error:
                wrong = f"does not hold the net of the record: {error}"
        if wrong:
            raise CheckpointError(file.path, wrong, f"Restore it, {_DELETE}")
        return checkpoint


def newest_checkpoint(run: PlannedRun, directory: RunDirectory, warn: Callable[[str], None]) -> Checkpoint | None:
    """Return the newest undamaged checkpoint of a run, or None if the run has not saved one yet.

    Damaged checkpoints are set aside, and `warn` is called with a message for each.
    """
    checkpoints = directory.checkpoints
    for file in checkpoints.newest_first():
        try:
            checkpoint = Checkpoint.load(file, run.id, run.recipe, run.dataset.num_train)
        except DamagedCheckpointError as error:
            aside = directory.writer.set_aside(file.path)
            warn(f"{error.where} {error.what}. It is kept as {aside.name}.")
            continue
        _check_versions(file, checkpoint.facts.sessions)
        check_facts(file.path, checkpoint.facts, run)
        if checkpoints.damaged():
            warn(f"resuming from {file.path.name}.")
        return checkpoint
    record, logged = directory.read_record(), None
    with suppress(RunError):
        logged = History.read(directory.history_file).last
    is_complete = logged and logged.iteration >= run.recipe.iterations
    if checkpoints.damaged() or (record and record.iteration) or is_complete:
        reached = f", although its record is at iteration {record.iteration:,}" if record else ""
        raise ResumeError(
            f"{directory.path} has no readable checkpoint{reached}. Restore one, or restart this run: {RESTART}."
        )
    return None


def other_fact(found: Record | CheckpointFacts, run: PlannedRun) -> str:
    """Name the first fact of a run that is no longer as recorded, and what to do; "" if there is none.

    The code that trained last knew the facts, so they are found out only if today's is other code, or the net is of
    code of the user's, which may import more. An error says that the memory does not suffice for that.
    """
    last, today = found.sessions[-1], Surroundings.of(torch.device("cpu"))
    is_known = isinstance(run.net, Net) and today.has_code_of(last.code, last.environment)
    if found.facts is None or is_known:
        return ""
    other = difference(found.facts, facts_of(run.net, run.recipe))
    return other and f"{other}. Resume with the code that began the run, or restart it: {RESTART}."


def check_facts(where: Path, found: Record | CheckpointFacts, run: PlannedRun) -> None:
    """Refuse to go on with a run that was trained with other facts."""
    if other := other_fact(found, run):
        raise ResumeError(f"{where} was trained with other facts: {other}")


def load_into(trainer: Trainer, checkpoint: Checkpoint | None, directory: RunDirectory) -> None:
    """Load a checkpoint, if there is one."""
    if checkpoint is None:
        return
    try:
        trainer.load_state_dict(checkpoint.state)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        if is_out_of_memory(error) or "CUDA error" in str(error):
            raise
        raise ResumeError(
            f"The checkpoint in {directory.path} does not fit this version of paperbench ({error}). Resume with the "
            f"version that wrote it, or restart this run: {RESTART}."
        ) from error


def change_of_rounding(before: Session, now: Session) -> str | None:
    """Say how a session rounds differently from the one before; None if it does not."""
    was, will = (
        f"torch {one.environment.torch} on {one.environment.device}, {one.environment.threads} threads"
        + ("" if is_bit_equal(one.engine) else f", engine {one.engine}")
        for one in (before, now)
    )
    if was == will:
        return None
    return (
        f"started with {was}; resumes with {will}. The result is equally valid, but not bit-identical to an "
        "uninterrupted run."
    )


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
