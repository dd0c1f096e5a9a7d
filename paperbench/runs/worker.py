"""Train the planned runs of a command, one after another or several in turn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType

from paperbench.catalogue import OwnNet
from paperbench.errors import Interrupted, PaperbenchError, RunError, format_bytes
from paperbench.models.building import failure
from paperbench.options import Incompatible
from paperbench.runs.hashed import ForeignRecordError, RecordError
from paperbench.runs.lease import LEASE_SECONDS, Lease, LeaseLostError, acquire_any
from paperbench.runs.limits import Limits
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Record
from paperbench.runs.resume import ResumeError, check_facts, other_fact
from paperbench.runs.session import RunSession, SessionSetting
from paperbench.runs.store import RunDirectory, Store
from paperbench.specs.run_spec import Precision
from paperbench.training.engines import ENGINES, REFERENCE, Way, engine_candidates, ways_to_train
from paperbench.training.memory import is_out_of_memory, release_memory
from paperbench.training.trainer import NUMERICS_VERSION
from paperbench.training.turns import take_turns
from paperbench.typed import Line, Natural, from_json, to_json, typed


def is_done(record: Record | None, run: PlannedRun, limits: Limits) -> bool:
    """Whether nothing is left to do for a run within the limits. One that was trained with other facts must restart."""
    if record is None:
        return False
    with suppress(RunError):  # without memory for its facts, it fails when it starts
        if not other_fact(record, run):
            last = limits.last_iteration(run.recipe.iterations)
            return record.status != "partial" or (last < run.recipe.iterations and record.iteration >= last)
    return False


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
    with suppress(RunError):
        return None if record and _is_to_restart(record, run, incompatible) else record
    return None


def _is_to_restart(record: Record, run: PlannedRun, incompatible: Incompatible) -> bool:
    if incompatible != "restart":
        return False
    return record.is_mixed or record.numerics != (NUMERICS_VERSION,) or bool(other_fact(record, run))


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
        self._needed: dict[str, int] = {}  # bytes for a step of each run that is being trained, by its id
        self._free_before = 0  # bytes, when nothing was trained

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
                    for _ in self._session(run, self._store.lease(turn.run), turn):
                        pass
            except Exception as error:
                if not self._processes.all_have(error):
                    raise
            release_memory(self._device)
        return int(text)

    def run_all(self, runs: list[PlannedRun]) -> list[PlannedRun]:
        """Train each run that is not done and that no other process is training, until a limit.

        As many as the setting says, and as the memory has room for, take turns. Runs that other processes hold come
        last. By then they may be done, or abandoned by a process that died.

        On return, every run that was trained has a checkpoint, the history up to it, and a matching record. If the
        process dies, or an error ends a run, these are as of the last checkpoint; a run without one restarts.

        Returns:
            The runs that failed.
        """
        failed: list[PlannedRun] = []
        busy: list[PlannedRun] = []
        take_turns(self._trainings(runs, failed, busy), self._device, self._setting.at_once)
        while busy := [run for run in busy if not self._skip_if_done(run)]:
            leases = {run.id: self._store.lease(run.id, run.spec) for run in busy}
            if not (acquired := self._wait_for_any(busy, leases)):
                break
            held, busy = sorted(busy, key=lambda run: run.id != acquired), []
            try:
                trainings = self._trainings(held, failed, busy, leases, acquired)
                take_turns(trainings, self._device, self._setting.at_once)
            finally:
                leases[acquired].release()  # if there was no time left for it
        return failed

    def _trainings(
        self,
        runs: list[PlannedRun],
        failed: list[PlannedRun],
        busy: list[PlannedRun],
        leases: Mapping[str, Lease] = MappingProxyType({}),
        acquired: str = "",
    ) -> Iterator[Generator[int, None, None] | None]:
        """Yield the training of each run that is not done; None if the memory has no room for the next yet.

        Args:
            failed: Receives the runs that fail.
            busy: Receives the runs that other processes hold.
            leases: Those that were waited for, of which this process has one.
        """
        for run in runs:
            if self._skip_if_done(run):
                if run.id == acquired:
                    leases[acquired].release()
                continue
            is_told = False
            while shortage := self._shortage_beside_others(run):
                if not is_told:
                    self._observer.warned(run, f"waits until another run has ended: {shortage}.")
                is_told = True
                yield None
            if self._limits.exhausted:
                return
            lease = leases.get(run.id) or self._store.lease(run.id, run.spec)
            if run.id == acquired or lease.acquire():
                yield self._training(run, lease, failed, None if leases else busy)  # a second loss is a failure
            else:
                busy.append(run)

    def _skip_if_done(self, run: PlannedRun) -> bool:
        """Whether the run is done; if so, tell the observer."""
        record = _usable_record(run, self._store, self._incompatible)
        if record is None or not is_done(record, run, self._limits):
            return False
        why = f"{record.status} at iteration {record.iteration:,} already"
        if record.status != "partial" and record.numerics != (NUMERICS_VERSION,):
            versions = " and ".join(map(str, record.numerics))
            why += (
                f", by numerics version {versions} (this is {NUMERICS_VERSION}; `--incompatible restart` restarts it)"
            )
        self._observer.skipped(run, why)
        return True

    def _wait_for_any(self, busy: list[PlannedRun], leases: dict[str, Lease]) -> str | None:
        """Return the id of a run that another process has left, and acquire its lease.

        If there is none, tell the observer why. Leases of others that were left, too, can be acquired afterwards.
        """
        acquired = acquire_any(
            leases, lambda: self._limits.exhausted, lambda waiting: self._observer.waiting(waiting, LEASE_SECONDS)
        )
        for run in () if acquired else busy:
            if leases[run.id].shows_life:
                self._observer.skipped(run, f"{leases[run.id].holder} is training it")
        return acquired

    def _training(
        self, run: PlannedRun, lease: Lease, failed: list[PlannedRun], busy: list[PlannedRun] | None = None
    ) -> Generator[int, None, None]:
        """Train a run and release its lease; pause after each iteration.

        Args:
            failed: Receives the run if it fails; the observer is told why.
            busy: Receives the run if its lease was lost: another process trains it, or has left it. None if that is a
                failure, as it happened before.
        """
        try:
            yield from self._train(run, lease)
            return
        except RunError as error:
            if isinstance(error, LeaseLostError) and busy is not None:
                self._observer.skipped(run, str(error))
                busy.append(run)
            else:
                with suppress(PaperbenchError):  # the run's directory is a link, or the lease is lost
                    self._store.directory(run.id, lease.check).write_failure(error, run.spec)
                self._observer.failed(run, str(error))
                failed.append(run)
        finally:
            self._needed.pop(run.id, None)
            lease.release()
        # After the handler, no traceback refers to the failed session any more.
        release_memory(self._device)

    def _train(self, run: PlannedRun, lease: Lease) -> Iterator[int]:
        """Start or resume a run, and train it to its end or to a limit."""
        if self._skip_if_done(run):  # another process finished it before this one acquired the lease
            return
        shortage = f"{self._device} ran out of memory with {run.net_name} in {run.spec.precision}"
        before: Way | None = None
        for way in self._ways_that_fit(run):
            if before:
                self._observer.warned(
                    run,
                    f"{shortage}; it goes on from the last checkpoint, if it has one, and {_changes(before, way)}, "
                    "which takes less memory and changes no number.",
                )
            if (yield from self._memory_suffices(run, lease, way, shortage)):
                return
            before = way
        raise RunError(f"{shortage}. {self._memory_advice(run, before.engine if before else REFERENCE)}")

    def _memory_suffices(self, run: PlannedRun, lease: Lease, way: Way, shortage: str) -> Generator[int, None, bool]:
        """Train a run in one way, and again when another run has ended if the memory runs out beside others.

        Args:
            shortage: Says that the memory ran out.

        Returns:
            Whether the memory sufficed until the run's end or a limit.
        """
        while True:
            self._needed[run.id] = way.needed
            try:
                yield from self._start_or_resume(run, lease, way)
                return True
            except Interrupted:
                return True  # before the first iteration: nothing to save
            except PaperbenchError:
                lease.check()  # the cause may be what another process has done since it took over
                raise
            except Exception as error:
                if not is_out_of_memory(error):
                    if isinstance(run.net, OwnNet):
                        raise failure(run.net, error) from error
                    raise
            del self._needed[run.id]
            release_memory(self._device)
            if not (others := set(self._needed)):
                return False
            self._observer.warned(run, f"{shortage}; it goes on when another run has ended.")
            while others <= self._needed.keys():
                if self._limits.exhausted:
                    return True
                yield 0

    def _ways_that_fit(self, run: PlannedRun) -> Iterator[Way]:
        """Yield the ways to train that fit into the free memory. Tells the observer if the fastest does not."""
        free, ways = self._memory_free(), self._ways(run)
        fastest = way = next(ways)
        while way.needed > free and (other := next(ways, None)):
            way = other
        needs, has = self._needs_and_has(run, fastest, free)
        less = format_bytes(way.needed)
        if way.needed > free:
            needs += f" ({less} if {_changes(fastest, way)}"
            if run.spec.precision != "bf16":
                *_, least = self._ways(run, "bf16")
                needs += f", {format_bytes(least.needed)} in bf16 as well"
            raise RunError(f"{needs}), and {has}. {self._memory_advice(run, way.engine)}")
        if way is not fastest:
            what = f"{_changes(fastest, way)}, which needs {less}, takes longer and changes no number."
            self._observer.warned(run, f"{needs}, and {has}: {what}")
        yield way
        yield from ways

    def _ways(self, run: PlannedRun, precision: Precision | None = None) -> Iterator[Way]:
        """Return the ways to train a run, or one like it in another precision; see `ways_to_train`."""
        engines = engine_candidates(self._setting.engine, self._device)
        how = precision or run.spec.precision, run.side, engines, self._processes.share
        return ways_to_train(run.net, run.recipe, *how)

    def _memory_free(self) -> int:
        """Return how many bytes one more training can allocate.

        What the others need is taken off what was free before them: they may not use it all now, and what captured
        steps keep counts as unused.
        """
        free = self._setting.memory_free(self._device)
        free = sys.maxsize if free is None else free
        self._free_before = max(free, self._free_before if self._needed else 0)
        return min(free, self._free_before - sum(self._needed.values()))

    def _shortage_beside_others(self, run: PlannedRun) -> str:
        """Say why a run does not fit into the memory beside those that are being trained; "" if it does."""
        if not self._needed or (fastest := next(self._ways(run))).needed <= (free := self._memory_free()):
            return ""
        return ", and ".join(self._needs_and_has(run, fastest, free))

    def _needs_and_has(self, run: PlannedRun, way: Way, free: int) -> tuple[str, str]:
        needs = f"{run.net_name} in {run.spec.precision} needs about {format_bytes(way.needed)} for a training step"
        return needs, f"{self._device} has {format_bytes(max(0, free))} free"

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
        if self._store.own_directory(run.id).checkpoints.newest_first():
            next_time = "The last checkpoint is kept, and the same command resumes from it."
        return f"{next_time} First, {', or '.join(advice)}."

    def _start_or_resume(self, run: PlannedRun, lease: Lease, way: Way) -> Iterator[int]:
        """Train a run in a new session. With `--incompatible restart`, restart it if it cannot be resumed."""
        directory = self._store.directory(run.id, lease.check)
        try:
            record = self._read_record(run, directory)
            if record and self._incompatible == "refuse":
                check_facts(directory.path, record, run)
            if record is None or not _is_to_restart(record, run, self._incompatible):
                yield from self._train_together(run, lease, way)
                return
        except (RecordError, ResumeError):
            if self._incompatible != "restart":
                raise
        # After the handler, so that the session that failed to resume is freed before another is made.
        self._observer.warned(run, f"restarts; its old files are now in {directory.supersede()}.")
        yield from self._train_together(run, lease, way)

    def _train_together(self, run: PlannedRun, lease: Lease, way: Way) -> Iterator[int]:
        """Train a run in a new session, with the other processes if there are any; they do so in `assist`."""
        turn = Turn(run.id, way, self._setting.engine, self._limits.last_iteration(run.recipe.iterations))
        self._processes.first_text(to_json(turn))
        with self._processes.in_step():
            self._processes.agreed(lambda: None)  # that all know the run
            yield from self._session(run, lease, turn)

    def _session(self, run: PlannedRun, lease: Lease, turn: Turn) -> Iterator[int]:
        session = self._new_session(run, self._store.directory(run.id, lease.check), lease, self._setting)
        return session.train(turn.way, turn.engine, turn.last)

    def _read_record(self, run: PlannedRun, directory: RunDirectory) -> Record | None:
        """Return the record; None if it does not exist, or is damaged but can be rewritten from a checkpoint."""
        try:
            return directory.read_record()
        except ForeignRecordError:
            raise
        except RecordError as error:
            if not directory.checkpoints.newest_first():
                raise
            aside = directory.writer.set_aside(directory.record_file)
            reason = str(error).split(". ")[0]
            self._observer.warned(run, f"{reason}. It is kept as {aside.name} and rewritten from the checkpoint.")
            return None


def _changes(before: Way, way: Way) -> str:
    """Say how a way to train differs from a faster one."""
    changes = [f"it trains with engine {way.engine}"] if way.engine != before.engine else []
    if way.recompute:
        changes.append("the backward pass recomputes the residual units")
    return " and ".join(changes)
