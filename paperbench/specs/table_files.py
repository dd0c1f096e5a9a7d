"""The files of tables and where they are; the two of a table checked against each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from paperbench.catalogue import DATASETS, find_file, is_function
from paperbench.errors import PaperbenchError, closest, nearest
from paperbench.specs.cell import Cell
from paperbench.specs.expected import WITHOUT_NUMBERS, Expected, ExpectedCell
from paperbench.specs.experiment import Experiment
from paperbench.specs.profile import Profile
from paperbench.specs.yaml_file import Document, read_yaml
from paperbench.typed import KeyPath, Problem, unknown_words

T = TypeVar("T")


def find_spec_root(chosen: Path | None = None) -> Path:
    """Return the directory that contains experiments/: the user's choice, else the wheel's, or the source checkout."""
    package = Path(__file__).resolve().parents[1]
    for root in [chosen] if chosen else [package / "_specs", package.parent]:
        if (root / "experiments").is_dir():
            return root
    if chosen is None:
        raise PaperbenchError("experiments/ is missing from this installation. Reinstall paperbench.")
    raise PaperbenchError(f"{chosen} has no directory experiments/. `paperbench init DIR` makes one in DIR.")


def table_ids(root: Path) -> list[str]:
    """Return the ids of the tables that have an experiment under `root`."""
    return sorted(path.stem for path in (root / "experiments").glob("*.yaml") if path.stem != "profiles")


def tables_here() -> list[str]:
    """Return the ids of the tables that the working directory has and paperbench has not."""
    return [table for table in table_ids(Path()) if table not in table_ids(find_spec_root())]


def recipe_files(root: Path) -> dict[str, Path]:
    """Return the recipes that tables under `root` know, by name: their own, and paperbench's of other names."""
    directories = (one / "experiments" / "recipes" for one in (find_spec_root(), root))
    return {path.stem: path for directory in directories for path in sorted(directory.glob("*.yaml"))}


def profiles_file(root: Path) -> Path:
    """Return the profiles of the tables under `root`: their own or, without a file, paperbench's."""
    own = root / "experiments" / "profiles.yaml"
    return own if own.exists() else find_spec_root() / "experiments" / "profiles.yaml"


def read_named(path: Path, kind: type[T], key: str) -> tuple[Document, T]:
    """Read a file whose value under `key` must be the file's name."""
    document = read_yaml(path)
    value = document.parse(kind)
    if document.data[key] != path.stem:
        raise document.error([Problem((key,), f"must be {path.stem}, like the file name.")])
    return document, value


class TableFiles:
    """The files of one table.

    Attributes:
        expected_file: The experiment's if the table has none; then nothing is published.
        cell_ids: Every "row/column" of the experiment.
    """

    def __init__(self, table: str, root: Path) -> None:
        self.table, self.root = table, root
        self.experiment_file, self.experiment = read_named(root / "experiments" / f"{table}.yaml", Experiment, "table")
        expected = root / "expected" / f"{table}.yaml"
        self.expected_file, self.expected = self.experiment_file, Expected(schema=1, table=table)
        others = {one.stem for one in expected.parent.glob("*.yaml")}.difference(table_ids(root))
        if not expected.exists() and (meant := closest(table, others)):
            raise PaperbenchError(f"{root}/expected/{meant}.yaml is of no table. Call it {table}.yaml, or remove it.")
        if expected.exists():
            self.expected_file, self.expected = read_named(expected, Expected, "table")
        self._rows = {row.id: row for row in self.experiment.rows}
        self._columns = {column.id: column for column in self.experiment.columns}
        self.cell_ids = [f"{row.id}/{column}" for row in self.experiment.rows for column in row.cells]
        recipes: list[tuple[KeyPath, str]] = [(("recipe",), self.experiment.recipe)]
        recipes += [(("rows", i, "recipe"), row.recipe) for i, row in enumerate(self.experiment.rows) if row.recipe]
        for document, problems in (
            (self.experiment_file, [*unknown_words("recipe", recipes, recipe_files(root)), *self._function_problems()]),
            (self.expected_file, [*self._cell_problems(), *self._remark_problems(), *self._claim_problems()]),
        ):
            if problems:
                raise document.error(problems)

    def _function_problems(self) -> Iterator[Problem]:
        """Look for the files of the functions that make nets."""
        for i, row in enumerate(self.experiment.rows):
            for column, nets in row.cells.items():
                if is_function(nets.model):
                    try:
                        find_file(nets.model, self.root)
                    except PaperbenchError as error:
                        yield Problem(("rows", i, "cells", column), str(error))

    def _cell_problems(self) -> Iterator[Problem]:
        """Check that the experiment has all cells with a published result, and that marks have footnotes."""
        cells = {(row, column): cell for row, cells in self.expected.cells.items() for column, cell in cells.items()}
        yield from unknown_words("cell", ((("cells", *key), "/".join(key)) for key in cells), self.cell_ids)
        marks = {("cells", *key, "mark"): cell.mark for key, cell in cells.items() if cell.mark is not None}
        yield from unknown_words("mark", marks.items(), self.expected.footnotes)
        for mark in self.expected.footnotes:
            if mark not in marks.values():
                yield Problem(("footnotes", mark), "no cell has this mark.")

    def _remark_problems(self) -> Iterator[Problem]:
        """Check the cells, columns and labels that disputed numbers, peers and literature rows name."""
        remarks: list[tuple[KeyPath, str | None]] = [
            *((("disputed", i, "cell"), remark.cell) for i, remark in enumerate(self.expected.disputed)),
            *((("peers", i, "cell"), peer.cell) for i, peer in enumerate(self.expected.peers)),
        ]
        yield from unknown_words("cell", ((path, cell) for path, cell in remarks if cell is not None), self.cell_ids)
        for i, row in enumerate(self.expected.literature):
            path = "literature", i
            if row.id in self._rows:
                yield Problem((*path, "id"), f"{row.id!r} is also a row of the experiment.")
            columns = (((*path, "cells", column), column) for column in row.cells)
            yield from unknown_words("column", columns, self._columns)
            labels = (((*path, "labels", label), label) for label in row.labels)
            yield from unknown_words("label", labels, self.experiment.labels)

    def _claim_problems(self) -> Iterator[Problem]:
        """Check the cells that claims name. Only test errors are known of literature rows."""
        literature = [f"{row.id}/{column}" for row in self.expected.literature for column in row.cells]
        for i, claim in enumerate(self.expected.claims):
            path = "claims", i, "pairs" if claim.pairs else "cells"
            may_be_literature = claim.cells[1:] if claim.kind == "lower" and claim.measure == "test_error" else ()
            for cell in claim.all_cells:
                known = self.cell_ids + (literature if cell in may_be_literature else [])
                yield from unknown_words("cell", [(path, cell)], known)
                row, _, column = cell.partition("/")
                is_sweep = cell in self.cell_ids and self._rows[row].cells[column].sweep
                if is_sweep and claim.kind not in ("diverges", "converges"):
                    yield Problem(path, f"{cell} is a sweep over several nets; a claim of this kind needs single nets.")

    def cell(self, cell_id: str) -> Cell:
        """Return a cell with `same_as` unresolved."""
        row, column = self._rows[cell_id.split("/")[0]], self._columns[cell_id.split("/")[1]]
        return Cell(
            row,
            column,
            self.expected.cells.get(row.id, {}).get(column.id) or ExpectedCell("unprinted"),
            self.expected.defaults or WITHOUT_NUMBERS,
            home=f"{self.table}/{cell_id}",
            dataset=row.dataset or column.dataset or "",
            recipe=row.recipe or self.experiment.recipe,
            root=self.root,
        )


