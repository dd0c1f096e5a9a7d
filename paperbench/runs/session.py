"""One process's work on one run: resume, train, log, save, find where it diverged, finish."""

from __future__ import annotations

import math
import time
from functools import partial
from hashlib import sha256

import torch
from torch import Tensor

from paperbench.errors import RunError
from paperbench.runs.checkpoints import CheckpointFile
from paperbench.runs.environment import code_facts, environment_facts
from paperbench.runs.hashed import SCHEMA
from paperbench.runs.history import HistoryLine, history_bytes
from paperbench.runs.lease import Lease
from paperbench.runs.limits import Interrupted, Limits
from paperbench.runs.observer import Observer
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import DataFacts, Divergence, Files, Record, Result, Session, Status
from paperbench.runs.resume import (
    RESTART,
    Checkpoint,
    CheckpointError,
    CheckpointFacts,
    ResumeError,
    newest_checkpoint,
)
from paperbench.runs.store import RunDirectory
from paperbench.runs.weights import weights_bytes
from paperbench.specs.recipe import Recipe
from paperbench.training.divergence import Origin, find_in_test, find_in_training, has_finite_state
from paperbench.training.engine import BIT_EQUAL, choose_engine
from paperbench.training.evaluation import EvaluationMetrics
from paperbench.training.memory import is_out_of_memory
from paperbench.training.metrics import TrainingMetrics
from paperbench.training.trainer import Trainer


