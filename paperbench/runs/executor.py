"""From planned runs to records."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Literal, Protocol

import torch

from paperbench.errors import RunError
from paperbench.runs.continuation import UncontinuableError
from paperbench.runs.history import HistoryLine
from paperbench.runs.lease import LEASE_SECONDS, Lease, LeaseLostError, take_any
from paperbench.runs.limits import Interrupted, Limits
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import ForeignRecordError, Record, RecordError
from paperbench.runs.session import RunSession
from paperbench.runs.store import RunDirectory, Store
from paperbench.training.memory import is_out_of_memory
from paperbench.training.trainer import NUMERICS_VERSION

Incompatible = Literal["refuse", "restart", "continue"]
"""What to do with a run that was begun by other versions or whose checkpoints are damaged."""


class Observer(Protocol):
    """Is told how runs go."""

    def skipped(self, run: PlannedRun, why: str) -> None: ...

    def started(self, run: PlannedRun, iteration: int, last_iteration: int) -> None: ...

    def computing(self, engine: str, reason: str) -> None: ...

    def stepped(self, iteration: int) -> None: ...

    def logged(self, line: HistoryLine) -> None: ...

    def finishing(self) -> None: ...

    def ended(self, record: Record) -> None: ...

    def failed(self, run: PlannedRun, why: str) -> None: ...

    def warned(self, run: PlannedRun, text: str) -> None: ...

    def watching(self, runs: int, seconds: float) -> None: ...


def is_done(record: Record | None, run: PlannedRun, limits: Limits, incompatible: Incompatible = "refuse") -> bool:
    """Whether there is nothing left to do for a run within the limits."""
    if record is None or (incompatible == "restart" and _is_of_other_numerics(record)):
        return False
    last = limits.last_iteration(run.recipe.iterations)
    return record.status != "partial" or (last < run.recipe.iterations and record.iteration >= last)


def _is_of_other_numerics(record: Record) -> bool:
    return record.is_mixed or record.numerics != (NUMERICS_VERSION,)


class Executor:
    """Works on the runs of a command, beside other processes on the same store.

    Args:
        store: Where the runs leave their files.
        device: Where to train.
        limits: When to stop early.
        observer: Told how it goes.
        incompatible: What to do with runs that this process cannot simply go on with.
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

    def work_off(self, runs: list[PlannedRun]) -> list[PlannedRun]:
        """Do what there is to do for each run and no other process is doing, until a limit.

        Runs that others are at come last: by then they are done, alive, or were given up by a process that has died.

        On return, the store holds a checkpoint of each run that was worked on, the history up to that, and a record
        that says how far it is. If the process dies, or a run is left by an error, they are those of the last
        checkpoint; before the first there is nothing to go on from, and the run begins anew.

        Returns:
            The runs that failed.

        Raises:
            PaperbenchError: The store cannot be written, or the device does not have the engine. What concerns one run
                only is told to the observer instead.
        """
        failed: list[PlannedRun] = []
        busy: list[PlannedRun] = []
        for run in runs:
            record = self._store.readable_record(run.id)
            if record and self._is_done(record, run):
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
        """A run that another process was at and is no longer, with its lease; None if there is none.

        Then it has told of each who is at it, or that it is done.
        """
        leases = {run.id: self._store.lease(run.id) for run in busy}
        watched = dict(leases)
        taken = take_any(
            watched, lambda: self._limits.exhausted, lambda waiting: self._observer.watching(waiting, LEASE_SECONDS)
        )
        for run in busy:
            if run.id == taken:
                return run, leases[taken]
        for run in busy:
            if run.id not in watched:
                self._observer.skipped(run, f"{leases[run.id].holder} is at it")
        return None

    def _is_done(self, record: Record, run: PlannedRun) -> bool:
        return is_done(record, run, self._limits, self._incompatible)

    def _succeeds(self, run: PlannedRun, lease: Lease) -> bool:
        """Work on a run and release its lease; tell what concerns it alone. False if it can go on nowhere."""
        try:
            with lease.held():
                self._execute(run, lease)
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

    def _execute(self, run: PlannedRun, lease: Lease) -> None:
        """Start a run, or continue it from its newest checkpoint, and go on to its end or to a limit.

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
                with closing(session):
                    last = self._limits.last_iteration(run.recipe.iterations)
                    self._observer.started(run, session.trainer.iteration, last)
                    self._observer.computing(session.engine.name, session.engine.reason)
                    record = self._train(session, lease, last)
                self._observer.ended(record)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            has_checkpoint = bool(self._store.directory(run.id).checkpoints.newest_first())
            raise RunError(_memory_advice(run, self._device, engine, has_checkpoint)) from error

    def _session(self, run: PlannedRun, lease: Lease) -> RunSession | None:
        """The work on a run; None if there is nothing to do."""
        directory = self._store.directory(run.id, lease.check)

        def warn(text: str) -> None:
            self._observer.warned(run, text)

        def begin(record: Record | None) -> RunSession:
            return RunSession(
                run,
                directory,
                self._device,
                record,
                engine=self._engine,
                mixes=self._incompatible == "continue",
                logged=self._observer.logged,
                warn=warn,
            )

        try:
            record = _record_or_none(directory, warn)
            if record and self._is_done(record, run):
                self._observer.skipped(run, _why_done(record))  # another process has done it meanwhile
                return None
            if record and self._incompatible == "restart" and _is_of_other_numerics(record):
                raise UncontinuableError(f"{run.id} is of other numerics.")
            return begin(record)
        except (RecordError, UncontinuableError):
            if self._incompatible != "restart":
                raise
            warn(f"begun anew; what there was of it is now in {self._store.supersede(run.id)}.")
            return begin(None)

    def _train(self, session: RunSession, lease: Lease, last: int) -> Record:
        limits, observer = self._limits, self._observer
        with suppress(Interrupted):
            session.look(limits.raise_if_signalled)  # the session before may have been interrupted at its test
            session.settle(limits.raise_if_signalled)
            while session.trainer.iteration < last and not limits.exhausted and not session.diverged:
                if lease.is_lost:
                    lease.check()
                session.trainer.step()
                observer.stepped(session.trainer.iteration)
                session.look(limits.raise_if_signalled)
            session.settle(limits.raise_if_signalled)
        record = session.save()
        if session.is_at_its_end:
            observer.finishing()
            with suppress(Interrupted):
                record = session.finish(limits.raise_if_signalled)
        return record


def to_be_done(
    runs: list[PlannedRun], store: Store, limits: Limits, incompatible: Incompatible
) -> list[tuple[PlannedRun, int]]:
    """The runs that are not done yet, and the iterations that each lacks, as far as records tell."""
    lacking = []
    for run in runs:
        record = store.readable_record(run.id)
        if not is_done(record, run, limits, incompatible):
            begins_anew = record is None or (incompatible == "restart" and _is_of_other_numerics(record))
            done = 0 if record is None or begins_anew else record.iteration
            lacking.append((run, max(0, limits.last_iteration(run.recipe.iterations) - done)))
    return lacking


def _record_or_none(directory: RunDirectory, warn: Callable[[str], None]) -> Record | None:
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
        warn(f"{reason}. It is kept as {aside.name}; a new one is made from the checkpoint.")
        return None


def _why_done(record: Record) -> str:
    why = f"{record.status} at iteration {record.iteration:,} already"
    if record.status != "partial" and record.numerics != (NUMERICS_VERSION,):
        versions = " and ".join(map(str, record.numerics))
        why += f", by numerics version {versions} (this is {NUMERICS_VERSION}; `--incompatible restart` trains it anew)"
    return why


def _memory_advice(run: PlannedRun, device: torch.device, engine: str | None, has_checkpoint: bool) -> str:
    precision, group = run.spec.precision, run.recipe.batch_norm.group
    advice = [f"give {device} more room (end other programs on it)", "take a larger device (`--device`)"]
    if precision != "bf16":
        advice.append("choose `--precision bf16`, which keeps half as much and counts as an experiment of its own")
    if engine == "compile" and group < run.recipe.batch_size:  # the other engines take a batch group by group
        other = "graph" if device.type == "cuda" else "eager"
        advice.append(
            f"choose `--engine {other}`, which keeps what {group} images need at a time, not {run.recipe.batch_size}"
        )
    if has_checkpoint:
        next_time = "The last checkpoint is kept, and the same command goes on from there."
    else:
        next_time = "There is no checkpoint yet: the same command begins the run anew."
    return (
        f"{device} ran out of memory with {run.net_name} in {precision}. {next_time} Before that, "
        f"{', or '.join(advice)}."
    )
