"""Whether the files of a store are those that the runs left: nothing edited, cut short or mixed up."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import file_digest

from paperbench.atomic import TEMPORARY
from paperbench.errors import PaperbenchError, RunError
from paperbench.reading import check_size, read_at_most
from paperbench.runs.checkpoints import DAMAGED
from paperbench.runs.history import HistoryLine, history_damage, parse_history
from paperbench.runs.planning import net_and_recipe
from paperbench.runs.record import Record, RecordError
from paperbench.runs.store import LARGEST_HISTORY, LARGEST_WEIGHTS, WEIGHTS_REMEDY, RunDirectory, Store

_LOOKS = 3
_PAUSE_SECONDS = 0.5


@dataclass
class Verification:
    """What was found in a store.

    Attributes:
        statuses: How many runs of each status there are.
        problems: What is not as a run leaves it, one sentence each.
        remarks: What is worth knowing but no fault.
        sound: Records without a problem.
    """

    statuses: Counter[str]
    problems: list[str]
    remarks: list[str]
    sound: list[Record]


def verify(store: Store) -> Verification:
    """Recompute every digest and hash in a store, and check that records, histories and checkpoints fit together.

    Writes nothing, and waits for nobody: a run that some process is at is looked at between two of its writings.

    Raises:
        PaperbenchError: The runs of the store cannot be listed.
    """
    found = Verification(Counter(), [], [], [])
    for directory in store.directories():
        try:
            status, problems, remarks, record = _verified_at_rest(directory)
        except OSError as error:
            status, remarks, record = "unreadable", [], None
            problems = [f"{directory.path} cannot be read: {error.strerror or error}."]
        found.statuses[status] += 1
        found.problems += problems
        found.remarks += remarks
        if record and not problems:
            found.sound.append(record)
    return found


_Verified = tuple[str, list[str], list[str], Record | None]
"""A run's status, problems and remarks, and its record if that can be read."""


def _verified_at_rest(directory: RunDirectory) -> _Verified:
    """Look again at a run with problems, if it has been written to meanwhile."""
    for _ in range(_LOOKS):
        verified, before = _verified(directory), _content(directory)
        if not verified[1]:
            break
        time.sleep(_PAUSE_SECONDS)
        if _content(directory) == before:
            break
    return verified


def _content(directory: RunDirectory) -> list[tuple[str, int, int]]:
    """What there is, when it was written, and how large it is."""
    found = []
    for path in directory.path.iterdir():
        with suppress(FileNotFoundError):
            found.append((path.name, path.stat().st_mtime_ns, path.stat().st_size))
    return sorted(found)


def _verified(directory: RunDirectory) -> _Verified:
    remarks = [
        f"{path} is what a killed process was writing: it can be deleted."
        for path in sorted(directory.path.glob(f"*{TEMPORARY}"))
    ]
    remarks += [f"{path} was set aside as damaged." for path in sorted(directory.path.glob(f"*{DAMAGED}"))]
    try:
        record = directory.read_record()
    except RecordError as error:
        return "unreadable", [str(error), *_checkpoint_problems(directory, None)], remarks, None
    if record is None:
        return "without a record yet", list(_checkpoint_problems(directory, None)), remarks, None
    if record.is_mixed:
        remarks.append(f"{record.run} mixes versions of the numerics or of torch, and is never pooled.")
    problems = [
        *_spec_problems(directory, record),
        *_history_problems(directory, record),
        *_checkpoint_problems(directory, record),
        *_weights_problems(directory, record),
    ]
    return record.status, problems, remarks, record


def _spec_problems(directory: RunDirectory, record: Record) -> Iterator[str]:
    try:
        net_and_recipe(record.spec)
    except PaperbenchError as error:
        yield f"{directory.record_file} has a spec that no table makes: {error}"


def _history_problems(directory: RunDirectory, record: Record) -> Iterator[str]:
    file = directory.history_file
    try:
        data = read_at_most(file, LARGEST_HISTORY)
        lines = parse_history(data)
    except OSError as error:
        damage: str | None = f"{file} cannot be read: {error.strerror or error}."
    except RecordError as error:
        damage = f"{file}:{str(error).rstrip('.')}."
    else:
        damage = history_damage(data, record)
        damage = damage and f"{file} {damage}"
        if damage is None:
            yield from (f"{file}:{text}" for text in _contradictions(lines[: record.files.history_lines], record))
    if damage:
        yield f"{damage} {directory.history_remedy(record)}"


def _contradictions(lines: list[HistoryLine], record: Record) -> Iterator[str]:
    """Where a history that its record vouches for tells something else than the record, or its recipe."""
    try:
        _, recipe = net_and_recipe(record.spec)
    except PaperbenchError:
        return  # told already
    for number, line in enumerate(lines, start=1):
        if not 0 < line.iteration <= record.iteration:
            yield f"{number} is of iteration {line.iteration}, and the record is at {record.iteration}."
        elif line.lr != recipe.rate_at(line.iteration - 1):
            yield f"{number} has rate {line.lr}, and the recipe {recipe.rate_at(line.iteration - 1)}."
    tested = [line.test_error for line in lines if line.test_error is not None]
    result = record.result
    if result and (
        not tested
        or lines[-1].iteration != record.iteration
        or (lines[-1].test_error, lines[-1].test_loss)
        != (result.moving_average_test_error, result.moving_average_test_loss)
        or min(tested) != result.best_test_error
    ):
        yield f"{len(lines)} the last test error or the best one is not that of the record's result."


def _checkpoint_problems(directory: RunDirectory, record: Record | None) -> Iterator[str]:
    checkpoints = directory.checkpoints
    files = checkpoints.newest_first()
    for file in files:
        try:
            yield from _content_problems(file.read(), directory.path.name, file.iteration, f"{file.path}")
        except RunError as error:
            yield f"{str(error).rstrip('.')}."
    if record is None or record.files.checkpoint in {file.path.name for file in files}:
        return
    if record.status == "partial" and not any(file.iteration >= record.iteration for file in files):
        yield f"{directory.path / record.files.checkpoint} is missing: the run cannot go on from where its record is."


def _weights_problems(directory: RunDirectory, record: Record) -> Iterator[str]:
    file = directory.weights_file
    if record.status != "finished":
        if file.exists() and record.status == "diverged":
            yield f"{file} belongs to no result: the run diverged. Delete it."
        return
    try:
        check_size(file, LARGEST_WEIGHTS)
        with open(file, "rb") as stream:
            digest = file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        if file.is_symlink():
            yield f"{file} leads nowhere. {WEIGHTS_REMEDY}"
        return  # whoever needs the room may remove it: the result does not rest on it
    except OSError as error:
        yield f"{file} cannot be read: {error.strerror or error}. {WEIGHTS_REMEDY}"
        return
    if digest != record.files.weights_sha256:
        yield f"{file} was edited or damaged: it is not the net that was tested. {WEIGHTS_REMEDY}"


def _content_problems(data: bytes, run_id: str, iteration: int, name: str) -> Iterator[str]:
    from paperbench.runs.resume import Checkpoint, CheckpointError  # torch, only where there is need

    try:
        checkpoint = Checkpoint.from_bytes(data, run_id)
    except CheckpointError as error:
        yield f"{name} {error}."
        return
    if checkpoint.iteration != iteration:
        yield f"{name} is not of the iteration in its name."
