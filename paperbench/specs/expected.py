"""What the paper prints in the cells of a table, where it stands, and what others say of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from paperbench.errors import PaperbenchError
from paperbench.specs.strict_yaml import FieldError


@dataclass(frozen=True)
class Source:
    """Where the numbers were read."""

    paper: str
    arxiv: str
    table: str


@dataclass(frozen=True)
class Defaults:
    """What holds for every cell that does not say otherwise.

    Attributes:
        statistic: What of several runs is printed.
        n: Number of those runs.
        tolerance: Percentage points within which two medians count as the same; set before the first run.
    """

    statistic: Literal["median"]
    n: int
    tolerance: float

    def __post_init__(self) -> None:
        _check_spread(self.n, self.tolerance)


@dataclass(frozen=True)
class ExpectedCell:
    """A published number.

    Attributes:
        value: Test error in percent, or "fail" (above 20 %, caption of Table 1).
        std: Published standard deviation over runs, in percentage points.
        std_source: Where that stands.
        n, tolerance: As in `Defaults`, where this cell differs.
        note: What a reader must know beside the number.
    """

    value: float | Literal["fail"]
    std: float | None = None
    std_source: str | None = None
    n: int | None = None
    tolerance: float | None = None
    note: str | None = None

    @classmethod
    def from_scalar(cls, value: Any) -> ExpectedCell:
        if value != "fail" and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise PaperbenchError(f"{value!r} is neither a test error in percent nor `fail`.")
        return cls("fail" if value == "fail" else float(value))

    def __post_init__(self) -> None:
        if self.value != "fail" and not 0 <= self.value <= 100:
            raise FieldError("value", f"a test error lies between 0 and 100 percent, {self.value} does not.")
        if self.std is not None and self.std < 0:
            raise FieldError("std", f"a standard deviation is not negative, as {self.std} is.")
        if (self.std is None) != (self.std_source is None):
            given = "std" if self.std is not None else "std_source"
            raise FieldError(given, "std and std_source need each other.")
        _check_spread(self.n, self.tolerance)


def _check_spread(n: int | None, tolerance: float | None) -> None:
    if n is not None and n < 1:
        raise FieldError("n", f"n must be at least 1, not {n}.")
    if tolerance is not None and tolerance <= 0:
        raise FieldError("tolerance", f"tolerance must be positive, not {tolerance}.")


@dataclass(frozen=True)
class Disputed:
    """Something that circulates about a cell, or about the whole table, and what the paper has instead."""

    circulates: str
    paper: str
    cell: str | None = None
    where: str = ""


@dataclass(frozen=True)
class Peer:
    """What a public re-implementation got."""

    cell: str
    value: float
    source: str
    note: str
    where: str = ""


@dataclass(frozen=True)
class Expected:
    """The file expected/<table>.yaml; `cells` is by row id, then column id."""

    schema: Literal[1]
    table: str
    source: Source
    defaults: Defaults
    cells: Mapping[str, Mapping[str, ExpectedCell]]
    disputed: tuple[Disputed, ...] = ()
    peers: tuple[Peer, ...] = ()
