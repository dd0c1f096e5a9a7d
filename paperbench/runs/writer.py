"""Saving a run while its training goes on.

A save is a checkpoint, the history up to it, and the record, written in this order: the record never claims more than
there is. A thread of its own writes it, one save at a time, from a copy of the state that the training made in passing.

While a save is under way, that thread alone touches the run's folder. Lines of history that come up meanwhile wait
until it has ended.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from threading import Event, Thread
from typing import Any

from paperbench.runs.checkpoints import CheckpointFile
from paperbench.runs.history import HistoryLine, history_bytes, history_sha256
from paperbench.runs.record import Files, Record
from paperbench.runs.store import RunDirectory
from paperbench.training.checkpoint import checkpoint_bytes
from paperbench.training.snapshot import Snapshot, is_finite

THREAD = "checkpoint writer"
"""Name of the thread, where there is one."""

NO_FILES = Files(history_lines=0, history_sha256="", checkpoint="", weights_sha256=None)
"""What the record of a save says of the files beside it until they are written."""


@dataclass(frozen=True)
class Save:
    """A run as it was at one moment.

    Attributes:
        state: The trainer's. It stays as it is until the save is written.
        contents: What the checkpoint holds beside state and history.
        history: All lines so far.
        record: The record, with `NO_FILES`: what it says of them is found out in writing.
    """

    state: Snapshot
    contents: dict[str, Any]
    history: tuple[HistoryLine, ...]
    record: Record


def files_beside(history: Sequence[HistoryLine], checkpoint: CheckpointFile, weights: str | None) -> Files:
    """What a record says of the files beside it.

    Args:
        weights: The sha256 of the trained net's file, if there is one.
    """
    lines = len(history)
    return Files(
        history_lines=lines,
        history_sha256=history_sha256(history_bytes(history), lines) or "",
        checkpoint=checkpoint.path.name,
        weights_sha256=weights,
    )


class Writer:
    """Writes history and saves of one run.

    What goes wrong while a save is written beside the training is raised by whichever call comes next, once.

    Args:
        directory: The run's files, guarded by its lease.

    Attributes:
        newest: The checkpoint written last.
        seconds: Processor time that the last save took. Its waiting for the disk takes nothing from the training.
        ended_at: When that save had ended, on the steady clock; at first, when the writer was made.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._thread: Thread | None = None
        # Whether no save is being written. Not left to Thread.join: a signal's handler that raises in it makes Python
        # take the thread for ended while it still works.
        self._ended = Event()
        self._ended.set()
        self._offered: list[Save] = []
        self._error: BaseException | None = None
        self._waiting: list[HistoryLine] = []
        self.newest: CheckpointFile | None = None
        self.seconds, self.ended_at = 0.0, time.monotonic()

    @property
    def is_at_work(self) -> bool:
        """Whether a save is under way, or has ended and nobody has looked since."""
        return self._thread is not None

    def look(self) -> None:
        """Notice that a save has ended. Waits for nothing.

        Raises:
            LeaseLostError: Another process has taken the run over.
            PaperbenchError: A file could not be written.
            MemoryError, RuntimeError: There was too little memory.
        """
        if self._thread is not None and self._ended.is_set():
            self.wait()

    def wait(self) -> None:
        """Let a save that is under way end; the lines that waited for it are written then.

        Raises:
            Exception: As `look`.
        """
        if self._thread is None:
            return
        self._ended.wait()
        self._thread.join()
        self._thread = None
        error, self._error = self._error, None
        lines, self._waiting = self._waiting, []  # after an error, the next save writes them with the others
        if error is not None:
            raise error
        for line in lines:
            self._directory.append_history(line)

    def append(self, line: HistoryLine) -> None:
        """Add a line to the history, once no save is under way.

        Raises:
            LeaseLostError: Another process has taken the run over.
            PaperbenchError: It cannot be written.
        """
        if self._thread is None:
            self._directory.append_history(line)
        else:
            self._waiting.append(line)

    def begin(self, save: Save) -> None:
        """Write a save beside the training; in it, where the machine allows no further thread.

        Raises:
            Exception: As `look`, of the save before; of this one if it is written in the training.
        """
        self.wait()
        self._offered.append(save)
        # No daemon: however the process ends, Python lets the thread come to its end first.
        self._thread = Thread(target=self._write_and_keep_errors, name=THREAD)
        try:
            self._ended.clear()
            self._thread.start()
        except BaseException as error:  # a signal's handler may have raised it, with the thread begun or not
            if not self._take_offered():
                raise
            self._thread = None
            self._ended.set()
            if not isinstance(error, RuntimeError):
                raise
            self._write(save)

    def write(self, save: Save) -> Record:
        """Write a save, and return once it is safe on disk.

        Raises:
            Exception: As `look`, of this save or the one before.
        """
        self.wait()
        return self._write(save)

    def close(self) -> None:
        """Let a save that is under way end, and forget what went wrong with it: whoever leaves knows, or cannot care.

        What a signal's handler raises meanwhile is raised once the save has ended.
        """
        raised: BaseException | None = None
        while not self._ended.is_set():
            try:
                self._ended.wait()
            except BaseException as error:
                raised = error
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join()
        self._thread = self._error = None
        self._waiting = []
        if raised is not None:
            raise raised

    def _take_offered(self) -> Save | None:
        """The save that is to be written, unless another thread has taken it."""
        try:
            return self._offered.pop()
        except IndexError:
            return None

    def _write_and_keep_errors(self) -> None:
        save = self._take_offered()
        if save is None:
            return
        try:
            self._write(save)
        except BaseException as error:  # the training's thread raises it
            self._error = error
        finally:
            self._ended.set()

    def _write(self, save: Save) -> Record:
        directory, is_diverged = self._directory, save.record.status == "diverged"
        began = time.thread_time()
        state = save.state.on_host()
        contents = {**save.contents, "trainer": state, "history": [asdict(line) for line in save.history]}
        data = checkpoint_bytes(save.record.run, contents)
        checkpoint = directory.checkpoints.write(save.state.iteration, data)
        directory.settle_history(save.history)
        if is_diverged:
            directory.remove_weights()
        record = replace(save.record, files=files_beside(save.history, checkpoint, None))
        directory.write_record(record)
        if is_diverged or is_finite(state):  # else an older one will show where the numbers broke
            directory.checkpoints.prune(checkpoint, keep_previous=not is_diverged)
        self.newest, self.seconds, self.ended_at = checkpoint, time.thread_time() - began, time.monotonic()
        return record
