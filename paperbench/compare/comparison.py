"""A table, judged: a verdict for each cell and each claim, and what they add up to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from paperbench.compare.claims import ClaimVerdict, TrainingMean, judge_claim
from paperbench.compare.deviations import Deviation, deviations
from paperbench.compare.evidence import Evidence
from paperbench.compare.statistics import FIRST_LOOK, holm
from paperbench.compare.verdicts import CellComparison, judge_cell
from paperbench.runs.external import ExternalResult
from paperbench.runs.record import Record
from paperbench.specs.table import Cell, Table

Requirement = Literal["no difference", "reproduced"]


@dataclass(frozen=True)
class Comparison:
    """A table in one profile.

    Attributes:
        planned: Runs per cell, fixed beforehand.
        claims_left_out: How many claims are about cells that were not selected.
        left_out: What was meant for the table and not used, one sentence each.
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
        """Cells whose verdict rests on a test, and not on how many runs failed."""
        return [c for c in self.cells if c.judgement.p_value is not None]

    @property
    def expected_false_alarms(self) -> float:
        """How many cells would be called worse or better by chance if each were just at the edge of its tolerance."""
        return FIRST_LOOK * len(self.tested)

    @cached_property
    def differing(self) -> tuple[CellComparison, ...]:
        """Cells that are worse or better even after Holm's correction over the table, or by rule with all runs."""
        tested = self.tested
        rejected = holm([c.judgement.p_value or 0.0 for c in tested], FIRST_LOOK)
        significant = {c.cell.id for c, is_rejected in zip(tested, rejected, strict=True) if is_rejected}
        return tuple(
            c
            for c in self.cells
            if c.verdict in ("worse", "better") and (c.cell.id in significant or c.judgement.is_sure_by_rule)
        )

    def holds(self, requirement: Requirement = "no difference") -> bool:
        """Whether no cell differs; or, if that is required, every cell is reproduced that can be."""
        if requirement == "reproduced":
            return all(c.verdict == "reproduced" for c in self.cells if c.asks_for_reproduction)
        return not self.differing


def compare(
    table: Table,
    cells: Sequence[Cell],
    profile_name: str,
    records: Iterable[Record],
    externals: Iterable[ExternalResult] = (),
    *,
    training_mean: TrainingMean | None = None,
    seeds: int | None = None,
    other_tables: Callable[[], Iterable[Table]] = tuple,
) -> Comparison:
    """Compare results with the published numbers, and judge both numbers and claims.

    Args:
        cells: Which to judge; claims are judged if all their cells are among them.
        records: Any; those of other experiments are ignored.
        externals: Results from elsewhere.
        training_mean: Where the training losses and errors of records come from; without it, claims about them stay
            undecided.
        seeds: Runs per cell, fixed beforehand, if not as many as the table says.
        other_tables: Called if there are runs of this table's nets that fit none of its cells.
    """
    profile = table.profiles.named(profile_name)
    planned = seeds or table.seeds_in(profile)
    evidence = Evidence(table, profile_name, planned, records, externals, other_tables)
    judged = tuple(judge_cell(cell, evidence) for cell in cells)
    chosen = {cell.id for cell in cells}
    in_table = {cell.id for cell in table.all_cells}
    claims = tuple(
        judge_claim(claim, evidence, training_mean or (lambda *_: None))
        for claim in table.expected.claims
        if {cell for cell in claim.all_cells if cell in in_table} <= chosen
    )
    return Comparison(
        table,
        profile_name,
        planned,
        judged,
        claims,
        len(table.expected.claims) - len(claims),
        tuple(deviations(table, profile, judged)),
        tuple(evidence.left_out),
    )
