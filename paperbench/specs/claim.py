"""Claims of the paper about the cells of a table, as data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Literal

from paperbench.errors import PaperbenchError
from paperbench.options import number
from paperbench.typed import Count, Id, Line, Positive, Problem, Text, from_json, typed

Kind = Literal[
    "lower", "close", "diverges", "converges", "largest_gain", "higher_loss_lower_error", "early", "declines"
]
Measure = Literal["test_error", "train_loss", "train_error", "negative_share"]

_REQUIRED = {
    "lower": {"cells", "measure"},
    "close": {"cells", "measure", "within"},
    "diverges": {"cells"},
    "converges": {"cells"},
    "largest_gain": {"pairs", "measure"},
    "higher_loss_lower_error": {"cells"},
    "early": {"cells", "measure", "iteration"},
    "declines": {"cells", "measure"},
}
_OPTIONAL = {"lower": {"by"}}


@typed
class Claim:
    """One claim. The meaning of `cells` and `pairs` depends on its kind.

    Cells are `row/column` of the same table. In "lower" claims all cells but the first may be in a literature row,
    whose number is then treated as exact.

    Attributes:
        says: The claim in a sentence.
        section: Where the paper makes it.
        kind:
            "lower": the first cell is lower than each other cell.
            "close": the first cell is within `within` of each other cell.
            "diverges": every cell fails.
            "converges": no cell fails.
            "largest_gain": the drop from first to second cell is larger in the first pair than in each other pair.
            "higher_loss_lower_error": the first cell ends with a higher training loss and a lower test error than the
                second.
            "early": the first cell is lower than each other cell after `iteration` iterations, whether the runs have
                ended or not.
            "declines": each cell is lower at the end of training than at initialisation.
        cells, pairs: The cells that the claim compares.
        measure: The quantity compared: final test error (percent), training loss or error (percent) over the most
            recent iterations, or the share (percent) of y_l < 0 in the trained net, which analyses measure.
        within: Margin in the unit of `measure`.
        by: Minimum difference in the unit of `measure`, where the paper's wording is strong; default: any difference.
        note: How the sentence was turned into a test, if that was a choice.
    """

    id: Id
    says: Text
    section: Line
    kind: Kind
    cells: tuple[Line, ...] = ()
    pairs: tuple[tuple[Line, ...], ...] = ()
    measure: Measure | None = None
    within: Positive | None = None
    by: Positive | None = None
    iteration: Count | None = None
    note: Text | None = None

    def __repr__(self) -> str:
        return f"<claim {self.id}: {self.kind}>"

    def problems(self) -> Iterator[Problem]:
        required = _REQUIRED[self.kind]
        for name in ("cells", "pairs", "measure", "within", "by", "iteration"):
            is_given = bool(getattr(self, name))
            if is_given and name not in required | _OPTIONAL.get(self.kind, set()):
                yield Problem((name,), f"is not used by claims of kind {self.kind}.")
            if not is_given and name in required:
                yield Problem(("kind",), f"a claim of kind {self.kind} needs {name}.")
        if "cells" in required and self.cells:
            minimum = 1 if self.kind in ("diverges", "converges", "declines") else 2
            maximum = 2 if self.kind == "higher_loss_lower_error" else len(self.cells)
            if not minimum <= len(self.cells) <= maximum:
                bounds = f"exactly {minimum}" if maximum == minimum else f"at least {minimum}"
                message = f"a claim of kind {self.kind} needs {bounds} cells, not {len(self.cells)}."
                yield Problem(("cells",), message)
            if len(set(self.cells)) < len(self.cells):
                yield Problem(("cells",), "lists a cell twice.")
        if self.pairs and (len(self.pairs) < 2 or any(len(pair) != 2 for pair in self.pairs)):
            yield Problem(("pairs",), "a claim of kind largest_gain needs at least 2 pairs of 2 cells.")
        if self.kind == "early" and self.measure in ("test_error", "negative_share"):
            yield Problem(("measure",), "must be train_loss or train_error: runs have no others before they end.")
        if self.kind == "declines" and self.measure not in (None, "negative_share"):
            yield Problem(("measure",), "must be negative_share: no others are measured at initialisation.")

    @property
    def all_cells(self) -> tuple[str, ...]:
        """Every cell of the claim, once."""
        return tuple(dict.fromkeys((*self.cells, *(cell for pair in self.pairs for cell in pair))))


ASKED = "asked by the user"
"""The section of a claim that no paper makes."""


def asked_claim(text: str, n: int) -> Claim:
    """Return the n-th question of one's own about test errors, "A < B" or "A < B by 0.5" points, as a claim."""
    found = re.fullmatch(r"\s*([^\s<]+)\s*<\s*(\S+)(?:\s+by\s+([\d.]+))?\s*", text)
    if not found:
        raise PaperbenchError(f"--claim takes 'ROW/COLUMN < ROW/COLUMN', with `by POINTS` or not, and not {text!r}.")
    *cells, by = found.groups()
    values = {"cells": cells, "by": None if by is None else number(by), "kind": "lower", "measure": "test_error"}
    return from_json(Claim, json.dumps({"id": f"_asked_{n}", "says": text, "section": ASKED, **values}))
