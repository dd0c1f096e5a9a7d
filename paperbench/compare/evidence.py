"""The runs of each net of a table, grouped by what may be pooled, and the runs that were not used.

A run belongs to a net if it trained that net with the cell's recipe in the given profile. Runs are pooled only if they
share pixels, precision and numerics version. The external results of each source are a group of their own.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np

from paperbench.compare.failures import is_failure
from paperbench.compare.noise import MIN_RUNS_OF_NOISE, NO_PRIOR, Prior, prior_from_others, variance_of
from paperbench.errors import count, listing, shorten
from paperbench.options import Selection, TrainingOptions, command
from paperbench.runs.external import ExternalResult
from paperbench.runs.record import DataFacts, Record, Status
from paperbench.specs.cell import Cell
from paperbench.specs.experiment import Setting, bare_name
from paperbench.specs.facts import Facts, difference
from paperbench.specs.run_spec import Precision, canonical_json
from paperbench.specs.table import Table
from paperbench.typed import Percent

_PRECISIONS = get_args(Precision)
_MAX_CHANGES_LISTED = 4
_MAX_SHOWN = 60


@dataclass(frozen=True)
class RunFacts:
    """One run.

    Attributes:
        run: The run's id, which names its directory and record; null for an external result.
        error: Test error after the last iteration; null before the run has ended, if it diverged, or if it has no error
            of the cell's kind.
        iteration: Iterations done; null for an external result.
        counted: Whether verdict, median, difference and failures include the run: it has ended and is one of the tested
            runs or, before the first test, of the planned runs. If none of these has ended, all that have are counted.
    """

    seed: int
    run: str | None
    status: Status
    error: Percent | None
    iteration: int | None
    counted: bool

    @property
    def error_or_inf(self) -> float | None:
        """The error in percent, infinite if the run diverged."""
        return math.inf if self.status == "diverged" else self.error

    def __repr__(self) -> str:
        return f"<seed {self.seed}: {self.status if self.error is None else f'{self.error:.2f}'}>"


def errors_of(runs: Iterable[RunFacts]) -> list[float]:
    """Return the test errors in percent of the runs that have ended; infinite for diverged runs."""
    return [error for run in runs if (error := run.error_or_inf) is not None]


@dataclass(frozen=True)
class Conditions:
    """The conditions that runs must share to be pooled.

    Attributes:
        data, precision, numerics: Unknown (None or empty) for external results.
        is_mixed: False; the version before compared runs of several versions and marked them here.
        source: Source of external results, or None for our runs.
    """

    data: DataFacts | None
    precision: Precision | None
    numerics: tuple[int, ...]
    is_mixed: bool = False
    source: str | None = None

    def __str__(self) -> str:
        if self.data is None:
            return f"external: {self.source}"
        name = f"{self.data.name} (images unverified)" if self.is_unverified else self.data.name
        return f"{name}, {self.precision}, numerics {self.numerics[0]}"

    @property
    def is_unverified(self) -> bool:
        """Whether the pixels may be, but have not been shown to be, the paper's."""
        return self.data is not None and self.data.unverified

    @property
    def distance(self) -> tuple[tuple[bool, bool, bool], tuple[int, int]]:
        """Sort key of the distance to the paper: external, pixels; then lower precision, older code."""
        has_other_pixels = self.data is not None and not self.data.is_comparable
        rank = _PRECISIONS.index(self.precision) if self.precision else len(_PRECISIONS)
        newest = self.numerics[-1] if self.numerics else 0
        return (self.source is not None, has_other_pixels, self.is_unverified), (rank, -newest)


