"""The experiment behind one table of the paper: rows, columns, and the nets of each cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from paperbench.catalogue import DATASETS, FAMILIES, NETS, is_function, resolve
from paperbench.errors import PaperbenchError
from paperbench.seeds import MAX_SEEDS
from paperbench.specs.expected import duplicate_ids, or_alone
from paperbench.specs.run_spec import Precision, canonical_json
from paperbench.typed import Id, KeyPath, Line, Problem, one_of, typed, unknown_words


@dataclass(frozen=True)
class NetReference:
    """A net's name in the catalogue, or the function that makes it, with optional arguments."""

    model: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in ("num_classes", "in_chans"):
            if key in self.kwargs:
                raise PaperbenchError(f"{key} follows from the data set; remove it.")
        if not is_function(self.model):
            resolve(self.model, **self.kwargs)
            return
        try:
            canonical_json(dict(self.kwargs))
        except ValueError as error:
            raise PaperbenchError(f"{self.model}: numbers in its arguments must be finite.") from error

    def __str__(self) -> str:
        listed = ", ".join(f"{key}={value!r}" for key, value in self.kwargs.items())
        return f"{self.model}({listed})" if listed else self.model

    @property
    def name(self) -> str:
        """The net's name without its tag."""
        return bare_name(self.model)


def bare_name(net: str) -> str:
    """Return the text of a `NetReference` without tag and arguments."""
    name = net.partition("(")[0]
    return name if is_function(name) else name.partition(".")[0]


@dataclass(frozen=True)
class Setting:
    """One net of a cell. Most cells have a single one.

    Attributes:
        label: The value of the swept argument, such as "gate_bias=-3"; empty in a cell with a single net.
    """

    label: str
    reference: NetReference


