"""From planned runs to records."""

from __future__ import annotations

import gc
from typing import Literal

import torch

from paperbench.errors import RunError
from paperbench.runs.hashed import ForeignRecordError, RecordError
from paperbench.runs.lease import LEASE_SECONDS, Lease, LeaseLostError, take_any
from paperbench.runs.limits import Limits
from paperbench.runs.observer import Observer
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Record
from paperbench.runs.resume import ResumeError
from paperbench.runs.session import RunSession
from paperbench.runs.store import RunDirectory, Store
from paperbench.training.memory import is_out_of_memory
from paperbench.training.trainer import NUMERICS_VERSION

Incompatible = Literal["refuse", "restart", "continue"]
"""What to do with a run that was begun by other versions or whose checkpoints are damaged."""


def is_done(record: Record | None, run: PlannedRun, limits: Limits) -> bool:
    """Whether there is nothing left to do for a run within the limits."""
    if record is None:
        return False
    last = limits.last_iteration(run.recipe.iterations)
    return record.status != "partial" or (last < run.recipe.iterations and record.iteration >= last)


def remaining(
    runs: list[PlannedRun], store: Store, limits: Limits, incompatible: Incompatible
) -> list[tuple[PlannedRun, int]]:
    """The runs that are not done yet, and the iterations that each lacks, going by the records."""
    lacking = []
    for run in runs:
        record = _usable(store.readable_record(run.id), incompatible)
        if not is_done(record, run, limits):
            done = record.iteration if record else 0
            lacking.append((run, max(0, limits.last_iteration(run.recipe.iterations) - done)))
    return lacking


def _usable(record: Record | None, incompatible: Incompatible) -> Record | None:
    """The record, unless its run is to start anew."""
    if record and incompatible == "restart" and (record.is_mixed or record.numerics != (NUMERICS_VERSION,)):
        return None
    return record


