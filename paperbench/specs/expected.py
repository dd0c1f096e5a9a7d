"""What the paper prints in the cells of a table, what it says about them, and what others say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from paperbench.errors import PaperbenchError
from paperbench.specs.claim import Claim
from paperbench.specs.ids import check_ids
from paperbench.specs.strict_yaml import FieldError

Statistic = Literal["median", "single"]


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
        decimals: Of the printed errors.
    """

    statistic: Statistic
    n: int
    tolerance: float
    decimals: int = 2

    def __post_init__(self) -> None:
        if self.decimals < 0:
            raise FieldError("decimals", f"decimals must not be negative, as {self.decimals} is.")
        _check_spread(self.statistic, self.n, self.tolerance)


@dataclass(frozen=True)
class ExpectedCell:
    """A published result.

    Attributes:
        value: Test error in percent, "fail" (above 20 %, caption of Table 1), or "unprinted" for nets that the paper
            trained, or says something about, without a number.
        same_as: "table/row/column" of the cell that prints the same result; what is known of it stands there only.
        mean, std: Published mean and standard deviation over runs, in percent and percentage points.
        std_source: Where the standard deviation stands.
        statistic, n, tolerance: As in `Defaults`, where this cell differs.
        mark: The mark that the paper sets beside the number, explained in the table's footnotes.
        params: Number of parameters as printed, such as "1.7M".
        source: Where the number stands, if not in the table itself.
        note: What a reader must know beside the number.
    """

    value: float | Literal["fail", "unprinted"] | None = None
    same_as: str | None = None
    mean: float | None = None
    std: float | None = None
    std_source: str | None = None
    statistic: Statistic | None = None
    n: int | None = None
    tolerance: float | None = None
    mark: str | None = None
    params: str | None = None
    source: str | None = None
    note: str | None = None

    @classmethod
    def from_scalar(cls, value: Any) -> ExpectedCell:
        if value in ("fail", "unprinted"):
            return cls(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise PaperbenchError(f"{value!r} is neither a test error in percent nor `fail` nor `unprinted`.")
        return cls(float(value))

    def __post_init__(self) -> None:
        if (self.value is None) == (self.same_as is None):
            raise FieldError("value", "a cell needs a value, or same_as with the cell that has it; not both.")
        for name in ("value", "mean"):
            number = getattr(self, name)
            if isinstance(number, float):
                _check_error(name, number)
        if self.std is not None and self.std <= 0:
            raise FieldError("std", f"a standard deviation is positive, {self.std} is not.")
        if (self.std is None) != (self.std_source is None):
            given = "std" if self.std is not None else "std_source"
            raise FieldError(given, "std and std_source need each other.")
        if self.same_as is not None:
            self._check_reference(self.same_as)
        if not isinstance(self.value, float):
            for name in ("mean", "std", "tolerance"):
                if getattr(self, name) is not None:
                    raise FieldError(name, f"{name} is for cells with a number.")
        _check_spread(self.statistic, self.n, self.tolerance)

    def _check_reference(self, same_as: str) -> None:
        if same_as.count("/") != 2 or not all(same_as.split("/")):
            raise FieldError(
                "same_as", f"must be table/row/column, such as table2/original/resnet110, not {same_as!r}."
            )
        for name in ("statistic", "n", "source"):
            if getattr(self, name) is not None:
                raise FieldError(name, f"{name} stands with the number, in {same_as}.")

    def with_number_of(self, other: ExpectedCell) -> ExpectedCell:
        """The other cell's result, with what this cell says beside it."""
        own = {name: getattr(self, name) for name in ("mark", "params", "note") if getattr(self, name) is not None}
        return replace(other, **{"mark": None, "params": None, **own}, same_as=None)


def _check_error(field_name: str, error: float) -> None:
    if not 0 <= error <= 100:
        raise FieldError(field_name, f"a test error lies between 0 and 100 percent, {error} does not.")


def _check_spread(statistic: str | None, n: int | None, tolerance: float | None) -> None:
    if n is not None and n < 1:
        raise FieldError("n", f"n must be at least 1, not {n}.")
    if statistic == "single" and n not in (None, 1):
        raise FieldError("n", f"a single run is not {n} runs.")
    if tolerance is not None and tolerance <= 0:
        raise FieldError("tolerance", f"tolerance must be positive, not {tolerance}.")


@dataclass(frozen=True)
class LiteratureRow:
    """A row with numbers of others, which the paper prints for comparison. It is never run.

    Attributes:
        cells: Test errors in percent by column id.
        place: Whether it stands above or below the rows of the experiment.
        source: Where else the numbers can be found, or what they are.
    """

    id: str
    title: str
    cells: Mapping[str, float]
    place: Literal["above", "below"] = "above"
    labels: Mapping[str, str] = field(default_factory=dict)
    params: str | None = None
    source: str | None = None
    note: str | None = None
    where: str = ""

    def __post_init__(self) -> None:
        if not self.cells:
            raise FieldError("cells", "a row needs cells.")
        for error in self.cells.values():
            _check_error("cells", error)


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

    def __post_init__(self) -> None:
        _check_error("value", self.value)


@dataclass(frozen=True)
class Expected:
    """The file expected/<table>.yaml; `cells` is by row id, then column id.

    Attributes:
        footnotes: What the marks beside numbers mean.
    """

    schema: Literal[1]
    table: str
    source: Source
    defaults: Defaults
    cells: Mapping[str, Mapping[str, ExpectedCell]]
    literature: tuple[LiteratureRow, ...] = ()
    footnotes: Mapping[str, str] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    disputed: tuple[Disputed, ...] = ()
    peers: tuple[Peer, ...] = ()

    def __post_init__(self) -> None:
        check_ids("claims", [claim.id for claim in self.claims])
        check_ids("literature", [row.id for row in self.literature])
