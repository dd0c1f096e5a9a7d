"""How far the runs of a table are: what is done, what trains and how fast, what failed, and what is left.

A run's id depends on pixels and precision. The ids of a table's runs are computed for all those that a record, a lease
or a failure.json names.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, get_args

from paperbench.catalogue import DATASETS
from paperbench.errors import RunError, one_line
from paperbench.runs.history import History
from paperbench.runs.lease import HeldRun, Holder
from paperbench.runs.planning import run_spec
from paperbench.runs.record import Record
from paperbench.runs.store import Failure, Store
from paperbench.specs.cell import Cell
from paperbench.specs.recipe import Recipe
from paperbench.specs.run_spec import Precision, RunSpec
from paperbench.specs.table import Table
from paperbench.typed import Line, typed

State = Literal["done", "running", "waiting", "paused", "failed"]
STATES: tuple[State, ...] = get_args(State)
_MAX_RATE = 1e9
"""Iterations per second that no machine makes."""
_MAX_GROUPS = 20
"""A digest is computed for each group and net of a table."""


class Group(NamedTuple):
    """What runs share besides net and recipe: the fingerprint of their data, and the precision."""

    data: str
    precision: Precision


_NO_GROUP = Group("", "fp32")


@typed
class RunProgress:
    """How far a run is that is being trained.

    Attributes:
        iteration: Number of iterations done, of `iterations`.
        images_per_second: Speed of its last session that was saved, tests included.
        seconds_left: Until its last iteration.
        job: Number of the Slurm job that trains it.
    """

    iteration: int
    iterations: int
    images_per_second: float | None
    seconds_left: float | None
    job: str | None


@typed
class RunStatus:
    """A wanted run.

    Attributes:
        cell: Id of the first cell that uses it.
        silent: Seconds since the process that holds the run gave a sign of life, if they are too many.
    """

    id: str
    cell: str
    seed: int
    state: State
    progress: RunProgress | None
    failure: Failure | None
    silent: float | None


@typed
class TableStatus:
    """The wanted runs of some cells of a table in a profile.

    Attributes:
        table, name: Its id, and its number in the paper.
        cells: The runs of each cell, by its id. Cells that need the same training share runs.
        shown: The data and precision of the runs counted here, such as "CIFAR-10 in tf32", for each data set.
        others: Numbers of runs that are not counted here, by what they are.
    """

    table: Line
    name: Line
    profile: Line
    cells: Mapping[str, tuple[RunStatus, ...]]
    shown: tuple[str, ...]
    others: Mapping[str, int]

    @property
    def runs(self) -> list[RunStatus]:
        """Every run once."""
        return [*{run.id: run for runs in self.cells.values() for run in runs}.values()]


@typed
class Statuses:
    """What `paperbench status` finds in a results directory.

    Attributes:
        tables: The status of each table and profile.
        jobs: Numbers of jobs in Slurm's queue by their state; None if it does not answer.
        other_profiles: Other profiles with runs of the table, if it has none in this one.
        left_out: Tables and records that cannot be read, a sentence each.
    """

    schema: Literal[1]
    tables: tuple[TableStatus, ...]
    jobs: Mapping[str, int] | None
    other_profiles: tuple[Line, ...]
    left_out: tuple[str, ...]

    @property
    def states(self) -> set[State]:
        return {run.state for one in self.tables for run in one.runs}


class _Training(NamedTuple):
    """A net of a cell, with the digest of its runs in each group."""

    cell: Cell
    dataset: str
    recipe: Recipe
    digests: Mapping[Group, str]


class Snapshot:
    """What a store says about its runs at some moment.

    Attributes:
        complaints: A sentence for each record that cannot be read.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: Mapping[str, HeldRun] = store.held_runs()  # first: a run that ends now has its record below
        self._records: dict[str, Record] = {}
        self._failures: dict[str, Failure] = {}
        self.complaints: list[str] = []
        for directory in store.directories():
            try:
                if record := directory.read_record():
                    self._records[record.run] = record
            except RunError as error:
                self.complaints.append(str(error))
            if failure := directory.read_failure():
                self._failures[directory.path.name] = failure
        named: list[RunSpec | Failure | Holder] = [record.spec for record in self._records.values()]
        named += [*self._failures.values(), *(held.holder for held in self._held.values() if held.holder)]
        groups = Counter(Group(one.data, one.precision) for one in named if one.data and one.precision)
        if (further := len(groups) - _MAX_GROUPS) > 0:
            self.complaints.append(f"runs in {further:,} further pairs of data and precision: {_MAX_GROUPS} are shown.")
        shown = dict(groups.most_common(_MAX_GROUPS))
        self._groups = sorted(shown, key=lambda group: (get_args(Precision).index(group.precision), group.data))
        self._runs_by_digest: dict[str, list[str]] = defaultdict(list)
        for run_id in {*self._records, *self._failures, *self._held}:
            self._runs_by_digest[run_id.rpartition("-")[0]].append(run_id)

    def profiles_of(self, table: Table, patterns: str | Sequence[str] = "*") -> tuple[str, ...]:
        """Return the profiles in which cells of a table have runs."""
        seen = {record.spec.profile for record in self._records.values()}
        names = table.profiles_among({*table.profiles.profiles, *seen})
        return tuple(name for name in names if any(map(self._found, self._trainings(table, name, patterns))))

    def status_of(
        self, table: Table, profile_name: str, patterns: str | Sequence[str] = "*", seeds: int | None = None
    ) -> TableStatus:
        """Return the status of some cells; of rows that run only on request, only those that are named or have runs."""
        seeds = seeds or table.seeds_in(table.profiles.named(profile_name))
        named = {pattern.split("/")[0] for pattern in ([patterns] if isinstance(patterns, str) else patterns)}
        trainings = [
            one
            for one in self._trainings(table, profile_name, patterns)
            if not one.cell.row.on_request or one.cell.row.id in named or self._found(one)
        ]
        found: dict[str, Counter[Group]] = defaultdict(Counter)
        begun: dict[str, Counter[Group]] = defaultdict(Counter)  # without those that only failed, perhaps long ago
        for key, group, digest in {(one.dataset, *pair) for one in trainings for pair in one.digests.items()}:
            runs_of = self._runs_by_digest.get(digest, ())
            found[key][group] += len(runs_of)
            begun[key][group] += sum(run in self._records or run in self._held for run in runs_of)
        shown = {
            key: max(self._groups, key=lambda one: (begun[key][one], found[key][one]), default=_NO_GROUP)
            for key in dict.fromkeys(one.dataset for one in trainings)
        }
        cells: dict[str, tuple[RunStatus, ...]] = {}
        runs: dict[str, RunStatus] = {}
        for one in trainings:
            for seed in range(seeds):
                run_id = f"{one.digests[shown[one.dataset]]}-s{seed}"
                if run_id not in runs:
                    runs[run_id] = self._run(run_id, one, seed)
                cells[one.cell.id] = (*cells.get(one.cell.id, ()), runs[run_id])
        counted = {key: group for key, group in shown.items() if found[key][group]}
        others: Counter[str] = Counter()
        for key, of_key in found.items():
            unshown = {group: number for group, number in of_key.items() if number and group != shown[key]}
            others.update({f"on {self._describe(key, group)}": number for group, number in unshown.items()})
        digests = {one.digests[shown[one.dataset]] for one in trainings}
        ids = (run_id.rpartition("-s") for digest in digests for run_id in self._runs_by_digest.get(digest, ()))
        if further := [int(seed) for _, _, seed in ids if seed.isdecimal() and int(seed) >= seeds]:
            others[f"with higher seeds (`--seeds {max(further) + 1}` includes them)"] = len(further)
        shown_here = tuple(dict.fromkeys(self._describe(*pair) for pair in counted.items()))
        return TableStatus(table.id, table.name, profile_name, cells, shown_here, others)

    def _trainings(self, table: Table, profile_name: str, patterns: str | Sequence[str]) -> list[_Training]:
        profile, trainings = table.profiles.named(profile_name), []
        for cell in table.cells(patterns, on_request=True):
            recipe = table.recipe_in(profile, cell.recipe)
            for setting in cell.settings:
                net = cell.net_in(profile, setting)
                digests = {
                    group: run_spec(net, recipe, group.data, profile_name, group.precision).digest[:12]
                    for group in self._groups or [_NO_GROUP]
                }
                trainings.append(_Training(cell, cell.dataset_in(profile), recipe, digests))
        return trainings

    def _found(self, training: _Training) -> bool:
        return any(digest in self._runs_by_digest for digest in training.digests.values())

    def _describe(self, dataset: str, group: Group) -> str:
        names = (record.data.name for record in self._records.values() if record.spec.data == group.data)
        return f"{next(names, DATASETS[dataset].title)} in {group.precision}"

    def _run(self, run_id: str, training: _Training, seed: int) -> RunStatus:
        record, held, failure = self._records.get(run_id), self._held.get(run_id), self._failures.get(run_id)
        state: State = "waiting"
        progress = None
        if record and record.status != "partial":
            state = "done"
        elif held and held.silent is None:
            state, progress = "running", self._progress(run_id, training.recipe, held.holder)
        elif failure:
            state = "failed"
        elif record:
            state = "paused"
        silent = held.silent if held and state != "done" else None
        return RunStatus(run_id, training.cell.id, seed, state, progress, failure, silent)

    def _progress(self, run_id: str, recipe: Recipe, holder: Holder | None) -> RunProgress:
        """Return how far a run is, by its history, and how fast, by its last saved session."""
        record, file = self._records.get(run_id), self._store.directory(run_id).history_file
        line, logged = None, 0.0
        with suppress(RunError, OSError):
            line, logged = History.read(file).last, file.stat().st_mtime
        iteration = max(line.iteration if line else 0, record.iteration if record else 0)
        rate = _rate(record) if record else None
        if rate is None and line and line.seconds:
            rate = line.iteration / line.seconds
        speed = left = None
        if rate and rate <= _MAX_RATE:  # else the files were edited
            resumed = max(logged, holder.since if holder and holder.since else 0.0)
            left = max(0.0, resumed + (recipe.iterations - iteration) / rate - time.time())
            speed = rate * recipe.batch_size
        return RunProgress(iteration, recipe.iterations, speed, left, holder.job if holder else None)


def _rate(record: Record) -> float | None:
    """Return the iterations per second of the last session that made any; None if none did."""
    firsts = [0, *(session.last for session in record.sessions)]
    for first, session in reversed([*zip(firsts, record.sessions, strict=False)]):
        if session.last > first and session.seconds:
            return (session.last - first) / session.seconds
    return None


def slurm_jobs(prefix: str, patience: float = 2.0) -> Counter[str] | None:
    """Count the user's Slurm jobs whose names begin with a prefix, by state; None if squeue fails or is slower."""
    if not (squeue := shutil.which("squeue")):
        return Counter()
    command = [squeue, "--me", "--array", "--noheader", "--format=%i|%j|%T|%r"]
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=patience, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    jobs = [line.split("|", 3) for line in done.stdout.splitlines() if line.count("|") >= 3]
    return Counter(
        one_line(f"{state.lower()} ({reason})" if state == "PENDING" else state.lower())
        for _, name, state, reason in jobs
        if name.startswith(prefix)
    )