class RunSession:
    """Starts a run, or resumes it from its newest readable checkpoint.

    Args:
        run: What to train.
        directory: Where its files are, guarded by the run's lease.
        lease: The run's.
        device: Where to train.
        record: What the directory's record says, if there is one.
        engine: Name of the engine to train on, or "auto".
        mixes: Whether to resume from another numerics version or major version of torch.
        limits: When to stop early.
        observer: Follows the run.

    Attributes:
        engine: What it trains on, and why.
        trainer: The training.
        history: All lines so far.

    Raises:
        ResumeError: The checkpoints are damaged, missing, or of other versions.
        PaperbenchError: A file cannot be read or written, or the device does not have the engine.
    """

    def __init__(
        self,
        run: PlannedRun,
        directory: RunDirectory,
        lease: Lease,
        device: torch.device,
        record: Record | None,
        *,
        engine: str,
        mixes: bool,
        limits: Limits,
        observer: Observer,
    ) -> None:
        self.run, self.directory, self._lease = run, directory, lease
        self._limits, self._observer = limits, observer
        self._started = time.monotonic()
        checkpoint = newest_checkpoint(run, directory, record, mixes=mixes, warn=partial(observer.warned, run))
        facts = checkpoint.facts if checkpoint else None
        self._earlier_sessions = facts.sessions if facts else ()
        self.history = list(facts.history) if facts else []
        self.best_test_error = facts.best_test_error if facts else None
        self.divergence = facts.divergence if facts else None
        earlier_engine = self._earlier_sessions[-1].engine if self._earlier_sessions else None
        self.engine = choose_engine(engine, device, run.recipe.iterations, earlier_engine)
        self._untrained = partial(
            Trainer, run.net, run.recipe, run.dataset, run.seed, run.spec.precision, device, engine=self.engine.name
        )
        self.trainer = self._untrained()
        self._code, self._environment = code_facts(), environment_facts(device)
        if checkpoint is not None:
            self._load(checkpoint.state)
            self._warn_of_other_arithmetic()
        self._saved_at, self._save_seconds = time.monotonic(), 0.0
        directory.clear_leftovers()
        directory.settle_history(self.history)

    def train(self) -> Record:
        """Train to the run's end or to a limit; save; and, at the end, test.

        Returns:
            What the run's record says now.

        Raises:
            LeaseLostError: Another process has taken the run over.
            PaperbenchError: A file cannot be written.
        """
        last = self._limits.last_iteration(self.run.recipe.iterations)
        try:
            self._log_if_due()  # the session before may have been interrupted in its test
            while self.trainer.iteration < last and not self._limits.exhausted and not self.divergence:
                if self._lease.is_lost:
                    self._lease.check()
                self.trainer.step()
                self._observer.stepped(self.trainer.iteration)
                self._log_if_due()
                if self.trainer.iteration < last and self._is_checkpoint_due():
                    self._save()
        except Interrupted:
            pass  # a line of history that is due stays due
        record, checkpoint = self._save()
        if self.trainer.iteration < self.run.recipe.iterations or self.divergence:
            return record
        self._observer.finishing()
        try:
            return self._finish(checkpoint)
        except Interrupted:
            return record

    # History

    def _log_if_due(self) -> None:
        """Write the line of history that is due at this iteration, if any; the test that it needs may be interrupted.

        A loss that is not finite ends the run: no later iteration can mend it.
        """
        iteration, monitoring = self.trainer.iteration, self.run.recipe.monitoring
        is_test_due = iteration % monitoring.test_every == 0 or iteration == self.run.recipe.iterations
        if iteration == self._last_logged or not (is_test_due or iteration % monitoring.log_every == 0):
            return
        window, tested = self.trainer.training_metrics(), None
        if not math.isfinite(window.loss):
            self.divergence = self._located(self._find_divergence())
        elif is_test_due:
            tested = self.trainer.test(self._limits.raise_if_signalled)
            self._note_test_error(tested.error)
        images = len(self.run.dataset.x_train)
        seconds = sum(session.seconds for session in self._sessions())
        line = history_line(self.run.recipe, images, iteration, window, tested, round(seconds, 3))
        self.history.append(line)
        self.directory.append_history(line)
        self._observer.logged(line)
        self.trainer.reset_training_metrics()

    @property
    def _last_logged(self) -> int:
        return self.history[-1].iteration if self.history else 0

    def _note_test_error(self, error: float) -> float:
        """Take in a moving-average error; returns the lowest so far."""
        self.best_test_error = error if self.best_test_error is None else min(error, self.best_test_error)
        return self.best_test_error

    # Saving

    def _is_checkpoint_due(self) -> bool:
        """Whether it is time for one by the iteration, and another would not take more than its share of the time."""
        monitoring = self.run.recipe.monitoring
        if self.trainer.iteration % monitoring.checkpoint_every or self.divergence:
            return False
        return (time.monotonic() - self._saved_at) * monitoring.checkpoint_share >= self._save_seconds

    def _save(self) -> tuple[Record, CheckpointFile]:
        """Write checkpoint, history and record, in this order: the record never claims more than there is.

        Returns once they are safe on disk.

        Raises:
            LeaseLostError: Another process has taken the run over.
            PaperbenchError: A file cannot be written.
        """
        began = time.monotonic()
        facts = CheckpointFacts(
            format=1,
            run=self.run.id,
            best_test_error=self.best_test_error,
            divergence=self.divergence,
            sessions=self._sessions(),
            history=tuple(self.history),
        )
        data = Checkpoint(facts, self.trainer.state_dict()).to_bytes()
        checkpoint = self.directory.checkpoints.write(self.trainer.iteration, data)
        self.directory.settle_history(self.history)
        record = self._record("diverged" if self.divergence else "partial", checkpoint)
        self.directory.write_record(record)
        if self.divergence or has_finite_state(self.trainer):  # else an older one will show where the numbers broke
            self.directory.checkpoints.prune(checkpoint, keep_previous=not self.divergence)
        self._saved_at = time.monotonic()
        self._save_seconds = self._saved_at - began
        return record, checkpoint

    def _finish(self, checkpoint: CheckpointFile) -> Record:
        """Test the trained net, and write it and the result.

        Args:
            checkpoint: That of the run's end.

        Raises:
            Interrupted: A signal came; another session can finish the run.
        """
        final = self.trainer.finish(self._limits.raise_if_signalled)
        result, weights_sha256 = None, None
        if math.isfinite(final.reported.loss):
            moving = final.moving_average
            result = Result(
                test_error=final.reported.error,
                test_loss=final.reported.loss,
                moving_average_test_error=moving.error,
                moving_average_test_loss=moving.loss if math.isfinite(moving.loss) else None,
                best_test_error=self._note_test_error(moving.error),
            )
            weights = weights_bytes(self.run, self.trainer, result)
            weights_sha256 = sha256(weights).hexdigest()
            self.directory.write_weights(weights)
        else:  # by its last update, which no training loss has seen
            self.divergence = self._located(find_in_test(self.trainer, self._limits.raise_if_signalled))
            self.directory.remove_weights()
        record = self._record("finished" if result else "diverged", checkpoint, result, weights_sha256)
        self.directory.write_record(record)
        self.directory.checkpoints.prune(checkpoint, keep_previous=False)
        return record

    # Divergence

    def _find_divergence(self) -> Origin | None:
        """Replay from the newest sound checkpoint, or from the start, and observe it from the last line on.

        That line's iteration is observed too: its loss was finite, but its update may have been what broke the numbers.
        Leaves the trainer as it is.

        Raises:
            Interrupted: A signal came; another session can search again.
        """
        self._observer.warned(self.run, "a training loss is not finite; replaying to find where that began")
        present = {name: tensor.clone() for name, tensor in self.trainer.state_dict().items()}
        try:
            self._return_to_sound_state()
            while self.trainer.iteration < self._last_logged - 1:
                self._limits.raise_if_signalled()
                self.trainer.step()
            return find_in_training(self.trainer, int(present["iteration"]), self._limits.raise_if_signalled)
        except (MemoryError, RuntimeError) as error:  # that the run diverged is known without the search
            if not is_out_of_memory(error):
                raise
            self._observer.warned(self.run, "there is not enough memory to find where that began")
            return None
        finally:
            self.trainer.load_state_dict(present)

    def _return_to_sound_state(self) -> None:
        for file in self.directory.checkpoints.newest_first():
            try:
                self._load(Checkpoint.from_bytes(file.read(), self.run.id).state)
            except (RunError, CheckpointError):  # it is no worse than one whose numbers are broken
                continue
            if has_finite_state(self.trainer):
                return
        self.trainer.load_state_dict(self._untrained(engine="eager").state_dict())

    def _located(self, origin: Origin | None) -> Divergence:
        iteration = origin.iteration if origin else self.trainer.iteration
        rate = self.run.recipe.rate_at(iteration - 1)
        return Divergence(iteration, rate, origin.phase if origin else None, origin.module if origin else None)

    # Resuming

    def _load(self, state: dict[str, Tensor]) -> None:
        try:
            self.trainer.load_state_dict(state)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            if is_out_of_memory(error) or "CUDA error" in str(error):
                raise
            raise ResumeError(
                f"The checkpoint in {self.directory.path} does not fit this version of paperbench ({error}). Continue "
                f"with the version that wrote it, or start this run again: {RESTART}."
            ) from error

    def _warn_of_other_arithmetic(self) -> None:
        """Say so if the last bits come out differently from here on."""
        before, now = map(_arithmetic, self._sessions()[-2:])
        if before != now:
            self._observer.warned(
                self.run,
                f"begun with {before}; resumes with {now}. The result is as valid, but not bit for bit the one that "
                "either would have had alone.",
            )

    # The record

    def _sessions(self) -> tuple[Session, ...]:
        """Those before, and this one so far."""
        seconds = round(time.monotonic() - self._started, 3)
        present = Session(self.trainer.iteration, seconds, self.engine.name, self._code, self._environment)
        return (*self._earlier_sessions, present)

    def _record(
        self,
        status: Status,
        checkpoint: CheckpointFile,
        result: Result | None = None,
        weights_sha256: str | None = None,
    ) -> Record:
        data, history = self.run.dataset, sha256(history_bytes(self.history)).hexdigest()
        return Record(
            schema=SCHEMA,
            run=self.run.id,
            seed=self.run.seed,
            net=self.run.net_name,
            status=status,
            iteration=self.trainer.iteration,
            result=result,
            divergence=self.divergence,
            sessions=self._sessions(),
            test_every=self.run.recipe.monitoring.test_every,
            data=DataFacts(data.name, data.origin, data.canonical, data.fingerprint),
            spec=self.run.spec,
            files=Files(len(self.history), history, checkpoint.path.name, weights_sha256),
        )


def history_line(
    recipe: Recipe,
    images: int,
    iteration: int,
    window: TrainingMetrics,
    tested: EvaluationMetrics | None,
    seconds: float,
) -> HistoryLine:
    """The line of history of an iteration.

    Args:
        images: Size of the training set.
        window: Training loss and error since the line before.
        tested: The test, where one was due.
        seconds: Time spent in the run so far.
    """
    is_finite = math.isfinite(window.loss)
    return HistoryLine(
        iteration=iteration,
        epoch=round(iteration * recipe.batch_size / images, 4),
        lr=recipe.rate_at(iteration - 1),
        train_loss=window.loss if is_finite else None,
        train_error=window.error if is_finite else None,
        test_loss=tested.loss if tested and math.isfinite(tested.loss) else None,
        test_error=tested.error if tested else None,
        seconds=seconds,
    )


def _arithmetic(session: Session) -> str:
    """What the last bits of a session's numbers depend on."""
    engine = " or ".join(sorted(BIT_EQUAL)) if session.engine in BIT_EQUAL else session.engine
    environment = session.environment
    return f"torch {environment.torch} on {environment.device}, {environment.threads} threads, engine {engine}"
