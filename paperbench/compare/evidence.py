"""What there is for each net of a table: runs in groups that may be pooled, and what had to be left out.

A run belongs to a net if it trained that net by the cell's recipe in the profile asked for. Runs on other pixels, in
other precision or of another numerics version are never pooled, nor are those that mix versions, nor results from
elsewhere with ours: each such group stands for itself.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

from paperbench.catalogue import DATASETS
from paperbench.runs.external import ExternalResult
from paperbench.runs.record import DataFacts, Record
from paperbench.specs.experiment import Setting
from paperbench.specs.run_spec import Precision, canonical_json
from paperbench.specs.table import Cell, Table

_NEAREST_PRECISION = get_args(Precision)
_CHANGES_TOLD = 4


@dataclass(frozen=True)
class Run:
    """One training, ours or from elsewhere.

    Attributes:
        error: Test error in percent; infinite if it diverged, None while it is in progress.
        record: None of a result from elsewhere.
    """

    seed: int
    error: float | None
    record: Record | None


@dataclass(frozen=True)
class Conditions:
    """What runs must share to be pooled.

    Attributes:
        source: Who reported the results, if they are not ours; data, precision and numerics are then unknown.
    """

    data: DataFacts | None
    precision: Precision | None
    numerics: tuple[int, ...]
    is_mixed: bool
    source: str | None = None

    def __str__(self) -> str:
        if self.data is None:
            return f"external: {self.source}"
        numerics = " and ".join(map(str, self.numerics)) + (" (mixed)" if self.is_mixed else "")
        return f"{self.data.name}, {self.precision}, numerics {numerics}"

    @property
    def distance(self) -> tuple[tuple[bool, bool, bool], tuple[int, int]]:
        """How far from the paper: mixed, from elsewhere, on other pixels; and then in less precision, by older code."""
        has_other_pixels = self.data is not None and not self.data.canonical
        rank = _NEAREST_PRECISION.index(self.precision) if self.precision else len(_NEAREST_PRECISION)
        newest = self.numerics[-1] if self.numerics else 0
        return (self.is_mixed, self.source is not None, has_other_pixels), (rank, -newest)


@dataclass(frozen=True)
class Group:
    """Runs of one net that may be pooled, by seed."""

    runs: tuple[Run, ...]
    conditions: Conditions

    @property
    def ended(self) -> list[Run]:
        return [run for run in self.runs if run.error is not None]

    def first(self, number: int) -> list[Run]:
        """Those of the first runs that have ended.

        Our own first runs are those with the seeds from 0 on: a choice among seeds would be one among results. Results
        from elsewhere have what seeds they have, so the lowest.
        """
        if self.conditions.source is not None:
            return self.ended[:number]
        return [run for run in self.ended if run.seed < number]

    @property
    def records(self) -> list[Record]:
        return [run.record for run in self.runs if run.record is not None]

    @property
    def errors(self) -> list[float]:
        """Test error of every run that has ended; infinite where it diverged."""
        return [run.error for run in self.runs if run.error is not None]

    @property
    def median(self) -> float | None:
        """Median test error in percent, None without a run that has ended."""
        return statistics.median(self.errors) if self.errors else None

    @property
    def diverged(self) -> int:
        """Number of runs that ended in NaN or infinity."""
        return sum(map(math.isinf, self.errors))

    @property
    def farthest(self) -> int:
        """Iterations of the run that came farthest."""
        return max((record.iteration for record in self.records), default=0)

    def distance(self, planned: int) -> tuple[Any, ...]:
        """How far from what the cell asks for: first by what the runs are, then by how many of them there are.

        So complete runs in less precision come before a first one in more.

        Args:
            planned: Runs fixed beforehand.
        """
        is_unusual, less_precise = self.conditions.distance
        return is_unusual, not self.errors, len(self.first(planned)) < planned, less_precise


class Evidence:
    """The runs for the nets of a table in one profile.

    Args:
        records: Any; those of other experiments are passed over.
        externals: Results from elsewhere; they count in the paper's profile only.
        other_tables: Called only if there are runs of this table's nets that fit none of its cells.

    Attributes:
        profile: The profile.
        left_out: What was not used though it was meant for this table, one sentence each.
    """

    def __init__(
        self,
        table: Table,
        profile_name: str,
        records: Iterable[Record],
        externals: Iterable[ExternalResult] = (),
        other_tables: Callable[[], Iterable[Table]] = tuple,
    ) -> None:
        self._table, self._profile_name = table, profile_name
        self.profile = table.profiles.named(profile_name)
        self.left_out: list[str] = []
        self._experiments = dict(_experiments(table, profile_name))
        self._facts: dict[str, DataFacts] = {}  # equal fingerprints are equal pixels: verified for one run, for all
        self._ours: dict[str, list[Record]] = defaultdict(list)
        for record in self._without_duplicates(records):
            if record.data.canonical or record.data.fingerprint not in self._facts:
                self._facts[record.data.fingerprint] = record.data
            self._ours[_key(record.spec.net, record.spec.recipe, record.spec.profile)].append(record)
        self._external: dict[str, list[ExternalResult]] = defaultdict(list)
        for result in externals if profile_name == "paper" else ():
            self._external[result.experiment].append(result)
        self._name_records_of_no_cell(other_tables)
        self._name_externals_of_no_cell()

    def groups(self, cell: Cell, setting: Setting, planned: int) -> list[Group]:
        """What there is for a net of a cell, nearest to the paper first.

        Args:
            planned: Runs fixed beforehand.
        """
        pooled: dict[Conditions, list[Run]] = defaultdict(list)
        experiment = self._experiments.get((cell.id, setting.label))
        for record in self._ours.get(experiment.key, ()) if experiment else ():
            data = self._facts[record.data.fingerprint]
            conditions = Conditions(data, record.spec.precision, record.numerics, record.is_mixed)
            pooled[conditions].append(Run(record.seed, _error(record, cell), record))
        if self._external:
            for result in self._external.get(self._table.experiment_digest(cell, setting), ()):
                conditions = Conditions(None, None, (), False, result.source)
                error = math.inf if result.error is None else result.error
                pooled[conditions].append(Run(result.seed, error, None))
        groups = [Group(tuple(sorted(runs, key=lambda r: r.seed)), c) for c, runs in pooled.items()]
        return sorted(groups, key=lambda g: g.distance(planned))

    def trains(self, cell: Cell, setting: Setting) -> str | None:
        """What a net of a cell is trained as, in this profile: equal for equal trainings; None if it is not in it."""
        experiment = self._experiments.get((cell.id, setting.label))
        return experiment.key + cell.dataset_in(self.profile) if experiment else None

    def _without_duplicates(self, records: Iterable[Record]) -> Iterator[Record]:
        """Each run once; a run of which there are two different records not at all, as either may be the wrong one."""
        by_run: dict[str, list[Record]] = defaultdict(list)
        for record in records:
            if record not in by_run[record.run]:
                by_run[record.run].append(record)
        for run, found in by_run.items():
            if len(found) == 1:
                yield found[0]
            else:
                self.left_out.append(
                    f"run {run} (seed {found[0].seed} of {found[0].net}) is there {len(found)} times with different "
                    "contents. Delete the wrong ones."
                )

    def _name_records_of_no_cell(self, other_tables: Callable[[], Iterable[Table]]) -> None:
        """Name the runs of this table's nets that were trained as no experiment says today."""
        by_key = {experiment.key for experiment in self._experiments.values()}
        by_model: dict[str, list[_Experiment]] = defaultdict(list)
        for experiment in self._experiments.values():
            by_model[_model(experiment.name)].append(experiment)
        odd: list[tuple[Record, _Experiment]] = []
        for key, records in self._ours.items():
            spec = records[0].spec
            candidates = by_model.get(_model(records[0].net)) or self._trained_with(spec.net)
            if spec.profile == self._profile_name and key not in by_key and candidates:
                nearest = min(candidates, key=lambda experiment: len(experiment.changes_since(records[0])))
                odd += [(record, nearest) for record in records]
        if not odd:
            return
        elsewhere = {e.key for table in other_tables() for _, e in _experiments(table, self._profile_name)}
        for record, meant in odd:
            if _key(record.spec.net, record.spec.recipe, record.spec.profile) not in elsewhere:
                self.left_out.append(meant.what_changed_since(record))

    def _trained_with(self, net: Mapping[str, Any]) -> list[_Experiment]:
        """The experiments with a net, whatever it was called when its record was written."""
        wanted = canonical_json(net)
        return [e for e in self._experiments.values() if canonical_json(e.net) == wanted]

    def _name_externals_of_no_cell(self) -> None:
        """Name the results from elsewhere that were entered for a cell whose experiment has changed since."""
        if not self._external:
            return
        digests = {
            (cell.id, setting.label): self._table.experiment_digest(cell, setting)
            for cell in self._table.all_cells
            for setting in cell.settings
        }
        for result in (result for results in self._external.values() for result in results):
            is_here = result.table == self._table.id
            if is_here and digests.get((result.cell, result.setting)) != result.experiment:
                setting = f" ({result.setting})" if result.setting else ""
                self.left_out.append(
                    f"the result of seed {result.seed} from {result.source!r} was entered for {result.cell}{setting}, "
                    "whose experiment has changed since. Enter it again (`paperbench record`) if it still holds."
                )


