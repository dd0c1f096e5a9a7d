"""A table of the paper: its experiment, the published numbers and the recipes, read together and checked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

from paperbench.catalogue import DATASETS, NETS, Net, resolve, tags
from paperbench.errors import PaperbenchError, closest, nearest
from paperbench.specs.expected import Defaults, Disputed, Expected, ExpectedCell, Peer, Source
from paperbench.specs.experiment import Column, Experiment, NetReference, Row, Setting
from paperbench.specs.profile import Profile, Profiles
from paperbench.specs.recipe import Recipe
from paperbench.specs.run_spec import canonical_json
from paperbench.specs.yaml_file import Document, SpecError, bind, load
from paperbench.typed import KeyPath, Problem, unknown

T = TypeVar("T")


@dataclass(frozen=True)
class Cell:
    """One cell: where it stands and what the paper prints there.

    Attributes:
        expected: The published result; where the file refers to a cell of another table, that cell's.
        defaults: Of the table whose file has the result.
        home: "table/row/column" of that cell.
        dataset: Key of the data set that its nets train on.
        recipe: Name of its recipe.
    """

    row: Row
    column: Column
    expected: ExpectedCell
    defaults: Defaults
    home: str
    dataset: str
    recipe: str

    @property
    def published_runs(self) -> int:
        """Number of runs behind the published number."""
        if self.expected.statistic == "single":
            return 1
        return self.expected.n or self.defaults.n

    @property
    def tolerance(self) -> float:
        """Percentage points within which two medians count as the same."""
        return self.defaults.tolerance if self.expected.tolerance is None else self.expected.tolerance

    @property
    def number(self) -> float | None:
        """The published test error in percent; None if there is none."""
        return self.expected.value if isinstance(self.expected.value, float) else None

    @property
    def id(self) -> str:
        return f"{self.row.id}/{self.column.id}"

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The nets that it stands for; one, unless the paper gives one result for several."""
        return self.row.cells[self.column.id].settings

    def is_in(self, profile: Profile) -> bool:
        """Whether its nets can be trained on the profile's images."""
        return profile.dataset is None or DATASETS[profile.dataset].size == self.settings[0].reference.image_size

    def dataset_in(self, profile: Profile) -> str:
        """Key of the data set that the cell's nets are trained on.

        Raises:
            PaperbenchError: The profile trains on images that the nets are not made for.
        """
        if not self.is_in(profile):
            raise PaperbenchError(
                f"Cell {self.id} is not for a profile that trains on {profile.dataset}: "
                f"{self.settings[0].reference.name} is made for other images. Choose another profile (`--profile`)."
            )
        return profile.dataset or self.dataset

    def net_in(self, profile: Profile, setting: Setting | None = None) -> Net:
        """A net of the cell, at the profile's depth and with an output for each class of its data set.

        Args:
            setting: Which net; the first by default.
        """
        reference, classes = self.reference_in(profile, setting), DATASETS[self.dataset_in(profile)].num_classes
        return resolve(reference.model, **reference.kwargs, num_classes=classes)

    def reference_in(self, profile: Profile, setting: Setting | None = None) -> NetReference:
        """That net as one would ask timm for it: a depth alone does not tell the family, nor a name the classes."""
        reference, dataset = (setting or self.settings[0]).reference, self.dataset_in(profile)
        name, family = reference.name, NETS[reference.name].family
        model = f"{name}.{dataset}" if dataset in tags(name)[1:] else name
        depth = {"depth": profile.depth[family]} if family in profile.depth else {}
        return NetReference(model, {**reference.kwargs, **depth})


