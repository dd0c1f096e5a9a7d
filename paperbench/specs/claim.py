"""A statement of the paper about several cells of a table, as data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from paperbench.typed import Count, Id, Positive, Problem, Text, check, typed

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


@typed
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

    id: Id
    says: Text
    section: Text
    kind: Kind
    cells: tuple[Text, ...] = ()
    pairs: tuple[tuple[Text, ...], ...] = ()
    measure: Measure | None = None
    within: Positive | None = None
    by: Positive | None = None
    iteration: Count | None = None
    note: Text | None = None

    def __post_init__(self) -> None:
        check(self._problems())

    def _problems(self) -> Iterator[Problem]:
        takes = _TAKES[self.kind]
        for name in ("cells", "pairs", "measure", "within", "by", "iteration"):
            is_given = bool(getattr(self, name))
            if is_given and name not in takes | _MAY_TAKE.get(self.kind, set()):
                yield Problem((name,), f"a claim of kind {self.kind} has no use for it.")
            if not is_given and name in takes:
                yield Problem(("kind",), f"a claim of kind {self.kind} needs {name}.")
        if "cells" in takes and self.cells:
            fewest = 1 if self.kind in ("diverges", "converges") else 2
            if len(self.cells) < fewest or (self.kind == "higher_loss_lower_error" and len(self.cells) > 2):
                yield Problem(("cells",), f"a claim of kind {self.kind} is not about {len(self.cells)} cells.")
            if len(set(self.cells)) < len(self.cells):
                yield Problem(("cells",), "a cell stands twice.")
        if self.pairs and (len(self.pairs) < 2 or any(len(pair) != 2 for pair in self.pairs)):
            yield Problem(("pairs",), "a largest gain needs two or more pairs of two cells.")
        if self.kind == "early" and self.measure == "test_error":
            yield Problem(("measure",), "must be train_loss or train_error: a prefix of a run has no test error.")

    @property
    def all_cells(self) -> tuple[str, ...]:
        """Every cell that the claim is about, once."""
        return tuple(dict.fromkeys((*self.cells, *(cell for pair in self.pairs for cell in pair))))
