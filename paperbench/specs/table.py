"""A table of the paper: its experiment, the published numbers and the recipe, read together and checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import yaml

from paperbench.catalogue import DATASETS, Net, resolve, tags
from paperbench.errors import PaperbenchError, nearest
from paperbench.specs.expected import Defaults, Disputed, Expected, ExpectedCell, Peer
from paperbench.specs.experiment import Column, Experiment, NetReference, Row
from paperbench.specs.profile import Profile, Profiles
from paperbench.specs.recipe import Recipe
from paperbench.specs.strict_yaml import SpecError, bind, items, overlay, position_of, read_mapping


@dataclass(frozen=True)
class Cell:
    """One cell: where it stands and what the paper prints there."""

    row: Row
    column: Column
    expected: ExpectedCell
    defaults: Defaults

    @property
    def published_runs(self) -> int:
        """Number of runs behind the published number."""
        return self.expected.n or self.defaults.n

    @property
    def tolerance(self) -> float:
        """Percentage points within which two medians count as the same."""
        return self.defaults.tolerance if self.expected.tolerance is None else self.expected.tolerance

    @property
    def id(self) -> str:
        return f"{self.row.id}/{self.column.id}"

    def dataset_in(self, profile: Profile) -> str:
        """Key of the data set that the cell's net is trained on.

        Raises:
            PaperbenchError: The profile trains on images that the net is not made for.
        """
        if profile.dataset is None:
            return self.row.dataset
        try:
            self.reference.check_size(profile.dataset)
        except PaperbenchError as error:
            raise PaperbenchError(
                f"Cell {self.id} is not for the profile at {profile.where}, which trains on {profile.dataset}: "
                f"{self.reference.name} is made for other images. Choose another profile (`--profile`)."
            ) from error
        return profile.dataset

    def matches(self, pattern: str) -> bool:
        """Whether a shell pattern names this cell, or, if it has no slash, its row or column."""
        names = (self.id,) if "/" in pattern else (self.row.id, self.column.id)
        return any(fnmatchcase(name, pattern) for name in names)

    @property
    def reference(self) -> NetReference:
        """The cell's net as the experiment names it."""
        return self.row.cells[self.column.id]

    def net_in(self, profile: Profile) -> Net:
        """The cell's net, at the profile's depth and with an output for each class of its data set."""
        net = resolve(self.reference.model, **self.reference.kwargs)
        classes = DATASETS[self.dataset_in(profile)].num_classes
        depth = profile.depth.get(net.family, net.depth)
        return resolve(self.reference.model, **{**self.reference.kwargs, "depth": depth, "num_classes": classes})

    def reference_in(self, profile: Profile) -> NetReference:
        """That net as one would ask timm for it: a depth alone does not tell the family, nor a name the classes."""
        name, dataset, arguments = self.reference.name, self.dataset_in(profile), dict(self.reference.kwargs)
        net = resolve(name, **arguments)
        if dataset in tags(name)[1:]:
            name = f"{name}.{dataset}"
        if net.family in profile.depth:
            arguments["depth"] = profile.depth[net.family]
        return NetReference(name, arguments)


@dataclass(frozen=True)
class Table:
    """A table with everything needed to run and judge it."""

    id: str
    experiment: Experiment
    expected: Expected
    profiles: Profiles
    recipe_node: yaml.MappingNode

    def recipe_in(self, profile: Profile) -> Recipe:
        """The recipe with the profile's changes.

        Raises:
            SpecError: The changed recipe is not valid.
        """
        if not profile.recipe:
            return bind(self.recipe_node, Recipe)
        try:
            return bind(overlay(self.recipe_node, profile.recipe), Recipe)
        except SpecError as error:
            if str(error).startswith(f"{profile.recipe.start_mark.name}:"):
                raise
            raise SpecError(f"{error} (With the changes of the profile at {profile.where}.)") from error

    def seeds_in(self, profile: Profile) -> int:
        return profile.seeds or self.experiment.seeds

    def cells(self, pattern: str = "*") -> list[Cell]:
        """The cells that match a shell pattern, column by column as the paper compares them.

        A pattern with a slash is for ids `row/column`; one without is for rows or columns.

        Raises:
            PaperbenchError: No cell matches.
        """
        found = [cell for cell in self._all_cells() if cell.matches(pattern)]
        if not found:
            ids = [cell.id for cell in self._all_cells()]
            raise PaperbenchError(f"No cell of {self.id} matches {pattern!r}. {nearest(pattern, ids)}")
        return found

    def _all_cells(self) -> Iterator[Cell]:
        for column in self.experiment.columns:
            for row in self.experiment.rows:
                if column.id in row.cells:
                    yield Cell(row, column, self.expected.cells[row.id][column.id], self.expected.defaults)


