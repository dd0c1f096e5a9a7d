"""A session, the part of a run that one process trains: resume, train, log, save, finish."""

from __future__ import annotations

import math
import time
from functools import partial
from hashlib import sha256
from typing import cast

import torch
from torch import Tensor

from paperbench.architecture import macs
from paperbench.errors import DataError, Interrupted, RunError, count, summarize_error, without_paths
from paperbench.runs.checkpoints import CheckpointFile
from paperbench.runs.environment import code_facts, environment_facts
from paperbench.runs.follow import SharedRun
from paperbench.runs.hashed import SCHEMA
from paperbench.runs.history import HistoryLine, history_bytes
from paperbench.runs.lease import Lease
from paperbench.runs.limits import Limits
from paperbench.runs.observer import Observer
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import DataFacts, Divergence, Files, Measured, Record, Result, Session, Status, merged
from paperbench.runs.resume import RESTART, Checkpoint, CheckpointFacts, ResumeError, newest_checkpoint
from paperbench.runs.store import RunDirectory
from paperbench.runs.weights import weights_bytes
from paperbench.specs.recipe import Recipe
from paperbench.training.engine import BIT_EQUAL, EngineChoice, EngineError, EngineName, engine_candidates
from paperbench.training.evaluation import EvaluationMetrics
from paperbench.training.memory import Way, is_out_of_memory, release_memory
from paperbench.training.metrics import TrainingMetrics
from paperbench.training.processes import ALONE, Processes
from paperbench.training.soundness import engine_error
from paperbench.training.trainer import Trainer
from paperbench.typed import to_json

_SLOW_PERIODS = 2
"""Periods between log lines in which training waits for images before that is said; it always waits for the first."""


