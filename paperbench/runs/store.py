"""The results directory: a folder a run, with its record, its history and its checkpoint.

    results/runs/<run id>/record.json       what the run is and how far it came; rewritten at every checkpoint
                          history.jsonl     one line a logged iteration
                          checkpoint.pt     what it takes to go on

Nothing here imports torch.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from paperbench.atomic import TEMPORARY, unwritable, write_atomically
from paperbench.errors import PaperbenchError
from paperbench.runs.record import Record, RecordError, build, parse_json

_RECORD_REMEDY = "Restore the file, or delete it: the same `paperbench run` then makes it again from the checkpoint."
_HISTORY_REMEDY = "Restore the file, or delete it: the run goes on without that part of its curves."


class RunBusyError(PaperbenchError):
    """Another process is at this run."""


@dataclass(frozen=True)
class HistoryLine:
    """One line of a history.

    Attributes:
        iteration: Iterations done when it was written.
        epoch: Passes over the training set done.
        lr: Learning rate of the iteration before it.
        train_loss, train_error: Means over the training images since the line before; None once they are not finite.
        test_loss, test_error: With BN's moving averages; None where no test was due.
        seconds: Time spent in the run so far.
    """

    iteration: int
    epoch: float
    lr: float
    train_loss: float | None
    train_error: float | None
    test_loss: float | None
    test_error: float | None
    seconds: float

    def to_json(self) -> str:
        return json.dumps(asdict(self), allow_nan=False) + "\n"


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.record_file = path / "record.json"
        self.history_file = path / "history.jsonl"
        self.checkpoint_file = path / "checkpoint.pt"

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Make the folder and hold it for this process.

        Raises:
            RunBusyError: Another process holds it.
            PaperbenchError: The folder cannot be made.
        """
        lock = FileLock(self.path / ".lock")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire(blocking=False)
        except Timeout as error:
            raise RunBusyError(f"{self.path} is in use by another paperbench process.") from error
        except OSError as error:
            raise unwritable(self.path, error) from error
        try:
            for leftover in self.path.glob(f"*{TEMPORARY}"):  # of a process killed while it wrote
                leftover.unlink(missing_ok=True)
            yield
        finally:
            lock.release()

    def read_record(self) -> Record | None:
        """The record, or None if there is none yet.

        Raises:
            RecordError: It is damaged.
        """
        try:
            text = self.record_file.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise RecordError(f"{self.record_file} cannot be read ({error}). {_RECORD_REMEDY}") from error
        try:
            return Record.from_json(text)
        except RecordError as error:
            raise RecordError(f"{self.record_file} {str(error).rstrip('.')}. {_RECORD_REMEDY}") from error

    def write_record(self, record: Record) -> None:
        write_atomically(self.record_file, lambda stream: stream.write(record.to_json().encode()))

    def append_history(self, line: HistoryLine) -> None:
        try:
            with open(self.history_file, "a", encoding="utf-8") as stream:
                stream.write(line.to_json())
        except OSError as error:
            raise unwritable(self.history_file, error) from error

    def history(self) -> list[HistoryLine]:
        """All complete lines; one cut short by a killed process is left out.

        Raises:
            PaperbenchError: The file cannot be read, or a line is no history line.
        """
        try:
            text = self.history_file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise PaperbenchError(f"{self.history_file} cannot be read ({error}). {_HISTORY_REMEDY}") from error
        lines = []
        for number, line in enumerate(io.StringIO(text), start=1):
            if not line.endswith("\n"):
                break
            try:
                lines.append(build(HistoryLine, parse_json(line), "line"))
            except RecordError as error:
                raise PaperbenchError(
                    f"{self.history_file}:{number} is no history line: {str(error).rstrip('.')}. {_HISTORY_REMEDY}"
                ) from error
        return lines

    def cut_history(self, iteration: int) -> None:
        """Drop what was written after a checkpoint, which a continued run will write again."""
        kept = "".join(line.to_json() for line in self.history() if line.iteration <= iteration)
        write_atomically(self.history_file, lambda stream: stream.write(kept.encode()))


@dataclass(frozen=True)
class Records:
    """What a store holds: readable records, and a complaint about each that is not."""

    records: list[Record]
    complaints: list[str]


class Store:
    """A results directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def directory(self, run_id: str) -> RunDirectory:
        return RunDirectory(self.root / "runs" / run_id)

    def records(self) -> Records:
        """Every record in the store, by run id."""
        records, complaints = [], []
        for folder in sorted((self.root / "runs").glob("*/")):
            try:
                record = RunDirectory(folder).read_record()
            except RecordError as error:
                complaints.append(str(error))
                continue
            if record is None:
                continue
            if record.run != folder.name:
                complaints.append(f"{folder} holds the record of run {record.run}. Rename the folder to match.")
                continue
            records.append(record)
        return Records(records, complaints)