class Executor:
    """Carries out the runs of a command, beside other processes on the same store.

    Args:
        store: Where the runs leave their files.
        device: Where to train.
        limits: When to stop early.
        observer: Follows the runs.
        incompatible: What to do with runs that this process cannot simply resume.
        engine: Name of the engine to train on; "auto" for the one that suits device and run.
    """

    def __init__(
        self,
        store: Store,
        device: torch.device,
        limits: Limits,
        observer: Observer,
        incompatible: Incompatible = "refuse",
        engine: str = "auto",
    ) -> None:
        self._store, self._device, self._limits = store, device, limits
        self._observer, self._incompatible, self._engine = observer, incompatible, engine

    def run_all(self, runs: list[PlannedRun]) -> list[PlannedRun]:
        """Train each run that is not done and that no other process works on, until a limit.

        Runs of other processes come last: by then they are done, alive, or abandoned by a process that has died.

        On return, the store holds a checkpoint of each run that was trained, the history up to that, and a record that
        says how far it is. If the process dies, or an error ends a run, they are those of the last checkpoint; before
        the first there is nothing to resume, and the run starts again.

        Returns:
            The runs that failed.

        Raises:
            PaperbenchError: The store cannot be written, or the device does not have the engine. What concerns one run
                only goes to the observer instead.
        """
        failed: list[PlannedRun] = []
        busy: list[PlannedRun] = []
        for run in runs:
            record = _usable(self._store.readable_record(run.id), self._incompatible)
            if record and is_done(record, run, self._limits):
                self._observer.skipped(run, _why_done(record))
                continue
            if self._limits.exhausted:
                return failed
            lease = self._store.lease(run.id)
            if not lease.take():
                busy.append(run)
            elif not self._succeeds(run, lease):
                failed.append(run)
        while taken := self._take_over(busy):
            run, lease = taken
            busy.remove(run)
            if not self._succeeds(run, lease):
                failed.append(run)
        return failed

    def _take_over(self, busy: list[PlannedRun]) -> tuple[PlannedRun, Lease] | None:
        """A run that another process has left, with its lease; None if there is none, once the observer knows why."""
        leases = {run.id: self._store.lease(run.id) for run in busy}
        taken = take_any(
            leases, lambda: self._limits.exhausted, lambda waiting: self._observer.waiting(waiting, LEASE_SECONDS)
        )
        for run in busy:
            if run.id == taken:
                return run, leases[taken]
        for run in busy:
            if leases[run.id].shows_life:
                self._observer.skipped(run, f"{leases[run.id].holder} works on it")
        return None

    def _succeeds(self, run: PlannedRun, lease: Lease) -> bool:
        """Train a run and release its lease. False, with the reason to the observer, if it cannot continue."""
        try:
            with lease.held():
                self._train(run, lease)
            return True
        except LeaseLostError as error:
            self._observer.skipped(run, str(error))
            return True
        except RunError as error:
            self._observer.failed(run, str(error))
        # Past the handler nothing refers to what the run held any more.
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return False

    def _train(self, run: PlannedRun, lease: Lease) -> None:
        """Start a run, or resume it from its newest checkpoint, and train to its end or to a limit.

        Raises:
            LeaseLostError: Another process has taken the run over.
            RunError: A file of the run is damaged, missing or of other versions, or there is not enough memory.
            PaperbenchError: The store cannot be written.
        """
        engine = None
        try:
            session = self._session(run, lease)
            if session is not None:
                engine = session.engine.name
                last = self._limits.last_iteration(run.recipe.iterations)
                self._observer.started(run, session.trainer.iteration, last, engine, session.engine.reason)
                self._observer.ended(session.train())
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            has_checkpoint = bool(self._store.directory(run.id).checkpoints.newest_first())
            raise RunError(_memory_advice(run, self._device, engine, has_checkpoint)) from error

    def _session(self, run: PlannedRun, lease: Lease) -> RunSession | None:
        """The work on a run; None if there is nothing to do."""
        directory = self._store.directory(run.id, lease.check)

        def start(record: Record | None) -> RunSession:
            return RunSession(
                run,
                directory,
                lease,
                self._device,
                record,
                engine=self._engine,
                mixes=self._incompatible == "continue",
                limits=self._limits,
                observer=self._observer,
            )

        try:
            record = self._record_or_none(run, directory)
            if record and not _usable(record, self._incompatible):
                raise ResumeError(f"{run.id} is of other numerics.")
            if record and is_done(record, run, self._limits):
                self._observer.skipped(run, _why_done(record))  # another process has done it meanwhile
                return None
            return start(record)
        except (RecordError, ResumeError):
            if self._incompatible != "restart":
                raise
            lease.check()
            self._observer.warned(run, f"starts again; its old files are now in {self._store.supersede(run.id)}.")
            return start(None)

    def _record_or_none(self, run: PlannedRun, directory: RunDirectory) -> Record | None:
        """The record; None if there is none, or it is damaged and there are checkpoints to make it again from.

        Raises:
            RecordError: It cannot be made again, or is of another schema.
        """
        try:
            return directory.read_record()
        except ForeignRecordError:
            raise
        except RecordError as error:
            if not directory.checkpoints.newest_first():
                raise
            aside = directory.set_record_aside()
            reason = str(error).split(". ")[0]
            self._observer.warned(run, f"{reason}. It is kept as {aside.name}; the checkpoint gives a new one.")
            return None


def _why_done(record: Record) -> str:
    why = f"{record.status} at iteration {record.iteration:,} already"
    if record.status != "partial" and record.numerics != (NUMERICS_VERSION,):
        versions = " and ".join(map(str, record.numerics))
        why += f", by numerics version {versions} (this is {NUMERICS_VERSION}; `--incompatible restart` trains it anew)"
    return why


def _memory_advice(run: PlannedRun, device: torch.device, engine: str | None, has_checkpoint: bool) -> str:
    precision, group = run.spec.precision, run.recipe.batch_norm.group
    advice = [f"free memory on {device} (end other programs there)", "take a larger device (`--device`)"]
    if precision != "bf16":
        advice.append("choose `--precision bf16`, which keeps half as much and counts as an experiment of its own")
    if engine == "compile" and group < run.recipe.batch_size:  # the other engines take a batch group by group
        other = "graph" if device.type == "cuda" else "eager"
        advice.append(
            f"choose `--engine {other}`, which keeps what {group} images need at a time, not {run.recipe.batch_size}"
        )
    if has_checkpoint:
        next_time = "The last checkpoint is kept, and the same command resumes from it."
    else:
        next_time = "There is no checkpoint yet: the same command starts the run again."
    return (
        f"{device} ran out of memory with {run.net_name} in {precision}. {next_time} Before that, "
        f"{', or '.join(advice)}."
    )
