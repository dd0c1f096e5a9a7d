"""From planned runs to records."""

from __future__ import annotations

import gc
from contextlib import suppress
from typing import Literal, Protocol

import torch

from paperbench.errors import RunError
from paperbench.runs.claim import Claim, ClaimLostError, take_any
from paperbench.runs.history import HistoryLine
from paperbench.runs.limits import Interrupted, Limits
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Record, RecordError
from paperbench.runs.session import RunSession, UncontinuableError
from paperbench.runs.store import Store
from paperbench.training.trainer import NUMERICS_VERSION

Incompatible = Literal["refuse", "restart", "continue"]
"""What to do with a run that was begun by other versions or whose checkpoints are damaged."""


class Observer(Protocol):
    """Is told how runs go."""

    def skipped(self, run: PlannedRun, why: str) -> None: ...

    def started(self, run: PlannedRun, iteration: int, last_iteration: int) -> None: ...

    def stepped(self, iteration: int) -> None: ...

    def logged(self, line: HistoryLine) -> None: ...

    def finishing(self) -> None: ...

    def ended(self, record: Record) -> None: ...

    def failed(self, run: PlannedRun, why: str) -> None: ...

    def warned(self, run: PlannedRun, text: str) -> None: ...


def is_done(record: Record | None, run: PlannedRun, limits: Limits, incompatible: Incompatible = "refuse") -> bool:
    """Whether there is nothing left to do for a run within the limits."""
    if record is None:
        return False
    if record.status != "partial":
        return incompatible != "restart" or record.numerics == (NUMERICS_VERSION,)
    last = limits.last_iteration(run.recipe.iterations)
    return last < run.recipe.iterations and record.iteration >= last


def to_be_done(
    runs: list[PlannedRun], store: Store, limits: Limits, incompatible: Incompatible
) -> list[tuple[PlannedRun, int]]:
    """The runs that are not done yet, and the iterations that each lacks, as far as records tell."""
    lacking = []
    for run in runs:
        record = store.readable_record(run.id)
        if not is_done(record, run, limits, incompatible):
            done = record.iteration if record and record.status == "partial" else 0
            lacking.append((run, max(0, limits.last_iteration(run.recipe.iterations) - done)))
    return lacking


def work_off(
    runs: list[PlannedRun],
    store: Store,
    device: torch.device,
    limits: Limits,
    observer: Observer,
    incompatible: Incompatible = "refuse",
) -> tuple[list[PlannedRun], list[PlannedRun]]:
    """Do what there is to do for each run and no other process is doing, until a limit.

    Runs that others are at come last: by then they are done, alive, or were given up by a process that has died.

    Returns:
        The runs that failed, and those that a limit left waiting.

    Raises:
        PaperbenchError: The store cannot be written. What concerns one run only is told to the observer instead.
    """
    failed: list[PlannedRun] = []
    busy: dict[str, tuple[PlannedRun, Claim]] = {}

    def attend(run: PlannedRun, claim: Claim) -> None:
        try:
            with claim.held():
                execute(run, store, claim, device, limits, observer, incompatible)
        except ClaimLostError as error:
            observer.skipped(run, str(error))
        except RunError as error:
            failed.append(run)
            observer.failed(run, str(error))
            gc.collect()  # what the error's traceback kept on the device

    for position, run in enumerate(runs):
        record = store.readable_record(run.id)
        if record and is_done(record, run, limits, incompatible):
            observer.skipped(run, _why_done(record))
            continue
        if limits.exhausted:
            return failed, runs[position:]
        claim = store.claim(run.id)
        if claim.take():
            attend(run, claim)
        else:
            busy[run.id] = run, claim
    watched = {run_id: claim for run_id, (_, claim) in busy.items()}
    while taken := take_any(watched, lambda: limits.exhausted):
        del watched[taken]
        attend(*busy.pop(taken))
    for run_id, (run, _) in busy.items():
        if run_id not in watched:
            observer.skipped(run, "another process is at it")
    return failed, [busy[run_id][0] for run_id in watched]


