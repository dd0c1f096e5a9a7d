"""A table of the paper: its experiment, published numbers and recipes, loaded from YAML and checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any, Literal

from paperbench.catalogue import DATASETS
from paperbench.errors import PaperbenchError, closest, count, nearest, one_line
from paperbench.specs.cell import Cell
from paperbench.specs.expected import WITHOUT_NUMBERS, Defaults, Disputed, Expected, Peer, Source
from paperbench.specs.experiment import Experiment, Setting
from paperbench.specs.profile import ChangedProfile, Profile, Profiles
from paperbench.specs.recipe import DROPS_OR_SCHEDULE, Evaluation, Recipe
from paperbench.specs.run_spec import canonical_json
from paperbench.specs.table_files import (
    TableFiles,
    find_spec_root,
    profiles_file,
    read_named,
    recipe_files,
    resolve_cells,
    table_ids,
)
from paperbench.specs.yaml_file import Document, SpecError, read_yaml
from paperbench.typed import KeyPath, Problem, TypedError, unknown_words

__all__ = ["Table", "find_spec_root", "know_functions", "load_profiles", "read_table", "read_tables", "table_ids"]


@dataclass(frozen=True)
class Table:
    """A table with everything needed to run and assess it.

    Attributes:
        recipes: The recipes of its cells, by names of profile and recipe.
        peers, disputed: Remarks about its cells, from its own file and from the files that its numbers come from;
            `cell` is "row/column" of this table.
    """

    id: str
    experiment: Experiment
    expected: Expected
    profiles: Profiles
    recipes: Mapping[tuple[str, str], Recipe]
    all_cells: tuple[Cell, ...]
    peers: tuple[Peer, ...]
    disputed: tuple[Disputed, ...]

    def __repr__(self) -> str:
        return f"<{self.id}: {count(len(self.all_cells), 'cell')}>"

    @property
    def source(self) -> Source:
        return self.expected.source

    @property
    def defaults(self) -> Defaults:
        """Those of its published results; of the first one, if all are in other tables."""
        published = (cell.defaults for cell in self.all_cells if cell.expected.value != "unprinted")
        return self.expected.defaults or next(published, WITHOUT_NUMBERS)

    @property
    def name(self) -> str:
        """Its number in the paper, such as "Table 2"; the id of a table of one's own."""
        return self.source.table or self.id

    @property
    def has_numbers(self) -> bool:
        """Whether a result is published, which is not so for some tables of one's own."""
        return any(cell.expected.value != "unprinted" for cell in self.all_cells)

    def cited(self, part: str = "") -> str:
        """Return the name of the table or of a part of the paper, with the paper: "Table 2 of arXiv:1603.05027"."""
        return " of arXiv:".join(filter(None, (part or self.name, self.source.arxiv)))

    def profile(self, name: str) -> Profile:
        """Return the profile with a name, after a check of the values that it sets; see `Profiles.named`."""
        profile = self.profiles.named(name)
        if isinstance(profile, ChangedProfile):
            self._changed_recipes(profile)
        return profile

    def profiles_among(self, names: Collection[str]) -> list[str]:
        """Return the names that are profiles of this table: those of the file, then those that set values."""
        found = [name for name in self.profiles.profiles if name in names]
        for name in sorted({*names} - {*found}):
            with suppress(PaperbenchError):  # of another table
                self.profile(name)
                found.append(name)
        return found

    def recipe_in(self, profile: Profile, name: str | None = None) -> Recipe:
        """Return the recipe of a cell, by default the table's, with the changes of a profile of this table."""
        name = name or self.experiment.recipe
        if isinstance(profile, ChangedProfile):
            return self._changed_recipes(profile)[name]
        profile_name = next(known for known, one in self.profiles.profiles.items() if one is profile)
        return self.recipes[profile_name, name]

    def _changed_recipes(self, profile: ChangedProfile) -> Mapping[str, Recipe]:
        """Return the recipes by name; refuse values that no recipe can have, and those that change nothing."""
        before = {name: recipe for (base, name), recipe in self.recipes.items() if base == profile.base}
        try:
            after = {name: profile.changed(recipe) for name, recipe in before.items()}
        except TypedError as error:
            unset = " What you do not set keeps its share of the iterations." * ("iterations" in profile.changes)
            raise PaperbenchError(f"Profile {profile.name}: {error}{unset}") from error
        pairs = [(recipe.values_by_name(), after[name].values_by_name()) for name, recipe in before.items()]
        for key in profile.changes:
            if not key.startswith("monitoring") and all(old.get(key) == new.get(key) for old, new in pairs):
                raise PaperbenchError(f"Setting {key} changes no training of profile {profile.base}. Omit it.")
        return after

    def evaluation_in(self, profile: Profile, cell: Cell) -> Evaluation | None:
        """Return how the nets of a cell are tested in a profile; None means on whole images."""
        name = cell.row.evaluation
        return None if name is None else self.recipe_in(profile, cell.recipe).evaluations[name]

    def experiment_digest(self, cell: Cell, setting: Setting) -> str:
        """Return the sha256 of what defines a published number; cells that print the same number share it.

        It covers the paper's profile. Pixels and precision are not part of it, because they cannot be checked for
        external results.
        """
        paper = self.profiles.named("paper")
        values = {
            "net": cell.net_in(paper, setting).canonical(),
            "recipe": self.recipe_in(paper, cell.recipe).defining_values(),
            "dataset": cell.dataset,
            "metric": cell.column.metric,
            "evaluation": str(self.evaluation_in(paper, cell) or "whole images"),
        }
        return hashlib.sha256(canonical_json(values).encode()).hexdigest()

    def seeds_in(self, profile: Profile) -> int:
        return profile.seeds or self.experiment.seeds

    def cells(self, patterns: str | Sequence[str] = "*", *, on_request: bool = False) -> list[Cell]:
        """Return the cells that match at least one shell pattern, column by column as the paper compares them.

        A pattern with a slash matches ids `row/column`; one without matches rows or columns.

        Args:
            on_request: Whether to include cells that run only on request even if no pattern names their row in full.
        """
        patterns = [patterns] if isinstance(patterns, str) else patterns
        if not patterns:
            raise PaperbenchError("No pattern for cells is given. Give at least one, such as '*'.")
        found = {cell_id for pattern in patterns for cell_id in self._ids_matching(pattern, on_request)}
        return [cell for cell in self.all_cells if cell.id in found]

    def _ids_matching(self, pattern: str, on_request: bool) -> list[str]:
        """Return the ids of the cells that match a single pattern, see `cells`."""
        matching = [
            cell
            for cell in self.all_cells
            if any(fnmatchcase(name, pattern) for name in ([cell.id] if "/" in pattern else cell.id.split("/")))
        ]
        if not matching:
            raise PaperbenchError(f"No cell of {self.id} matches {pattern!r}. {self._suggestion(pattern)}")
        named = pattern.split("/")[0]
        found = [cell.id for cell in matching if on_request or not cell.row.on_request or cell.row.id == named]
        if not found:
            rows = " or ".join(dict.fromkeys(cell.row.id for cell in matching))
            raise PaperbenchError(f"{pattern!r} matches cells that are run only if their row is named in full: {rows}.")
        return found

    def _suggestion(self, pattern: str) -> str:
        """Return a sentence that suggests a pattern in place of one that matches no cell."""
        if "," in pattern:
            return f"Give several patterns one by one, without commas: {' '.join(pattern.replace(',', ' ').split())}."
        ids = [cell.id for cell in self.all_cells]
        rows, columns = ([*dict.fromkeys(names)] for names in zip(*(one.split("/") for one in ids), strict=True))
        row, slash, column = pattern.partition("/")
        if not slash:
            return nearest(pattern, [*rows, *columns])
        corrected = f"{_corrected(row, rows)}/{_corrected(column, columns)}"
        return nearest(corrected, [corrected] if any(fnmatchcase(one, corrected) for one in ids) else ids)

    def cell(self, cell_id: str) -> Cell:
        """Return the cell with the id `row/column`."""
        cells = {cell.id: cell for cell in self.all_cells}
        if cell_id not in cells:
            raise PaperbenchError(f"{self.id} has no cell {cell_id!r}. {nearest(cell_id, cells)}")
        return cells[cell_id]