def load_table(table: str, root: Path) -> Table:
    """Read a table from the folders experiments/ and expected/ under `root`.

    Raises:
        PaperbenchError: There is no such table.
        SpecError: One of its files is not as it should be.
    """
    known = table_ids(root)
    if table not in known:
        raise PaperbenchError(f"Unknown table {table!r}. {nearest(table, known)} `paperbench list` shows all.")
    experiment_file, expected_file = root / "experiments" / f"{table}.yaml", root / "expected" / f"{table}.yaml"
    experiment_node, expected_node = read_mapping(experiment_file), read_mapping(expected_file)
    experiment, expected = bind(experiment_node, Experiment), bind(expected_node, Expected)
    _check_name(experiment_node, "table", table)
    _check_name(expected_node, "table", table)
    _check_cells(experiment, expected, expected_node)
    recipes = root / "experiments" / "recipes"
    known = sorted(p.stem for p in recipes.glob("*.yaml"))
    if experiment.recipe not in known:
        where = position_of(experiment_node, "recipe")
        raise SpecError(f"{where}: {recipes} has no recipe {experiment.recipe!r}. {nearest(experiment.recipe, known)}")
    recipe_node = read_mapping(recipes / f"{experiment.recipe}.yaml")
    bind(recipe_node, Recipe)
    _check_name(recipe_node, "recipe", experiment.recipe)
    loaded = Table(table, experiment, expected, load_profiles(root), recipe_node)
    for profile in loaded.profiles.profiles.values():
        loaded.recipe_in(profile)
    return loaded


def load_profiles(root: Path) -> Profiles:
    """Read experiments/profiles.yaml under `root`."""
    return bind(read_mapping(root / "experiments" / "profiles.yaml"), Profiles)


def table_ids(root: Path) -> list[str]:
    """Ids of the tables with an experiment under `root`."""
    return sorted(p.stem for p in (root / "experiments").glob("*.yaml") if p.stem != "profiles")


def _check_name(node: yaml.MappingNode, key: str, file_name: str) -> None:
    """A file says inside what it is called."""
    says = items(node)[key][1].value
    if says != file_name:
        raise SpecError(f"{position_of(node, key)}: says `{key}: {says}`, but the file is named {file_name}.yaml.")


def _check_cells(experiment: Experiment, expected: Expected, expected_node: yaml.MappingNode) -> None:
    """Every cell to run has a published number, and nothing else has."""
    ids = {f"{row.id}/{column}" for row in experiment.rows for column in row.cells}
    published = {f"{row}/{column}" for row, columns in expected.cells.items() for column in columns}
    for cell in sorted(published - ids):
        where = position_of(expected_node, "cells", *cell.split("/"))
        raise SpecError(f"{where}: the experiment has no cell {cell!r}. {nearest(cell, ids)}")
    for cell in sorted(ids - published):
        where = position_of(expected_node, "cells", *cell.split("/"))
        raise SpecError(f"{where}: the cell {cell!r} of the experiment has no published number here.")
    remarks: list[Disputed | Peer] = [*expected.disputed, *expected.peers]
    for remark in remarks:
        if remark.cell is not None and remark.cell not in ids:
            raise SpecError(f"{remark.where}: unknown cell {remark.cell!r}. {nearest(remark.cell, ids)}")
