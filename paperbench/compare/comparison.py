"""A comparison of a table: verdicts on its cells and claims, and the overall result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from paperbench.compare.claims import ClaimVerdict, TrainingMean, assess_claim
from paperbench.compare.deviations import Deviation, find_deviations
from paperbench.compare.evidence import Evidence
from paperbench.compare.responses import ReadAnalyses, Responses
from paperbench.compare.statistics import FIRST_ALPHA, holm
from paperbench.compare.verdicts import CellFacts, assess_cell
from paperbench.errors import listing
from paperbench.runs.external import ExternalResult
from paperbench.runs.record import Record
from paperbench.specs.cell import Cell
from paperbench.specs.table import Table

Requirement = Literal["no difference", "reproduced"]


@dataclass(frozen=True)
class Comparison:
    """The comparison of a table in one profile.

    Attributes:
        planned: Planned runs per cell.
        records: The records of our runs, by the run's id.
        claims_left_out: Number of claims about cells that were not selected.
        left_out: A sentence for each run, result or analysis that seems meant for the table but was not used.
    """

    table: Table
    profile: str
    planned: int
    cells: tuple[CellFacts, ...]
    records: Mapping[str, Record]
    claims: tuple[ClaimVerdict, ...]
    claims_left_out: int
    deviations: tuple[Deviation, ...]
    left_out: tuple[str, ...]

    @property
    def tested(self) -> list[CellFacts]:
        """Cells whose verdict rests on a statistical test and not on the number of failed runs."""
        return [cell for cell in self.cells if cell.p_value is not None]

    @property
    def expected_false_alarms(self) -> float:
        """Expected number of cells called worse or better if every true difference were exactly the tolerance."""
        return FIRST_ALPHA * len(self.tested)

    @property
    def differing(self) -> tuple[CellFacts, ...]:
        return tuple(cell for cell in self.cells if cell.differs)

    def must_reproduce(self, compared: CellFacts) -> bool:
        """Whether `--require reproduced` covers a cell: its result is printed, and it runs by default or has runs."""
        has_begun = any(net.shown for net in compared.nets)
        is_wanted = has_begun or not self.table.cell(compared.id).row.on_request
        return compared.published.value != "unprinted" and is_wanted

    def holds(self, requirement: Requirement = "no difference") -> bool:
        """Return whether no cell differs or, if required, whether every cell with a printed result is reproduced."""
        if requirement == "reproduced":
            return all(cell.verdict == "reproduced" for cell in self.cells if self.must_reproduce(cell))
        return not self.differing


def compare(
    table: Table,
    cells: Sequence[Cell],
    profile_name: str,
    records: Iterable[Record],
    externals: Iterable[ExternalResult] = (),
    *,
    training_mean: TrainingMean | None = None,
    analyses: ReadAnalyses = lambda: ((), ()),
    seeds: int | None = None,
    other_tables: Callable[[], Iterable[Table]] = tuple,
) -> Comparison:
    """Compare runs and external results with the published numbers and claims.

    Args:
        cells: The cells to compare. Claims are assessed if all their cells are among them.
        records: Records of any experiments; only those of this table are used.
        training_mean: Returns mean training losses and errors of a run. Without it, claims about them are undecided.
        analyses: Reads analyses of any nets; called only if a claim is about what they measure.
        seeds: Planned runs per cell. Default: the profile's or the table's.
        other_tables: Loads the other tables; called only if runs of this table's nets fit none of its cells.
    """
    profile = table.profiles.named(profile_name)
    planned = seeds or table.seeds_in(profile)
    evidence = Evidence(table, profile_name, planned, records, externals, other_tables)
    compared = _with_differences([assess_cell(cell, evidence) for cell in cells])
    unselected = {cell.id for cell in table.all_cells} - {cell.id for cell in cells}
    responses = Responses(analyses)
    claims = tuple(
        assess_claim(claim, evidence, training_mean or (lambda *_: None), responses)
        for claim in table.expected.claims
        if unselected.isdisjoint(claim.all_cells)
    )
    of_cells = table, profile_name, planned, compared, evidence.records
    of_claims = claims, len(table.expected.claims) - len(claims)
    deviations = tuple(find_deviations(table, profile, compared, evidence.records))
    return Comparison(*of_cells, *of_claims, deviations, (*evidence.left_out, *responses.complaints))


def trained_depth(comparison: Comparison, cells: Iterable[Cell]) -> str:
    """Return " at depth N" where the nets of some cells have another depth than the paper's."""
    profile = comparison.table.profiles.named(comparison.profile)
    depths = sorted(filter(None, {cell.net_in(profile).depth for cell in cells}))
    return f" at depth {listing([*map(str, depths)])}" if profile.depth and depths else ""


def _with_differences(cells: Sequence[CellFacts]) -> tuple[CellFacts, ...]:
    """Say which cells are worse or better after Holm's correction over all, or certainly so by failed runs."""
    p_values = {cell.id: cell.p_value for cell in cells if cell.p_value is not None}
    significant = dict(zip(p_values, holm([*p_values.values()], FIRST_ALPHA), strict=True))
    return tuple(
        replace(cell, differs=significant.get(cell.id, False) or cell.is_certain_by_failures)
        if cell.verdict in ("worse", "better")
        else cell
        for cell in cells
    )
