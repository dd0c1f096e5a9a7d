"""Check that the files of a results directory were not edited, truncated or mixed up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import file_digest

from paperbench.errors import PaperbenchError, RunError
from paperbench.files import DAMAGED, TEMPORARY, format_read_error, open_regular
from paperbench.runs.history import History
from paperbench.runs.planning import net_and_recipe
from paperbench.runs.record import Record
from paperbench.runs.store import RunDirectory, Store
from paperbench.specs.recipe import Recipe

_PAUSE_SECONDS = 0.5
_MAX_WEIGHTS_BYTES = 4_000_000_000
_WEIGHTS_REMEDY = (
    "Restore or delete it; if you also move record.json away, `paperbench run` rewrites both from the checkpoint."
)


@dataclass(frozen=True)
class VerifiedRun:
    """The findings about one run.

    Attributes:
        status: The status in the record, or why the record could not be read.
        problems: Signs of edited, truncated or mixed-up files, one sentence each.
        remarks: Findings that are not problems.
    """

    status: str
    problems: list[str]
    remarks: list[str]
    record: Record | None = None


def verify(store: Store) -> list[VerifiedRun]:
    """Recompute all hashes in a results directory, and check that records, histories and checkpoints fit together.

    Writes nothing and takes no lease. A run with problems is checked twice, since a process may be writing there at
    that moment.

    Raises:
        PaperbenchError: The runs cannot be listed.
    """
    found = []
    for directory in store.directories():
        try:
            run = _verify_run(directory)
            if run.problems:
                time.sleep(_PAUSE_SECONDS)
                run = _verify_run(directory)
        except OSError as error:
            run = VerifiedRun("unreadable", [format_read_error(directory.path, error, "Check its permissions.")], [])
        found.append(run)
    return found


def _verify_run(directory: RunDirectory) -> VerifiedRun:
    files = sorted(directory.path.iterdir())
    remarks = [
        *(f"{p} is incomplete: a killed process left it. You can delete it." for p in files if p.suffix == TEMPORARY),
        *(f"{p} was set aside as damaged." for p in files if p.suffix == DAMAGED),
    ]
    try:
        record = directory.read_record()
    except RunError as error:
        return VerifiedRun("unreadable", [str(error), *_checkpoint_problems(directory)], remarks)
    if record is None:
        return VerifiedRun("no record yet", list(_checkpoint_problems(directory)), remarks)
    if record.is_mixed:
        remarks.append(f"{record.run} mixes versions of the numerics or of torch, so it is never pooled.")
    return VerifiedRun(record.status, list(_problems(directory, record)), remarks, record)


def _problems(directory: RunDirectory, record: Record) -> Iterator[str]:
    recipe = None
    try:
        _, recipe = net_and_recipe(record.spec)
    except PaperbenchError as error:
        yield f"{directory.record_file} has an invalid spec: {error}"
    yield from _history_problems(directory, record, recipe)
    yield from _checkpoint_problems(directory)
    reached = max((file.iteration for file in directory.checkpoints.newest_first()), default=-1)
    if record.status == "partial" and reached < record.iteration:
        yield f"{directory.path / record.files.checkpoint} is missing: the run cannot resume."
    yield from _weights_problems(directory, record)


def _history_problems(directory: RunDirectory, record: Record, recipe: Recipe | None) -> Iterator[str]:
    """Yield contradictions between the history and its record or recipe."""
    try:
        history = History.read(directory.history_file)
        history.check(record)
        lines = history.lines()[: record.files.history_lines]
    except RunError as error:
        yield str(error)
        return
    file, result = directory.history_file, record.result
    for number, line in enumerate(lines, start=1):
        if not 0 < line.iteration <= record.iteration:
            yield f"{file}:{number}: iteration is {line.iteration}, but the record is at {record.iteration}."
        elif recipe and line.lr != recipe.rate_at(line.iteration - 1):
            yield f"{file}:{number}: lr is {line.lr}, but the recipe has {recipe.rate_at(line.iteration - 1)}."
    tested = [line.test_error for line in lines if line.test_error is not None]
    if result and (
        not tested
        or lines[-1].iteration != record.iteration
        or (lines[-1].test_error, lines[-1].test_loss)
        != (result.moving_average_test_error, result.moving_average_test_loss)
        or min(tested) != result.best_test_error
    ):
        yield f"{file}: its last or best test error differs from the record's result."


def _checkpoint_problems(directory: RunDirectory) -> Iterator[str]:
    for file in directory.checkpoints.newest_first():
        from paperbench.runs.resume import (
            Checkpoint,
            CheckpointError,
        )  # imports torch; published results have no checkpoints

        try:
            checkpoint = Checkpoint.from_bytes(file.read(), directory.path.name)
        except CheckpointError as error:
            yield f"{file.path} {error}."
        except RunError as error:
            yield f"{str(error).rstrip('.')}."
        else:
            if checkpoint.iteration != file.iteration:
                yield f"{file.path} contains a different iteration from the one in its name."


def _weights_problems(directory: RunDirectory, record: Record) -> Iterator[str]:
    file = directory.weights_file
    if record.status == "diverged" and file.exists():
        yield f"{file} should not exist: the run diverged. Delete it."
    # Weights may be deleted to save space, since the result does not depend on them. A dead link is a mistake, though.
    if record.status != "finished" or not (file.exists() or file.is_symlink()):
        return
    try:
        with open_regular(file, _MAX_WEIGHTS_BYTES) as stream:
            digest = file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        yield format_read_error(file, error, _WEIGHTS_REMEDY)
        return
    if digest != record.files.weights_sha256:
        yield f"{file} was edited or damaged: it is not the net that was tested. {_WEIGHTS_REMEDY}"