def resolve_cells(files: TableFiles) -> tuple[tuple[Cell, ...], dict[str, TableFiles]]:
    """Return the cells of a table, column by column, and the files of the tables that its numbers come from."""
    others: dict[str, TableFiles] = {}
    cells, problems = [], []
    for column in files.experiment.columns:
        for row in files.experiment.rows:
            if column.id not in row.cells:
                continue
            cell = files.cell(f"{row.id}/{column.id}")
            try:
                if cell.expected.same_as is not None:
                    cell = _with_referenced_number(cell, cell.expected.same_as, files, others)
                _check_published_result(cell)
            except ValueError as error:
                problems.append(Problem(("cells", row.id, column.id), str(error)))
            cells.append(cell)
    if problems:
        raise files.expected_file.error(problems)
    return tuple(cells), others


def _with_referenced_number(cell: Cell, same_as: str, files: TableFiles, others: dict[str, TableFiles]) -> Cell:
    """Return the cell with the result of the cell that it refers to.

    Args:
        files: Those of the cell's table.
        others: The files of other tables read so far; gains this one.

    Raises:
        ValueError: The referenced cell does not exist or is of another experiment.
    """
    table, cell_id = same_as.split("/", 1)
    tables = [known for known in table_ids(files.root) if known != files.table]
    if table not in tables:
        raise ValueError(f"same_as must name a cell of another table. {nearest(table, tables)}")
    if table not in others:
        others[table] = TableFiles(table, files.root)
    if cell_id not in others[table].cell_ids:
        raise ValueError(f"{table} has no cell {cell_id!r}. {nearest(cell_id, others[table].cell_ids)}")
    other = others[table].cell(cell_id)
    if other.expected.same_as is not None:
        raise ValueError(f"{same_as} refers to {other.expected.same_as}; name that cell instead.")
    for name, ours, theirs in _experiment_pairs(cell, other):
        if ours != theirs:
            raise ValueError(f"{same_as} is another experiment: its {name} is {theirs}; here it is {ours}.")
    return replace(cell, expected=cell.expected.with_number_of(other.expected), defaults=other.defaults, home=same_as)


def _experiment_pairs(one: Cell, other: Cell) -> Iterator[tuple[str, object, object]]:
    """Yield name and both values of everything that two cells with the same number must share."""
    yield "data set", one.dataset, other.dataset
    yield "recipe", one.recipe, other.recipe
    yield "metric", one.column.metric, other.column.metric
    yield "evaluation", one.row.evaluation or "whole images", other.row.evaluation or "whole images"
    nets = [[cell.net_in(Profile("paper"), setting) for setting in cell.settings] for cell in (one, other)]
    if nets[0] != nets[1]:
        names = [", ".join(str(s.reference) for s in cell.settings) for cell in (one, other)]
        yield "net", names[0], names[1]


def _check_published_result(cell: Cell) -> None:
    """Check that runs of the cell can be compared with its published result.

    Raises:
        ValueError: They cannot.
    """
    if cell.expected.value == "fail" and DATASETS[cell.dataset].fail_above is None:
        title = DATASETS[cell.dataset].title
        raise ValueError(f"`fail` is not defined for {title}; write the printed error.")
    if cell.expected.std is not None and cell.published_runs < 2:
        raise ValueError(f"a standard deviation needs at least 2 runs, and n is {cell.published_runs}.")
    if len(cell.settings) > 1 and cell.number is not None:
        raise ValueError(f"{cell.id} is a sweep over {len(cell.settings)} nets, so its value must be `fail`.")
