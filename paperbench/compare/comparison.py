"""Published numbers and ours, cell by cell.

A run belongs to a cell if it trained the cell's net by the cell's recipe in the profile asked for. Runs on other
pixels, in other precision or of another numerics version are never pooled, nor are those that mix versions: each such
group stands for itself, and the cell shows the group nearest to the paper: unmixed, on its pixels, ended, in its
precision.

This module measures; it does not yet judge. Whether a difference is more than noise takes the published spread, ours,
and enough seeds.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from paperbench.runs.record import DataFacts, Record
from paperbench.specs.run_spec import Precision, canonical_json
from paperbench.specs.table import Cell, Table

Standing = Literal["not run", "in progress", "not comparable", "measured"]

_NEAREST_PRECISION = get_args(Precision)


@dataclass(frozen=True)
class Group:
    """Runs of one cell that may be pooled, by seed, and what they were trained on."""

    records: tuple[Record, ...]
    data: DataFacts

    @property
    def errors(self) -> list[float]:
        """Test error of every run that has ended; infinite where it diverged."""
        ended = [r for r in self.records if r.status != "partial"]
        return [r.result.test_error if r.result else math.inf for r in ended]

    @property
    def median(self) -> float | None:
        """Median test error in percent, None without a run that has ended."""
        return statistics.median(self.errors) if self.errors else None

    @property
    def diverged(self) -> int:
        """Number of runs that ended in NaN or infinity."""
        return sum(map(math.isinf, self.errors))

    @property
    def conditions(self) -> str:
        """What sets the group apart: data, precision and numerics version."""
        first = self.records[0]
        numerics = " and ".join(map(str, first.numerics)) + (" (mixed)" if self.is_mixed else "")
        return f"{self.data.name}, {first.spec.precision}, numerics {numerics}"

    @property
    def is_mixed(self) -> bool:
        """Whether the runs were continued by another numerics version or major version of torch."""
        return self.records[0].is_mixed

    @property
    def _distance(self) -> tuple[bool, bool, bool, int, int]:
        first = self.records[0]
        rank = _NEAREST_PRECISION.index(first.spec.precision)
        return self.is_mixed, not self.data.canonical, not self.errors, rank, -first.numerics[-1]


@dataclass(frozen=True)
class CellComparison:
    """One cell with what we have for it.

    Attributes:
        shown: The group nearest to the paper, if there is any run.
        others: The other groups, nearest first.
        is_reduced: Whether the profile changes what is trained.
        reason: Why the cell is not comparable.
    """

    cell: Cell
    shown: Group | None
    others: tuple[Group, ...]
    standing: Standing
    is_reduced: bool
    reason: str | None

    @property
    def difference(self) -> float | None:
        """Our median less the published number, in percentage points; None if there is none, or of a reduced net."""
        median = self.shown.median if self.shown else None
        if self.is_reduced or median is None or self.cell.expected.value == "fail":
            return None
        return median - self.cell.expected.value


@dataclass(frozen=True)
class Comparison:
    """A table in one profile."""

    table: Table
    profile: str
    cells: tuple[CellComparison, ...]

    def in_cell(self, row: str, column: str) -> CellComparison | None:
        return next((c for c in self.cells if (c.cell.row.id, c.cell.column.id) == (row, column)), None)


def compare(table: Table, cells: Iterable[Cell], profile_name: str, records: Iterable[Record]) -> Comparison:
    """Put records beside the published numbers.

    Args:
        records: Any; those of other experiments are passed over.
    """
    by_experiment: dict[str, list[Record]] = defaultdict(list)
    verified: dict[str, DataFacts] = {}  # equal fingerprints are equal pixels: verified for one run, for all
    for record in records:
        spec = record.spec
        if record.data.canonical:
            verified[record.data.fingerprint] = record.data
        by_experiment[_experiment_key(spec.net, spec.recipe, spec.profile)].append(record)
    profile = table.profiles.named(profile_name)
    recipe = table.recipe_in(profile).defining_values()
    compared = []
    for cell in cells:
        key = _experiment_key(cell.net_in(profile).canonical(), recipe, profile_name)
        compared.append(_compare_cell(cell, profile_name, by_experiment[key], verified))
    return Comparison(table, profile_name, tuple(compared))


def _experiment_key(net: Mapping[str, Any], recipe: Mapping[str, Any], profile: str) -> str:
    return canonical_json([net, recipe, profile])


def _compare_cell(cell: Cell, profile: str, records: list[Record], verified: Mapping[str, DataFacts]) -> CellComparison:
    is_reduced = profile != "paper"
    pooled: dict[tuple[str, str, tuple[int, ...], bool], list[Record]] = defaultdict(list)
    for record in sorted(records, key=lambda r: r.seed):
        pooled[record.data.fingerprint, record.spec.precision, record.numerics, record.is_mixed].append(record)
    groups = [Group(tuple(g), verified.get(g[0].data.fingerprint, g[0].data)) for g in pooled.values()]
    if not groups:
        return CellComparison(cell, None, (), "not run", is_reduced, None)
    shown, *others = sorted(groups, key=lambda g: g._distance)
    standing: Standing = "measured" if shown.errors else "in progress"
    reason = None
    if is_reduced:
        standing, reason = "not comparable", f"profile {profile} is not the paper's experiment"
    elif not shown.data.canonical:
        standing, reason = "not comparable", f"{shown.data.name} has not the pixels of the paper's data"
    elif shown.is_mixed:
        standing, reason = "not comparable", "its runs were continued by other numerics or another torch"
    return CellComparison(cell, shown, tuple(others), standing, is_reduced, reason)
