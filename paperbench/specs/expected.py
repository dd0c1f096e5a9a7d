"""What the paper prints in the cells of a table, what it says about them, and what others say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from paperbench.specs.claim import Claim
from paperbench.typed import Count, Id, Positive, Problem, Text, check, typed

Statistic = Literal["median", "single"]
Percent = Annotated[float, Field(ge=0, le=100)]


@typed
class Source:
    """Where the numbers were read."""

    paper: Text
    arxiv: Text
    table: Text


@typed
class Defaults:
    """What holds for every cell that does not say otherwise.

    Attributes:
        statistic: What of several runs is printed.
        n: Number of those runs.
        tolerance: Percentage points within which two medians count as the same; set before the first run.
        decimals: Of the printed errors.
    """

    statistic: Statistic
    n: Count
    tolerance: Positive
    decimals: Annotated[int, Field(ge=0, le=10)] = 2

    def __post_init__(self) -> None:
        check(_number_of_runs(self.statistic, self.n))


def _number_of_runs(statistic: Statistic | None, n: int | None) -> Iterator[Problem]:
    if statistic == "single" and n not in (None, 1):
        yield Problem(("n",), f"a single run is not {n} runs.")


@typed
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

    value: Percent | Literal["fail", "unprinted"] | None = None
    same_as: Text | None = None
    mean: Percent | None = None
    std: Positive | None = None
    std_source: Text | None = None
    statistic: Statistic | None = None
    n: Count | None = None
    tolerance: Positive | None = None
    mark: Text | None = None
    params: Text | None = None
    source: Text | None = None
    note: Text | None = None

    def __post_init__(self) -> None:
        check(self._problems())

    def _problems(self) -> Iterator[Problem]:
        if (self.value is None) == (self.same_as is None):
            yield Problem(("value",), "a cell needs a value, or same_as with the cell that has it; not both.")
        if (self.std is None) != (self.std_source is None):
            given = "std" if self.std is not None else "std_source"
            yield Problem((given,), "std and std_source need each other.")
        if not isinstance(self.value, float):
            for name in self._given("mean", "std", "tolerance"):
                yield Problem((name,), "is for cells with a number.")
        if self.same_as is not None:
            if self.same_as.count("/") != 2 or not all(self.same_as.split("/")):
                yield Problem(("same_as",), "must be table/row/column, such as table2/original/resnet110.")
            for name in self._given("statistic", "n", "source"):
                yield Problem((name,), f"stands with the number, in {self.same_as}.")
        yield from _number_of_runs(self.statistic, self.n)

    def _given(self, *names: str) -> list[str]:
        return [name for name in names if getattr(self, name) is not None]

    def with_number_of(self, other: ExpectedCell) -> ExpectedCell:
        """The other cell's result, with what this cell says beside it."""
        own = {name: getattr(self, name) for name in self._given("mark", "params", "note")}
        return replace(other, **{"mark": None, "params": None, **own}, same_as=None)


def _with_value(cell: Any) -> Any:
    """A cell may be written as its value alone."""
    return cell if isinstance(cell, (dict, ExpectedCell)) else {"value": cell}


WrittenCell = Annotated[
    ExpectedCell, BeforeValidator(_with_value, Percent | Literal["fail", "unprinted"] | ExpectedCell)
]


@typed
class LiteratureRow:
    """A row with numbers of others, which the paper prints for comparison. It is never run.

    Attributes:
        cells: Test errors in percent by column id.
        place: Whether it stands above or below the rows of the experiment.
        source: Where else the numbers can be found, or what they are.
    """

    id: Id
    title: Text
    cells: Annotated[Mapping[Id, Percent], Field(min_length=1)]
    place: Literal["above", "below"] = "above"
    labels: Mapping[Text, Text] = field(default_factory=dict)
    params: Text | None = None
    source: Text | None = None
    note: Text | None = None


@typed
class Disputed:
    """Something that circulates about a cell, or about the whole table, and what the paper has instead."""

    circulates: Text
    paper: Text
    cell: Text | None = None


@typed
class Peer:
    """What a public re-implementation got."""

    cell: Text
    value: Percent
    source: Text
    note: Text


@typed
class Expected:
    """The file expected/<table>.yaml; `cells` is by row id, then column id.

    Attributes:
        footnotes: What the marks beside numbers mean.
    """

    schema: Literal[1]
    table: Id
    source: Source
    defaults: Defaults
    cells: Mapping[Id, Mapping[Id, WrittenCell]]
    literature: tuple[LiteratureRow, ...] = ()
    footnotes: Mapping[Text, Text] = field(default_factory=dict)
    claims: tuple[Claim, ...] = ()
    disputed: tuple[Disputed, ...] = ()
    peers: tuple[Peer, ...] = ()

    def __post_init__(self) -> None:
        check([*repeated("claims", self.claims), *repeated("literature", self.literature)])


def repeated(name: str, items: Sequence[Any]) -> Iterator[Problem]:
    """Problems of items that have the id of an earlier one.

    Args:
        name: Of the field that lists them.
    """
    seen = set()
    for i, item in enumerate(items):
        if item.id in seen:
            yield Problem((name, i, "id"), f"another of the {name} is called {item.id!r} too.")
        seen.add(item.id)
