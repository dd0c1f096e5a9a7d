"""From a planned run to its record."""

from __future__ import annotations

import math
import time
from typing import Any, Protocol

import torch

from paperbench.runs.environment import code_facts, environment_facts
from paperbench.runs.limits import Limits
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import SCHEMA, DataFacts, Record, Result, Status
from paperbench.runs.store import HistoryLine, RunDirectory
from paperbench.training.checkpoint import load_checkpoint, save_checkpoint
from paperbench.training.trainer import Trainer


class Observer(Protocol):
    """Is told how a run goes."""

    def started(self, run: PlannedRun, iteration: int, last_iteration: int) -> None: ...

    def stepped(self, iteration: int) -> None: ...

    def logged(self, line: HistoryLine) -> None: ...

    def ended(self, record: Record) -> None: ...


def is_done(record: Record | None, run: PlannedRun, limits: Limits) -> bool:
    """Whether there is nothing left to do for a run within the limits."""
    if record is None or record.status != "partial":
        return record is not None
    last = limits.last_iteration(run.recipe.iterations)
    return last < run.recipe.iterations and record.iteration >= last


def execute(
    run: PlannedRun, directory: RunDirectory, device: torch.device, limits: Limits, observer: Observer
) -> Record:
    """Start a run, or continue it from its checkpoint, and go on to its end or to a limit.

    Whatever ends it, the directory then holds a checkpoint of the last iteration, the history up to it, and a record
    that says how far the run is.

    Raises:
        RunBusyError: Another process is at it.
        PaperbenchError: A file of the run is damaged or cannot be written.
    """
    with directory.claimed():
        session = _Session(run, directory, device)
        last = limits.last_iteration(run.recipe.iterations)
        observer.started(run, session.trainer.iteration, last)
        while session.trainer.iteration < last and not limits.exhausted and not session.diverged:
            session.step()
            observer.stepped(session.trainer.iteration)
            if session.log_is_due():
                observer.logged(session.log())
            if session.checkpoint_is_due():
                session.save()
        record = session.close()
        observer.ended(record)
        return record


class _Session:
    """One process's work on one run: the trainer, and what is written about it."""

    def __init__(self, run: PlannedRun, directory: RunDirectory, device: torch.device) -> None:
        self.run, self.directory = run, directory
        self._code, self._environment = code_facts(engine="eager"), environment_facts(device)
        self.trainer = Trainer(run.net, run.recipe, run.dataset, run.seed, run.spec.precision, device)
        self.diverged = False
        self._best_test_error: float | None = None
        self._seconds_before = 0.0
        self._sessions = 1
        self._started = time.monotonic()
        self._saved_iteration = 0
        if directory.checkpoint_file.exists():
            self._restore(load_checkpoint(directory.checkpoint_file, run.id))
        directory.cut_history(self.trainer.iteration)

    @property
    def seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._started

    def step(self) -> None:
        self.trainer.step()

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
            train_loss=_finite(window.loss),
            train_error=window.error if is_finite else None,
            test_loss=_finite(tested.loss) if tested else None,
            test_error=tested.error if tested else None,
            seconds=round(self.seconds, 3),
        )
        self.directory.append_history(line)
        return line

    def save(self) -> None:
        """Checkpoint, then record: the record never claims more than the checkpoint holds."""
        contents = {
            "trainer": self.trainer.state_dict(),
            "best_test_error": self._best_test_error,
            "seconds": self.seconds,
            "sessions": self._sessions,
        }
        save_checkpoint(self.directory.checkpoint_file, self.run.id, contents)
        self.directory.write_record(self._record("diverged" if self.diverged else "partial", None))
        self._saved_iteration = self.trainer.iteration

    def _restore(self, contents: dict[str, Any]) -> None:
        self.trainer.load_state_dict(contents["trainer"])
        self._best_test_error = contents["best_test_error"]
        self._seconds_before = contents["seconds"]
        self._sessions = contents["sessions"] + 1
        self._saved_iteration = self.trainer.iteration

    def close(self) -> Record:
        """Write the final result if the run is at its end, else what it takes to continue."""
        if self.trainer.iteration != self._saved_iteration:
            self.save()
        if self.diverged or self.trainer.iteration < self.run.recipe.iterations:
            record = self._record("diverged" if self.diverged else "partial", None)
        else:
            record = self._record("finished", self._result())
        self.directory.write_record(record)
        return record

    def _result(self) -> Result:
        final = self.trainer.finish()
        return Result(
            test_error=final.reported.error,
            test_loss=_finite(final.reported.loss),
            moving_average_test_error=final.moving_average.error,
            moving_average_test_loss=_finite(final.moving_average.loss),
            best_test_error=self._note_test_error(final.moving_average.error),
        )

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
            sessions=self._sessions,
            data=DataFacts(data.name, data.origin, data.canonical, data.fingerprint),
            spec=self.run.spec,
            code=self._code,
            environment=self._environment,
        )


def _finite(value: float) -> float | None:
    """Losses overflow in nets that fail; JSON has no word for that."""
    return value if math.isfinite(value) else None
