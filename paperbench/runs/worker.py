"""Train the planned runs of a command, one after another."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

from paperbench.errors import Interrupted, PaperbenchError, RunError
from paperbench.options import Incompatible
from paperbench.runs.disk_space import format_bytes
from paperbench.runs.hashed import ForeignRecordError, RecordError
from paperbench.runs.lease import LEASE_SECONDS, Lease, LeaseLostError, acquire_any
from paperbench.runs.limits import Limits
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Record
from paperbench.runs.resume import ResumeError
from paperbench.runs.session import RunSession, SessionSetting
from paperbench.runs.store import RunDirectory, Store
from paperbench.training.engines import ENGINES, REFERENCE, Way, engine_candidates, ways_to_train
from paperbench.training.memory import is_out_of_memory, release_memory
from paperbench.training.trainer import NUMERICS_VERSION
from paperbench.typed import Line, Natural, from_json, to_json, typed


def is_done(record: Record | None, run: PlannedRun, limits: Limits) -> bool:
    """Whether nothing is left to do for a run within the limits."""
    if record is None:
        return False
    last = limits.last_iteration(run.recipe.iterations)
    return record.status != "partial" or (last < run.recipe.iterations and record.iteration >= last)


def remaining(
    runs: list[PlannedRun], store: Store, limits: Limits, incompatible: Incompatible
) -> list[tuple[PlannedRun, int]]:
    """Return the runs whose records are not done, each with its number of remaining iterations."""
    to_do = []
    for run in runs:
        record = _usable_record(run, store, incompatible)
        if not is_done(record, run, limits):
            done = record.iteration if record else 0
            to_do.append((run, max(0, limits.last_iteration(run.recipe.iterations) - done)))
    return to_do


def _usable_record(run: PlannedRun, store: Store, incompatible: Incompatible) -> Record | None:
    """Return a run's record, unless it cannot be read, or the run is to be restarted."""
    record = store.readable_record(run.id)
    return None if record and _is_to_restart(record, incompatible) else record


def _is_to_restart(record: Record, incompatible: Incompatible) -> bool:
    return incompatible == "restart" and (record.is_mixed or record.numerics != (NUMERICS_VERSION,))


@typed
class Turn:
    """What process 0 tells the others to train with it next; see `RunSession.train`.

    Attributes:
        run: The run's id.
    """

    run: Line
    way: Way
    engine: Line
    last: Natural


