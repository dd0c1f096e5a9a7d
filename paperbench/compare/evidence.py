"""The runs of each net of a table, in groups that may be pooled, and what had to be left out.

A run belongs to a net if it trained that net by the cell's recipe in the profile asked for. Runs on other pixels, in
other precision or of another numerics version are never pooled, nor are those that mix versions, nor results from
elsewhere with ours: each such group stands for itself.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

from paperbench.runs.external import ExternalResult
from paperbench.runs.record import DataFacts, Record
from paperbench.specs.experiment import Setting
from paperbench.specs.run_spec import Precision, canonical_json
from paperbench.specs.table import Cell, Table

_PRECISIONS = get_args(Precision)
_MAX_CHANGES_LISTED = 4


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


def errors_of(runs: Iterable[Run]) -> list[float]:
    """Test errors in percent of the runs that have ended; infinite where one diverged."""
    return [run.error for run in runs if run.error is not None]


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
        rank = _PRECISIONS.index(self.precision) if self.precision else len(_PRECISIONS)
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
        return errors_of(self.runs)

    @property
    def median(self) -> float | None:
        """Median test error in percent, None without a run that has ended."""
        return statistics.median(self.errors) if self.errors else None

    @property
    def farthest(self) -> int:
        """Iterations of the run that came farthest."""
        return max((record.iteration for record in self.records), default=0)

    def progress(self, planned: int) -> str:
        """How many of the planned runs have ended, and which is missing."""
        done = self.first(planned)
        text = f"{len(done)} of {planned} runs"
        if self.conditions.source is not None:
            return text
        missing = next((seed for seed in range(planned) if seed not in {run.seed for run in done}), planned)
        if missing < planned and any(run.seed > missing for run in self.ended):
            text += f" (seeds 0 to {planned - 1} count, and that of seed {missing} is missing)"
        return text

    def distance(self, planned: int) -> tuple[Any, ...]:
        """How far from what the cell asks for: first by what the runs are, then by how many of them there are.

        So complete runs in less precision come before a first one in more.
        """
        is_unusual, less_precise = self.conditions.distance
        return is_unusual, not self.errors, len(self.first(planned)) < planned, less_precise


class Evidence:
    """The runs for the nets of a table in one profile.

    Args:
        planned: Runs per net, fixed beforehand.
        records: Any; those of other experiments are ignored.
        externals: Results from elsewhere; they count in the paper's profile only.
        other_tables: Called only if there are runs of this table's nets that fit none of its cells.

    Attributes:
        left_out: What was meant for this table and could not be used, one sentence each.
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
        self.left_out: list[str] = []
        self._experiments = {(e.cell, e.setting): e for e in _experiments(table, profile_name)}
        self._facts: dict[str, DataFacts] = {}  # equal fingerprints are equal pixels: verified for one run, for all
        self._ours: dict[str, list[Record]] = defaultdict(list)
        for record in self._without_duplicates(records):
            if record.data.canonical or record.data.fingerprint not in self._facts:
                self._facts[record.data.fingerprint] = record.data
            if record.spec.profile == profile_name:
                self._ours[canonical_json(_trained_as(record))].append(record)
        self._external: dict[str, list[ExternalResult]] = defaultdict(list)
        for result in externals if profile_name == "paper" else ():
            self._external[result.experiment].append(result)
        self._explain_unused_records(other_tables)
        self._explain_unused_externals()

    def groups(self, cell: Cell, setting: Setting) -> list[Group]:
        """The groups of a net of a cell, nearest to the paper first."""
        pooled: dict[Conditions, list[Run]] = defaultdict(list)
        experiment = self._experiments.get((cell.id, setting.label))
        for record in self._ours.get(experiment.key, ()) if experiment else ():
            data = self._facts[record.data.fingerprint]
            conditions = Conditions(data, record.spec.precision, record.numerics, record.is_mixed)
            pooled[conditions].append(Run(record.seed, _error(record, cell), record))
        if self._external:
            for result in self._external.get(self.table.experiment_digest(cell, setting), ()):
                error = math.inf if result.error is None else result.error
                pooled[Conditions(None, None, (), False, result.source)].append(Run(result.seed, error, None))
        groups = [Group(tuple(sorted(runs, key=lambda r: r.seed)), c) for c, runs in pooled.items()]
        return sorted(groups, key=lambda g: g.distance(self.planned))

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
                    f"run {run} (seed {found[0].seed} of {found[0].net}) was found {len(found)} times with different "
                    "contents. Delete the wrong ones."
                )

    def _explain_unused_records(self, other_tables: Callable[[], Iterable[Table]]) -> None:
        """Name the runs of this table's nets that were trained as no experiment says today."""
        known = {experiment.key for experiment in self._experiments.values()}
        odd = {key: self._of_same_net(records[0]) for key, records in self._ours.items() if key not in known}
        if not any(odd.values()):
            return
        elsewhere = {e.key for table in other_tables() for e in _experiments(table, self.profile_name)}
        for key, candidates in odd.items():
            if not candidates or key in elsewhere:
                continue
            then = _trained_as(self._ours[key][0])
            differences = [(list(_differences(then, e.trained_as)), e.cell) for e in candidates]
            changes, nearest = min(differences, key=lambda found: len(found[0]))
            listed = changes[:_MAX_CHANGES_LISTED] + ["..."] * (len(changes) > _MAX_CHANGES_LISTED)
            self.left_out += [
                f"run {record.run} (seed {record.seed} of {record.net}) belongs to no current experiment; the nearest "
                f"is {nearest}, but {'; '.join(listed)}."
                for record in self._ours[key]
            ]

    def _of_same_net(self, record: Record) -> list[_Experiment]:
        """The experiments with a record's model or, if it was called otherwise when it was written, with its net."""
        experiments, net = self._experiments.values(), canonical_json(record.spec.net)
        same_model = [e for e in experiments if _model(e.name) == _model(record.net)]
        return same_model or [e for e in experiments if canonical_json(e.trained_as["net"]) == net]

    def _explain_unused_externals(self) -> None:
        """Name the results from elsewhere that were entered for a cell whose experiment has changed since."""
        if not self._external:
            return
        digests = {
            (cell.id, setting.label): self.table.experiment_digest(cell, setting)
            for cell in self.table.all_cells
            for setting in cell.settings
        }
        for result in (result for results in self._external.values() for result in results):
            is_current = digests.get((result.cell, result.setting)) == result.experiment
            if result.table == self.table.id and not is_current:
                setting = f" ({result.setting})" if result.setting else ""
                self.left_out.append(
                    f"the result of seed {result.seed} from {result.source!r} was entered for {result.cell}{setting}, "
                    "whose experiment has changed since. Enter it again (`paperbench record`) if it still holds."
                )