@dataclass(frozen=True)
class _Experiment:
    """What a net of a cell is trained as, in a profile; `name` as one would ask timm for it."""

    cell: str
    name: str
    net: Mapping[str, Any]
    recipe: Mapping[str, Any]
    profile: str

    @cached_property
    def key(self) -> str:
        return _key(self.net, self.recipe, self.profile)

    def changes_since(self, record: Record) -> list[str]:
        then = {"net": record.spec.net, "recipe": record.spec.recipe}
        return list(_differences(then, {"net": self.net, "recipe": self.recipe}))

    def what_changed_since(self, record: Record) -> str:
        changes = self.changes_since(record)
        told = "; ".join(changes[:_CHANGES_TOLD]) + ("; ..." if len(changes) > _CHANGES_TOLD else "")
        return (
            f"run {record.run} (seed {record.seed} of {record.net}) is of no experiment that there is; the nearest is "
            f"{self.cell}, but {told}."
        )


def _experiments(table: Table, profile_name: str) -> Iterator[tuple[tuple[str, str], _Experiment]]:
    """Every net of a table that can be trained in a profile, by cell and setting."""
    profile = table.profiles.named(profile_name)
    recipes: dict[str, dict[str, Any]] = {}
    for cell in table.all_cells:
        if not cell.is_in(profile):
            continue
        if cell.recipe not in recipes:
            recipes[cell.recipe] = table.recipe_in(profile, cell.recipe).defining_values()
        for setting in cell.settings:
            net, name = cell.net_in(profile, setting).canonical(), str(cell.reference_in(profile, setting))
            yield (cell.id, setting.label), _Experiment(cell.id, name, net, recipes[cell.recipe], profile_name)


