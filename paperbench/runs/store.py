"""The results directory.

    results/runs/<run id>/record.json                what the run is and how far it came; rewritten at every checkpoint
                          history.jsonl              one line per logged iteration
                          checkpoint-*.safetensors   what it takes to resume: the newest, and the one before
                          model.safetensors          the trained net, once the run has finished
            leases/<run id>.<n>                      which process is working on it
            superseded/<run id>-<n>/                 runs that were started over

Nothing here imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from paperbench.errors import RunError
from paperbench.files import TEMPORARY, list_folder, remove, set_aside, unguarded, write_atomically, writing
from paperbench.runs.checkpoints import Checkpoints
from paperbench.runs.hashed import ForeignRecordError, RecordError
from paperbench.runs.history import History, HistoryLine, Measure, history_bytes
from paperbench.runs.lease import Lease
from paperbench.runs.record import Record

_RECORD_REMEDY = "Restore the file; where there is a checkpoint, the same `paperbench run` makes it again."
_FOREIGN_REMEDY = (
    "Use the version that wrote it, or another results folder; or `paperbench run --incompatible restart` trains the "
    "run anew and keeps the old files aside."
)


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
        """Delete what a killed process was writing. Only for whoever holds the run's lease."""
        for leftover in self.path.glob(f"*{TEMPORARY}"):
            remove(leftover, self._guard)

    def read_record(self) -> Record | None:
        """The record, or None if there is none yet.

        Raises:
            ForeignRecordError: It is of another schema or run.
            RecordError: It is damaged.
        """
        try:
            record = Record.read(self.record_file, _RECORD_REMEDY, _FOREIGN_REMEDY)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if record.run != self.path.name:
            raise ForeignRecordError(
                f"{self.path} holds the record of run {record.run}. Rename the folder to match, or move it away."
            )
        return record

    def write_record(self, record: Record) -> None:
        write_atomically(self.record_file, record.to_json().encode(), self._guard)

    def set_record_aside(self) -> Path:
        """Give a damaged record another name; returns that."""
        return set_aside(self.record_file, self._guard)

    def write_weights(self, data: bytes) -> None:
        write_atomically(self.weights_file, data, self._guard)

    def remove_weights(self) -> None:
        """Delete the trained net, if another attempt at the run has left one."""
        remove(self.weights_file, self._guard)

    def append_history(self, line: HistoryLine) -> None:
        """Add a line. It can be read at once, but only `settle_history` makes it survive a power cut."""
        self._guard()
        # If somebody removed the folder, settling makes it again, with all lines.
        with writing(self.history_file), suppress(FileNotFoundError), open(self.history_file, "ab") as stream:
            stream.write(history_bytes([line]))

    def settle_history(self, lines: Sequence[HistoryLine]) -> None:
        """Make the file hold exactly these lines, safely on disk.

        Raises:
            PaperbenchError: It cannot be written.
        """
        write_atomically(self.history_file, history_bytes(lines), self._guard)

    def history(self) -> list[HistoryLine]:
        """All complete lines; one cut short by a killed process is left out.

        Raises:
            RunError: The file cannot be read, or a line is damaged.
        """
        return History.read(self.history_file).lines()


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
        return [RunDirectory(path) for path in list_folder(self.root / "runs") if path.is_dir()]

    def lease(self, run_id: str) -> Lease:
        """What a process must hold while it writes to the run's directory."""
        return Lease(self.root / "leases", run_id)

    def supersede(self, run_id: str) -> Path:
        """Move a run's directory away, so that the run can start over.

        Returns:
            Where it is now.

        Raises:
            PaperbenchError: The store cannot be written.
        """
        number = 1
        while (target := self.root / "superseded" / f"{run_id}-{number}").exists():
            number += 1
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            return self.directory(run_id).path.replace(target)

    def records(self) -> tuple[list[Record], list[str]]:
        """The records, by run id, and a complaint about each that is damaged, or has another history than it should."""
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
        """Mean of a measure of a run over the lines with after < iteration <= upto.

        Returns:
            Infinity if the run diverged before `upto`; None if it is not there yet, or has no line in between.

        Raises:
            RunError: The file cannot be read, or a line is damaged.
        """
        if record.iteration < upto:
            return math.inf if record.status == "diverged" else None
        return History.read(self.directory(record.run).history_file).window_mean(measure, after, upto)