@dataclass(frozen=True)
class GroupFacts:
    """Runs that may be pooled, by seed.

    Attributes:
        conditions: The conditions that the runs share; for external results only the source is known.
        median: Median test error, in `shown` of the counted runs, in `others` of all runs that have ended; null without
            such runs, or if it is infinite.
        median_diverged: Whether the median is infinite because of diverged runs.
        facts: Name of the facts with which the runs were trained; null if they are unknown, as of older runs.
    """

    conditions: Conditions
    median: Percent | None
    median_diverged: bool
    runs: tuple[RunFacts, ...]
    facts: str | None = None

    @classmethod
    def of(cls, conditions: Conditions, runs: Sequence[RunFacts], facts: str | None = None) -> GroupFacts:
        """Make a group of runs in any order."""
        errors = errors_of(run for run in runs if run.counted) or errors_of(runs)
        median = statistics.median(errors) if errors else None
        has_diverged = median == math.inf
        in_order = tuple(sorted(runs, key=lambda run: run.seed))
        return cls(conditions, None if has_diverged else median, has_diverged, in_order, facts)

    def counting(self, counted: Collection[RunFacts]) -> GroupFacts:
        """Return the group with these of its runs counted, and no others."""
        runs = [replace(run, counted=run in counted) for run in self.runs]
        return GroupFacts.of(self.conditions, runs, self.facts)

    def __repr__(self) -> str:
        facts = f", facts {self.facts}" if self.facts else ""
        return f"<{count(len(self.runs), 'run')}: {str(self.conditions)[:80]}{facts}>"

    @property
    def ended(self) -> list[RunFacts]:
        return [run for run in self.runs if run.error_or_inf is not None]

    def first(self, n: int) -> list[RunFacts]:
        """Return those of the first n runs that have ended.

        Our first n runs have the seeds 0 to n - 1, because choosing seeds would mean choosing results. External
        results can have any seeds; their first n have the lowest.
        """
        if self.conditions.source is not None:
            return self.ended[:n]
        return [run for run in self.ended if run.seed < n]

    @property
    def ids(self) -> list[str]:
        """The ids of our runs, which have records."""
        return [run.run for run in self.runs if run.run is not None]

    @property
    def median_or_inf(self) -> float | None:
        """The median in percent, infinite if it diverged."""
        return math.inf if self.median_diverged else self.median

    @property
    def farthest(self) -> int:
        """Iteration of the run that got farthest."""
        return max((run.iteration or 0 for run in self.runs), default=0)

    def progress(self, planned: int) -> str:
        """Return how many of the planned runs have ended and, if later seeds have, which seed is missing."""
        done = self.first(planned)
        text = f"{len(done)} of {planned}"
        if self.conditions.source is not None:
            return text
        missing = next((seed for seed in range(planned) if seed not in {run.seed for run in done}), planned)
        if missing < planned and any(run.seed > missing for run in self.ended):
            text += f" (seeds 0-{planned - 1} count; seed {missing} is missing)"
        return text

    def distance(self, planned: int) -> tuple[Any, ...]:
        """Return a sort key: kind of runs first, then completeness, then precision and code version.

        A complete group in lower precision comes before an incomplete one in higher precision.
        """
        kind, precision = self.conditions.distance
        return kind, not self.ended, len(self.first(planned)) < planned, precision, self.facts is None


