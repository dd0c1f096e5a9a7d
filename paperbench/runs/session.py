"""One process's work on one run: the training, and what is written about it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256
from typing import Any

import torch

from paperbench.errors import RunError
from paperbench.runs.checkpoints import CheckpointFile
from paperbench.runs.continuation import RESTART, UncontinuableError, newest_contents
from paperbench.runs.environment import code_facts, environment_facts
from paperbench.runs.history import HistoryLine, history_bytes, history_sha256
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import (
    SCHEMA,
    DataFacts,
    Divergence,
    Files,
    Record,
    Result,
    Session,
    Status,
)
from paperbench.runs.store import RunDirectory
from paperbench.runs.weights import weights_bytes
from paperbench.training.checkpoint import CheckpointError, checkpoint_bytes, read_checkpoint
from paperbench.training.divergence import Origin, find_in_test, find_in_training, is_sound
from paperbench.training.snapshot import Snapshot
from paperbench.training.trainer import NUMERICS_VERSION, Trainer


class RunSession:
    """Starts a run, or continues it from its newest readable checkpoint.

    Args:
        run: What to train.
        directory: Where its files are, guarded by the run's claim.
        device: Where to train.
        record: What the directory's record says, if there is one.
        mixes: Whether to go on from another numerics version or major version of torch.
        warn: Told what the user should know but need not act on.

    Raises:
        UncontinuableError: The checkpoints are damaged, missing, or of other versions.
        PaperbenchError: A file cannot be read or written.
    """

    def __init__(
        self,
        run: PlannedRun,
        directory: RunDirectory,
        device: torch.device,
        record: Record | None,
        *,
        mixes: bool,
        warn: Callable[[str], None],
    ) -> None:
        self.run, self.directory = run, directory
        self._device, self._warn = device, warn
        self._started = self._saved_at = time.monotonic()
        self._save_seconds = 0.0
        self._divergence: Divergence | None = None
        self._best_test_error: float | None = None
        self._seconds_before = 0.0
        self._earlier_sessions: tuple[Session, ...] = ()
        self._history: list[HistoryLine] = []
        self._checkpoint: CheckpointFile | None = None
        contents = newest_contents(run, directory, record, mixes=mixes, warn=warn)
        self.trainer = self._new_trainer()
        self._code, self._environment = code_facts(self.trainer.engine_name), environment_facts(device)
        if contents is not None:
            self._restore(contents)
        self._window_start = Snapshot(self.trainer)
        directory.clear_leftovers()
        directory.settle_history(self._history)

    def _new_trainer(self) -> Trainer:
        run = self.run
        return Trainer(run.net, run.recipe, run.dataset, run.seed, run.spec.precision, self._device)

    @property
    def seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._started

    @property
    def diverged(self) -> bool:
        return self._divergence is not None

    @property
    def is_at_its_end(self) -> bool:
        return self.trainer.iteration == self.run.recipe.iterations and not self.diverged

    def log_is_due(self) -> bool:
        """Whether a line of history is missing: of this iteration, or one that was interrupted while it was tested."""
        monitoring, iteration = self.run.recipe.monitoring, self.trainer.iteration
        written = self._history[-1].iteration if self._history else 0
        return iteration > written and (iteration % monitoring.log_every == 0 or self._test_is_due())

    def checkpoint_is_due(self) -> bool:
        """Whether it is time for one by the iteration, and another would not take more than its share of the time."""
        monitoring = self.run.recipe.monitoring
        if self.trainer.iteration % monitoring.checkpoint_every:
            return False
        return (time.monotonic() - self._saved_at) * monitoring.checkpoint_share >= self._save_seconds

    def _test_is_due(self) -> bool:
        iteration = self.trainer.iteration
        return iteration % self.run.recipe.monitoring.test_every == 0 or iteration == self.run.recipe.iterations

    def log(self, between_batches: Callable[[], None]) -> HistoryLine:
        """Write a line of history. A loss that is not finite ends the run: no later iteration can mend it.

        Args:
            between_batches: May raise to break off; the line is then still due.
        """
        window = self.trainer.window_metrics()
        is_finite = math.isfinite(window.loss)
        tested = self.trainer.test(between_batches) if self._test_is_due() and is_finite else None
        if tested:
            self._note_test_error(tested.error)
        if not is_finite:
            self._divergence = self._located(self._origin_in_window(between_batches))
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
        self._history.append(line)
        self.directory.append_history(line)
        self.trainer.begin_window()
        if is_finite:
            self._window_start.take(self.trainer)
        return line

    def _origin_in_window(self, between_steps: Callable[[], None]) -> Origin | None:
        """Repeat the last iterations from a sound state, and leave the trainer as it is."""
        self._warn("a training loss is not finite; repeating the last iterations to find where that began")
        present = Snapshot(self.trainer)
        try:
            for earlier in self._earlier_states(present.iteration):
                self.trainer.load_state_dict(earlier)
                if is_sound(self.trainer):
                    return find_in_training(self.trainer, present.iteration, between_steps)
            return None
        finally:
            self.trainer.load_state_dict(present.state())

    def _earlier_states(self, iteration: int) -> Iterator[dict[str, Any]]:
        """The window's start, and if this session found the run broken already, what lies not too far before that."""
        yield self._window_start.state()
        for file in self.directory.checkpoints.newest_first():
            with suppress(RunError, CheckpointError):
                yield read_checkpoint(file.read(), self.run.id)[0]["trainer"]
        if iteration <= 2 * self.run.recipe.monitoring.checkpoint_every:
            yield self._new_trainer().state_dict()

    def _located(self, origin: Origin | None) -> Divergence:
        iteration = origin.iteration if origin else self.trainer.iteration
        rate = self.run.recipe.rate_at(iteration - 1)
        return Divergence(iteration, rate, origin.phase if origin else None, origin.module if origin else None)

    def save(self) -> Record:
        """Checkpoint, history, then record: the record never claims more than there is."""
        began = time.monotonic()
        contents = {
            "numerics": NUMERICS_VERSION,
            "trainer": self.trainer.state_dict(),
            "divergence": asdict(self._divergence) if self._divergence else None,
            "best_test_error": self._best_test_error,
            "seconds": self.seconds,
            "sessions": [asdict(session) for session in self._sessions()],
            "history": [asdict(line) for line in self._history],
        }
        data = checkpoint_bytes(self.run.id, contents)
        self._checkpoint = self.directory.checkpoints.write(self.trainer.iteration, data)
        self.directory.settle_history(self._history)
        if self.diverged:
            self.directory.remove_weights()
        record = self._record("diverged" if self.diverged else "partial")
        self.directory.write_record(record)
        if self.diverged or is_sound(self.trainer):  # else an older one will show where the numbers broke
            self.directory.checkpoints.prune(self._checkpoint, keep_previous=not self.diverged)
        self._saved_at = time.monotonic()
        self._save_seconds = self._saved_at - began
        return record

    def finish(self, between_batches: Callable[[], None]) -> Record:
        """Test the trained net, and write it and the result. For a saved session at its end.

        Args:
            between_batches: May raise to break off; the run can be finished by another session then.
        """
        final = self.trainer.finish(between_batches)
        result, weights_sha256 = None, None
        if math.isfinite(final.reported.loss):
            moving = final.moving_average
            result = Result(
                test_error=final.reported.error,
                test_loss=final.reported.loss,
                moving_average_test_error=moving.error,
                moving_average_test_loss=moving.loss if math.isfinite(moving.loss) else None,
                best_test_error=self._note_test_error(final.moving_average.error),
            )
            weights = weights_bytes(self.run, self.trainer, result)
            weights_sha256 = sha256(weights).hexdigest()
            self.directory.write_weights(weights)
        else:  # by its last update, which no training loss has seen
            self._divergence = self._located(find_in_test(self.trainer, between_batches))
            self.directory.remove_weights()
        record = self._record("finished" if result else "diverged", result, weights_sha256)
        self.directory.write_record(record)
        if self._checkpoint:
            self.directory.checkpoints.prune(self._checkpoint, keep_previous=False)
        return record

    def _restore(self, contents: dict[str, Any]) -> None:
        try:
            self.trainer.load_state_dict(contents["trainer"])
            divergence = contents["divergence"]
            self._divergence = Divergence(**divergence) if divergence else None
            self._best_test_error = contents["best_test_error"]
            self._seconds_before = contents["seconds"]
            self._earlier_sessions = tuple(Session(**session) for session in contents["sessions"])
            self._history = [HistoryLine(**line) for line in contents["history"]]
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "loading state_dict" not in str(error):
                raise  # too little memory, or a fault of the device
            raise UncontinuableError(
                f"The checkpoint in {self.directory.path} does not fit this version of paperbench ({error}). Continue "
                f"with the version that wrote it, or start this run again: {RESTART}."
            ) from error
        before, now = self._earlier_sessions[-1], self._this_session()
        facts = [(s.torch, s.device, s.threads) for s in (before, now)]
        if facts[0] != facts[1]:
            here, there = (f"torch {version} on {device}, {threads} threads" for version, device, threads in facts)
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
            torch=self._environment.torch,
            device=self._environment.device,
            threads=self._environment.threads,
        )

    def _note_test_error(self, error: float) -> float:
        """Take in a moving-average error; returns the lowest so far."""
        best = error if self._best_test_error is None else min(error, self._best_test_error)
        self._best_test_error = best
        return best

    def _record(self, status: Status, result: Result | None = None, weights_sha256: str | None = None) -> Record:
        data, lines = self.run.dataset, len(self._history)
        return Record(
            schema=SCHEMA,
            run=self.run.id,
            seed=self.run.seed,
            net=self.run.net_name,
            status=status,
            iteration=self.trainer.iteration,
            result=result,
            divergence=self._divergence,
            seconds=round(self.seconds, 3),
            sessions=self._sessions(),
            test_every=self.run.recipe.monitoring.test_every,
            data=DataFacts(data.name, data.origin, data.canonical, data.fingerprint),
            spec=self.run.spec,
            code=self._code,
            environment=self._environment,
            files=Files(
                history_lines=lines,
                history_sha256=history_sha256(history_bytes(self._history), lines) or "",
                checkpoint=self._checkpoint.path.name if self._checkpoint else "",
                weights_sha256=weights_sha256,
            ),
        )