@dataclass(frozen=True)
class Table:
    """A table with everything needed to run and judge it.

    Attributes:
        recipes: The recipes of its cells, by names of profile and recipe.
        peers, disputed: What is said of its cells, in its own file and in those that its numbers come from; `cell` is
            "row/column" here.
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
        """A recipe with the profile's changes.

        Args:
            profile: One of the table's.
            name: One that a cell in the profile has; by default that of the table.
        """
        profile_name = next(known for known, one in self.profiles.profiles.items() if one is profile)
        return self.recipes[profile_name, name or self.experiment.recipe]

    def experiment_digest(self, cell: Cell, setting: Setting) -> str:
        """What defines the number that a cell prints for one of its nets: equal for cells that print the same number.

        It holds for the paper's profile, and names neither pixels nor precision, of which a result from elsewhere tells
        nothing that could be checked.
        """
        paper = self.profiles.named("paper")
        values = {
            "net": cell.net_in(paper, setting).canonical(),
            "recipe": self.recipe_in(paper, cell.recipe).defining_values(),
            "dataset": cell.dataset,
            "metric": cell.column.metric,
            "evaluation": str(cell.row.evaluation or "whole images"),
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
            if any(fnmatchcase(name, pattern) for name in ((cell.id,) if "/" in pattern else cell.id.split("/")))
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
        """The cell with an id `row/column`.

        Raises:
            PaperbenchError: There is none.
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


def load_table(table: str, root: Path) -> Table:
    """Read a table from the folders experiments/ and expected/ under `root`.

    Raises:
        PaperbenchError: There is no such table.
        SpecError: One of its files is not as it should be.
    """
    known = table_ids(root)
    if table not in known:
        raise PaperbenchError(f"Unknown table {table!r}. {nearest(table, known)} `paperbench list` shows all.")
    own = _Files(table, root)
    others: dict[str, _Files] = {}
    cells = _cells(own, others, root)
    profiles, recipes = _profiles_and_recipes(cells, root)
    peers, disputed = (_remarks(name, own, others, cells) for name in ("peers", "disputed"))
    return Table(table, own.experiment, own.expected, profiles, recipes, cells, peers, disputed)


def load_profiles(root: Path) -> Profiles:
    """Read experiments/profiles.yaml under `root`."""
    return bind(load(root / "experiments" / "profiles.yaml"), Profiles)


def load_experiment(table: str, root: Path) -> Experiment:
    """Read experiments/<table>.yaml under `root` by itself."""
    return _read(root / "experiments" / f"{table}.yaml", Experiment, "table")[1]


def table_ids(root: Path) -> list[str]:
    """Ids of the tables with an experiment under `root`."""
    return [name for name in _names(root / "experiments") if name != "profiles"]


def _names(folder: Path) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.yaml"))


def _read(path: Path, kind: type[T], key: str) -> tuple[Document, T]:
    """Read a file that says under `key` what it is called."""
    document = load(path)
    value = bind(document, kind)
    if document.data[key] != path.stem:
        raise document.error([Problem((key,), f"must be {path.stem}, as the file is called.")])
    return document, value


def _profiles_and_recipes(cells: Sequence[Cell], root: Path) -> tuple[Profiles, dict[tuple[str, str], Recipe]]:
    """The profiles, and the recipes of the cells in each of them, by names of profile and recipe."""
    changes = load(root / "experiments" / "profiles.yaml")
    profiles = bind(changes, Profiles)
    folder = root / "experiments" / "recipes"
    files = {name: _read(folder / f"{name}.yaml", Recipe, "recipe") for name in {cell.recipe for cell in cells}}
    recipes = {}
    for profile_name, profile in profiles.profiles.items():
        for name in dict.fromkeys(cell.recipe for cell in cells if cell.is_in(profile)):
            document, recipe = files[name]
            if profile.recipe:
                try:
                    recipe = bind(document.overlaid(changes, ("profiles", profile_name, "recipe")), Recipe)
                except SpecError as error:
                    message = f"{error}\n(Recipe {name} with the changes of profile {profile_name}.)"
                    raise SpecError(message) from error
            recipes[profile_name, name] = recipe
    return profiles, recipes