def _corrected(pattern: str, names: Sequence[str]) -> str:
    """Return the pattern, or the name closest to it if it matches none of the names."""
    if any(fnmatchcase(name, pattern) for name in names):
        return pattern
    return closest(pattern, names) or pattern


def read_tables(root: Path, complain: Callable[[str, str], object] = lambda *_: None) -> Iterator[Table]:
    """Load all tables under `root` that can be read.

    Args:
        complain: Called with the id of each other table, and the first thing that is wrong with it.
    """
    for table in table_ids(root):
        try:
            yield read_table(table, root)
        except PaperbenchError as error:
            complain(table, one_line(str(error).partition("\n")[0]))


def read_table(table: str, root: Path) -> Table:
    """Load a table from experiments/ and, for what is published, expected/ under `root`."""
    known = table_ids(root)
    if table not in known:
        meant = f"table{table}" if f"table{table}" in known else str(table)
        raise PaperbenchError(f"Unknown table {table!r}. {nearest(meant, known)} `paperbench list` lists all tables.")
    files = TableFiles(table, root)
    cells, others = resolve_cells(files)
    recipes_by_name = recipe_files(root)
    originals = {name: read_named(recipes_by_name[name], Recipe, "recipe") for name in {cell.recipe for cell in cells}}
    if problems := dict.fromkeys(_recipe_problems(cells, files.experiment, originals)):
        raise files.experiment_file.error(problems)
    profiles, recipes = _load_recipes(cells, originals, root)
    peers, disputed = (_gather_remarks(name, files, others, cells) for name in ("peers", "disputed"))
    return Table(table, files.experiment, files.expected, profiles, recipes, cells, peers, disputed)


