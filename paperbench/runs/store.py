"""The results directory.

    results/runs/<run id>/record.json                spec, progress and result; rewritten at every checkpoint
                          history.jsonl              one line per logged iteration
                          checkpoint-*.safetensors   the state to resume from: the newest, and the one before
                          model.safetensors          the trained net of a finished run
            leases/<run id>.<n>                      the process that is training the run
            superseded/<run id>-<n>/                 old files of runs that were restarted

This module does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from paperbench.errors import RunError
from paperbench.files import (
    TEMPORARY,
    list_directory,
    no_guard,
    remove,
    report_write_errors,
    set_aside,
    write_atomically,
)
from paperbench.runs.checkpoints import Checkpoints
from paperbench.runs.hashed import ForeignRecordError, RecordError
from paperbench.runs.history import History, HistoryLine, Measure, history_bytes
from paperbench.runs.lease import Lease
from paperbench.runs.record import Record

_RECORD_REMEDY = "Restore the file; if there is a checkpoint, the same `paperbench run` rewrites it."
_FOREIGN_REMEDY = (
    "Use the version that wrote it, or another results directory; or restart the run with `paperbench run "
    "--incompatible restart`, which keeps the old files."
)


class RunDirectory:
    """The files of one run.

    Args:
        path: The run's directory, named after the run's id.
        guard: Called before anything is written or deleted; may raise to prevent it.
    """

    def __init__(self, path: Path, guard: Callable[[], None] = no_guard) -> None:
        self.path, self._guard = path, guard
        self.record_file = path / "record.json"
        self.history_file = path / "history.jsonl"
        self.weights_file = path / "model.safetensors"
        self.checkpoints = Checkpoints(path, guard)

    def clear_leftovers(self) -> None:
        """Delete incomplete files of killed processes; only the holder of the run's lease may do so."""
        for leftover in self.path.glob(f"*{TEMPORARY}"):
            remove(leftover, self._guard)

    def read_record(self) -> Record | None:
        """Return the record, or None if it does not exist yet.

        Raises:
            ForeignRecordError: The record has another schema or belongs to another run.
            RecordError: The record is damaged.
        """
        try:
            record = Record.read(self.record_file, _RECORD_REMEDY, _FOREIGN_REMEDY)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if record.run != self.path.name:
            raise ForeignRecordError(
                f"{self.path} holds the record of run {record.run}. Rename the directory to match, or move it away."
            )
        return record

    def write_record(self, record: Record) -> None:
        write_atomically(self.record_file, record.to_json().encode(), self._guard)

    def set_record_aside(self) -> Path:
        """Rename a damaged record; return its new path."""
        return set_aside(self.record_file, self._guard)

    def write_weights(self, data: bytes) -> None:
        write_atomically(self.weights_file, data, self._guard)

    def remove_weights(self) -> None:
        """Delete the trained net if an earlier attempt at the run left one."""
        remove(self.weights_file, self._guard)

    def append_history(self, line: HistoryLine) -> None:
        """Append a line. It can be read at once, but survives a power cut only after `write_history`."""
        self._guard()
        # If someone deleted the directory, `write_history` will create it again, with all lines.
        with (
            report_write_errors(self.history_file),
            suppress(FileNotFoundError),
            open(self.history_file, "ab") as stream,
        ):
            stream.write(history_bytes([line]))

    def write_history(self, lines: Sequence[HistoryLine]) -> None:
        """Replace the history by these lines, and sync it to disk.

        Raises:
            PaperbenchError: The file cannot be written.
        """
        write_atomically(self.history_file, history_bytes(lines), self._guard)

    def history(self) -> list[HistoryLine]:
        """Return all lines, except an incomplete last one that a killed process left.

        Raises:
            RunError: The file cannot be read, or a line is damaged.
        """
        return History.read(self.history_file).lines()


class Store:
    """A results directory, which several processes on several machines may use at the same time."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def directory(self, run_id: str, guard: Callable[[], None] = no_guard) -> RunDirectory:
        return RunDirectory(self.root / "runs" / run_id, guard)

    def readable_record(self, run_id: str) -> Record | None:
        """Return a run's record; None if it does not exist or cannot be read."""
        try:
            return self.directory(run_id).read_record()
        except RecordError:
            return None

    def directories(self) -> list[RunDirectory]:
        """Return the directories of all runs, sorted by name.

        Raises:
            PaperbenchError: The runs cannot be listed.
        """
        return [RunDirectory(path) for path in list_directory(self.root / "runs") if path.is_dir()]

    def lease(self, run_id: str) -> Lease:
        """Return the lease that a process must hold while it writes to the run's directory."""
        return Lease(self.root / "leases", run_id)

    def supersede(self, run_id: str) -> Path:
        """Move a run's directory away, so that the run can restart; return its new path.

        Raises:
            PaperbenchError: The directory cannot be moved.
        """
        number = 1
        while (target := self.root / "superseded" / f"{run_id}-{number}").exists():
            number += 1
        with report_write_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            return self.directory(run_id).path.replace(target)

    def records(self) -> tuple[list[Record], list[str]]:
        """Return the records, sorted by run id, and a complaint about each damaged record or history."""
        records, complaints = [], []
        for directory in self.directories():
            try:
                if record := directory.read_record():
                    History.read(directory.history_file).check(record)
                    records.append(record)
            except RunError as error:
                complaints.append(str(error))
        return records, complaints

    def training_mean(self, record: Record, measure: Measure, after: int, upto: int) -> float | None:
        """Return the mean of a measure over a run's history lines with after < iteration <= upto.

        Returns:
            Infinity if the run diverged before `upto`; None if it has not reached `upto`, or no line is in between.

        Raises:
            RunError: The history cannot be read, or a line is damaged.
        """
        if record.iteration < upto:
            return math.inf if record.status == "diverged" else None
        return History.read(self.directory(record.run).history_file).window_mean(measure, after, upto)