class _Files:
    """The two files of one table, checked against each other."""

    def __init__(self, table: str, root: Path) -> None:
        self.table = table
        experiment_file, self.experiment = _read(root / "experiments" / f"{table}.yaml", Experiment, "table")
        self.expected_file, self.expected = _read(root / "expected" / f"{table}.yaml", Expected, "table")
        self.rows = {row.id: row for row in self.experiment.rows}
        self.columns = {column.id: column for column in self.experiment.columns}
        self.ids = [f"{row.id}/{column}" for row in self.experiment.rows for column in row.cells]
        asked: list[tuple[KeyPath, str]] = [(("recipe",), self.experiment.recipe)]
        asked += [(("rows", i, "recipe"), row.recipe) for i, row in enumerate(self.experiment.rows) if row.recipe]
        known = _names(root / "experiments" / "recipes")
        for document, problems in (
            (experiment_file, [*unknown("recipe", asked, known)]),
            (self.expected_file, [*self._cell_problems(), *self._remark_problems(), *self._claim_problems()]),
        ):
            if problems:
                raise document.error(problems)

    def _cell_problems(self) -> Iterator[Problem]:
        """Every cell to run has a published result, and nothing else has; marks have footnotes, footnotes marks."""
        cells = {(row, column): cell for row, cells in self.expected.cells.items() for column, cell in cells.items()}
        yield from unknown("cell", ((("cells", *place), "/".join(place)) for place in cells), self.ids)
        for cell_id in self.ids:
            row, column = cell_id.split("/")
            if (row, column) not in cells:
                yield Problem(("cells", row, column), "the cell has no published number here.")
        marks = {(*place, "mark"): cell.mark for place, cell in cells.items() if cell.mark is not None}
        yield from unknown(
            "mark", ((("cells", *place), mark) for place, mark in marks.items()), self.expected.footnotes
        )
        for mark in self.expected.footnotes:
            if mark not in marks.values():
                yield Problem(("footnotes", mark), "no cell has this mark.")

    def _remark_problems(self) -> Iterator[Problem]:
        """Remarks and rows of others are about cells, columns and labels that there are."""
        remarks: list[tuple[KeyPath, str | None]] = [
            *((("disputed", i, "cell"), remark.cell) for i, remark in enumerate(self.expected.disputed)),
            *((("peers", i, "cell"), peer.cell) for i, peer in enumerate(self.expected.peers)),
        ]
        yield from unknown("cell", ((place, cell) for place, cell in remarks if cell is not None), self.ids)
        for i, row in enumerate(self.expected.literature):
            place = "literature", i
            if row.id in self.rows:
                yield Problem((*place, "id"), f"{row.id!r} is a row of the experiment.")
            yield from unknown("column", (((*place, "cells", column), column) for column in row.cells), self.columns)
            labels = (((*place, "labels", label), label) for label in row.labels)
            yield from unknown("label", labels, self.experiment.labels)

    def _claim_problems(self) -> Iterator[Problem]:
        """Claims are about single nets, and of the numbers of others compare test errors alone."""
        literature = [f"{row.id}/{column}" for row in self.expected.literature for column in row.cells]
        for i, claim in enumerate(self.expected.claims):
            place = "claims", i, "pairs" if claim.pairs else "cells"
            may_be_literature = claim.cells[1:] if claim.kind == "lower" and claim.measure == "test_error" else ()
            for cell in claim.all_cells:
                yield from unknown("cell", [(place, cell)], self.ids + literature * (cell in may_be_literature))
                row, _, column = cell.partition("/")
                is_sweep = cell in self.ids and self.rows[row].cells[column].sweep
                if is_sweep and claim.kind not in ("diverges", "converges"):
                    yield Problem(place, f"{cell} stands for several nets.")

    def cell(self, row: str, column: str) -> Cell:
        """A cell as this table's files have it."""
        of_row, of_column = self.rows[row], self.columns[column]
        return Cell(
            of_row,
            of_column,
            self.expected.cells[row][column],
            self.expected.defaults,
            home=f"{self.table}/{row}/{column}",
            dataset=of_row.dataset or of_column.dataset or "",
            recipe=of_row.recipe or self.experiment.recipe,
        )


