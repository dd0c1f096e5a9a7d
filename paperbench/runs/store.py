"""The results directory.

    results/runs/<run id>/record.json         what the run is and how far it came; rewritten at every checkpoint
                          history.jsonl       one line a logged iteration
                          checkpoint-*.pt     what it takes to go on: the newest, and the one before
                          model.safetensors   the trained net, once the run has ended
            leases/<run id>.<n>               which process is at it
            superseded/<run id>-<n>/          runs that were begun anew

Nothing here imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from paperbench.atomic import TEMPORARY, sync, unguarded, unwritable, write_atomically
from paperbench.errors import PaperbenchError, RunError
from paperbench.reading import read_at_most, read_end
from paperbench.runs.checkpoints import DAMAGED, Checkpoints
from paperbench.runs.history import (
    HistoryLine,
    Measure,
    Newest,
    history_bytes,
    history_damage,
    lines_up_to,
    newest_values,
    parse_history,
    window_mean,
)
from paperbench.runs.lease import Lease
from paperbench.runs.record import ForeignRecordError, Record, RecordError

_T = TypeVar("_T")
_LARGEST_RECORD = 10_000_000
_END_OF_HISTORY = 8_192
LARGEST_HISTORY = 200_000_000
LARGEST_WEIGHTS = 4_000_000_000
"""Bytes, far beyond what any run leaves."""

_RECORD_REMEDY = "Restore the file; where there is a checkpoint, the same `paperbench run` makes it again."
WEIGHTS_REMEDY = (
    "Restore or delete it; if record.json is moved away too, `paperbench run` makes both again from the checkpoint."
)
HISTORY_REMEDY = "Restore it; or move record.json away, and `paperbench run` makes both again from the checkpoint."


class RunDirectory:
    """The files of one run.

    Args:
        path: Its folder; the name is the run's id.
        guard: Called before anything is written or removed; may raise to prevent it.
    """

    def __init__(self, path: Path, guard: Callable[[], None] = unguarded) -> None:
        self.path, self._guard = path, guard
        self.record_file = path / "record.json"
        self.history_file = path / "history.jsonl"
        self.weights_file = path / "model.safetensors"
        self.checkpoints = Checkpoints(path, guard)

    def clear_leftovers(self) -> None:
        """Remove what a process was writing when it was killed. Only for whoever holds the run's lease."""
        for leftover in self.path.glob(f"*{TEMPORARY}"):
            self._guard()
            try:
                leftover.unlink(missing_ok=True)
            except OSError as error:
                raise unwritable(leftover, error) from error

    def read_record(self) -> Record | None:
        """The record, or None if there is none yet.

        Raises:
            ForeignRecordError: It is of another schema or run.
            RecordError: It is damaged.
        """
        try:
            text = read_at_most(self.record_file, _LARGEST_RECORD).decode()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise RecordError(f"{self.record_file} cannot be read ({error}). {_RECORD_REMEDY}") from error
        try:
            record = Record.from_json(text)
        except ForeignRecordError as error:
            raise ForeignRecordError(
                f"{self.record_file} {error}. Use the version that wrote it, or another results folder; or "
                "`paperbench run --incompatible restart` trains the run anew and keeps the old files aside."
            ) from error
        except RecordError as error:
            raise RecordError(f"{self.record_file} {str(error).rstrip('.')}. {_RECORD_REMEDY}") from error
        if record.run != self.path.name:
            raise ForeignRecordError(
                f"{self.path} holds the record of run {record.run}. Rename the folder to match, or move it away."
            )
        return record

    def write_weights(self, data: bytes) -> None:
        write_atomically(self.weights_file, data, self._guard)

    def remove_weights(self) -> None:
        """Remove the trained net, if another attempt at the run has left one."""
        self._guard()
        try:
            self.weights_file.unlink(missing_ok=True)
        except OSError as error:
            raise unwritable(self.weights_file, error) from error

    def write_record(self, record: Record) -> None:
        write_atomically(self.record_file, record.to_json().encode(), self._guard)

    def set_record_aside(self) -> Path:
        """Give a damaged record another name.

        Raises:
            PaperbenchError: The folder cannot be written.
        """
        self._guard()
        try:
            return self.record_file.replace(self.record_file.with_name(self.record_file.name + DAMAGED))
        except OSError as error:
            raise unwritable(self.record_file, error) from error

    def append_history(self, line: HistoryLine) -> None:
        """Add a line, at once readable; `settle_history` makes it safe."""
        self._guard()
        try:
            with open(self.history_file, "ab") as stream:
                stream.write(history_bytes([line]))
        except FileNotFoundError:
            pass  # somebody removed the folder or file: settling makes it again, with all its lines
        except OSError as error:
            raise unwritable(self.history_file, error) from error

    def settle_history(self, lines: Sequence[HistoryLine]) -> None:
        """Make the file hold just these lines, safely on disk: whatever was cut off, appended or removed.

        Raises:
            PaperbenchError: It cannot be written.
        """
        data = history_bytes(lines)
        try:
            is_so = self.history_file.read_bytes() == data
        except FileNotFoundError:
            is_so = False
        except OSError as error:
            raise unwritable(self.history_file, error) from error
        if is_so:
            sync(self.history_file)
        else:
            write_atomically(self.history_file, data, self._guard)

    def history(self) -> list[HistoryLine]:
        """All complete lines; one cut short by a killed process is left out.

        Raises:
            RunError: The file cannot be read, or a line is no history line.
        """
        return self._of_history(parse_history)

    def training_mean(self, record: Record, measure: Measure, after: int, upto: int) -> float | None:
        """Mean of a measure over the history lines with after < iteration <= upto that the record vouches for.

        Returns:
            Infinity if the run diverged before `upto`; None if it is not there yet, or has no line in between.

        Raises:
            RunError: The file cannot be read, or a line is no history line.
        """
        if record.iteration < upto:
            return math.inf if record.status == "diverged" else None
        return self._of_history(lambda data: window_mean(lines_up_to(data, record.iteration), measure, after, upto))

    def newest_values(self, record: Record) -> Newest:
        """The newest losses and errors that the record vouches for.

        Raises:
            RunError: As `history`.
        """
        if record.status != "partial":  # nothing stands behind what it vouches for
            with suppress(OSError, RecordError):
                return newest_values(read_end(self.history_file, _END_OF_HISTORY).partition(b"\n")[2])
        return self._of_history(lambda data: newest_values(lines_up_to(data, record.iteration)))

    def _of_history(self, read: Callable[[bytes], _T]) -> _T:
        """What can be read off the history's bytes; there are none without a file.

        Raises:
            RunError: As `history`.
        """
        try:
            try:
                data = read_at_most(self.history_file, LARGEST_HISTORY)
            except FileNotFoundError:
                data = b""
            return read(data)
        except OSError as error:
            raise RunError(f"{self.history_file} cannot be read ({error}). {HISTORY_REMEDY}") from error
        except RecordError as error:
            raise RunError(f"{self.history_file}:{str(error).rstrip('.')}. {HISTORY_REMEDY}") from error

    def history_complaint(self, record: Record) -> str | None:
        """What is wrong with the history if it is not the one that the record was written with, and what to do.

        Fast: it takes a hash, and parses nothing.
        """
        file = self.history_file
        try:
            damage = history_damage(read_at_most(file, LARGEST_HISTORY), record)
        except OSError as error:
            return f"{file} cannot be read: {error.strerror or error}. {self.history_remedy(record)}"
        return f"{file} {damage} {self.history_remedy(record)}" if damage else None

    def history_remedy(self, record: Record) -> str:
        """What to do about a history that is not the one that the record was written with."""
        is_restorable = any(found.iteration >= record.iteration for found in self.checkpoints.newest_first())
        return HISTORY_REMEDY if is_restorable else "Restore it."


