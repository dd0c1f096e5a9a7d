"""The published results of a table, the paper's claims about them, and results of others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from paperbench.specs.claim import Claim
from paperbench.typed import Count, Id, Line, Percent, Positive, Problem, Text, typed

Statistic = Literal["median", "best", "single"]


@typed
class Source:
    """The paper and table that the numbers were read from.

    A table of one's own has neither `arxiv` nor `table`. Without `table` it is named by its id.
    """

    paper: Line | None = None
    arxiv: Line | None = None
    table: Line | None = None

    def problems(self) -> Iterator[Problem]:
        if self.paper is None and (self.arxiv or self.table):
            yield Problem(("paper",), "is missing.")


@typed
class Defaults:
    """Values for the cells that do not override them.

    Attributes:
        statistic: The statistic over runs that is printed. The best run is printed only: ours are compared with `mean`.
        n: Number of runs behind it.
        tolerance: Percentage points within which two medians count as the same; set before the first run.
        decimals: Decimals of the printed errors.
    """

    statistic: Statistic
    n: Count
    tolerance: Positive
    decimals: Annotated[int, Field(ge=0, le=10)] = 2

    def problems(self) -> Iterator[Problem]:
        return _run_count_problems(self.statistic, self.n)


def _run_count_problems(statistic: Statistic | None, n: int | None) -> Iterator[Problem]:
    if statistic == "single" and n not in (None, 1):
        yield Problem(("n",), f"must be 1 for a single run, not {n}.")


WITHOUT_NUMBERS = Defaults("single", n=1, tolerance=0.5)
"""Those of a table without numbers. The tolerance only keeps runs near their median from being called outliers."""


@typed
class ExpectedCell:
    """A published result.

    Attributes:
        value: Test error in percent, "fail" (above 20 %, caption of Table 1), or "unprinted" for nets that the paper
            mentions without a number, as for cells that are left out.
        same_as: "table/row/column" of the cell that prints the same result. Only that cell describes the result.
        mean, std: Published mean and standard deviation over runs, in percent and percentage points.
        std_source: Source of the standard deviation.
        statistic, n, tolerance: Override `Defaults` for this cell.
        mark: The mark beside the number, explained in the table's footnotes.
        params: Number of parameters as printed, such as "1.7M".
        source: Source of the number, if it is not the table itself.
        note: Anything a reader must know about the number.
    """

    value: Percent | Literal["fail", "unprinted"] | None = None
    same_as: Line | None = None
    mean: Percent | None = None
    std: Positive | None = None
    std_source: Text | None = None
    statistic: Statistic | None = None
    n: Count | None = None
    tolerance: Positive | None = None
    mark: Line | None = None
    params: Line | None = None
    source: Text | None = None
    note: Text | None = None

    def problems(self) -> Iterator[Problem]:
        if (self.value is None) == (self.same_as is None):
            yield Problem(("value",), "a cell needs either value or same_as.")
        if (self.std is None) != (self.std_source is None):
            given = "std" if self.std is not None else "std_source"
            yield Problem((given,), "std and std_source must be given together.")
        if not isinstance(self.value, float):
            for name in self._given("mean", "std", "tolerance"):
                yield Problem((name,), "is only for cells with a number.")
        if self.same_as is not None:
            if self.same_as.count("/") != 2 or not all(self.same_as.split("/")):
                yield Problem(("same_as",), "must be table/row/column, such as table2/original/resnet110.")
            for name in self._given("statistic", "n", "source"):
                yield Problem((name,), f"belongs with the number, in {self.same_as}.")
        if self.statistic == "best" and self.mean is None:
            yield Problem(("mean",), "is needed beside the best run, which is no estimate of what others get.")
        yield from _run_count_problems(self.statistic, self.n)

    def _given(self, *names: str) -> list[str]:
        return [name for name in names if getattr(self, name) is not None]

    def with_number_of(self, other: ExpectedCell) -> ExpectedCell:
        """Return the other cell's result with this cell's mark, parameters and note."""
        own = {name: getattr(self, name) for name in self._given("mark", "params", "note")}
        return replace(other, **{"mark": None, "params": None, **own}, same_as=None)


def or_alone(kind: type, key: str, of_key: Any) -> BeforeValidator:
    """Accept a value of a typed class that is written as that of one of its keys alone."""
    return BeforeValidator(lambda one: one if isinstance(one, (dict, kind)) else {key: one}, of_key | kind)


WrittenCell = Annotated[ExpectedCell, or_alone(ExpectedCell, "value", Percent | Literal["fail", "unprinted"])]


@typed
class LiteratureRow:
    """A row of others' results, printed for comparison and never run.

    Attributes:
        cells: Test errors in percent by column id.
        place: Whether it is printed above or below the rows of the experiment.
        source: Source of the numbers.
    """

    id: Id
    title: Line
    cells: Annotated[Mapping[Id, Percent], Field(min_length=1)]
    place: Literal["above", "below"] = "above"
    labels: Mapping[Line, Line] = field(default_factory=dict)
    params: Line | None = None
    source: Text | None = None
    note: Text | None = None


@typed
class Disputed:
    """A wrong statement in circulation about a cell or the whole table, and the paper's statement."""

    circulates: Text
    paper: Text
    cell: Line | None = None


@typed
class Peer:
    """The result of a public re-implementation."""

    cell: Line
    value: Percent
    source: Line
    note: Line


@typed
class Expected:
    """The file expected/<table>.yaml.

    Attributes:
        source: Of the numbers, if there are any.
        defaults: Required if a cell has a number of its own, or `fail`.
        cells: Published results by row id, then column id. Nothing is published for cells that are left out.
        footnotes: Explanations of the marks beside numbers.
    """

    schema: Literal[1]
    table: Id
    source: Source = field(default_factory=Source)
    defaults: Defaults | None = None
    cells: Mapping[Id, Mapping[Id, WrittenCell]] = field(default_factory=dict)
    literature: tuple[LiteratureRow, ...] = ()
    footnotes: Mapping[Line, Text] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    disputed: tuple[Disputed, ...] = ()
    peers: tuple[Peer, ...] = ()

    def problems(self) -> Iterator[Problem]:
        yield from duplicate_ids("claims", self.claims)
        yield from duplicate_ids("literature", self.literature)
        if self.defaults is None:
            for row, cells in self.cells.items():
                for column, cell in cells.items():
                    if cell.value not in (None, "unprinted"):
                        message = "is published, so `defaults` must say by how many runs, and the tolerance."
                        yield Problem(("cells", row, column), message)


def duplicate_ids(field_name: str, items: Sequence[Any]) -> Iterator[Problem]:
    """Yield a problem for every item with the id of an earlier item."""
    seen = set()
    for i, item in enumerate(items):
        if item.id in seen:
            yield Problem((field_name, i, "id"), f"duplicate id {item.id!r}.")
        seen.add(item.id)