@typed
class CellNets:
    """The net of a cell, or a sweep over one argument for which the paper gives a single result.

    Attributes:
        sweep: The argument and its values.
    """

    model: Line
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    sweep: Mapping[str, Annotated[tuple[Any, ...], Field(strict=False)]] | None = None

    def problems(self) -> Iterator[Problem]:
        if self.sweep is not None and len(self.sweep) != 1:
            yield Problem(("sweep",), "must have exactly one argument.")
            return
        for argument, values in (self.sweep or {}).items():
            if argument in self.kwargs:
                yield Problem(("sweep", argument), "is also in kwargs.")
            if argument == "depth":
                yield Problem(("sweep",), "depth cannot be swept, because profiles set it; add a cell per depth.")
            if len(values) < 2 or any(values.count(value) > 1 for value in values):
                yield Problem(("sweep", argument), "needs at least two different values, without duplicates.")
        try:
            _ = self.settings
        except PaperbenchError as error:
            yield Problem((), str(error))

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The nets in the order of the sweep."""
        if not self.sweep:
            return (Setting("", NetReference(self.model, self.kwargs)),)
        ((argument, values),) = self.sweep.items()
        return tuple(
            Setting(f"{argument}={value}", NetReference(self.model, {**self.kwargs, argument: value}))
            for value in values
        )


WrittenNets = Annotated[CellNets, or_alone(CellNets, "model", str)]


DatasetName = Annotated[str, one_of("data set", DATASETS)]
"""A key of `catalogue.DATASETS`."""


Metric = Literal["top1", "top5"]


@typed
class Column:
    """A column of results.

    Attributes:
        metric: The error that the column shows.
        dataset: Key of the data set that its nets train on, if the rows do not give it.
    """

    id: Id
    title: Line
    metric: Metric = "top1"
    dataset: DatasetName | None = None


@typed
class Row:
    """A row of the table.

    Attributes:
        figure: The paper's figure of the unit.
        labels: Further columns of the paper, from heading to text.
        dataset: Key of the data set that its nets train on, if the columns do not give it.
        recipe: Name of its recipe, if it is not the table's.
        evaluation: How its nets are tested: a name in its recipe's `evaluations`; None means on whole images.
        on_request: Whether it runs only if its row is named, because it is costly or not in the printed table.
    """

    id: Id
    title: Line
    cells: Annotated[Mapping[Id, WrittenNets], Field(min_length=1)]
    figure: Line = ""
    labels: Mapping[Line, Line] = field(default_factory=dict)
    dataset: DatasetName | None = None
    recipe: Line | None = None
    evaluation: Id | None = None
    on_request: bool = False


@typed
class DrawnUnit:
    """A drawing of residual units in a figure.

    Attributes:
        net: The net whose inner unit is drawn.
        form: "unit": one unit. "chain": several in a row. "asymmetric": a chain of pre-activation units with the
            borders after each activation of the residual path, as in Fig. 5(b), and not after each addition.
    """

    title: Line
    net: Line
    form: Literal["unit", "chain", "asymmetric"] = "unit"

    def __post_init__(self) -> None:
        resolve(self.net)


@typed
class Panel:
    """A panel with the training curves of some cells.

    Attributes:
        cells: Ids "row/column".
    """

    title: Line
    cells: Annotated[tuple[Line, ...], Field(min_length=1)]


@typed
class Figure:
    """A figure of the paper: units, then panels with curves."""

    id: Id
    title: Line
    units: tuple[DrawnUnit, ...] = ()
    panels: tuple[Panel, ...] = ()


@typed
class Experiment:
    """The file experiments/<table>.yaml.

    Attributes:
        recipe: Name of a file in experiments/recipes/.
        seeds: Runs per cell, fixed before the first run; one extension to twice as many is allowed.
        case: Heading of the row titles.
        labels: Headings of the paper's further columns, with their position relative to the results.
        precision: Default precision of the runs; None means the device's default.
        figures: The paper's figures of these nets.
        panel_per: Whether the curves of a column or those of a row are drawn into one panel.
    """

    schema: Literal[1]
    table: Id
    title: Line
    recipe: Line
    seeds: Annotated[int, Field(ge=1, le=MAX_SEEDS)]
    columns: Annotated[tuple[Column, ...], Field(min_length=1)]
    rows: Annotated[tuple[Row, ...], Field(min_length=1)]
    case: Line = "case"
    labels: Mapping[Line, Literal["before", "after"]] = field(default_factory=dict)
    precision: Precision | None = None
    figures: tuple[Figure, ...] = ()
    panel_per: Literal["column", "row"] = "column"

    def problems(self) -> Iterator[Problem]:
        yield from duplicate_ids("columns", self.columns)
        yield from duplicate_ids("rows", self.rows)
        yield from duplicate_ids("figures", self.figures)
        cells = [f"{row.id}/{column}" for row in self.rows for column in row.cells]
        for i, figure in enumerate(self.figures):
            for j, panel in enumerate(figure.panels):
                found = ((("figures", i, "panels", j, "cells", k), cell) for k, cell in enumerate(panel.cells))
                yield from unknown_words("cell", found, cells)
        for label in self.labels:
            if not any(label in row.labels for row in self.rows):
                yield Problem(("labels", label), "no row has this label.")
        columns = {column.id: column for column in self.columns}
        for i, row in enumerate(self.rows):
            path = "rows", i
            yield from unknown_words("label", (((*path, "labels", label), label) for label in row.labels), self.labels)
            yield from unknown_words("column", (((*path, "cells", column), column) for column in row.cells), columns)
            for name in [name for name in row.cells if name in columns]:
                cell, dataset = (*path, "cells", name), columns[name].dataset
                if row.dataset is None and dataset is None:
                    yield Problem(cell, "needs a data set: give it in the row or in the column.")
                elif row.dataset is not None and dataset is not None:
                    yield Problem(cell, "has two data sets: remove that of the row or of the column.")
                else:
                    yield from _net_problems(cell, row.cells[name], row.dataset or dataset or "")


def _net_problems(path: KeyPath, nets: CellNets, dataset: str) -> Iterator[Problem]:
    """Check that nets fit the images of their data set."""
    reference, info = nets.settings[0].reference, DATASETS[dataset]
    if is_function(reference.model):
        return
    name, _, tag = reference.model.partition(".")
    family = FAMILIES[NETS[name].family]
    if not family.takes(info.size):
        message = (
            f"{name} expects images of {family.size}x{family.size} pixels, but {info.title} has "
            f"{info.size}x{info.size}. Choose another net (`paperbench models` lists them) or data set."
        )
        yield Problem(path, message)
    elif tag and tag != dataset:
        message = f"{reference.model} is tagged for {tag}, but the data set is {dataset}. Remove the tag."
        yield Problem(path, message)