def execute(
    run: PlannedRun,
    store: Store,
    claim: Claim,
    device: torch.device,
    limits: Limits,
    observer: Observer,
    incompatible: Incompatible = "refuse",
) -> None:
    """Start a run, or continue it from its newest checkpoint, and go on to its end or to a limit.

    On return the store holds a checkpoint of the last iteration, the history up to it, and a record that says how far
    the run is. If the process dies instead, it holds those of the last checkpoint.

    Args:
        claim: The run's, which the caller holds.

    Raises:
        ClaimLostError: Another process has taken the run over.
        RunError: A file of the run is damaged, missing or of other versions, or there is not enough memory.
        PaperbenchError: The store cannot be written.
    """
    try:
        session = _session(run, store, device, limits, observer, incompatible)
        if session is not None:
            last = limits.last_iteration(run.recipe.iterations)
            observer.started(run, session.trainer.iteration, last)
            observer.ended(_train(session, claim, last, limits, observer))
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        raise RunError(_memory_advice(run, device)) from error


def _session(
    run: PlannedRun, store: Store, device: torch.device, limits: Limits, observer: Observer, incompatible: Incompatible
) -> RunSession | None:
    """The work on a run; None if there is nothing to do."""

    def warn(text: str) -> None:
        observer.warned(run, text)

    directory = store.directory(run.id)
    try:
        record = directory.read_record()
        if record and is_done(record, run, limits, incompatible):
            observer.skipped(run, _why_done(record))  # another process has done it meanwhile
            return None
        if record and record.status != "partial":
            raise UncontinuableError("ended by another numerics version")
        return RunSession(run, directory, device, record, mixes=incompatible == "continue", warn=warn)
    except (RecordError, UncontinuableError):
        if incompatible != "restart":
            raise
        warn(f"begun anew; what there was of it is now in {store.supersede(run.id)}.")
        return RunSession(run, directory, device, None, mixes=False, warn=warn)


def _train(session: RunSession, claim: Claim, last: int, limits: Limits, observer: Observer) -> Record:
    def save() -> Record:
        claim.check()
        return session.save()

    with suppress(Interrupted):
        if session.log_is_due():  # the session before was interrupted at its test
            observer.logged(session.log(limits.raise_if_signalled))
        while session.trainer.iteration < last and not limits.exhausted and not session.diverged:
            claim.check()
            session.trainer.step()
            observer.stepped(session.trainer.iteration)
            if session.log_is_due():
                observer.logged(session.log(limits.raise_if_signalled))
            if session.checkpoint_is_due():
                save()
    record = save()
    if session.is_at_its_end:
        observer.finishing()
        with suppress(Interrupted):
            record = session.finish(limits.raise_if_signalled)
    return record


def _why_done(record: Record) -> str:
    why = f"{record.status} at iteration {record.iteration:,} already"
    if record.status != "partial" and record.numerics != (NUMERICS_VERSION,):
        versions = " and ".join(map(str, record.numerics))
        why += f", by numerics version {versions} (this is {NUMERICS_VERSION}; `--incompatible restart` trains it anew)"
    return why


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return "can't allocate memory" in str(error)  # torch's way of saying it on CPUs


def _memory_advice(run: PlannedRun, device: torch.device) -> str:
    precision, group = run.spec.precision, run.recipe.batch_norm.group
    advice = [f"give {device} more room (end other programs on it)", "take a larger device (`--device`)"]
    if precision != "bf16":
        advice.append("choose `--precision bf16`, which keeps half as much and counts as an experiment of its own")
    return (
        f"{device} ran out of memory with {group} images at a time in {precision}. The last checkpoint is kept, and "
        f"the same command goes on from there. Before that, {', or '.join(advice)}."
    )
