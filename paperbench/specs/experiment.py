"""What to run for one table of the paper: rows, columns, and the nets in each cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from paperbench.catalogue import DATASETS, FAMILIES, NETS, resolve
from paperbench.errors import PaperbenchError, nearest
from paperbench.seeds import MOST_SEEDS
from paperbench.specs.ids import check_ids
from paperbench.specs.run_spec import Precision
from paperbench.specs.strict_yaml import FieldError, SpecError


@dataclass(frozen=True)
class NetReference:
    """A net: a name of the catalogue, with arguments if need be."""

    model: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in ("num_classes", "in_chans"):
            if key in self.kwargs:
                raise FieldError("kwargs", f"{key} follows from the data set; leave it out.")
        resolve(self.model, **self.kwargs)

    def __str__(self) -> str:
        listed = ", ".join(f"{key}={value!r}" for key, value in self.kwargs.items())
        return f"{self.model}({listed})" if listed else self.model

    @property
    def name(self) -> str:
        """The net's name without a tag."""
        return self.model.partition(".")[0]

    def check_size(self, dataset: str) -> None:
        """Make sure that the net is made for the images of a data set.

        Raises:
            PaperbenchError: It is made for images of another size.
        """
        name = self.name
        made_for, size = FAMILIES[NETS[name].family].size, DATASETS[dataset].size
        if made_for != size:
            raise PaperbenchError(
                f"{name} is a net for images of {made_for}x{made_for} pixels, and {DATASETS[dataset].title} has "
                f"{size}x{size}. Take a net of that size (`paperbench models`), or another data set."
            )

    def check_tag(self, dataset: str) -> None:
        """Make sure that the net is not tagged for another data set.

        Raises:
            PaperbenchError: It is.
        """
        tag = self.model.partition(".")[2]
        if tag and tag != dataset:
            raise PaperbenchError(f"{self.model} is tagged for {tag}, and the data set is {dataset}. Drop the tag.")


@dataclass(frozen=True)
class Setting:
    """One of the nets of a cell; most cells have just one.

    Attributes:
        label: What sets it apart from the cell's others, such as "gate_bias=-3"; empty if there are none.
    """

    label: str
    reference: NetReference


@dataclass(frozen=True)
class CellNets:
    """What a cell trains: a net, or one for each value of an argument if the paper gives one result for them all.

    Attributes:
        sweep: The argument, with its values.
    """

    model: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    sweep: Mapping[str, tuple[Any, ...]] | None = None

    @classmethod
    def from_scalar(cls, value: Any) -> CellNets:
        if not isinstance(value, str):
            raise PaperbenchError("must be the name of a net. `paperbench models` lists all.")
        return cls(value)

    def __post_init__(self) -> None:
        if self.sweep is not None and len(self.sweep) != 1:
            raise FieldError("sweep", "a sweep is over one argument.")
        for argument, values in (self.sweep or {}).items():
            if argument in self.kwargs:
                raise FieldError("sweep", f"{argument} is among kwargs too.")
            if argument == "depth":
                raise FieldError("sweep", "profiles choose the depth of every net; make a cell for each depth.")
            if len(values) < 2 or any(values.count(value) > 1 for value in values):
                raise FieldError("sweep", f"{argument} needs two values or more, each different.")
        _ = self.settings  # makes every net once, so that what is wrong with one is found here

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


@dataclass(frozen=True)
class Evaluation:
    """How a trained net is tested: on one central crop of an image whose shorter side was brought to `scale`.

    No part of a run: one training can be tested in several ways. Both are in pixels.
    """

    crop: int
    scale: int

    def __post_init__(self) -> None:
        if not 0 < self.crop <= self.scale:
            raise FieldError("crop", f"a crop of {self.crop} pixels does not fit an image of {self.scale}.")

    def __str__(self) -> str:
        return f"{self.crop}x{self.crop} crop of a shorter side of {self.scale}"


Metric = Literal["top1", "top5"]


@dataclass(frozen=True)
class Column:
    """A column of results.

    Attributes:
        metric: Which error of a run stands in it.
        dataset: What its nets train on, in tables where that is the same down a column.
    """

    id: str
    title: str
    metric: Metric = "top1"
    dataset: str | None = None

    def __post_init__(self) -> None:
        if self.dataset is not None:
            _check_dataset(self.dataset)


@dataclass(frozen=True)
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

    id: str
    title: str
    cells: Mapping[str, CellNets]
    figure: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    dataset: str | None = None
    recipe: str | None = None
    evaluation: Evaluation | None = None
    on_request: bool = False
    where: str = ""

    def __post_init__(self) -> None:
        if not self.cells:
            raise FieldError("cells", "a row needs cells.")
        if self.dataset is not None:
            _check_dataset(self.dataset)
            for column, nets in self.cells.items():
                _check_fit(column, nets, self.dataset)


def _check_dataset(dataset: str) -> None:
    if dataset not in DATASETS:
        raise FieldError("dataset", f"unknown data set {dataset!r}. {nearest(dataset, DATASETS)}")


def _check_fit(column: str, nets: CellNets, dataset: str) -> None:
    """Make sure that all nets of a cell are for the images of its data set."""
    for setting in nets.settings:
        try:
            setting.reference.check_size(dataset)
            setting.reference.check_tag(dataset)
        except PaperbenchError as error:
            raise FieldError("cells", f"{column}: {error}") from error


@dataclass(frozen=True)
class Experiment:
    """The file experiments/<table>.yaml.

    Attributes:
        recipe: Name of a file in experiments/recipes/.
        seeds: Runs a cell, fixed before the first; one extension to twice as many is allowed.
        case: What the paper calls the things in the rows.
        labels: Headings of the paper's further columns, with where they stand beside the results.
        precision: What runs are trained in unless the user chooses; None leaves it to the device.
    """

    schema: Literal[1]
    table: str
    title: str
    recipe: str
    seeds: int
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    case: str = "case"
    labels: Mapping[str, Literal["before", "after"]] = field(default_factory=dict)
    precision: Precision | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.seeds <= MOST_SEEDS:
            raise FieldError("seeds", f"seeds must be from 1 to {MOST_SEEDS}, not {self.seeds}.")
        for name in ("columns", "rows"):
            if not getattr(self, name):
                raise FieldError(name, f"a table needs {name}.")
        check_ids("columns", [column.id for column in self.columns])
        check_ids("rows", [row.id for row in self.rows])
        for row in self.rows:
            self._check_row(row)

    def dataset_of(self, row: Row, column: Column) -> str:
        """Key of the data set that a cell's nets train on."""
        return row.dataset or column.dataset or ""

    def _check_row(self, row: Row) -> None:
        columns = {column.id: column for column in self.columns}
        for label in row.labels:
            if label not in self.labels:
                raise SpecError(f"{row.where}: row {row.id!r}: unknown label {label!r}. {nearest(label, self.labels)}")
        for name, nets in row.cells.items():
            if name not in columns:
                raise SpecError(f"{row.where}: row {row.id!r}: unknown column {name!r}. {nearest(name, columns)}")
            if (row.dataset is None) == (columns[name].dataset is None):
                which = "neither does" if row.dataset is None else "both do"
                raise SpecError(
                    f"{row.where}: {row.id}/{name}: the data set must be given by the row or the column; {which}."
                )
            dataset = columns[name].dataset
            if dataset is not None:
                try:
                    _check_fit(name, nets, dataset)
                except PaperbenchError as error:
                    raise SpecError(f"{row.where}: row {row.id!r}: {error}") from error
