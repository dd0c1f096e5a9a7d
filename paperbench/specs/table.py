"""A table of the paper: its experiment, the published numbers and the recipes, read together and checked."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

import yaml

from paperbench.catalogue import DATASETS, Net, resolve, tags
from paperbench.errors import PaperbenchError, nearest
from paperbench.specs.expected import Defaults, Disputed, Expected, ExpectedCell, Peer, Source
from paperbench.specs.experiment import Column, Experiment, NetReference, Row, Setting
from paperbench.specs.profile import Profile, Profiles
from paperbench.specs.recipe import Recipe
from paperbench.specs.run_spec import canonical_json
from paperbench.specs.strict_yaml import SpecError, bind, items, overlay, position_of, read_mapping


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
        try:
            self.dataset_in(profile)
        except PaperbenchError:
            return False
        return True

    def dataset_in(self, profile: Profile) -> str:
        """Key of the data set that the cell's nets are trained on.

        Raises:
            PaperbenchError: The profile trains on images that the nets are not made for.
        """
        if profile.dataset is None:
            return self.dataset
        reference = self.settings[0].reference
        try:
            reference.check_size(profile.dataset)
        except PaperbenchError as error:
            raise PaperbenchError(
                f"Cell {self.id} is not for the profile at {profile.where}, which trains on {profile.dataset}: "
                f"{reference.name} is made for other images. Choose another profile (`--profile`)."
            ) from error
        return profile.dataset

    def matches(self, pattern: str) -> bool:
        """Whether a shell pattern names this cell, or, if it has no slash, its row or column."""
        names = (self.id,) if "/" in pattern else (self.row.id, self.column.id)
        return any(fnmatchcase(name, pattern) for name in names)

    def is_named_by(self, pattern: str) -> bool:
        """Whether a pattern gives the id of its row in full."""
        return pattern.split("/")[0] == self.row.id

    def net_in(self, profile: Profile, setting: Setting | None = None) -> Net:
        """A net of the cell, at the profile's depth and with an output for each class of its data set.

        Args:
            setting: Which net; the first by default.
        """
        reference = (setting or self.settings[0]).reference
        net = resolve(reference.model, **reference.kwargs)
        classes = DATASETS[self.dataset_in(profile)].num_classes
        depth = profile.depth.get(net.family, net.depth)
        return resolve(reference.model, **{**reference.kwargs, "depth": depth, "num_classes": classes})

    def reference_in(self, profile: Profile, setting: Setting | None = None) -> NetReference:
        """That net as one would ask timm for it: a depth alone does not tell the family, nor a name the classes."""
        reference = (setting or self.settings[0]).reference
        name, dataset, arguments = reference.name, self.dataset_in(profile), dict(reference.kwargs)
        net = resolve(name, **arguments)
        if dataset in tags(name)[1:]:
            name = f"{name}.{dataset}"
        if net.family in profile.depth:
            arguments["depth"] = profile.depth[net.family]
        return NetReference(name, arguments)


@dataclass(frozen=True)
class Table:
    """A table with everything needed to run and judge it.

    Attributes:
        recipe_nodes: Its recipes by name, as read.
        peers, disputed: What is said of its cells, in its own file and in those that its numbers come from; `cell` is
            "row/column" here.
    """

    id: str
    experiment: Experiment
    expected: Expected
    profiles: Profiles
    recipe_nodes: Mapping[str, yaml.MappingNode]
    all_cells: tuple[Cell, ...]
    peers: tuple[Peer, ...]
    disputed: tuple[Disputed, ...]
    _recipes: dict[tuple[str, int], tuple[yaml.MappingNode | None, Recipe]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def source(self) -> Source:
        return self.expected.source

    def recipe_in(self, profile: Profile, name: str | None = None) -> Recipe:
        """A recipe with the profile's changes.

        Args:
            name: One that a cell names; by default that of the table.

        Raises:
            SpecError: The changed recipe is not valid.
        """
        name = name or self.experiment.recipe
        node, known = self._recipes.get((name, id(profile.recipe)), (None, None))
        if known is None or node is not profile.recipe:
            known = self._bound_recipe(name, profile)
            self._recipes[name, id(profile.recipe)] = profile.recipe, known
        return known

    def _bound_recipe(self, name: str, profile: Profile) -> Recipe:
        node = self.recipe_nodes[name]
        if not profile.recipe:
            return bind(node, Recipe)
        try:
            return bind(overlay(node, profile.recipe), Recipe)
        except SpecError as error:
            if str(error).startswith(f"{profile.recipe.start_mark.name}:"):
                raise
            raise SpecError(f"{error} (With the changes of the profile at {profile.where}.)") from error

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

    def cells(self, pattern: str = "*", *, on_request: bool = False) -> list[Cell]:
        """The cells that match a shell pattern, column by column as the paper compares them.

        A pattern with a slash is for ids `row/column`; one without is for rows or columns.

        Args:
            on_request: Whether to take cells that are run only on request though the pattern does not name their row.

        Raises:
            PaperbenchError: No cell matches.
        """
        matching = [cell for cell in self.all_cells if cell.matches(pattern)]
        found = [c for c in matching if on_request or not c.row.on_request or c.is_named_by(pattern)]
        if not found and matching:
            rows = " or ".join(dict.fromkeys(cell.row.id for cell in matching))
            raise PaperbenchError(f"{pattern!r} matches cells that are run only if their row is named in full: {rows}.")
        if not found:
            ids = [cell.id for cell in self.all_cells]
            raise PaperbenchError(f"No cell of {self.id} matches {pattern!r}. {nearest(pattern, ids)}")
        return found

    def cell(self, cell_id: str) -> Cell:
        """The cell with an id `row/column`.

        Raises:
            PaperbenchError: There is none.
        """
        for cell in self.all_cells:
            if cell.id == cell_id:
                return cell
        raise PaperbenchError(
            f"{self.id} has no cell {cell_id!r}. {nearest(cell_id, [cell.id for cell in self.all_cells])}"
        )


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
    cells = tuple(_cells(own, others, root))
    recipes = dict.fromkeys([own.experiment.recipe, *(cell.recipe for cell in cells)])
    loaded = Table(
        table,
        own.experiment,
        own.expected,
        load_profiles(root),
        {name: read_recipe(name, root) for name in recipes},
        cells,
        tuple(_remarks(own.expected.peers, {t: f.expected.peers for t, f in others.items()}, cells)),
        tuple(_remarks(own.expected.disputed, {t: f.expected.disputed for t, f in others.items()}, cells)),
    )
    for profile in loaded.profiles.profiles.values():
        for name in dict.fromkeys(cell.recipe for cell in cells if cell.is_in(profile)):
            loaded.recipe_in(profile, name)
    return loaded


def load_profiles(root: Path) -> Profiles:
    """Read experiments/profiles.yaml under `root`."""
    return bind(read_mapping(root / "experiments" / "profiles.yaml"), Profiles)


def table_ids(root: Path) -> list[str]:
    """Ids of the tables with an experiment under `root`."""
    return sorted(p.stem for p in (root / "experiments").glob("*.yaml") if p.stem != "profiles")


def recipe_names(root: Path) -> list[str]:
    """Names of the recipes under `root`."""
    return sorted(p.stem for p in (root / "experiments" / "recipes").glob("*.yaml"))


def read_recipe(name: str, root: Path) -> yaml.MappingNode:
    """Read and check a file in experiments/recipes/ under `root`."""
    node = read_mapping(root / "experiments" / "recipes" / f"{name}.yaml")
    bind(node, Recipe)
    _check_name(node, "recipe", name)
    return node


class _Files:
    """The two files of one table, each read and checked by itself."""

    def __init__(self, table: str, root: Path) -> None:
        self.table = table
        self.experiment_node = read_mapping(root / "experiments" / f"{table}.yaml")
        self.expected_node = read_mapping(root / "expected" / f"{table}.yaml")
        self.experiment = bind(self.experiment_node, Experiment)
        self.expected = bind(self.expected_node, Expected)
        _check_name(self.experiment_node, "table", table)
        _check_name(self.expected_node, "table", table)
        _check_cells(self)
        _check_references(self)
        self._check_recipes(root)

    def _check_recipes(self, root: Path) -> None:
        known = recipe_names(root)
        asked = [(position_of(self.experiment_node, "recipe"), self.experiment.recipe)]
        asked += [(row.where, row.recipe) for row in self.experiment.rows if row.recipe]
        for where, name in asked:
            if name not in known:
                folder = root / "experiments" / "recipes"
                raise SpecError(f"{where}: {folder} has no recipe {name!r}. {nearest(name, known)}")


def _cells(own: _Files, others: dict[str, _Files], root: Path) -> Iterator[Cell]:
    """The cells of a table, column by column.

    Args:
        others: Receives the tables that its numbers come from.
    """
    for column in own.experiment.columns:
        for row in own.experiment.rows:
            if column.id not in row.cells:
                continue
            cell = _own_cell(own, row, column)
            if cell.expected.same_as is not None:
                cell = _with_number_from_elsewhere(own, cell, others, root)
            _check_result(own, cell)
            yield cell


def _own_cell(files: _Files, row: Row, column: Column) -> Cell:
    expected = files.expected.cells[row.id][column.id]
    dataset, recipe = files.experiment.dataset_of(row, column), row.recipe or files.experiment.recipe
    home = f"{files.table}/{row.id}/{column.id}"
    return Cell(row, column, expected, files.expected.defaults, home, dataset, recipe)


def _with_number_from_elsewhere(own: _Files, cell: Cell, others: dict[str, _Files], root: Path) -> Cell:
    """The cell with the number that it refers to.

    Raises:
        SpecError: There is no such number, or it is one of another experiment.
    """
    home = cell.expected.same_as or ""
    where = position_of(own.expected_node, "cells", cell.row.id, cell.column.id)
    table, row_id, column_id = home.split("/")
    if table == own.table or table not in table_ids(root):
        known = [one for one in table_ids(root) if one != own.table]
        raise SpecError(f"{where}: same_as must name a cell of another table. {nearest(table, known)}")
    if table not in others:
        others[table] = _Files(table, root)
    files = others[table]
    rows = {row.id: row for row in files.experiment.rows}
    columns = {column.id: column for column in files.experiment.columns}
    if row_id not in rows or column_id not in rows[row_id].cells:
        ids = [f"{row.id}/{column}" for row in rows.values() for column in row.cells]
        raise SpecError(f"{where}: {table} has no cell '{row_id}/{column_id}'. {nearest(f'{row_id}/{column_id}', ids)}")
    other = _own_cell(files, rows[row_id], columns[column_id])
    if other.expected.same_as is not None:
        raise SpecError(f"{where}: {home} refers on to {other.expected.same_as}; name that one.")
    for what, ours, theirs in _experiments(cell, other):
        if ours != theirs:
            raise SpecError(f"{where}: {home} is of another experiment: its {what} is {theirs}, and here it is {ours}.")
    return Cell(
        cell.row,
        cell.column,
        cell.expected.with_number_of(other.expected),
        other.defaults,
        home,
        cell.dataset,
        cell.recipe,
    )


def _experiments(one: Cell, other: Cell) -> Iterator[tuple[str, object, object]]:
    """What must be the same of two cells that print the same number."""
    yield "data set", one.dataset, other.dataset
    yield "recipe", one.recipe, other.recipe
    yield "metric", one.column.metric, other.column.metric
    yield "evaluation", one.row.evaluation or "whole images", other.row.evaluation or "whole images"
    nets = [[_net_of(cell, setting) for setting in cell.settings] for cell in (one, other)]
    names = [", ".join(str(s.reference) for s in cell.settings) for cell in (one, other)]
    if [n.canonical() for n in nets[0]] != [n.canonical() for n in nets[1]]:
        yield "net", names[0], names[1]


def _net_of(cell: Cell, setting: Setting) -> Net:
    """The net of a setting, at full depth and with an output for each class, whatever tag it was written with."""
    classes = DATASETS[cell.dataset].num_classes
    return resolve(setting.reference.model, **{**setting.reference.kwargs, "num_classes": classes})


def _check_result(files: _Files, cell: Cell) -> None:
    """A published result is one that runs of the cell can be held against."""
    where = position_of(files.expected_node, "cells", cell.row.id, cell.column.id)
    if cell.expected.value == "fail" and DATASETS[cell.dataset].fail_above is None:
        title = DATASETS[cell.dataset].title
        raise SpecError(f"{where}: above which error a net has failed is not said for {title}; print its error.")
    if cell.expected.std is not None and cell.published_runs < 2:
        raise SpecError(f"{where}: a standard deviation is of two runs or more, and n is {cell.published_runs}.")
    if len(cell.settings) > 1 and cell.expected.value != "fail":
        raise SpecError(f"{where}: {cell.id} stands for {len(cell.settings)} nets, so its value must be `fail`.")


_Remark = TypeVar("_Remark", Peer, Disputed)


def _remarks(own: Sequence[_Remark], others: Mapping[str, Sequence[_Remark]], cells: Iterable[Cell]) -> list[_Remark]:
    """All remarks of a table's own file, and those of others' files that concern its cells.

    Args:
        others: Remarks by table.
    """
    here = {cell.home: cell.id for cell in cells}
    found = list(own)
    for table, remarks in others.items():
        for remark in remarks:
            home = f"{table}/{remark.cell}"
            if remark.cell is not None and home in here:
                found.append(replace(remark, cell=here[home]))
    return found


def _check_references(files: _Files) -> None:
    """Remarks and claims are about cells that there are."""
    ids = {f"{row.id}/{column}" for row in files.experiment.rows for column in row.cells}
    literature = {f"{row.id}/{column}" for row in files.expected.literature for column in row.cells}
    columns = {column.id for column in files.experiment.columns}
    remarks: list[Disputed | Peer] = [*files.expected.disputed, *files.expected.peers]
    for remark in remarks:
        if remark.cell is not None and remark.cell not in ids:
            raise SpecError(f"{remark.where}: unknown cell {remark.cell!r}. {nearest(remark.cell, ids)}")
    for row in files.expected.literature:
        if row.id in {r.id for r in files.experiment.rows}:
            raise SpecError(f"{row.where}: {row.id!r} is a row of the experiment.")
        for column in row.cells:
            if column not in columns:
                raise SpecError(f"{row.where}: unknown column {column!r}. {nearest(column, columns)}")
        for label in row.labels:
            if label not in files.experiment.labels:
                raise SpecError(f"{row.where}: unknown label {label!r}. {nearest(label, files.experiment.labels)}")
    sweeps = {f"{r.id}/{c}" for r in files.experiment.rows for c, nets in r.cells.items() if nets.sweep}
    for claim in files.expected.claims:
        may_be_literature = claim.cells[1:] if claim.kind == "lower" and claim.measure == "test_error" else ()
        for cell in claim.all_cells:
            known = ids | (literature if cell in may_be_literature else set())
            if cell not in known:
                raise SpecError(f"{claim.where}: claim {claim.id!r}: unknown cell {cell!r}. {nearest(cell, known)}")
            if cell in sweeps and claim.kind not in ("diverges", "converges"):
                raise SpecError(f"{claim.where}: claim {claim.id!r}: {cell} stands for several nets.")
    _check_marks(files)


def _check_marks(files: _Files) -> None:
    """Marks are explained, and footnotes and headings of labels are used."""
    used = set()
    for row_id, columns_of_row in files.expected.cells.items():
        for column_id, expected in columns_of_row.items():
            used.add(expected.mark)
            if expected.mark is not None and expected.mark not in files.expected.footnotes:
                where = position_of(files.expected_node, "cells", row_id, column_id, "mark")
                raise SpecError(f"{where}: the mark {expected.mark!r} is not explained in footnotes.")
    for mark in files.expected.footnotes:
        if mark not in used:
            where = position_of(files.expected_node, "footnotes", mark)
            raise SpecError(f"{where}: no cell has the mark {mark!r}.")
    labels = {label for row in files.experiment.rows for label in row.labels}
    labels |= {label for row in files.expected.literature for label in row.labels}
    for label in files.experiment.labels:
        if label not in labels:
            where = position_of(files.experiment_node, "labels", label)
            raise SpecError(f"{where}: no row has the label {label!r}.")


def _check_name(node: yaml.MappingNode, key: str, file_name: str) -> None:
    """A file says inside what it is called."""
    says = items(node)[key][1].value
    if says != file_name:
        raise SpecError(f"{position_of(node, key)}: says `{key}: {says}`, but the file is named {file_name}.yaml.")


def _check_cells(files: _Files) -> None:
    """Every cell to run has a published result, and nothing else has."""
    ids = {f"{row.id}/{column}" for row in files.experiment.rows for column in row.cells}
    published = {f"{row}/{column}" for row, columns in files.expected.cells.items() for column in columns}
    for cell in sorted(published - ids):
        where = position_of(files.expected_node, "cells", *cell.split("/"))
        raise SpecError(f"{where}: the experiment has no cell {cell!r}. {nearest(cell, ids)}")
    for cell in sorted(ids - published):
        where = position_of(files.expected_node, "cells", *cell.split("/"))
        raise SpecError(f"{where}: the cell {cell!r} of the experiment has no published number here.")