def know_functions(root: Path | None) -> None:
    """Let this process run the functions that the tables under a directory of the user's name, for runs of them."""
    for table in read_tables(root) if root else ():
        for profile, cell in product(table.profiles.profiles.values(), table.all_cells):
            for setting in cell.settings:
                cell.net_in(profile, setting)


def load_profiles(root: Path) -> Profiles:
    """Load the profiles of the tables under `root`."""
    return read_yaml(profiles_file(root)).parse(Profiles)


def _load_recipes(
    cells: Sequence[Cell], originals: Mapping[str, tuple[Document, Recipe]], root: Path
) -> tuple[Profiles, dict[tuple[str, str], Recipe]]:
    """Load the profiles and, by names of profile and recipe, the recipe of every cell in each profile."""
    changes = read_yaml(file := profiles_file(root))
    profiles, known = changes.parse(Profiles), recipe_files(root)
    remedy = "" if file.is_relative_to(root) else " It is paperbench's: write experiments/profiles.yaml of your own."
    recipes: dict[tuple[str, str], Recipe] = {}
    problems: list[Problem] = []
    for profile_name, profile in profiles.profiles.items():
        path: KeyPath = ("profiles", profile_name, "datasets")
        for dataset, substitute in profile.datasets.items():
            words = (((*path, dataset, "recipes", name), name) for name in substitute.recipes)
            problems += unknown_words("recipe", words, known)
        for name, dataset in dict.fromkeys((cell.recipe, cell.dataset_in(profile)) for cell in cells):
            original, recipe = originals[name]
            changed = original.with_changes(changes, (*path, dataset, "recipe"))
            changed = changed.with_changes(changes, (*path, dataset, "recipes", name))
            if changed is not original:
                try:
                    if changed.data.get("schedule") and changed.data.get("drops"):  # which lack what they would change
                        raise changed.error([DROPS_OR_SCHEDULE])
                    recipe = changed.parse(Recipe)
                except SpecError as error:
                    message = f"{error}\n(Recipe {name} with the changes of profile {profile_name}.{remedy})"
                    raise SpecError(message) from error
            if recipes.setdefault((profile_name, name), recipe) != recipe:
                message = f"change recipe {name} in two ways. Give the rows that train on {dataset} another recipe."
                problems.append(Problem(path, message))
    if problems:
        raise changes.error(problems)
    return profiles, recipes


def _recipe_problems(
    cells: Sequence[Cell], experiment: Experiment, recipes: Mapping[str, tuple[Document, Recipe]]
) -> Iterator[Problem]:
    """Check that the recipes of rows fit the images of their data sets, and have their evaluations."""
    rows = [row.id for row in experiment.rows]
    for cell in cells:
        path: KeyPath = ("rows", rows.index(cell.row.id))
        evaluations, evaluation = recipes[cell.recipe][1].evaluations, cell.row.evaluation
        if bool(evaluations) != DATASETS[cell.dataset].are_photographs:
            kind = "photographs" if evaluations else "small images"
            yield Problem((*path, "recipe"), f"{cell.recipe} is for {kind}, but the data set is {cell.dataset}.")
        elif evaluation is not None:
            yield from unknown_words("evaluation", [((*path, "evaluation"), evaluation)], evaluations)
        elif evaluations:
            yield Problem((*path, "evaluation"), f"is missing. {nearest('', evaluations)}")
        elif cell.column.metric == "top5":
            yield Problem((*path, "cells", cell.column.id), "top-5 errors are measured on photographs only.")


def _gather_remarks(
    field: Literal["peers", "disputed"], files: TableFiles, others: Mapping[str, TableFiles], cells: Sequence[Cell]
) -> tuple[Any, ...]:
    """Return the peers or disputed numbers in a table's own file, and those in other files about the same cells."""
    ids = {cell.home: cell.id for cell in cells}
    from_others = [
        replace(remark, cell=ids[f"{table}/{remark.cell}"])
        for table, other in others.items()
        for remark in getattr(other.expected, field)
        if f"{table}/{remark.cell}" in ids
    ]
    return (*getattr(files.expected, field), *from_others)