def _cells(own: _Files, others: dict[str, _Files], root: Path) -> tuple[Cell, ...]:
    """The cells of a table, column by column.

    Args:
        others: Receives the tables that its numbers come from.
    """
    cells, problems = [], []
    places = [(row.id, column) for column in own.columns for row in own.experiment.rows if column in row.cells]
    for row, column in places:
        cell = own.cell(row, column)
        try:
            if cell.expected.same_as is not None:
                cell = _with_number_from_elsewhere(cell, cell.expected.same_as, own.table, others, root)
            _check_result(cell)
        except ValueError as error:
            problems.append(Problem(("cells", row, column), str(error)))
        cells.append(cell)
    if problems:
        raise own.expected_file.error(problems)
    return tuple(cells)


def _with_number_from_elsewhere(cell: Cell, home: str, own: str, others: dict[str, _Files], root: Path) -> Cell:
    """The cell with the number that it refers to.

    Raises:
        ValueError: There is no such number, or it is one of another experiment.
    """
    table, cell_id = home.split("/", 1)
    tables = [one for one in table_ids(root) if one != own]
    if table not in tables:
        raise ValueError(f"same_as must name a cell of another table. {nearest(table, tables)}")
    if table not in others:
        others[table] = _Files(table, root)
    if cell_id not in others[table].ids:
        raise ValueError(f"{table} has no cell {cell_id!r}. {nearest(cell_id, others[table].ids)}")
    other = others[table].cell(*cell_id.split("/"))
    if other.expected.same_as is not None:
        raise ValueError(f"{home} refers on to {other.expected.same_as}; name that one.")
    for what, ours, theirs in _experiments(cell, other):
        if ours != theirs:
            raise ValueError(f"{home} is of another experiment: its {what} is {theirs}, and here it is {ours}.")
    return replace(cell, expected=cell.expected.with_number_of(other.expected), defaults=other.defaults, home=home)


def _experiments(one: Cell, other: Cell) -> Iterator[tuple[str, object, object]]:
    """What must be the same of two cells that print the same number."""
    yield "data set", one.dataset, other.dataset
    yield "recipe", one.recipe, other.recipe
    yield "metric", one.column.metric, other.column.metric
    yield "evaluation", one.row.evaluation or "whole images", other.row.evaluation or "whole images"
    nets = [[cell.net_in(Profile("paper"), setting) for setting in cell.settings] for cell in (one, other)]
    if nets[0] != nets[1]:
        names = [", ".join(str(s.reference) for s in cell.settings) for cell in (one, other)]
        yield "net", names[0], names[1]


def _check_result(cell: Cell) -> None:
    """A published result is one that runs of the cell can be held against.

    Raises:
        ValueError: It is not.
    """
    if cell.expected.value == "fail" and DATASETS[cell.dataset].fail_above is None:
        title = DATASETS[cell.dataset].title
        raise ValueError(f"above which error a net has failed is not said for {title}; print its error.")
    if cell.expected.std is not None and cell.published_runs < 2:
        raise ValueError(f"a standard deviation is of two runs or more, and n is {cell.published_runs}.")
    if len(cell.settings) > 1 and cell.expected.value != "fail":
        raise ValueError(f"{cell.id} stands for {len(cell.settings)} nets, so its value must be `fail`.")


def _remarks(name: str, own: _Files, others: dict[str, _Files], cells: Iterable[Cell]) -> tuple[Any, ...]:
    """The peers or disputed claims of a table's own file, and those of other tables' files that concern its cells."""
    here = {cell.home: cell.id for cell in cells}
    elsewhere = [
        replace(remark, cell=here[f"{table}/{remark.cell}"])
        for table, files in others.items()
        for remark in getattr(files.expected, name)
        if f"{table}/{remark.cell}" in here
    ]
    return (*getattr(own.expected, name), *elsewhere)
