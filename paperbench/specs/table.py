"""A table of the paper: its experiment, published numbers and recipes, loaded from YAML and checked."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from paperbench.catalogue import DATASETS
from paperbench.errors import PaperbenchError, closest, nearest
from paperbench.specs.cell import Cell
from paperbench.specs.expected import Disputed, Expected, Peer, Source
from paperbench.specs.experiment import Experiment, Setting
from paperbench.specs.profile import Profile, Profiles
from paperbench.specs.recipe import Evaluation, Recipe
from paperbench.specs.run_spec import canonical_json
from paperbench.specs.table_files import TableFiles, read_named, resolve_cells, table_ids
from paperbench.specs.yaml_file import SpecError, read_yaml
from paperbench.typed import KeyPath

__all__ = ["Table", "find_spec_root", "load_experiment", "load_profiles", "load_table", "table_ids"]


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

    @property
    def source(self) -> Source:
        return self.expected.source

    def recipe_in(self, profile: Profile, name: str | None = None) -> Recipe:
        """Return a recipe with the profile's changes.

        Args:
            profile: A profile of this table.
            name: The recipe of a cell in the profile. Default: the table's recipe.
        """
        profile_name = next(known for known, one in self.profiles.profiles.items() if one is profile)
        return self.recipes[profile_name, name or self.experiment.recipe]

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
            patterns: One pattern or several.
            on_request: Whether to include cells that run only on request even if no pattern names their row in full.

        Raises:
            PaperbenchError: A pattern matches no cell, or none that runs without its row being named.
        """
        patterns = [patterns] if isinstance(patterns, str) else patterns
        if not patterns:
            raise PaperbenchError("No pattern for cells is given. Give at least one, such as '*'.")
        found: set[str] = set()
        for pattern in patterns:
            found.update(self._ids_matching(pattern, on_request))
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
        """Return the cell with the id `row/column`.

        Raises:
            PaperbenchError: The table has no such cell.
        """
        cells = {cell.id: cell for cell in self.all_cells}
        if cell_id not in cells:
            raise PaperbenchError(f"{self.id} has no cell {cell_id!r}. {nearest(cell_id, cells)}")
        return cells[cell_id]


def _corrected(pattern: str, names: Sequence[str]) -> str:
    """Return the pattern, or the name closest to it if it matches none of the names."""
    if any(fnmatchcase(name, pattern) for name in names):
        return pattern
    return closest(pattern, names) or pattern


def find_spec_root(chosen: Path | None = None) -> Path:
    """Return the directory that contains experiments/ and expected/.

    Args:
        chosen: The user's directory. Default: the installed wheel's, or the source checkout.

    Raises:
        PaperbenchError: The directories are not there.
    """
    package = Path(__file__).resolve().parents[1]
    for root in [chosen] if chosen else [package / "_specs", package.parent]:
        if (root / "experiments").is_dir() and (root / "expected").is_dir():
            return root
    if chosen:
        raise PaperbenchError(
            f"{chosen} does not contain the directories experiments/ and expected/. Name one that does, or omit it."
        )
    raise PaperbenchError("experiments/ and expected/ are missing from this installation. Reinstall paperbench.")


def load_table(table: str, root: Path) -> Table:
    """Load a table from the directories experiments/ and expected/ under `root`.

    Raises:
        PaperbenchError: The table does not exist.
        SpecError: One of its files has problems.
    """
    known = table_ids(root)
    if table not in known:
        meant = f"table{table}" if f"table{table}" in known else str(table)
        raise PaperbenchError(f"Unknown table {table!r}. {nearest(meant, known)} `paperbench list` lists all tables.")
    files = TableFiles(table, root)
    cells, others = resolve_cells(files, root)
    profiles, recipes = _load_recipes(cells, root)
    peers, disputed = (_gather_remarks(name, files, others, cells) for name in ("peers", "disputed"))
    return Table(table, files.experiment, files.expected, profiles, recipes, cells, peers, disputed)


def load_profiles(root: Path) -> Profiles:
    """Load experiments/profiles.yaml under `root`."""
    return read_yaml(root / "experiments" / "profiles.yaml").parse(Profiles)


def load_experiment(table: str, root: Path) -> Experiment:
    """Load experiments/<table>.yaml under `root` alone."""
    return read_named(root / "experiments" / f"{table}.yaml", Experiment, "table")[1]


def _load_recipes(cells: Sequence[Cell], root: Path) -> tuple[Profiles, dict[tuple[str, str], Recipe]]:
    """Load the profiles and, by names of profile and recipe, the recipe of every cell in each profile."""
    changes = read_yaml(root / "experiments" / "profiles.yaml")
    profiles = changes.parse(Profiles)
    directory = root / "experiments" / "recipes"
    files = {name: read_named(directory / f"{name}.yaml", Recipe, "recipe") for name in {cell.recipe for cell in cells}}
    recipes: dict[tuple[str, str], Recipe] = {}
    for profile_name, profile in profiles.profiles.items():
        for cell in {(cell.recipe, cell.dataset_in(profile)): cell for cell in cells}.values():
            document, recipe = files[cell.recipe]
            dataset = cell.dataset_in(profile)
            if substitute := profile.datasets.get(dataset):
                patches: list[KeyPath] = [("recipe",)] if substitute.recipe else []
                patches += [("recipes", cell.recipe)] if cell.recipe in substitute.recipes else []
                for patch in patches:
                    document = document.with_changes(changes, ("profiles", profile_name, "datasets", dataset, *patch))
                try:
                    recipe = document.parse(Recipe)
                except SpecError as error:
                    message = f"{error}\n(Recipe {cell.recipe} with the changes of profile {profile_name}.)"
                    raise SpecError(message) from error
            if recipes.setdefault((profile_name, cell.recipe), recipe) != recipe:
                raise SpecError(
                    f"{root}: profile {profile_name} changes recipe {cell.recipe} in two ways, because its cells have "
                    f"several data sets. Give those of {cell.dataset} a recipe of their own."
                )
    for cell in cells:
        _check_recipe(cell, files[cell.recipe][1])
    return profiles, recipes


def _check_recipe(cell: Cell, recipe: Recipe) -> None:
    """Check that a recipe fits the images of a cell's data set, and has its evaluation.

    Raises:
        SpecError: It does not.
    """
    problem, evaluation = None, cell.row.evaluation
    if bool(recipe.photographs) != DATASETS[cell.dataset].are_photographs:
        problem = f"{'has' if recipe.photographs else 'lacks'} `photographs`, but its data set is {cell.dataset}"
    elif recipe.photographs and evaluation is None:
        problem = "is for photographs: its row needs an evaluation"
    elif evaluation is not None and evaluation not in recipe.evaluations:
        problem = f"has no evaluation {evaluation!r}. {nearest(evaluation, recipe.evaluations)}"
    elif cell.column.metric == "top5" and not recipe.photographs:
        problem = "measures top-1 errors only: top-5 errors need photographs"
    if problem:
        raise SpecError(f"Cell {cell.id}: its recipe {cell.recipe} {problem.rstrip('.')}.")


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