class Worker:
    """Trains the runs of a command; other processes may use the same results directory.

    Args:
        incompatible: What to do with runs that this process cannot simply resume.
        new_session: Makes the sessions.
    """

    def __init__(
        self,
        store: Store,
        setting: SessionSetting,
        incompatible: Incompatible = "refuse",
        new_session: Callable[[PlannedRun, RunDirectory, Lease, SessionSetting], RunSession] = RunSession,
    ) -> None:
        self._store, self._setting, self._incompatible, self._new_session = store, setting, incompatible, new_session
        self._limits, self._observer, self._processes = setting.limits, setting.observer, setting.processes
        self._device = setting.device

    def assist(self, runs: list[PlannedRun]) -> int:
        """Train, as a process other than number 0, what that one chooses; return the exit status that it gives.

        Args:
            runs: As process 0 has planned them.
        """
        planned = {run.id: run for run in runs}

        def known(run_id: str) -> PlannedRun:
            if run_id in planned:
                return planned[run_id]
            raise PaperbenchError(
                "its images or options are not those of process 0. Start the same command everywhere."
            )

        while not (text := self._processes.first_text()).isdigit():
            turn = from_json(Turn, text)
            try:
                with self._processes.in_step():
                    run = self._processes.agreed(lambda: known(turn.run))  # noqa: B023
                    self._session(run, self._store.lease(turn.run), turn)
            except Exception as error:
                if not self._processes.all_have(error):
                    raise
            release_memory(self._device)
        return int(text)

    def run_all(self, runs: list[PlannedRun]) -> list[PlannedRun]:
        """Train each run that is not done and that no other process is training, until a limit.

        Runs that other processes hold come last. By then they may be done, or abandoned by a process that died.

        On return, every run that was trained has a checkpoint, the history up to it, and a matching record. If the
        process dies, or an error ends a run, these are as of the last checkpoint; a run without one restarts.

        Returns:
            The runs that failed.
        """
        failed: list[PlannedRun] = []
        busy: list[PlannedRun] = []
        for run in runs:
            if self._skip_if_done(run):
                continue
            if self._limits.exhausted:
                return failed
            lease = self._store.lease(run.id, run.spec)
            if not lease.acquire():
                busy.append(run)
            elif not self._train_and_release(run, lease, busy):
                failed.append(run)
        while busy := [run for run in busy if not self._skip_if_done(run)]:
            if not (taken := self._take_over(busy)):
                break
            run, lease = taken
            busy.remove(run)
            if not self._train_and_release(run, lease):
                failed.append(run)
        return failed

    def _skip_if_done(self, run: PlannedRun) -> bool:
        """Whether the run is done; if so, tell the observer."""
        record = _usable_record(run, self._store, self._incompatible)
        if record is None or not is_done(record, run, self._limits):
            return False
        self._observer.skipped(run, _why_done(record))
        return True

    def _take_over(self, busy: list[PlannedRun]) -> tuple[PlannedRun, Lease] | None:
        """Return a run that another process has left, with its lease; if there is none, tell the observer why."""
        leases = {run.id: self._store.lease(run.id, run.spec) for run in busy}
        acquired = acquire_any(
            leases, lambda: self._limits.exhausted, lambda waiting: self._observer.waiting(waiting, LEASE_SECONDS)
        )
        for run in busy:
            if run.id == acquired:
                return run, leases[acquired]
        for run in busy:
            if leases[run.id].shows_life:
                self._observer.skipped(run, f"{leases[run.id].holder} is training it")
        return None

    def _train_and_release(self, run: PlannedRun, lease: Lease, busy: list[PlannedRun] | None = None) -> bool:
        """Train a run and release its lease; return False, and tell the observer why, if it failed.

        Args:
            busy: Receives the run if its lease was lost: another process trains it, or has left it. None if that is a
                failure, as it happened before.
        """
        is_left = False
        try:
            self._train(run, lease)
            return True
        except RunError as error:
            if isinstance(error, LeaseLostError) and busy is not None:
                self._observer.warned(run, str(error))
                busy.append(run)
                is_left = True
            else:
                with suppress(PaperbenchError):  # the run's directory is a link, or the lease is lost
                    self._store.directory(run.id, lease.check).write_failure(error, run.spec)
                self._observer.failed(run, str(error))
        finally:
            lease.release()
        # After the handler, no traceback refers to the failed session any more.
        release_memory(self._device)
        return is_left

    def _train(self, run: PlannedRun, lease: Lease) -> None:
        """Start or resume a run, and train it to its end or to a limit."""
        if self._skip_if_done(run):  # another process finished it before this one acquired the lease
            return None
        shortage = f"{self._device} ran out of memory with {run.net_name} in {run.spec.precision}"
        before: Way | None = None
        for way in self._ways_that_fit(run):
            if before:
                self._observer.warned(
                    run,
                    f"{shortage}; it goes on from the last checkpoint, if it has one, and {_changes(before, way)}, "
                    "which takes less memory and changes no number.",
                )
            try:
                return self._start_or_resume(run, lease, way)
            except Interrupted:
                return None  # before the first iteration: nothing to save
            except PaperbenchError:
                lease.check()  # the cause may be what another process has done since it took over
                raise
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
            before = way
            release_memory(self._device)
        raise RunError(f"{shortage}. {self._memory_advice(run, before.engine if before else REFERENCE)}")

    def _ways_that_fit(self, run: PlannedRun) -> Iterator[Way]:
        """Yield the ways to train that fit into the free memory. Tells the observer if the fastest does not.

        Raises:
            RunError: None fits.
        """
        free = self._setting.memory_free(self._device)
        free = sys.maxsize if free is None else free
        engines = engine_candidates(self._setting.engine, self._device)
        ways = ways_to_train(run.net, run.recipe, run.spec.precision, run.side, engines, self._processes.share)
        fastest = way = next(ways)
        while way.needed > free and (other := next(ways, None)):
            way = other
        needs = f"{run.net_name} in {run.spec.precision} needs about {format_bytes(fastest.needed)} for a training step"
        has, less = f"{self._device} has {format_bytes(free)} free", format_bytes(way.needed)
        if way.needed > free:
            needs += f" ({less} if {_changes(fastest, way)}"
            if run.spec.precision != "bf16":
                *_, least = ways_to_train(run.net, run.recipe, "bf16", run.side, engines, self._processes.share)
                needs += f", {format_bytes(least.needed)} in bf16 as well"
            raise RunError(f"{needs}), and {has}. {self._memory_advice(run, way.engine)}")
        if way is not fastest:
            what = f"{_changes(fastest, way)}, which needs {less}, takes longer and changes no number."
            self._observer.warned(run, f"{needs}, and {has}: {what}")
        yield way
        yield from ways

    def _memory_advice(self, run: PlannedRun, engine: str) -> str:
        """Return what to do about a run that needs more memory than the device has."""
        images = self._processes.share.group_sizes(run.recipe, run.recipe.batch_size)
        advice = [f"free memory on {self._device} (stop other programs there)", "choose a larger device (`--device`)"]
        if run.spec.precision != "bf16":
            advice.append("choose `--precision bf16`, which halves the activations but counts as another experiment")
        if ENGINES[engine].groups_at_once(run.recipe, self._processes.share) > 1:
            advice.append(
                f"choose `--engine {REFERENCE}`, which keeps activations of {max(images)} images, not {sum(images)}"
            )
        next_time = "No checkpoint exists yet: the same command restarts the run."
        if self._store.directory(run.id).checkpoints.newest_first():
            next_time = "The last checkpoint is kept, and the same command resumes from it."
        return f"{next_time} First, {', or '.join(advice)}."

    def _start_or_resume(self, run: PlannedRun, lease: Lease, way: Way) -> None:
        """Train a run in a new session. With `--incompatible restart`, restart it if it cannot be resumed."""
        directory = self._store.directory(run.id, lease.check)
        try:
            record = self._read_record(run, directory)
            if record is None or not _is_to_restart(record, self._incompatible):
                return self._train_together(run, lease, way)
        except (RecordError, ResumeError):
            if self._incompatible != "restart":
                raise
        # After the handler, so that the session that failed to resume is freed before another is made.
        self._observer.warned(run, f"restarts; its old files are now in {directory.supersede()}.")
        return self._train_together(run, lease, way)

    def _train_together(self, run: PlannedRun, lease: Lease, way: Way) -> None:
        """Train a run in a new session, with the other processes if there are any; they do so in `assist`."""
        turn = Turn(run.id, way, self._setting.engine, self._limits.last_iteration(run.recipe.iterations))
        self._processes.first_text(to_json(turn))
        with self._processes.in_step():
            self._processes.agreed(lambda: None)  # that all know the run
            self._session(run, lease, turn)

    def _session(self, run: PlannedRun, lease: Lease, turn: Turn) -> None:
        session = self._new_session(run, self._store.directory(run.id, lease.check), lease, self._setting)
        for _ in session.train(turn.way, turn.engine, turn.last):
            pass

    def _read_record(self, run: PlannedRun, directory: RunDirectory) -> Record | None:
        """Return the record; None if it does not exist, or is damaged but can be rewritten from a checkpoint."""
        try:
            return directory.read_record()
        except ForeignRecordError:
            raise
        except RecordError as error:
            if not directory.checkpoints.newest_first():
                raise
            aside = directory.set_record_aside()
            reason = str(error).split(". ")[0]
            self._observer.warned(run, f"{reason}. It is kept as {aside.name} and rewritten from the checkpoint.")
            return None


def _why_done(record: Record) -> str:
    why = f"{record.status} at iteration {record.iteration:,} already"
    if record.status != "partial" and record.numerics != (NUMERICS_VERSION,):
        versions = " and ".join(map(str, record.numerics))
        why += f", by numerics version {versions} (this is {NUMERICS_VERSION}; `--incompatible restart` restarts it)"
    return why


def _changes(before: Way, way: Way) -> str:
    """Say how a way to train differs from a faster one."""
    changes = [f"it trains with engine {way.engine}"] if way.engine != before.engine else []
    if way.recompute:
        changes.append("the backward pass recomputes the residual units")
    return " and ".join(changes)