class RunSession:
    """Starts a run, or resumes it from its newest readable checkpoint.

    Args:
        directory: The run's directory, guarded by the lease.
        lease: The run's lease, which this process holds.
        record: The run's record, if it exists.
        engine: Name of the engine to train with, or "auto".
        way: The way to train that fits into the memory; its engine may be slower than the best one.
        processes: Those that train the run together; this is number 0.

    Attributes:
        engine: The chosen engine, and why it was chosen.
        trainer: The net and its training state.
        history: All history lines so far.
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
        limits: Limits,
        observer: Observer,
        way: Way,
        processes: Processes = ALONE,
    ) -> None:
        self.run, self.directory, self._lease = run, directory, lease
        self._limits, self._observer, self._processes = limits, observer, processes
        self._started = time.monotonic()
        warn = partial(observer.warned, run)
        checkpoint = newest_checkpoint(run, directory, record, warn)
        facts = checkpoint.facts if checkpoint else None
        self._earlier_sessions = merged(facts.sessions) if facts else ()
        self.history = list(facts.history) if facts else []
        self.best_test_error = facts.best_test_error if facts else None
        self.divergence = facts.divergence if facts else None
        self._recompute = way.recompute
        self._untrained = partial(
            Trainer,
            *(run.net, run.recipe, run.dataset, run.seed, run.spec.precision, device),
            recompute=way.recompute,
            between_batches=limits.raise_if_signalled,
            announce=warn,
            processes=processes,
        )
        earlier = self._earlier_sessions[-1].engine if self._earlier_sessions else None
        candidates = engine_candidates(engine, device, earlier)
        self._fallback: list[str] = []
        while candidates[0].name != way.engine:
            self._fallback.append(f"engine {candidates.pop(0).name} was not used: the memory is too short for it")
        self._code, self._environment = code_facts(), environment_facts(device)
        self.engine, self.trainer = self._first_sound(candidates, device)
        if checkpoint is not None:
            self._load(checkpoint.state)
            self._warn_if_arithmetic_changed()
        self._saved_at, self._save_seconds = time.monotonic(), 0.0
        self._test_seconds: float | None = None
        self._slow_periods = 0
        directory.clear_leftovers()
        directory.write_history(self.history)

    def _first_sound(self, candidates: list[EngineChoice], device: torch.device) -> tuple[EngineChoice, Trainer]:
        """Return the first engine that can be built and computes eager's first steps; its trainer.

        Raises:
            Interrupted: A signal arrived during the comparison.
        """
        *others, last = candidates
        for choice in others:
            try:
                return choice, self._sound_trainer(choice.name)
            except (Interrupted, DataError):
                raise
            except Exception as error:  # the failures of captures and drivers have no common type
                problem = without_paths(error.reason) if isinstance(error, EngineError) else summarize_error(error)
            self._fallback.append(f"engine {choice.name} was not used: {problem}")
            release_memory(device)  # not before the error and its frames are gone
        return last, self._sound_trainer(last.name)

    def _sound_trainer(self, engine: EngineName) -> Trainer:
        trainer = self._untrained(engine=engine)
        parts = self.run.spec, self.run.seed, self.run.dataset.key, tuple(self.run.recipe.evaluations.values())
        shared = SharedRun(*parts, engine, self._recompute, self._code, self._environment)
        self._processes.order("build", text=to_json(shared))
        self._processes.agreed(lambda: None)
        is_mixed = any(self._processes.numbers(0))
        if self._processes.count > 1 or engine != "eager":
            self._observer.checking(self.run, engine, self._processes.count)
            problem = engine_error(trainer, self._limits.raise_if_signalled)
            if problem and engine != "eager":
                raise EngineError(
                    f"The first steps of engine {engine} are not those of eager on this machine ({problem})"
                )
            if problem:
                what = f"the first steps in {self._processes.count} processes are not those of one ({problem})"
                if not is_mixed or engine_error(trainer, self._limits.raise_if_signalled, is_exact=False):
                    raise RunError(f"{what}. Use the same packages, variables and machines for all, or one process.")
                self._observer.warned(self.run, what)
                self._fallback.append(what)
        return trainer

    def train(self) -> Record:
        """Train to the run's end or to a limit, save, and test a run that is complete.

        Returns:
            The run's new record.
        """
        last = self._limits.last_iteration(self.run.recipe.iterations)
        try:
            self._log_if_due()  # the previous session may have been interrupted during its test
            while self.trainer.iteration < last and not self._limits.exhausted and not self.divergence:
                if self._lease.is_lost:
                    self._lease.check()
                self.trainer.step()
                self._observer.stepped(self.trainer.iteration)
                self._log_if_due()
                if self.trainer.iteration < last and self._is_checkpoint_due():
                    self._save()
        except Interrupted:
            pass  # the next session writes the history line that is due
        except DataError:
            self._save()  # the disk with the images may come back
            raise
        record, checkpoint = self._save()
        if self.trainer.iteration < self.run.recipe.iterations or self.divergence:
            return record
        self._observer.finishing(*self._final_work())
        try:
            return self._finish(checkpoint)
        except Interrupted:
            return record

    def _final_work(self) -> tuple[str, float | None]:
        """Return what `_finish` averages and tests, and how long it takes, going by the last test; None without one."""
        recipe, dataset = self.run.recipe, self.run.dataset
        sizes = [one.crop for one in recipe.evaluations.values()] or [self.run.side]
        tests = {1: "", 2: " twice"}.get(len(sizes), f" {len(sizes)} times")
        what = f"testing {count(dataset.num_test, 'image')}{tests}"
        images = [(dataset.num_test, size) for size in sizes]
        if recipe.batch_norm.at_test == "reestimated":
            what = f"averaging BN statistics over {count(dataset.num_train, 'training image')}, {what}"
            images.append((dataset.num_train, self.run.side))
        if self._test_seconds is None:
            return what, None
        last_test = dataset.num_test * macs(self.run.net, sizes[0])
        return what, self._test_seconds * sum(n * macs(self.run.net, size) for n, size in images) / last_test

    def _log_if_due(self) -> None:
        """Test if a test is due, and write a history line if one is due at this iteration.

        A loss that is not finite ends the run.

        Raises:
            Interrupted: A signal arrived during the test.
        """
        iteration, monitoring = self.trainer.iteration, self.run.recipe.monitoring
        is_test_due = iteration % monitoring.test_every == 0 or iteration == self.run.recipe.iterations
        if iteration == self._last_logged or not (is_test_due or iteration % monitoring.log_every == 0):
            return
        window, tested = self.trainer.training_metrics(), None
        if advice := self.trainer.feed.advice():
            self._slow_periods += 1
            if self._slow_periods == _SLOW_PERIODS:
                self._observer.warned(self.run, advice)
        if not math.isfinite(window.loss):
            self.divergence = self._divergence()
        elif is_test_due:
            began = time.monotonic()
            tested = self.trainer.test(self._limits.raise_if_signalled)
            self._test_seconds = time.monotonic() - began
            best = self.best_test_error
            self.best_test_error = tested.error if best is None else min(tested.error, best)
        images = self.run.dataset.num_train
        seconds = sum(session.seconds for session in self._sessions())
        line = history_line(self.run.recipe, images, iteration, window, tested, round(seconds, 3))
        self.history.append(line)
        self.directory.append_history(line)
        self._observer.logged(line)
        self.trainer.reset_training_metrics()

    @property
    def _last_logged(self) -> int:
        return self.history[-1].iteration if self.history else 0

    def _is_checkpoint_due(self) -> bool:
        """Whether this iteration may be saved, and saving would not exceed its share of the time."""
        monitoring = self.run.recipe.monitoring
        if self.trainer.iteration % monitoring.checkpoint_every or self.divergence:
            return False
        return (time.monotonic() - self._saved_at) * monitoring.checkpoint_share >= self._save_seconds

    def _save(self) -> tuple[Record, CheckpointFile]:
        """Write checkpoint, history and record, in this order, so that the record never refers to missing files."""
        started = time.monotonic()
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
        self.directory.write_history(self.history)
        record = self._record("diverged" if self.divergence else "partial", checkpoint)
        self.directory.write_record(record)
        self.directory.checkpoints.prune(checkpoint, keep_previous=not self.divergence)
        self._saved_at = time.monotonic()
        self._save_seconds = self._saved_at - started
        return record, checkpoint

    def _finish(self, checkpoint: CheckpointFile) -> Record:
        """Test the trained net, and write the weights and the final record.

        Args:
            checkpoint: The checkpoint of the last iteration.

        Raises:
            Interrupted: A signal arrived; another session can finish the run.
        """
        measured, last = self.trainer.finish(self._limits.raise_if_signalled), self.history[-1]
        evaluations = self.run.recipe.evaluations.values()
        result, weights_sha256 = None, None
        if all(math.isfinite(one.loss) for one in measured):
            result = Result(
                test_error=measured[0].error,
                test_loss=measured[0].loss,
                moving_average_test_error=cast(float, last.test_error),  # the last iteration is always tested
                moving_average_test_loss=last.test_loss,
                best_test_error=cast(float, self.best_test_error),
                evaluations=tuple(
                    Measured(evaluation, one.error, one.top5_error, one.loss)
                    for evaluation, one in zip(evaluations, measured, strict=False)  # none for whole images
                ),
            )
            weights = weights_bytes(self.run, self.trainer, result)
            weights_sha256 = sha256(weights).hexdigest()
            self.directory.write_weights(weights)
        else:  # the last update broke the net, after the last training loss
            self.divergence = self._divergence()
            self.directory.remove_weights()
        record = self._record("finished" if result else "diverged", checkpoint, result, weights_sha256)
        self.directory.write_record(record)
        self.directory.checkpoints.prune(checkpoint, keep_previous=False)
        return record

    def _divergence(self) -> Divergence:
        return Divergence(self.trainer.iteration, self.run.recipe.rate_at(self.trainer.iteration - 1))

    def _load(self, state: dict[str, Tensor]) -> None:
        try:
            self.trainer.load_state_dict(state)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            if is_out_of_memory(error) or "CUDA error" in str(error):
                raise
            raise ResumeError(
                f"The checkpoint in {self.directory.path} does not fit this version of paperbench ({error}). Resume "
                f"with the version that wrote it, or restart this run: {RESTART}."
            ) from error

    def _warn_if_arithmetic_changed(self) -> None:
        """Warn if this session rounds differently from the one before."""
        before, now = map(_arithmetic, self._sessions()[-2:])
        if before != now:
            self._observer.warned(
                self.run,
                f"started with {before}; resumes with {now}. The result is equally valid, but not bit-identical to an "
                "uninterrupted run.",
            )

    @property
    def fallback(self) -> str | None:
        """Why faster engines were not used; None if the first choice was sound."""
        return "; ".join(self._fallback) or None

    def close(self) -> None:
        """Close the history, and free the memory and threads of the images."""
        self.directory.close()
        self.trainer.close()

    def _sessions(self) -> tuple[Session, ...]:
        """Return the earlier sessions, and this one so far."""
        seconds = round(time.monotonic() - self._started, 3)
        own = self.engine.name, self._code, self._environment, self.fallback
        processes = self._processes.count if self._processes.count > 1 else None
        present = Session(self.trainer.iteration, seconds, *own, processes)
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
            data=DataFacts.of(data),
            spec=self.run.spec,
            files=Files(len(self.history), history, checkpoint.path.name, weights_sha256),
            evaluations=tuple(self.run.recipe.evaluations.values()),
        )


def history_line(
    recipe: Recipe,
    images: int,
    iteration: int,
    window: TrainingMetrics,
    tested: EvaluationMetrics | None,
    seconds: float,
) -> HistoryLine:
    """Return the history line of an iteration.

    Args:
        images: Size of the training set.
        window: Training loss and error since the previous line.
        tested: Test loss and error, if a test was due.
        seconds: Time spent on the run so far.
    """
    is_finite = math.isfinite(window.loss)
    return HistoryLine(
        iteration=iteration,
        epoch=recipe.epochs_before(iteration, images),
        lr=recipe.rate_at(iteration - 1),
        train_loss=window.loss if is_finite else None,
        train_error=window.error if is_finite else None,
        test_loss=tested.loss if tested and math.isfinite(tested.loss) else None,
        test_error=tested.error if tested else None,
        seconds=seconds,
    )


def _arithmetic(session: Session) -> str:
    """Describe what the rounding of a session's numbers depends on."""
    environment, engine = session.environment, "" if session.engine in BIT_EQUAL else f", engine {session.engine}"
    return f"torch {environment.torch} on {environment.device}, {environment.threads} threads{engine}"
