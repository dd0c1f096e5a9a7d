"""A comparison of a table: verdicts on its cells and claims, and the overall result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from paperbench.compare.claims import ClaimVerdict, TrainingMean, assess_claim
from paperbench.compare.deviations import Deviation, find_deviations
from paperbench.compare.evidence import Evidence
from paperbench.compare.responses import ReadAnalyses, Responses
from paperbench.compare.statistics import FIRST_ALPHA, holm
from paperbench.compare.verdicts import CellComparison, assess_cell
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
        claims_left_out: Number of claims about cells that were not selected.
        left_out: A sentence for each run, result or analysis that seems meant for the table but was not used.
    """

    table: Table
    profile: str
    planned: int
    cells: tuple[CellComparison, ...]
    claims: tuple[ClaimVerdict, ...]
    claims_left_out: int
    deviations: tuple[Deviation, ...]
    left_out: tuple[str, ...]

    @property
    def tested(self) -> list[CellComparison]:
        """Cells whose verdict rests on a statistical test and not on the number of failed runs."""
        return [c for c in self.cells if c.assessment.p_value is not None]

    @property
    def expected_false_alarms(self) -> float:
        """Expected number of cells called worse or better if every true difference were exactly the tolerance."""
        return FIRST_ALPHA * len(self.tested)

    @cached_property
    def differing(self) -> tuple[CellComparison, ...]:
        """Cells that are worse or better after Holm's correction over the table, or certainly so by failed runs."""
        tested = self.tested
        rejected = holm([c.assessment.p_value or 0.0 for c in tested], FIRST_ALPHA)
        significant = {c.cell.id for c, is_rejected in zip(tested, rejected, strict=True) if is_rejected}
        return tuple(
            c
            for c in self.cells
            if c.verdict in ("worse", "better") and (c.cell.id in significant or c.assessment.is_certain_by_failures)
        )

    def holds(self, requirement: Requirement = "no difference") -> bool:
        """Return whether no cell differs or, if required, whether every cell with a printed result is reproduced."""
        if requirement == "reproduced":
            return all(c.verdict == "reproduced" for c in self.cells if c.must_reproduce)
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
    compared = tuple(assess_cell(cell, evidence) for cell in cells)
    chosen = {cell.id for cell in cells}
    in_table = {cell.id for cell in table.all_cells}
    responses = Responses(analyses)
    claims = tuple(
        assess_claim(claim, evidence, training_mean or (lambda *_: None), responses)
        for claim in table.expected.claims
        if {cell for cell in claim.all_cells if cell in in_table} <= chosen
    )
    return Comparison(
        table,
        profile_name,
        planned,
        compared,
        claims,
        len(table.expected.claims) - len(claims),
        tuple(find_deviations(table, profile, compared)),
        (*evidence.left_out, *responses.complaints),
    )
