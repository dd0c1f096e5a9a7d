"""From a planned run to its record."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from typing import Any, Protocol

import torch

from paperbench.errors import PaperbenchError
from paperbench.runs.environment import code_facts, environment_facts
from paperbench.runs.limits import Limits
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import SCHEMA, DataFacts, Record, Result, Session, Status
from paperbench.runs.store import HistoryLine, RunDirectory
from paperbench.training.checkpoint import load_checkpoint, save_checkpoint
from paperbench.training.trainer import NUMERICS_VERSION, Trainer


class Observer(Protocol):
    """Is told how a run goes."""

    def started(self, run: PlannedRun, iteration: int, last_iteration: int) -> None: ...

    def stepped(self, iteration: int) -> None: ...

    def logged(self, line: HistoryLine) -> None: ...

    def finishing(self) -> None: ...

    def ended(self, record: Record) -> None: ...


def is_done(record: Record | None, run: PlannedRun, limits: Limits) -> bool:
    """Whether there is nothing left to do for a run within the limits."""
    if record is None:
        return False
    if record.status != "partial":
        return True
    last = limits.last_iteration(run.recipe.iterations)
    return last < run.recipe.iterations and record.iteration >= last


def execute(
    run: PlannedRun, directory: RunDirectory, device: torch.device, limits: Limits, observer: Observer
) -> Record:
    """Start a run, or continue it from its checkpoint, and go on to its end or to a limit.

    On return the directory holds a checkpoint of the last iteration, the history up to it, and a record that says how
    far the run is. If the process dies instead, it holds those of the last checkpoint.

    Returns:
        The record; that of the directory, untouched, if another process has finished the run meanwhile.

    Raises:
        RunBusyError: Another process is at it.
        PaperbenchError: A file of the run is damaged, missing or of another numerics version, or cannot be written.
    """
    with directory.claimed():
        record = directory.read_record()
        if record and is_done(record, run, limits):
            return record
        session = _Session(run, directory, device, record)
        last = limits.last_iteration(run.recipe.iterations)
        observer.started(run, session.trainer.iteration, last)
        while session.trainer.iteration < last and not limits.exhausted and not session.diverged:
            session.trainer.step()
            observer.stepped(session.trainer.iteration)
            if session.log_is_due():
                observer.logged(session.log())
            if session.checkpoint_is_due():
                session.save()
        if session.is_at_its_end:
            observer.finishing()
        record = session.close()
        observer.ended(record)
        return record


class _Session:
    """One process's work on one run: the trainer, and what is written about it."""

    def __init__(self, run: PlannedRun, directory: RunDirectory, device: torch.device, record: Record | None) -> None:
        self.run, self.directory = run, directory
        self.trainer = Trainer(run.net, run.recipe, run.dataset, run.seed, run.spec.precision, device)
        self._code, self._environment = code_facts(self.trainer.engine_name), environment_facts(device)
        self.diverged = False
        self._best_test_error: float | None = None
        self._seconds_before = 0.0
        self._earlier_sessions: tuple[Session, ...] = ()
        self._started = time.monotonic()
        if directory.checkpoint_file.exists():
            self._restore(load_checkpoint(directory.checkpoint_file, run.id))
        elif record and record.iteration:
            raise PaperbenchError(
                f"{directory.checkpoint_file} is missing, while the record beside it speaks of {record.iteration:,} "
                "iterations. Restore it, or delete the folder to start this run anew."
            )
        self._first_iteration = self.trainer.iteration
        directory.cut_history(self.trainer.iteration)

    @property
    def seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._started

    @property
    def is_at_its_end(self) -> bool:
        return self.trainer.iteration == self.run.recipe.iterations and not self.diverged

    def log_is_due(self) -> bool:
        monitoring, iteration = self.run.recipe.monitoring, self.trainer.iteration
        return iteration % monitoring.log_every == 0 or self._test_is_due()

    def checkpoint_is_due(self) -> bool:
        return self.trainer.iteration % self.run.recipe.monitoring.checkpoint_every == 0

    def _test_is_due(self) -> bool:
        iteration = self.trainer.iteration
        return iteration % self.run.recipe.monitoring.test_every == 0 or iteration == self.run.recipe.iterations

    def log(self) -> HistoryLine:
        """Write a line of history. A loss that is not finite ends the run: no later iteration can mend it."""
        window = self.trainer.window_metrics()
        is_finite = math.isfinite(window.loss)
        self.diverged = not is_finite
        tested = self.trainer.test() if self._test_is_due() and is_finite else None
        if tested:
            self._note_test_error(tested.error)
        line = HistoryLine(
            iteration=self.trainer.iteration,
            epoch=round(self.trainer.epoch, 4),
            lr=self.run.recipe.rate_at(self.trainer.iteration - 1),
            train_loss=window.loss if is_finite else None,
            train_error=window.error if is_finite else None,
            test_loss=tested.loss if tested and math.isfinite(tested.loss) else None,
            test_error=tested.error if tested else None,
            seconds=round(self.seconds, 3),
        )
        self.directory.append_history(line)
        return line

    def save(self) -> Record:
        """Checkpoint, then record: the record never claims more than the checkpoint holds."""
        contents = {
            "numerics": NUMERICS_VERSION,
            "trainer": self.trainer.state_dict(),
            "diverged": self.diverged,
            "best_test_error": self._best_test_error,
            "seconds": self.seconds,
            "sessions": [asdict(session) for session in self._sessions()],
        }
        save_checkpoint(self.directory.checkpoint_file, self.run.id, contents)
        record = self._record("diverged" if self.diverged else "partial", None)
        self.directory.write_record(record)
        return record

    def _restore(self, contents: dict[str, Any]) -> None:
        file = self.directory.checkpoint_file
        try:
            if contents["numerics"] != NUMERICS_VERSION:
                raise PaperbenchError(
                    f"{file} was trained by numerics version {contents['numerics']}, and this is version "
                    f"{NUMERICS_VERSION}: going on would mix them. Choose another folder (`--results DIR`), or delete "
                    "the run's to start it anew."
                )
            self.trainer.load_state_dict(contents["trainer"])
            self.diverged = contents["diverged"]
            self._best_test_error = contents["best_test_error"]
            self._seconds_before = contents["seconds"]
            self._earlier_sessions = tuple(Session(**session) for session in contents["sessions"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise PaperbenchError(
                f"{file} does not fit this version of paperbench ({error}). Continue with the version that wrote it, "
                "or delete its folder to start this run anew."
            ) from error

    def close(self) -> Record:
        """Save, then write the final result if the run is at its end."""
        record = self.save()
        if self.is_at_its_end:
            record = self._final_record()
            self.directory.write_record(record)
        return record

    def _sessions(self) -> tuple[Session, ...]:
        this = Session(
            first=self._first_iteration,
            last=self.trainer.iteration,
            seconds=round(time.monotonic() - self._started, 3),
            commit=self._code.commit,
            source=self._code.source,
            torch=self._environment.torch,
            device=self._environment.device,
        )
        return (*self._earlier_sessions, this)

    def _final_record(self) -> Record:
        final = self.trainer.finish()
        if not (math.isfinite(final.reported.loss) and math.isfinite(final.moving_average.loss)):
            return self._record("diverged", None)  # by its last iterations, which no training loss has seen
        result = Result(
            test_error=final.reported.error,
            test_loss=final.reported.loss,
            moving_average_test_error=final.moving_average.error,
            moving_average_test_loss=final.moving_average.loss,
            best_test_error=self._note_test_error(final.moving_average.error),
        )
        return self._record("finished", result)

    def _note_test_error(self, error: float) -> float:
        """Take in a moving-average error; returns the lowest so far."""
        best = error if self._best_test_error is None else min(error, self._best_test_error)
        self._best_test_error = best
        return best

    def _record(self, status: Status, result: Result | None) -> Record:
        data = self.run.dataset
        return Record(
            schema=SCHEMA,
            run=self.run.id,
            seed=self.run.seed,
            net=self.run.net_name,
            status=status,
            iteration=self.trainer.iteration,
            result=result,
            seconds=round(self.seconds, 3),
            sessions=self._sessions(),
            test_every=self.run.recipe.monitoring.test_every,
            data=DataFacts(data.name, data.origin, data.canonical, data.fingerprint),
            spec=self.run.spec,
            code=self._code,
            environment=self._environment,
        )
