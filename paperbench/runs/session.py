"""A session, the part of a run that one start of the command trains: build, resume, step, log, save, finish.

If several processes share the run, all go through the same session, and process 0 alone reads and writes files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

import torch

from paperbench.errors import DataError, Interrupted
from paperbench.runs.checkpoints import CheckpointFile
from paperbench.runs.environment import Surroundings
from paperbench.runs.hashed import SCHEMA
from paperbench.runs.history import HistoryLine, history_bytes, history_line
from paperbench.runs.lease import Lease
from paperbench.runs.limits import Limits
from paperbench.runs.observer import Observer
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import DataFacts, Divergence, Files, Record, Result, Session, Status, merged
from paperbench.runs.resume import Checkpoint, CheckpointFacts, change_of_rounding, load_into, newest_checkpoint
from paperbench.runs.store import RunDirectory
from paperbench.runs.weights import weights_bytes
from paperbench.training.engines import Way, engine_candidates, why_best
from paperbench.training.facts import facts_of
from paperbench.training.memory import memory_free
from paperbench.training.processes import ALONE, Processes
from paperbench.training.soundness import sound_trainer
from paperbench.training.trainer import Trainer
from paperbench.typed import from_json, to_json

_SLOW_PERIODS = 2
"""Periods between log lines in which training waits for images before that is said; it always waits for the first."""


@dataclass(frozen=True)
class SessionSetting:
    """What the sessions of a command have in common.

    Attributes:
        engine: Name of the engine to train with; "auto" chooses one for the device and the run.
        processes: Those that train each run together.
        at_once: How many runs take turns on the device; see `training.turns`.
        new_trainer: Makes the trainers, as `Trainer` does.
        memory_free: Returns how many bytes a training can still allocate on a device, if the system says so.
    """

    device: torch.device
    limits: Limits
    observer: Observer
    engine: str = "auto"
    processes: Processes = ALONE
    at_once: int = 1
    new_trainer: Callable[..., Trainer] = Trainer
    memory_free: Callable[[torch.device], int | None] = memory_free


class RunSession:
    """Starts a run, or resumes it from its newest readable checkpoint.

    Args:
        directory: The run's directory, guarded by the lease.
        lease: The run's lease, which process 0 holds.

    Attributes:
        trainer: The net and its training state, once it is built.
        record: The newest record that this session has written, in process 0.
    """

    _newest: CheckpointFile

    def __init__(self, run: PlannedRun, directory: RunDirectory, lease: Lease, setting: SessionSetting) -> None:
        self.run, self.directory, self._lease = run, directory, lease
        self._limits, self._observer, self._processes = setting.limits, setting.observer, setting.processes
        self._setting, self._clock = setting, setting.limits.clock
        self._warn = partial(setting.observer.warned, run)
        self._engine = ""
        self.record: Record | None = None
        self.history: list[HistoryLine] = []
        self.best_test_error: float | None = None
        self.divergence: Divergence | None = None
        self._earlier: tuple[Session, ...] = ()
        self._fallback: str | None = None
        self._started = self._saved_at = self._clock()
        self._save_seconds = 0.0
        self._test_seconds: float | None = None
        self._slow_periods = 0

    def train(self, way: Way, engine: str, last: int) -> Iterator[int]:
        """Train to the run's end or to a limit, save, and test a run that is complete. Pause after each iteration.

        Args:
            way: The way to train that fits into the memory; its engine may be slower than the best one.
            engine: The engine that the user asked for; "auto" stands for the best one.
            last: The iteration to train to.

        Yields:
            The number of iterations done.

        Raises:
            Interrupted: A signal arrived before the first iteration; there is nothing to save.
        """
        why = self._begin(way, engine)
        with closing(self.trainer), closing(self.directory):
            self._observer.started(self.run, self.trainer.iteration, last, self._engine, why)
            try:
                self._log_if_due()  # the session before may have been interrupted in its test
                while self.trainer.iteration < last and not self._is_to_end():
                    self.trainer.step()
                    self._observer.stepped(self.run, self.trainer.iteration)
                    self._log_if_due()
                    if self.trainer.iteration < last and self._is_checkpoint_due():
                        self._save()
                    yield self.trainer.iteration
            except Interrupted:
                pass  # the next session writes the history line that is due
            except DataError:
                self._save()  # the disk with the images may come back
                raise
            self._save()
            if self.trainer.iteration == self.run.recipe.iterations and not self.divergence:
                self._observer.finishing(self.run, self._test_seconds)
                with suppress(Interrupted):  # the next session finishes it
                    self._finish()
            if self.record:
                self._observer.ended(self.run, self.record)

    # Build and resume

    def _begin(self, way: Way, engine: str) -> str:
        """Build the trainer, load the newest checkpoint, and begin the history; return why this engine was chosen."""
        run, processes = self.run, self._processes
        checkpoint = processes.lead(partial(newest_checkpoint, run, self.directory, self._warn))
        if text := processes.first_text(to_json(checkpoint.facts) if checkpoint else ""):
            found = from_json(CheckpointFacts, text)
            self._earlier, self.history = merged(found.sessions), list(found.history)
            self.best_test_error, self.divergence = found.best_test_error, found.divergence
            self._facts = found.facts
        else:
            self._facts = processes.lead(partial(facts_of, run.net, run.recipe))
        self._engine, self.trainer, problems = self._sound_trainer(way, engine)
        self._fallback = "; ".join(problems) or None
        if text:
            processes.lead(partial(load_into, self.trainer, checkpoint, self.directory))
            self.trainer.take_over_state()
            if change := change_of_rounding(*self._sessions()[-2:]):
                self._warn(change)
        processes.lead(self.directory.clear_leftovers)
        processes.lead(partial(self.directory.write_history, self.history))
        self._saved_at = self._clock()
        return self._fallback or why_best(engine, self._setting.device)

    def _sound_trainer(self, way: Way, engine: str) -> tuple[str, Trainer, list[str]]:
        """Return the engine of `way` or a slower one, a new trainer with it, and why faster ones are not used."""
        run, device, processes = self.run, self._setting.device, self._processes
        self._surroundings = Surroundings.of(device)
        earlier = self._earlier[-1].engine if self._earlier else None
        return sound_trainer(
            processes.agreed(lambda: engine_candidates(engine, device, earlier)),
            way.engine,
            partial(
                self._setting.new_trainer,
                *(run.net, run.recipe, run.dataset, run.seed, run.spec.precision, device),
                recompute=way.recompute,
                processes=processes,
                between_batches=self._limits.raise_if_signalled,
                announce=self._warn,
            ),
            device,
            processes,
            machines_differ=not self._surroundings.have_equal_machines(processes),
            announce=lambda name: self._observer.checking(run, name, processes.count),
            warn=self._warn,
        )

    # Step and log

    def _is_to_end(self) -> bool:
        """Whether the run diverged or a limit is reached, in any process."""
        is_lost, is_over = self._processes.any_of(self._lease.is_lost, self._limits.exhausted)
        if is_lost:
            self._processes.lead(self._lease.check)
        return is_over or self.divergence is not None

    def _log_if_due(self) -> None:
        """Test if a test is due, and write a history line if one is due at this iteration.

        A loss that is not finite ends the run.

        Raises:
            Interrupted: A signal arrived during the test.
        """
        iteration, recipe = self.trainer.iteration, self.run.recipe
        monitoring, last_logged = recipe.monitoring, self.history[-1].iteration if self.history else 0
        is_test_due = iteration % monitoring.test_every == 0 or iteration == recipe.iterations
        if iteration == last_logged or not (is_test_due or iteration % monitoring.log_every == 0):
            return
        window, tested = self.trainer.metrics.compute(), None
        if advice := self.trainer.feed.advice():
            self._slow_periods += 1
            if self._slow_periods == _SLOW_PERIODS:
                self._warn(advice)
        if not math.isfinite(window.loss):
            self.divergence = self._divergence()
        elif is_test_due:
            began = self._clock()
            tested = self.trainer.test()
            self._test_seconds = self._clock() - began
            best = self.best_test_error
            self.best_test_error = tested.error if best is None else min(tested.error, best)
        seconds = round(sum(session.seconds for session in self._sessions()), 3)
        line = history_line(recipe, self.run.dataset.num_train, iteration, window, tested, seconds)
        self.history.append(line)
        self._processes.lead(lambda: self.directory.append_history(line))
        self._observer.logged(self.run, line)
        self.trainer.metrics.reset()

    def _divergence(self) -> Divergence:
        return Divergence(self.trainer.iteration, self.run.recipe.rate_at(self.trainer.iteration - 1))

    # Save and finish

    def _is_checkpoint_due(self) -> bool:
        """Whether this iteration may be saved, and saving would not exceed the run's share of the time."""
        iteration, monitoring = self.trainer.iteration, self.run.recipe.monitoring
        if iteration % monitoring.checkpoint_every or self.divergence:
            return False
        share = monitoring.checkpoint_share / self._setting.at_once
        is_affordable = (self._clock() - self._saved_at) * share >= self._save_seconds
        return self._processes.any_of(is_affordable)[0]

    def _save(self) -> None:
        """Write checkpoint, history and record, in this order, so that the record never refers to missing files."""
        started = self._clock()
        sessions, history = self._sessions(), tuple(self.history)
        facts = CheckpointFacts(1, self.run.id, self.best_test_error, self.divergence, sessions, history, self._facts)
        checkpoint = Checkpoint(facts, self.trainer.state_dict())

        def write() -> None:
            self._newest = self.directory.checkpoints.write(checkpoint.iteration, checkpoint.to_bytes())
            self.directory.write_history(history)
            self._write_record(sessions)
            self.directory.checkpoints.prune(self._newest, keep_previous=not self.divergence)

        self._processes.lead(write)
        self._saved_at = self._clock()
        self._save_seconds = self._saved_at - started

    def _finish(self) -> None:
        """Test the trained net, and write the weights and the final record."""
        measured = self.trainer.finish()
        if not all(math.isfinite(one.loss) for one in measured):
            self.divergence = self._divergence()  # the last update broke the net, after the last training loss

        def write() -> None:
            result, weights_sha256 = None, None
            if self.divergence:
                self.directory.writer.remove(self.directory.weights_file)  # of an earlier attempt
            else:
                evaluations = self.run.recipe.evaluations.values()
                result = Result.of(measured, evaluations, self.history[-1], self.best_test_error)
                weights = weights_bytes(self.run, self.trainer, result)
                weights_sha256 = sha256(weights).hexdigest()
                self.directory.writer.write(self.directory.weights_file, weights)
            self._write_record(self._sessions(), result, weights_sha256)
            self.directory.checkpoints.prune(self._newest, keep_previous=False)

        self._processes.lead(write)

    def _sessions(self) -> tuple[Session, ...]:
        """Return the earlier sessions, and this one so far."""
        seconds = round(self._clock() - self._started, 3)
        own = self._engine, self._surroundings.code, self._surroundings.environment, self._fallback
        shared = (n if n > 1 else None for n in (self._processes.count, self._setting.at_once))
        return (*self._earlier, Session(self.trainer.iteration, seconds, *own, *shared))

    def _write_record(
        self, sessions: tuple[Session, ...], result: Result | None = None, weights_sha256: str | None = None
    ) -> None:
        status: Status = "diverged" if self.divergence else "finished" if result else "partial"
        history = sha256(history_bytes(self.history)).hexdigest()
        self.record = Record(
            schema=SCHEMA,
            run=self.run.id,
            seed=self.run.seed,
            net=self.run.net_name,
            status=status,
            iteration=self.trainer.iteration,
            result=result,
            divergence=self.divergence,
            sessions=sessions,
            test_every=self.run.recipe.monitoring.test_every,
            data=DataFacts.of(self.run.dataset),
            spec=self.run.spec,
            files=Files(len(self.history), history, self._newest.path.name, weights_sha256),
            evaluations=tuple(self.run.recipe.evaluations.values()),
            facts=self._facts,
        )
        self.directory.write_record(self.record)