@dataclass(frozen=True)
class Records:
    """What a store holds: readable records, and a complaint about each that is not."""

    records: list[Record]
    complaints: list[str]


class Store:
    """A results directory. Several processes may work in it, on several machines."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def directory(self, run_id: str, guard: Callable[[], None] = unguarded) -> RunDirectory:
        return RunDirectory(self.root / "runs" / run_id, guard)

    def readable_record(self, run_id: str) -> Record | None:
        """A run's record; None if there is none, or none that can be read."""
        try:
            return self.directory(run_id).read_record()
        except RecordError:
            return None

    def directories(self) -> list[RunDirectory]:
        """Those of all runs there are, by name.

        Raises:
            PaperbenchError: They cannot be listed.
        """
        runs = self.root / "runs"
        try:
            return [RunDirectory(path) for path in sorted(runs.iterdir()) if path.is_dir()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise PaperbenchError(f"{runs} cannot be read: {error.strerror or error}. Mend that first.") from error

    def lease(self, run_id: str) -> Lease:
        """What a process must hold while it writes to the run's directory."""
        return Lease(self.root / "leases", run_id)

    def supersede(self, run_id: str) -> Path:
        """Move a run's directory out of the way, so that it can be begun anew.

        Returns:
            Where it is now.

        Raises:
            PaperbenchError: The store cannot be written.
        """
        number = 1
        while (target := self.root / "superseded" / f"{run_id}-{number}").exists():
            number += 1
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            return self.directory(run_id).path.replace(target)
        except OSError as error:
            raise unwritable(target, error) from error

    def records(self) -> Records:
        """Every record in the store, by run id."""
        complaints: list[str] = []
        return Records(list(self._readable(complaints)), complaints)

    def sound_records(self) -> Records:
        """Those of `records` whose history is the one that they were written with, and a complaint about each other."""
        complaints: list[str] = []
        records = []
        for record in self._readable(complaints):
            complaint = self.directory(record.run).history_complaint(record)
            if complaint is None:
                records.append(record)
            else:
                complaints.append(complaint)
        return Records(records, complaints)

    def _readable(self, complaints: list[str]) -> Iterator[Record]:
        """Every record that can be read; what is wrong with others is added to the complaints."""
        for directory in self.directories():
            try:
                record = directory.read_record()
            except RecordError as error:
                complaints.append(str(error))
                continue
            if record is not None:
                yield record

    def training_mean(self, record: Record, measure: Measure, after: int, upto: int) -> float | None:
        """As `RunDirectory.training_mean`, of the record's run."""
        return self.directory(record.run).training_mean(record, measure, after, upto)
