"""One process's work on one run: where it begins, what is looked at on the way, what is written about it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from typing import Any

import torch

from paperbench.errors import RunError
from paperbench.runs.continuation import RESTART, UncontinuableError, newest_contents
from paperbench.runs.environment import code_facts, environment_facts
from paperbench.runs.history import HistoryLine
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import SCHEMA, DataFacts, Divergence, Files, Record, Result, Session, Status
from paperbench.runs.store import RunDirectory
from paperbench.runs.watch import GoOn, Watch
from paperbench.runs.weights import weights_bytes
from paperbench.runs.writer import NO_FILES, Save, Writer, files_beside
from paperbench.training.checkpoint import CheckpointError, read_checkpoint
from paperbench.training.choice import BIT_EQUAL, choose_engine
from paperbench.training.snapshot import Snapshot
from paperbench.training.trainer import NUMERICS_VERSION, Trainer


class RunSession:
    """Starts a run, or continues it from its newest readable checkpoint. To be closed, however it is left.

    Args:
        run: What to train.
        directory: Where its files are, guarded by the run's lease.
        device: Where to train.
        record: What the directory's record says, if there is one.
        engine: Name of the engine to train on, or "auto".
        mixes: Whether to go on from another numerics version or major version of torch.
        logged: Told each line of history.
        warn: Told what the user should know but need not act on.

    Attributes:
        engine: What it trains on, and why.
        trainer: The training.

    Raises:
        UncontinuableError: The checkpoints are damaged, missing, or of other versions.
        PaperbenchError: A file cannot be read or written, or the device does not have the engine.
    """

    def __init__(
        self,
        run: PlannedRun,
        directory: RunDirectory,
        device: torch.device,
        record: Record | None,
        *,
        engine: str,
        mixes: bool,
        logged: Callable[[HistoryLine], None],
        warn: Callable[[str], None],
    ) -> None:
        self.run, self.directory = run, directory
        self._device, self._warn = device, warn
        self._started = time.monotonic()
        self._seconds_before = 0.0
        self._earlier_sessions: tuple[Session, ...] = ()
        contents = newest_contents(run, directory, record, mixes=mixes, warn=warn)
        if contents is not None:
            with self._telling_what_does_not_fit():
                self._earlier_sessions = tuple(Session(**facts) for facts in contents["sessions"])
        earlier = self._earlier_sessions[-1].engine if self._earlier_sessions else None
        self.engine = choose_engine(engine, device, run.recipe.iterations, earlier)
        untrained = partial(
            Trainer, run.net, run.recipe, run.dataset, run.seed, run.spec.precision, device, engine=self.engine.name
        )
        self.trainer = untrained()
        self._code, self._environment = code_facts(self.trainer.engine_name), environment_facts(device)
        history: list[HistoryLine] = []
        best_test_error, divergence = None, None
        if contents is not None:
            with self._telling_what_does_not_fit():
                self.trainer.load_state_dict(contents["trainer"])
                divergence = Divergence(**contents["divergence"]) if contents["divergence"] else None
                best_test_error = contents["best_test_error"]
                self._seconds_before = contents["seconds"]
                history = [HistoryLine(**line) for line in contents["history"]]
            self._remark_other_arithmetic()
        self._saved_iteration = self.trainer.iteration
        self._copying_seconds = 0.0
        self._snapshot: Snapshot | None = None
        self._writer = Writer(directory)
        # What the watch is given refers to no session: else a run's memory would outlive it until cycles are collected.
        self._watch = Watch(
            run,
            self.trainer,
            history,
            best_test_error,
            divergence,
            farther_back=partial(_farther_back, run, directory, self._writer, untrained),
            began=self._started - self._seconds_before,
            told=partial(_tell, self._writer, logged),
            warn=warn,
        )
        directory.clear_leftovers()
        directory.settle_history(history)

    @property
    def seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._started

    @property
    def diverged(self) -> bool:
        return self._watch.divergence is not None

    @property
    def is_at_its_end(self) -> bool:
        return self.trainer.iteration == self.run.recipe.iterations and not self.diverged

    def look(self, go_on: GoOn) -> None:
        """Do what is due after a step: a line of history, a test, a checkpoint. Only a test waits for the device.

        Args:
            go_on: Called before each batch of a test; may raise to break off, and the line is then still due.

        Raises:
            LeaseLostError: Another process has taken the run over.
            PaperbenchError: A file cannot be written.
        """
        self._writer.look()
        self._watch.look(go_on)
        if self._is_checkpoint_due():
            self._watch.settle(go_on)
            if not self.diverged:
                began = time.monotonic()
                self._writer.begin(self._save())
                self._copying_seconds = time.monotonic() - began

    def settle(self, go_on: GoOn) -> None:
        """Finish the line of history whose numbers are still on their way, if there is one. Before a save.

        Args:
            go_on: As of `look`.
        """
        self._watch.settle(go_on)

    def _is_checkpoint_due(self) -> bool:
        """Whether it is time for one by the iteration, and another would not take more than its share of the time.

        What one takes is what the training lacks for it: the time to copy the state, and the processor's in writing.
        """
        monitoring, iteration = self.run.recipe.monitoring, self.trainer.iteration
        if iteration % monitoring.checkpoint_every or iteration == self._saved_iteration:
            return False
        if self.diverged or self.is_at_its_end or self._writer.is_at_work:
            return False
        taken = self._copying_seconds + self._writer.seconds
        return (time.monotonic() - self._writer.ended_at) * monitoring.checkpoint_share >= taken

    def save(self) -> Record:
        """Write all that there is, and return once it is safe on disk. For a session that is settled.

        Raises:
            LeaseLostError: Another process has taken the run over.
            PaperbenchError: A file cannot be written.
        """
        return self._writer.write(self._save())

    def _save(self) -> Save:
        """The run as it is now."""
        if not self._watch.is_settled:
            raise RuntimeError("a save would lack the line of history that is pending: settle first")
        self._writer.wait()  # it may still be reading the snapshot
        if self._snapshot is None:
            self._snapshot = Snapshot(self.trainer)
        else:
            self._snapshot.take(self.trainer)
        self._saved_iteration = self.trainer.iteration
        divergence = self._watch.divergence
        contents = {
            "numerics": NUMERICS_VERSION,
            "divergence": asdict(divergence) if divergence else None,
            "best_test_error": self._watch.best_test_error,
            "seconds": self.seconds,
            "sessions": [asdict(session) for session in self._sessions()],
        }
        record = self._record("diverged" if divergence else "partial", NO_FILES)
        return Save(self._snapshot, contents, tuple(self._watch.history), record)

    def finish(self, go_on: GoOn) -> Record:
        """Test the trained net, and write it and the result. For a saved session at its end.

        Args:
            go_on: Called before each batch; may raise to break off, and another session can finish the run then.

        Raises:
            LeaseLostError: Another process has taken the run over.
            PaperbenchError: A file cannot be written.
        """
        checkpoint = self._writer.newest
        if checkpoint is None:
            raise RuntimeError("a run is finished beside its last checkpoint: save first")
        final = self.trainer.finish(go_on)
        result, weights_sha256 = None, None
        if math.isfinite(final.reported.loss):
            moving = final.moving_average
            result = Result(
                test_error=final.reported.error,
                test_loss=final.reported.loss,
                moving_average_test_error=moving.error,
                moving_average_test_loss=moving.loss if math.isfinite(moving.loss) else None,
                best_test_error=self._watch.note_test_error(final.moving_average.error),
            )
            weights = weights_bytes(self.run, self.trainer, result)
            weights_sha256 = sha256(weights).hexdigest()
            self.directory.write_weights(weights)
        else:  # by its last update, which no training loss has seen
            self._watch.diverge_in_test(go_on)
            self.directory.remove_weights()
        files = files_beside(self._watch.history, checkpoint, weights_sha256)
        record = self._record("finished" if result else "diverged", files, result)
        self.directory.write_record(record)
        self.directory.checkpoints.prune(checkpoint, keep_previous=False)
        return record

    def close(self) -> None:
        """Let no thread outlive the session."""
        self._writer.close()

    @contextmanager
    def _telling_what_does_not_fit(self) -> Iterator[None]:
        """Tell of a checkpoint that holds other things than one of this version."""
        try:
            yield
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "loading state_dict" not in str(error):
                raise  # too little memory, or a fault of the device
            raise UncontinuableError(
                f"The checkpoint in {self.directory.path} does not fit this version of paperbench ({error}). Continue "
                f"with the version that wrote it, or start this run again: {RESTART}."
            ) from error

    def _remark_other_arithmetic(self) -> None:
        """Tell if the run goes on where its last bits come out differently."""
        before, now = self._earlier_sessions[-1], self._this_session()
        if _arithmetic(before) != _arithmetic(now):
            here, there = (
                f"torch {s.torch} on {s.device}, {s.threads} threads, engine {s.engine}" for s in (before, now)
            )
            self._warn(
                f"begun with {here}; goes on with {there}. The result is as valid, but not bit for bit the one that "
                "either would have had alone."
            )

    def _sessions(self) -> tuple[Session, ...]:
        return (*self._earlier_sessions, self._this_session())

    def _this_session(self) -> Session:
        return Session(
            first=self._earlier_sessions[-1].last if self._earlier_sessions else 0,
            last=self.trainer.iteration,
            seconds=round(time.monotonic() - self._started, 3),
            commit=self._code.commit,
            source=self._code.source,
            numerics=self._code.numerics,
            engine=self._code.engine,
            torch=self._environment.torch,
            device=self._environment.device,
            threads=self._environment.threads,
        )

    def _record(self, status: Status, files: Files, result: Result | None = None) -> Record:
        data = self.run.dataset
        return Record(
            schema=SCHEMA,
            run=self.run.id,
            seed=self.run.seed,
            net=self.run.net_name,
            status=status,
            iteration=self.trainer.iteration,
            result=result,
            divergence=self._watch.divergence,
            seconds=round(self.seconds, 3),
            sessions=self._sessions(),
            test_every=self.run.recipe.monitoring.test_every,
            data=DataFacts(data.name, data.origin, data.canonical, data.fingerprint),
            spec=self.run.spec,
            code=self._code,
            environment=self._environment,
            files=files,
        )


def _tell(writer: Writer, logged: Callable[[HistoryLine], None], line: HistoryLine) -> None:
    writer.append(line)
    logged(line)


def _farther_back(
    run: PlannedRun, directory: RunDirectory, writer: Writer, untrained: Callable[[], Trainer], iteration: int
) -> Iterator[dict[str, Any]]:
    """What a search for a divergence may go back to, if the session began with the run already broken."""
    writer.wait()
    for file in directory.checkpoints.newest_first():
        with suppress(RunError, CheckpointError):
            yield read_checkpoint(file.read(), run.id)[0]["trainer"]
    if iteration <= 2 * run.recipe.monitoring.checkpoint_every:
        yield untrained().state_dict()


def _arithmetic(session: Session) -> tuple[str, str, int, str]:
    """What the last bits of a session's numbers depend on."""
    engine = "eager" if session.engine in BIT_EQUAL else session.engine
    return session.torch, session.device, session.threads, engine
