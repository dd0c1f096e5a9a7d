"""A statement of the paper about several cells of a table, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paperbench.specs.strict_yaml import FieldError

Kind = Literal["lower", "close", "diverges", "converges", "largest_gain", "higher_loss_lower_error", "early"]
Measure = Literal["test_error", "train_loss", "train_error"]

_TAKES = {
    "lower": {"cells", "measure"},
    "close": {"cells", "measure", "within"},
    "diverges": {"cells"},
    "converges": {"cells"},
    "largest_gain": {"pairs", "measure"},
    "higher_loss_lower_error": {"cells"},
    "early": {"cells", "measure", "iteration"},
}
_MAY_TAKE = {"lower": {"by"}}
_EMPTY = {"cells": (), "pairs": (), "measure": None, "within": None, "by": None, "iteration": None}


@dataclass(frozen=True)
class Claim:
    """One claim; what `cells` and `pairs` mean depends on its kind.

    Cells are `row/column` of the same table. In claims of kind "lower" all but the first may be of a literature row,
    whose number is then taken as exact.

    Attributes:
        says: The claim in a sentence.
        section: Where the paper makes it.
        kind:
            "lower": the first cell is lower than each other.
            "close": the first cell is within `within` of each other.
            "diverges": every cell fails.
            "converges": no cell fails.
            "largest_gain": the first pair's second cell is lower than its first by more than in each other pair.
            "higher_loss_lower_error": the first cell ends with a higher training loss and a lower test error than the
                second.
            "early": the first cell is lower than each other after `iteration` iterations, ended or not.
        cells, pairs: Which cells it is about.
        measure: What of them is compared: the final test error (in percent), or loss or error (in percent) over the
            images trained on last.
        within: In the unit of `measure`.
        by: Likewise: how much lower at least, where the paper's words are strong; any difference otherwise.
        note: How the sentence was turned into a test, where that was a choice.
    """

    id: str
    says: str
    section: str
    kind: Kind
    cells: tuple[str, ...] = ()
    pairs: tuple[tuple[str, ...], ...] = ()
    measure: Measure | None = None
    within: float | None = None
    by: float | None = None
    iteration: int | None = None
    note: str | None = None
    where: str = ""

    def __post_init__(self) -> None:
        takes = _TAKES[self.kind]
        for name, empty in _EMPTY.items():
            is_given = getattr(self, name) != empty
            if is_given and name not in takes | _MAY_TAKE.get(self.kind, set()):
                raise FieldError(name, f"a claim of kind {self.kind} has no use for {name}.")
            if not is_given and name in takes:
                raise FieldError("kind", f"a claim of kind {self.kind} needs {name}.")
        least = {"diverges": 1, "converges": 1, "largest_gain": 0}.get(self.kind, 2)
        if len(self.cells) < least or (self.kind == "higher_loss_lower_error" and len(self.cells) > 2):
            raise FieldError("cells", f"a claim of kind {self.kind} is not about {len(self.cells)} cells.")
        if len(set(self.cells)) < len(self.cells):
            raise FieldError("cells", "a cell stands twice.")
        if self.kind == "largest_gain" and (len(self.pairs) < 2 or any(len(pair) != 2 for pair in self.pairs)):
            raise FieldError("pairs", "a largest gain needs two pairs of two cells or more.")
        if self.kind == "early" and self.measure == "test_error":
            raise FieldError("measure", "early claims are about train_loss or train_error; a prefix has no test error.")
        for name in ("within", "by"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise FieldError(name, f"{name} must be positive, not {value}.")
        if self.iteration is not None and self.iteration < 1:
            raise FieldError("iteration", f"iteration must be at least 1, not {self.iteration}.")

    @property
    def all_cells(self) -> tuple[str, ...]:
        """Every cell that the claim is about, once."""
        return tuple(dict.fromkeys((*self.cells, *(cell for pair in self.pairs for cell in pair))))