@dataclass(frozen=True)
class _Experiment:
    """What a net of a cell is trained as, in a profile; `name` as one would ask timm for it."""

    cell: str
    setting: str
    name: str
    trained_as: dict[str, Any]

    @cached_property
    def key(self) -> str:
        return canonical_json(self.trained_as)


def _experiments(table: Table, profile_name: str) -> Iterator[_Experiment]:
    """Every net of a table that can be trained in a profile."""
    profile = table.profiles.named(profile_name)
    recipes: dict[str, dict[str, Any]] = {}
    for cell in table.all_cells:
        if not cell.is_in(profile):
            continue
        if cell.recipe not in recipes:
            recipes[cell.recipe] = table.recipe_in(profile, cell.recipe).defining_values()
        for setting in cell.settings:
            trained_as = {"net": cell.net_in(profile, setting).canonical(), "recipe": recipes[cell.recipe]}
            yield _Experiment(cell.id, setting.label, str(cell.reference_in(profile, setting)), trained_as)


def _model(name: str) -> str:
    """A net's name without tag and arguments."""
    return name.partition("(")[0].partition(".")[0]


def _trained_as(record: Record) -> dict[str, Any]:
    return {"net": record.spec.net, "recipe": record.spec.recipe}


def _error(record: Record, cell: Cell) -> float | None:
    """The run's error that belongs in the cell: top-1, on whole images. Nothing else has been measured yet."""
    if record.status == "diverged":
        return math.inf
    is_measured = cell.column.metric == "top1" and cell.row.evaluation is None
    return record.result.test_error if record.result and is_measured else None


def _differences(then: Any, now: Any, path: str = "") -> Iterator[str]:
    """What changed between two plain values, one text for each."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*then, *now]):
            yield from _differences(then.get(key, _ABSENT), now.get(key, _ABSENT), f"{path}.{key}" if path else key)
    elif _short(then) != _short(now):  # as they enter a digest, where 128 and 128.0 are two
        yield f"{path} was {_short(then)} and is {_short(now)}"


_ABSENT = object()


def _short(value: Any) -> str:
    return "absent" if value is _ABSENT else canonical_json(value)