def _model(name: str) -> str:
    """A net's name without tag and arguments."""
    return name.partition("(")[0].partition(".")[0]


def _key(net: Mapping[str, Any], recipe: Mapping[str, Any], profile: str) -> str:
    return canonical_json([net, recipe, profile])


def _error(record: Record, cell: Cell) -> float | None:
    """The run's error that belongs in the cell: top-1, on whole images. Nothing else has been measured yet."""
    if record.status == "diverged":
        return math.inf
    is_measured = cell.column.metric == "top1" and cell.row.evaluation is None
    return record.result.test_error if record.result and is_measured else None


def chance_error(dataset: str) -> float:
    """Test error in percent of guessing."""
    return 100 * (1 - 1 / DATASETS[dataset].num_classes)


_ABSENT = object()


def _differences(then: Any, now: Any, path: str = "") -> Iterator[str]:
    """What changed between two plain values, one text for each."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*then, *now]):
            yield from _differences(then.get(key, _ABSENT), now.get(key, _ABSENT), f"{path}.{key}" if path else key)
    elif _short(then) != _short(now):  # as they enter a digest, where 128 and 128.0 are two
        yield f"{path} was {_short(then)} and is {_short(now)}"


def _short(value: Any) -> str:
    return "absent" if value is _ABSENT else canonical_json(value)
