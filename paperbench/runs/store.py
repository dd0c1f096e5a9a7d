"""The results directory.

    results/runs/<run id>/record.json                spec, progress and result; rewritten at every checkpoint
                          history.jsonl              one line per logged iteration
                          checkpoint-*.safetensors   the state to resume from: the newest, and the one before
                          model.safetensors          the trained net of a finished run
                          failure.json               why the run failed last, until it is resumed
            leases/<run id>.<n>                      the process that is training the run
            superseded/<run id>-<n>/                 old files of runs that were restarted
            contributed/<name>/                      the results directory of somebody else, where nothing is written

This module does not import torch.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

from paperbench.architecture import parameters
from paperbench.catalogue import Net
from paperbench.errors import PaperbenchError, RunError, one_line, printable, without_paths
from paperbench.files import (
    MAX_TENSOR_FILE_BYTES,
    UNGUARDED,
    Writer,
    is_leftover,
    list_directory,
    open_regular,
    read_at_most,
    refuse_links,
    report_write_errors,
)
from paperbench.options import Selection, command
from paperbench.runs.checkpoints import CheckpointFile, Checkpoints
from paperbench.runs.history import History, HistoryLine, Measure, history_bytes
from paperbench.runs.lease import HeldRun, Lease, held_runs
from paperbench.runs.planning import net_and_recipe
from paperbench.runs.record import Record
from paperbench.specs.run_spec import Precision, RunSpec
from paperbench.tensor_file import read_header
from paperbench.typed import Line, Text, TypedError, from_json, to_json, typed

T = TypeVar("T")
_MAX_FAILURE_BYTES = 200_000


@typed
class Failure:
    """The file failure.json: why a run failed, for `paperbench status`.

    Attributes:
        message: Without paths, which may name people and places.
        data, precision: Those of the run's spec.
    """

    schema: Literal[1]
    message: Text
    data: Line
    precision: Precision


class RunDirectory:
    """The files of one run.

    Args:
        path: The run's directory, named after the run's id.
        writer: Writes the files, guarded by the run's lease.
    """

    def __init__(self, path: Path, writer: Writer = UNGUARDED) -> None:
        self.path, self.writer = path, writer
        self._history: BinaryIO | None = None
        self.record_file = path / "record.json"
        self.history_file = path / "history.jsonl"
        self.weights_file = path / "model.safetensors"
        self.failure_file = path / "failure.json"
        self.checkpoints = Checkpoints(path, self.writer)

    def clear_leftovers(self) -> None:
        """Delete incomplete files and failure.json of earlier processes; only the holder of the lease may do so."""
        for leftover in list_directory(self.path):
            if is_leftover(leftover) or leftover == self.failure_file:
                self.writer.remove(leftover)

    def write_failure(self, error: RunError, spec: RunSpec) -> None:
        """Write why the run failed; PaperbenchError if the file cannot be written."""
        text = without_paths(str(error).replace(f"{self.path}/", "").replace(str(self.path), self.path.name))
        failure = Failure(1, printable(text), spec.data, spec.precision)
        self.writer.write(self.failure_file, to_json(failure).encode())

    def read_failure(self) -> Failure | None:
        """Return why the run failed last; None if it has not, has been resumed since, or the file is damaged."""
        try:
            return from_json(Failure, read_at_most(self.failure_file, _MAX_FAILURE_BYTES))
        except (OSError, TypedError):
            return None

    def read_record(self) -> Record | None:
        """Return the record, or None if it does not exist yet."""
        return Record.read(self.record_file)

    def write_record(self, record: Record) -> None:
        self.writer.write(self.record_file, record.to_json().encode())
        if mark := os.environ.get("PAPERBENCH_SAVED"):  # of the script of a Slurm job, which counts starts without one
            with suppress(OSError):
                Path(mark).touch()

    def write_history(self, lines: Sequence[HistoryLine]) -> None:
        """Replace the history by these lines, and sync it to disk."""
        self.close()
        self._history = self.writer.write_open(self.history_file, history_bytes(lines))

    def append_history(self, line: HistoryLine) -> None:
        """Append a line to what `write_history` wrote. It can be read at once, but is synced only by the next save."""
        if self._history is None:
            raise ValueError("write_history opens the history")
        with report_write_errors(self.history_file):
            self._history.write(history_bytes([line]))
            self._history.flush()

    def named_checkpoint(self, record: Record) -> CheckpointFile | None:
        """Return the checkpoint that the record names, if it is there."""
        return next((one for one in self.checkpoints.newest_first() if one.path.name == record.files.checkpoint), None)

    def has_weights_or_checkpoint(self, record: Record) -> bool:
        """Whether the trained net, or else the checkpoint that the record names, is here and, by its header, fits."""
        with suppress(OSError, PaperbenchError):
            checkpoint = None if self.weights_file.exists() else self.named_checkpoint(record)
            path, prefix = (checkpoint.path, "model.") if checkpoint else (self.weights_file, "")
            open_regular(path, MAX_TENSOR_FILE_BYTES).close()  # the library would wait for a pipe
            net, _ = net_and_recipe(record.spec, record.evaluations)
            run, values = read_header(path, prefix)
            # Of a function of the user's, only its code knows how many there should be.
            return run == record.run and (values == parameters(net) if isinstance(net, Net) else values > 0)
        return False

    def close(self) -> None:
        """Close the history; `write_history` opens it again."""
        if self._history:
            with suppress(OSError):  # the line that did not fit on the disk
                self._history.close()
            self._history = None

    def supersede(self) -> Path:
        """Move the directory to superseded/, so that the run can restart; return its new path."""
        number, aside = 1, self.path.parents[1] / "superseded"
        while (target := aside / f"{self.path.name}-{number}").exists():
            number += 1
        refuse_links(aside)
        with report_write_errors(target):
            aside.mkdir(parents=True, exist_ok=True)
            return self.writer.rename(self.path, target)

    def history(self) -> list[HistoryLine]:
        """Return all lines, except an incomplete last one that a killed process left."""
        return History.read(self.history_file).lines()


class Store:
    """A results directory, which several processes on several machines may use at the same time."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def existing(cls, root: Path, table: str = "table2", profile: str = "paper") -> Store:
        """Return the store in a directory; if there is none, an error says how to train a table there."""
        if not root.is_dir():
            if root.exists():
                raise PaperbenchError(f"{root} is not a directory. Name a results directory (`--results`).")
            make = command("run", Selection(table, profile=profile, results=root))
            raise PaperbenchError(
                f"{root} does not exist. Name a results directory (`--results`), or make one: `{make}`."
            )
        return cls(root)

    def directory(self, run_id: str, guard: Callable[[], None] | None = None) -> RunDirectory:
        """Return a run's directory; to write to it, give the check of the run's lease.

        To read from it, somebody else's if there is no record here and they have ended the run.
        """
        own = self.own_directory(run_id)
        if guard:
            refuse_links(own.path.parent, own.path)
            return RunDirectory(own.path, Writer(guard))
        if os.path.exists(own.record_file):  # noqa: PTH110  (never raises)
            return own
        others = (place.own_directory(run_id) for place in [*self.places.values()][1:])
        return next((one for one in others if _has_ended(one)), own)

    @property
    def places(self) -> dict[str, Store]:
        """This store by the name "", then those of other people by their names; links would repeat others."""
        others = [path for path in list_directory(self.root / "contributed") if path.is_dir() and not path.is_symlink()]
        return {"": self, **{one_line(path.name): Store(path) for path in others}}

    def gather(self, read: Callable[[Path], tuple[list[T], list[str]]]) -> tuple[list[T], list[str]]:
        """Return what a function reads in these directories, and its complaints."""
        found = [read(place.root) for place in self.places.values()]
        return [one for values, _ in found for one in values], [text for _, texts in found for text in texts]

    def history(self, run_id: str) -> list[HistoryLine]:
        return self.directory(run_id).history()

    def readable_record(self, run_id: str) -> Record | None:
        """Return a run's record; None if it does not exist or cannot be read."""
        try:
            return self.directory(run_id).read_record()
        except RunError:
            return None

    def directories(self) -> list[RunDirectory]:
        """Return the one `directory` of each run, sorted by the run's id."""
        ids = {one.path.name for place in self.places.values() for one in place.own_directories()}
        return [one for run_id in sorted(ids) if (one := self.directory(run_id)).path.exists()]

    def own_directory(self, run_id: str) -> RunDirectory:
        """Return where this store itself has a run, or would have it."""
        return RunDirectory(self.root / "runs" / run_id)

    def own_directories(self) -> list[RunDirectory]:
        return [RunDirectory(path) for path in list_directory(self.root / "runs") if path.is_dir()]

    def lease(self, run_id: str, spec: RunSpec | None = None) -> Lease:
        """Return the lease that a process must hold while it writes to the run's directory."""
        return Lease(self.root / "leases", run_id, spec)

    def held_runs(self) -> dict[str, HeldRun]:
        """Return the runs that processes hold; see `lease.held_runs`."""
        return held_runs(self.root / "leases")

    def records(self) -> tuple[list[Record], list[str]]:
        """Return the record of each run, sorted by its id, and a complaint about each damaged record or history."""
        found, complaints = self.records_by_run()
        return [its[0][1] for its in found.values()], complaints

    def records_by_run(self) -> tuple[dict[str, list[tuple[str, Record]]], list[str]]:
        """Return the records of each run with the names of `places`, that of its `directory` first, and complaints."""
        found: dict[str, list[tuple[str, Record]]] = defaultdict(list)
        complaints = []
        for name, place in self.places.items():
            for directory in place.own_directories():
                try:
                    run, record = directory.path.name, _checked_record(directory)
                    is_own_damaged = run not in found and self.own_directory(run).record_file.exists()
                    if record and not (name and (record.status == "partial" or is_own_damaged)):
                        found[run].append((name, record))
                except RunError as error:
                    complaints.append(str(error))
        return dict(sorted(found.items())), complaints

    def training_mean(self, record: Record, measure: Measure, after: int, upto: int) -> float | None:
        """Return the mean of a measure over a run's history lines with after < iteration <= upto.

        Returns:
            Infinity if the run diverged before `upto`; None if it has not reached `upto`, or no line is in between.
        """
        if record.iteration < upto:
            return math.inf if record.status == "diverged" else None
        return History.read(self.directory(record.run).history_file).window_mean(measure, after, upto)


def _checked_record(directory: RunDirectory) -> Record | None:
    """Return the record of a run, if there is one; a RunError if it, or the history, is damaged."""
    if record := directory.read_record():
        History.read(directory.history_file).check(record)
    return record


def _has_ended(directory: RunDirectory) -> bool:
    with suppress(RunError):
        record = _checked_record(directory)
        return record is not None and record.status != "partial"
    return False
