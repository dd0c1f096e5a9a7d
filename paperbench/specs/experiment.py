"""What to run for one table of the paper: rows, columns, and the net in each cell."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from paperbench.catalogue import DATASETS, FAMILIES, NETS, resolve
from paperbench.errors import PaperbenchError, nearest
from paperbench.specs.strict_yaml import FieldError, SpecError

_ID = re.compile("[a-z0-9_]+")


@dataclass(frozen=True)
class NetReference:
    """A net in a cell: a name of the catalogue, with arguments if need be."""

    model: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_scalar(cls, value: Any) -> NetReference:
        if not isinstance(value, str):
            raise PaperbenchError("must be the name of a net. `paperbench models` lists all.")
        return cls(value)

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
class Column:
    """A column of results; the error of a run stands in it."""

    id: str
    title: str


@dataclass(frozen=True)
class Row:
    """A row of the table; every cell trains on `dataset`."""

    id: str
    title: str
    figure: str
    dataset: str
    cells: Mapping[str, NetReference]
    where: str = ""

    def __post_init__(self) -> None:
        if self.dataset not in DATASETS:
            raise FieldError("dataset", f"unknown data set {self.dataset!r}. {nearest(self.dataset, DATASETS)}")
        for column, reference in self.cells.items():
            try:
                reference.check_size(self.dataset)
                reference.check_tag(self.dataset)
            except PaperbenchError as error:
                raise FieldError("cells", f"{column}: {error}") from error


@dataclass(frozen=True)
class Experiment:
    """The file experiments/<table>.yaml.

    Attributes:
        recipe: Name of a file in experiments/recipes/.
        seeds: Runs a cell, fixed before the first.
    """

    schema: Literal[1]
    table: str
    title: str
    recipe: str
    seeds: int
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise FieldError("seeds", f"seeds must be at least 1, not {self.seeds}.")
        for name in ("columns", "rows"):
            if not getattr(self, name):
                raise FieldError(name, f"a table needs {name}.")
        columns = [column.id for column in self.columns]
        rows = [row.id for row in self.rows]
        for name, ids in (("columns", columns), ("rows", rows)):
            for one in ids:
                if not _ID.fullmatch(one):
                    raise FieldError(name, f"the id {one!r} must be made of small letters, digits and underscores.")
                if ids.count(one) > 1:
                    raise FieldError(name, f"the id {one!r} stands twice in {name}.")
        for row in self.rows:
            for column in row.cells:
                if column not in columns:
                    raise SpecError(
                        f"{row.where}: row {row.id!r}: unknown column {column!r}. {nearest(column, columns)}"
                    )
