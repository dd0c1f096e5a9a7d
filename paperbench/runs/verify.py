"""Whether the files of a store are those that the runs left: nothing edited, cut short or mixed up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from paperbench.atomic import TEMPORARY
from paperbench.errors import PaperbenchError, RunError
from paperbench.reading import read_at_most
from paperbench.runs.history import HistoryLine, history_sha256, parse_history
from paperbench.runs.planning import net_and_recipe
from paperbench.runs.record import Record, RecordError
from paperbench.runs.store import LARGEST_HISTORY, RunDirectory, Store


@dataclass(frozen=True)
class Verification:
    """What was found in a store.

    Attributes:
        statuses: How many runs of each status there are.
        in_use: Runs that some process is at, which were not looked at.
        problems: What is not as a run leaves it, one sentence each.
        remarks: What is worth knowing but no fault.
        sound: Records without a problem.
    """

    statuses: Counter[str]
    in_use: list[str]
    problems: list[str]
    remarks: list[str]
    sound: list[Record]


def verify(store: Store) -> Verification:
    """Recompute every digest and hash in a store, and check that records, histories and checkpoints fit together."""
    found = Verification(Counter(), [], [], [], [])
    for directory in store.directories():
        claim = store.claim(directory.path.name)
        if not claim.path.exists():
            _verify_run(directory, found)
        elif claim.take():  # of a process that has died
            with claim.held():
                _verify_run(directory, found)
        else:
            found.in_use.append(directory.path.name)
    return found


def _verify_run(directory: RunDirectory, found: Verification) -> None:
    leftovers = sorted(directory.path.glob(f"*{TEMPORARY}"))
    found.remarks.extend(f"{path} is what a killed process was writing; the next run clears it." for path in leftovers)
    try:
        record = directory.read_record()
    except RecordError as error:
        found.problems.append(str(error))
        return
    if record is None:
        found.statuses["without a record yet"] += 1
        found.problems.extend(_checkpoint_problems(directory, None))
        return
    found.statuses[record.status] += 1
    problems = [
        *_identity_problems(directory, record),
        *_history_problems(directory, record),
        *_checkpoint_problems(directory, record),
    ]
    found.problems.extend(problems)
    if not problems:
        found.sound.append(record)
    if record.is_mixed:
        found.remarks.append(f"{record.run} mixes versions of the numerics or of torch, and is never pooled.")


def _identity_problems(directory: RunDirectory, record: Record) -> Iterator[str]:
    if record.run != directory.path.name:
        yield f"{directory.path} holds the record of run {record.run}. Rename the folder to match."
    try:
        net_and_recipe(record.spec)
    except PaperbenchError as error:
        yield f"{directory.record_file} has a spec that no table makes: {error}"


def _history_problems(directory: RunDirectory, record: Record) -> Iterator[str]:
    file, expected = directory.history_file, record.files.history_lines
    try:
        data = read_at_most(file, LARGEST_HISTORY)
    except OSError as error:
        yield f"{file} cannot be read: {error.strerror or error}."
        return
    try:
        lines = parse_history(data)
    except RecordError as error:
        yield f"{file}:{str(error).rstrip('.')}."
        return
    if len(lines) < expected:
        yield f"{file} was cut short: it has {len(lines)} of the {expected} lines that its record was written with."
    elif history_sha256(data, expected) != record.files.history_sha256:
        yield f"{file} was edited: its first {expected} lines are not those that its record was written with."
    elif record.status != "partial" and len(lines) > expected:
        yield f"{file} has {len(lines) - expected} lines that were added after the run had ended."
    else:
        yield from (f"{file}:{text}" for text in _contradictions(lines[:expected], record))


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
    if record.result and (
        not tested
        or lines[-1].iteration != record.iteration
        or tested[-1] != record.result.moving_average_test_error
        or min(tested) != record.result.best_test_error
    ):
        yield f"{len(lines)} the last test error or the best one is not that of the record's result."


def _checkpoint_problems(directory: RunDirectory, record: Record | None) -> Iterator[str]:
    checkpoints = directory.checkpoints
    yield from (f"{path} was found damaged, and set aside." for path in checkpoints.damaged())
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


def _content_problems(data: bytes, run_id: str, iteration: int, name: str) -> Iterator[str]:
    from paperbench.training.checkpoint import CheckpointError, read_checkpoint  # torch, only where there is need

    try:
        contents, _ = read_checkpoint(data, run_id)
    except CheckpointError as error:
        yield f"{name} {error}."
        return
    trainer = contents.get("trainer")
    if not isinstance(trainer, dict) or trainer.get("iteration") != iteration:
        yield f"{name} is not of the iteration in its name."