class Evidence:
    """The runs for the nets of a table in one profile.

    Args:
        planned: Planned runs per net.
        records: Records of any experiments, one for each run; only those of this table are used.
        externals: External results; used only in the paper's profile.
        other_tables: Loads the other tables; called only if runs of this table's nets fit none of its cells.

    Attributes:
        records: The records of our runs in this profile, of any experiment, by the run's id.
        left_out: A sentence for each run or result that seems meant for this table but was not used.
    """

    def __init__(
        self,
        table: Table,
        profile_name: str,
        planned: int,
        records: Iterable[Record],
        externals: Iterable[ExternalResult],
        other_tables: Callable[[], Iterable[Table]],
    ) -> None:
        self.table, self.profile_name, self.planned = table, profile_name, planned
        self.profile = table.profiles.named(profile_name)
        self.records: dict[str, Record] = {}
        self.left_out: list[str] = []
        self._experiments = {(e.cell, e.setting): e for e in _experiments(table, profile_name)}
        known = {experiment.key: experiment.cell for experiment in self._experiments.values()}
        self._variances: dict[tuple[Conditions, str, str, int], dict[str, tuple[float, int]]] = {}
        self._data: dict[str, DataFacts] = {}  # pixels verified for one run are verified for all
        self._ours: dict[str, list[Record]] = defaultdict(list)
        for record in records:
            if record.data.canonical or record.data.fingerprint not in self._data:
                self._data[record.data.fingerprint] = record.data
            if record.spec.profile != profile_name:
                continue
            key = canonical_json(_trained_as(record))
            if not record.is_mixed:
                self.records[record.run] = record
                self._ours[key].append(record)
            elif key in known:
                cell = Selection(table.id, (known[key],), profile_name)
                anew = command("run", cell, TrainingOptions(incompatible="restart"))
                self.left_out.append(
                    f"run {record.run} (seed {record.seed} of {record.net}) mixes versions of the numerics or torch. "
                    f"Train it anew: `{anew}`."
                )
        self._facts_of: dict[str, str | None] = {}  # names of facts, by the run's id
        for key in known.keys() & self._ours.keys():
            self._tell_facts_apart(self._ours[key])
        self._groups: dict[tuple[str, str], list[GroupFacts]] = {}
        self._external: dict[str, list[ExternalResult]] = defaultdict(list)
        for result in externals if profile_name == "paper" else ():
            self._external[result.experiment].append(result)
        self._explain_unused_records(known, other_tables)
        self._explain_unused_externals()

    def groups(self, cell: Cell, setting: Setting) -> list[GroupFacts]:
        """Return the groups of a net of a cell, closest to the paper first, in which no run is counted yet."""
        key = cell.id, setting.label
        if key not in self._groups:
            self._groups[key] = sorted(self._pooled(cell, setting), key=lambda group: group.distance(self.planned))
        return self._groups[key]

    def _pooled(self, cell: Cell, setting: Setting) -> Iterable[GroupFacts]:
        pooled: dict[tuple[Conditions, str | None], list[RunFacts]] = defaultdict(list)
        experiment = self._experiments.get((cell.id, setting.label))
        evaluation = self.table.evaluation_in(self.profile, cell)
        for record in self._ours.get(experiment.key, ()) if experiment else ():
            data = self._data[record.data.fingerprint]
            conditions = Conditions(data, record.spec.precision, record.numerics)
            error = None if record.status == "diverged" else record.error(cell.column.metric, evaluation)
            of_run = (record.seed, record.run, record.status, error, record.iteration)
            pooled[conditions, self._facts_of[record.run]].append(RunFacts(*of_run, counted=False))
        if self._external:
            for result in self._external.get(self.table.experiment_digest(cell, setting), ()):
                status: Status = "diverged" if result.error is None else "finished"
                run = RunFacts(result.seed, None, status, result.error, None, counted=False)
                pooled[Conditions(None, None, (), source=result.source), None].append(run)
        return (GroupFacts.of(conditions, runs, facts) for (conditions, facts), runs in pooled.items())

    def prior(self, cell: Cell, setting: Setting, conditions: Conditions, analysis: int) -> Prior:
        """Return what the other nets say about the variance between the runs of a net.

        They are all nets of the table with the same conditions, data set and metric, whichever cells are compared, as
        far as they have all runs of this analysis or at least of the first. Nets with a failed run neither contribute
        nor borrow.

        Args:
            analysis: 1 or 2; see `ANALYSES`.
        """
        key = self.training_key(cell, setting)
        which = (conditions, cell.dataset_in(self.profile), cell.column.metric, analysis)
        if which not in self._variances:
            self._variances[which] = dict(self._variances_by_training(*which))
        variances = self._variances[which]
        if key not in variances:
            return NO_PRIOR
        found = prior_from_others(*np.array(list(variances.values())).T)
        own = list(variances).index(key)
        return Prior(*(float(values[own]) for values in found))

    def _variances_by_training(
        self, conditions: Conditions, dataset: str, metric: str, analysis: int
    ) -> Iterator[tuple[str, tuple[float, int]]]:
        """Yield variance and degrees of freedom of each net, by training, as two cells may show the same net."""
        for cell, setting in [(c, setting) for c in self.table.all_cells for setting in c.settings]:
            key = self.training_key(cell, setting)
            group = next((g for g in self.groups(cell, setting) if g.conditions == conditions), None)
            if key is None or group is None or (cell.dataset_in(self.profile), cell.column.metric) != (dataset, metric):
                continue
            numbers = [number * self.planned for number in range(analysis, 0, -1)]
            complete = [errors for n in numbers if len(errors := errors_of(group.first(n))) == n >= MIN_RUNS_OF_NOISE]
            errors = complete[0] if complete else []
            if errors and not any(is_failure(error, dataset) for error in errors):
                yield key, (variance_of(errors, cell.resolution), len(errors) - 1)

    def training_key(self, cell: Cell, setting: Setting) -> str | None:
        """Return a key that is equal for equal trainings in this profile, or None if the cell is not in it."""
        experiment = self._experiments.get((cell.id, setting.label))
        return experiment.key + cell.dataset_in(self.profile) if experiment else None

    def _tell_facts_apart(self, records: Sequence[Record]) -> None:
        """Name the facts of the runs of a training, and report those that differ, each once."""
        kinds: dict[str, Facts] = {}  # by the first run of each
        for record in records:
            self._facts_of[record.run] = None
            if facts := record.facts:
                equal = next((run for run, known in kinds.items() if not difference(known, facts)), record.run)
                self._facts_of[record.run] = f"{facts.hash}-{equal}"
                kinds.setdefault(equal, facts)
        first, *others = kinds or [""]
        self.left_out += [
            f"run {run} and those like it are not pooled with {first}: they were trained with other facts: "
            f"{difference(kinds[first], kinds[run])}."
            for run in others
        ]
        if first and (unknown := [record.run for record in records if not record.facts]):
            self.left_out.append(
                f"{count(len(unknown), 'run')} of {records[0].net} ({listing(unknown)}) cannot be pooled with {first}: "
                "an older version began the training, which recorded no facts."
            )

    def _explain_unused_records(self, known: Collection[str], other_tables: Callable[[], Iterable[Table]]) -> None:
        """Report runs of this table's nets that match no current experiment."""
        odd = {key: self._of_same_net(records[0]) for key, records in self._ours.items() if key not in known}
        if not any(odd.values()):
            return
        elsewhere = {e.key for table in other_tables() for e in _experiments(table, self.profile_name)}
        for key, candidates in odd.items():
            if not candidates or key in elsewhere:
                continue
            then = _trained_as(self._ours[key][0])
            changed = [(list(differences(then, e.trained_as)), e.cell) for e in candidates]
            changes, closest = min(changed, key=lambda found: len(found[0]))
            listed = changes[:_MAX_CHANGES_LISTED] + ["..."] * (len(changes) > _MAX_CHANGES_LISTED)
            self.left_out += [
                f"run {record.run} (seed {record.seed} of {record.net}) matches no current experiment; the closest is "
                f"{closest}, but {'; '.join(listed)}."
                for record in self._ours[key]
            ]

    def _of_same_net(self, record: Record) -> list[_Experiment]:
        """Return the experiments with a record's model name or, if the model has been renamed, with its net."""
        experiments, net = self._experiments.values(), canonical_json(record.spec.net)
        same_model = [e for e in experiments if bare_name(e.name) == bare_name(record.net)]
        return same_model or [e for e in experiments if canonical_json(e.trained_as["net"]) == net]

    def _explain_unused_externals(self) -> None:
        """Report external results for cells whose experiment has changed since they were recorded."""
        if not self._external:
            return
        nets = ((cell, setting) for cell in self.table.all_cells for setting in cell.settings)
        digests = {(cell.id, setting.label): self.table.experiment_digest(cell, setting) for cell, setting in nets}
        for result in (result for results in self._external.values() for result in results):
            is_current = digests.get((result.cell, result.setting)) == result.experiment
            if result.table == self.table.id and not is_current:
                setting = f" ({result.setting})" if result.setting else ""
                self.left_out.append(
                    f"the external result of seed {result.seed} from {result.source!r} was recorded for {result.cell}"
                    f"{setting}, whose experiment has changed since. Record it again (`paperbench record`) if it is "
                    "still valid."
                )


