"""Whether the files of a store are those that the runs left: nothing edited, cut short or mixed up."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import file_digest

from paperbench.atomic import TEMPORARY
from paperbench.errors import PaperbenchError, RunError
from paperbench.reading import check_size, unreadable
from paperbench.runs.checkpoints import DAMAGED
from paperbench.runs.planning import net_and_recipe
from paperbench.runs.record import Record, RecordError
from paperbench.runs.store import RunDirectory, Store
from paperbench.specs.recipe import Recipe

_ATTEMPTS = 3
_PAUSE_SECONDS = 0.5
_MAX_WEIGHTS_BYTES = 4_000_000_000
_WEIGHTS_REMEDY = (
    "Restore or delete it; if record.json is moved away too, `paperbench run` makes both again from the checkpoint."
)


@dataclass
class Verification:
    """What was found in a store.

    Attributes:
        statuses: How many runs of each status there are.
        problems: What is not as a run leaves it, one sentence each.
        remarks: What is worth knowing but no fault.
        sound: Records without a problem.
    """

    statuses: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    sound: list[Record] = field(default_factory=list)


@dataclass(frozen=True)
class _VerifiedRun:
    status: str
    problems: list[str]
    remarks: list[str]
    record: Record | None = None


def verify(store: Store) -> Verification:
    """Recompute every digest and hash in a store, and check that records, histories and checkpoints fit together.

    Writes nothing and takes no lease: a run that is being trained is checked between two of its saves.

    Raises:
        PaperbenchError: The runs of the store cannot be listed.
    """
    found = Verification()
    for directory in store.directories():
        try:
            run = _verify_at_rest(directory)
        except OSError as error:
            run = _VerifiedRun("unreadable", [unreadable(directory.path, error, "Check its permissions.")], [])
        found.statuses[run.status] += 1
        found.problems += run.problems
        found.remarks += run.remarks
        if run.record and not run.problems:
            found.sound.append(run.record)
    return found


def _verify_at_rest(directory: RunDirectory) -> _VerifiedRun:
    """Verify a run with problems again if it was written to meanwhile."""
    for _ in range(_ATTEMPTS):
        run, before = _verify_run(directory), _files(directory)
        if not run.problems:
            break
        time.sleep(_PAUSE_SECONDS)
        if _files(directory) == before:
            break
    return run


def _files(directory: RunDirectory) -> list[tuple[str, int, int]]:
    """Names, times of writing and sizes."""
    found = []
    for path in directory.path.iterdir():
        with suppress(FileNotFoundError):
            found.append((path.name, path.stat().st_mtime_ns, path.stat().st_size))
    return sorted(found)


def _verify_run(directory: RunDirectory) -> _VerifiedRun:
    remarks = [
        f"{path} is what a killed process was writing: it can be deleted."
        for path in sorted(directory.path.glob(f"*{TEMPORARY}"))
    ]
    remarks += [f"{path} was set aside as damaged." for path in sorted(directory.path.glob(f"*{DAMAGED}"))]
    try:
        record = directory.read_record()
    except RecordError as error:
        return _VerifiedRun("unreadable", [str(error), *_checkpoint_problems(directory)], remarks)
    if record is None:
        return _VerifiedRun("without a record yet", list(_checkpoint_problems(directory)), remarks)
    if record.is_mixed:
        remarks.append(f"{record.run} mixes versions of the numerics or of torch, and is never pooled.")
    return _VerifiedRun(record.status, list(_problems(directory, record)), remarks, record)


def _problems(directory: RunDirectory, record: Record) -> Iterator[str]:
    recipe = None
    try:
        _, recipe = net_and_recipe(record.spec)
    except PaperbenchError as error:
        yield f"{directory.record_file} has a spec that no table makes: {error}"
    yield from _history_problems(directory, record, recipe)
    yield from _checkpoint_problems(directory)
    reached = max((file.iteration for file in directory.checkpoints.newest_first()), default=-1)
    if record.status == "partial" and reached < record.iteration:
        yield f"{directory.path / record.files.checkpoint} is missing: the run cannot resume from where its record is."
    yield from _weights_problems(directory, record)


def _history_problems(directory: RunDirectory, record: Record, recipe: Recipe | None) -> Iterator[str]:
    """How the history differs from what its record and its recipe say."""
    if complaint := directory.history_complaint(record):
        yield complaint
        return
    try:
        lines = directory.history()[: record.files.history_lines]
    except RunError as error:
        yield str(error)
        return
    file, result = directory.history_file, record.result
    for number, line in enumerate(lines, start=1):
        if not 0 < line.iteration <= record.iteration:
            yield f"{file}:{number}: iteration is {line.iteration}, and the record is at {record.iteration}."
        elif recipe and line.lr != recipe.rate_at(line.iteration - 1):
            yield f"{file}:{number}: lr is {line.lr}, and the recipe has {recipe.rate_at(line.iteration - 1)}."
    tested = [line.test_error for line in lines if line.test_error is not None]
    if result and (
        not tested
        or lines[-1].iteration != record.iteration
        or (lines[-1].test_error, lines[-1].test_loss)
        != (result.moving_average_test_error, result.moving_average_test_loss)
        or min(tested) != result.best_test_error
    ):
        yield f"{file}: its last or its best test error is not that of the record's result."


def _checkpoint_problems(directory: RunDirectory) -> Iterator[str]:
    for file in directory.checkpoints.newest_first():
        try:
            yield from _content_problems(file.read(), directory.path.name, file.iteration, f"{file.path}")
        except RunError as error:
            yield f"{str(error).rstrip('.')}."


def _weights_problems(directory: RunDirectory, record: Record) -> Iterator[str]:
    file = directory.weights_file
    if record.status == "diverged" and file.exists():
        yield f"{file} belongs to no result: the run diverged. Delete it."
    # Weights may be left out to save space: the result does not depend on them. A dead link is a mistake, though.
    if record.status != "finished" or not (file.exists() or file.is_symlink()):
        return
    try:
        check_size(file, _MAX_WEIGHTS_BYTES)
        with open(file, "rb") as stream:
            digest = file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        yield unreadable(file, error, _WEIGHTS_REMEDY)
        return
    if digest != record.files.weights_sha256:
        yield f"{file} was edited or damaged: it is not the net that was tested. {_WEIGHTS_REMEDY}"


def _content_problems(data: bytes, run_id: str, iteration: int, name: str) -> Iterator[str]:
    from paperbench.runs.resume import Checkpoint, CheckpointError  # torch, only where there is need

    try:
        checkpoint = Checkpoint.from_bytes(data, run_id)
    except CheckpointError as error:
        yield f"{name} {error}."
        return
    if checkpoint.iteration != iteration:
        yield f"{name} is not of the iteration in its name."
