"""What to run for one table of the paper: rows, columns, and the nets in each cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from paperbench.catalogue import DATASETS, FAMILIES, NETS, resolve
from paperbench.errors import PaperbenchError
from paperbench.seeds import MAX_SEEDS
from paperbench.specs.expected import repeated
from paperbench.specs.run_spec import Precision
from paperbench.typed import Count, Id, KeyPath, Problem, Text, check, one_of, typed, unknown


@dataclass(frozen=True)
class NetReference:
    """A net: a name of the catalogue, with arguments if need be."""

    model: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in ("num_classes", "in_chans"):
            if key in self.kwargs:
                raise PaperbenchError(f"{key} follows from the data set; leave it out.")
        resolve(self.model, **self.kwargs)

    def __str__(self) -> str:
        listed = ", ".join(f"{key}={value!r}" for key, value in self.kwargs.items())
        return f"{self.model}({listed})" if listed else self.model

    @property
    def name(self) -> str:
        """The net's name without a tag."""
        return self.model.partition(".")[0]

    @property
    def image_size(self) -> int:
        """Side of the images that it is made for, in pixels."""
        return FAMILIES[NETS[self.name].family].size


@dataclass(frozen=True)
class Setting:
    """One of the nets of a cell; most cells have just one.

    Attributes:
        label: What sets it apart from the cell's others, such as "gate_bias=-3"; empty if there are none.
    """

    label: str
    reference: NetReference


@typed
class CellNets:
    """What a cell trains: a net, or one for each value of an argument if the paper gives one result for them all.

    Attributes:
        sweep: The argument, with its values.
    """

    model: Text
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    sweep: Mapping[str, Annotated[tuple[Any, ...], Field(strict=False)]] | None = None

    def __post_init__(self) -> None:
        check(self._problems())

    def _problems(self) -> Iterator[Problem]:
        if self.sweep is not None and len(self.sweep) != 1:
            yield Problem(("sweep",), "a sweep is over one argument.")
            return
        for argument, values in (self.sweep or {}).items():
            if argument in self.kwargs:
                yield Problem(("sweep", argument), "is among kwargs too.")
            if argument == "depth":
                yield Problem(("sweep",), "profiles choose the depth of every net; make a cell for each depth.")
            if len(values) < 2 or any(values.count(value) > 1 for value in values):
                yield Problem(("sweep", argument), "needs two values or more, each different.")
        try:
            _ = self.settings
        except PaperbenchError as error:
            yield Problem((), str(error))

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The nets, in the order of the sweep."""
        if not self.sweep:
            return (Setting("", NetReference(self.model, self.kwargs)),)
        ((argument, values),) = self.sweep.items()
        return tuple(
            Setting(f"{argument}={value}", NetReference(self.model, {**self.kwargs, argument: value}))
            for value in values
        )


def _with_model(nets: Any) -> Any:
    """A cell may be written as the name of its net alone."""
    return nets if isinstance(nets, (dict, CellNets)) else {"model": nets}


WrittenNets = Annotated[CellNets, BeforeValidator(_with_model, str | CellNets)]


DatasetName = Annotated[str, one_of("data set", DATASETS)]
"""A key of `catalogue.DATASETS`."""


@typed
class Evaluation:
    """How a trained net is tested: on one central crop of an image whose shorter side was brought to `scale`.

    No part of a run: one training can be tested in several ways. Both are in pixels.
    """

    crop: Count
    scale: int

    def __post_init__(self) -> None:
        if self.crop > self.scale:
            raise ValueError(f"a crop of {self.crop} pixels does not fit an image of {self.scale}.")

    def __str__(self) -> str:
        return f"{self.crop}x{self.crop} crop of a shorter side of {self.scale}"


Metric = Literal["top1", "top5"]


@typed
class Column:
    """A column of results.

    Attributes:
        metric: Which error of a run stands in it.
        dataset: What its nets train on, in tables where that is the same down a column.
    """

    id: Id
    title: Text
    metric: Metric = "top1"
    dataset: DatasetName | None = None


@typed
class Row:
    """A row of the table.

    Attributes:
        figure: The paper's figure that draws the unit.
        labels: The paper's further columns: heading to text.
        dataset: What its nets train on, unless the column says so.
        recipe: Name of a recipe, if it is not the table's.
        evaluation: How its nets are tested; None: on the whole image.
        on_request: Whether it is run only if it is named: too costly, or no part of the printed table.
    """

    id: Id
    title: Text
    cells: Annotated[Mapping[Id, WrittenNets], Field(min_length=1)]
    figure: Text = ""
    labels: Mapping[Text, Text] = field(default_factory=dict)
    dataset: DatasetName | None = None
    recipe: Text | None = None
    evaluation: Evaluation | None = None
    on_request: bool = False


@typed
class Experiment:
    """The file experiments/<table>.yaml.

    Attributes:
        recipe: Name of a file in experiments/recipes/.
        seeds: Runs per cell, fixed before the first; one extension to twice as many is allowed.
        case: What the paper calls the things in the rows.
        labels: Headings of the paper's further columns, with where they stand beside the results.
        precision: What runs are trained in unless the user chooses; None leaves it to the device.
    """

    schema: Literal[1]
    table: Id
    title: Text
    recipe: Text
    seeds: Annotated[int, Field(ge=1, le=MAX_SEEDS)]
    columns: Annotated[tuple[Column, ...], Field(min_length=1)]
    rows: Annotated[tuple[Row, ...], Field(min_length=1)]
    case: Text = "case"
    labels: Mapping[Text, Literal["before", "after"]] = field(default_factory=dict)
    precision: Precision | None = None

    def __post_init__(self) -> None:
        check(self._problems())

    def _problems(self) -> Iterator[Problem]:
        yield from repeated("columns", self.columns)
        yield from repeated("rows", self.rows)
        for label in self.labels:
            if not any(label in row.labels for row in self.rows):
                yield Problem(("labels", label), "no row has this label.")
        columns = {column.id: column for column in self.columns}
        for i, row in enumerate(self.rows):
            place = "rows", i
            yield from unknown("label", (((*place, "labels", label), label) for label in row.labels), self.labels)
            yield from unknown("column", (((*place, "cells", column), column) for column in row.cells), columns)
            for name in [name for name in row.cells if name in columns]:
                cell, dataset = (*place, "cells", name), columns[name].dataset
                if row.dataset is None and dataset is None:
                    yield Problem(cell, "the data set must be given by the row or the column; neither does.")
                elif row.dataset is not None and dataset is not None:
                    yield Problem(cell, "the data set must be given by the row or the column; both do.")
                else:
                    yield from _misfits(cell, row.cells[name], row.dataset or dataset or "")


def _misfits(place: KeyPath, nets: CellNets, dataset: str) -> Iterator[Problem]:
    """Problems of nets that are not for the images of their data set."""
    reference, info = nets.settings[0].reference, DATASETS[dataset]
    name, _, tag = reference.model.partition(".")
    if reference.image_size != info.size:
        message = (
            f"{name} is a net for images of {reference.image_size}x{reference.image_size} pixels, and {info.title} has "
            f"{info.size}x{info.size}. Take a net of that size (`paperbench models`), or another data set."
        )
        yield Problem(place, message)
    elif tag and tag != dataset:
        message = f"{reference.model} is tagged for {tag}, and the data set is {dataset}. Drop the tag."
        yield Problem(place, message)