@dataclass(frozen=True)
class _Experiment:
    """The training of one net of a cell in a profile; `name` is its timm name."""

    cell: str
    setting: str
    name: str
    trained_as: dict[str, Any]

    @cached_property
    def key(self) -> str:
        return canonical_json(self.trained_as)


def _experiments(table: Table, profile_name: str) -> Iterator[_Experiment]:
    """Yield the trainings of all nets of a table that a profile includes."""
    profile = table.profiles.named(profile_name)
    recipes: dict[str, dict[str, Any]] = {}
    for cell in table.all_cells:
        if cell.recipe not in recipes:
            recipes[cell.recipe] = table.recipe_in(profile, cell.recipe).defining_values()
        for setting in cell.settings:
            trained_as = {"net": cell.net_in(profile, setting).canonical(), "recipe": recipes[cell.recipe]}
            yield _Experiment(cell.id, setting.label, str(cell.reference_in(profile, setting)), trained_as)


def _trained_as(record: Record) -> dict[str, Any]:
    return {"net": record.spec.net, "recipe": record.spec.recipe}


def differences(then: Any, now: Any, path: str = "") -> Iterator[str]:
    """Yield a text for each difference between two JSON values."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*then, *now]):
            yield from differences(then.get(key, ...), now.get(key, ...), f"{path}.{key}" if path else key)
        return
    was, now = ("absent" if one is ... else canonical_json(one) for one in (then, now))
    if was != now:  # 128 and 128.0 differ in a digest
        yield f"{path} was {shorten(was, _MAX_SHOWN)} and is {shorten(now, _MAX_SHOWN)}"
