"""Tables as objects, for scripts and notebooks.

    import paperbench
    table = paperbench.load_table("table2")
    judged = table.compare("results/")
    judged.cells[0].verdict

Neither torch nor timm is loaded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from os import PathLike
from pathlib import Path

from tabulate import tabulate

from paperbench.compare.claims import ClaimVerdict
from paperbench.compare.comparison import Comparison, Requirement, compare
from paperbench.compare.verdicts import CellComparison
from paperbench.errors import PaperbenchError, nearest
from paperbench.report.formats import FORMATS, Format
from paperbench.report.layout import paper_grid
from paperbench.report.model import build_report
from paperbench.report.table import published_table
from paperbench.runs.external import read_externals
from paperbench.runs.store import Store
from paperbench.specs.locate import spec_root
from paperbench.specs.table import Cell, Table, table_ids
from paperbench.specs.table import load_table as read_table


class JudgedTable:
    """A table of the paper with a verdict for each cell and claim. `str` is the report for a terminal.

    Attributes:
        comparison: All that was found.
        complaints: What could not be read or was left out, one sentence each.
        other_profiles: Those that there are runs of too.
    """

    def __init__(
        self, comparison: Comparison, store: Store, complaints: Sequence[str], other_profiles: Sequence[str]
    ) -> None:
        self.comparison, self._store = comparison, store
        self.complaints = tuple(_printable(text) for text in (*complaints, *comparison.left_out))
        self.other_profiles = tuple(other_profiles)

    @property
    def cells(self) -> tuple[CellComparison, ...]:
        return self.comparison.cells

    @property
    def claims(self) -> tuple[ClaimVerdict, ...]:
        return self.comparison.claims

    def cell(self, cell_id: str) -> CellComparison:
        """The cell `row/column`.

        Raises:
            PaperbenchError: It was not compared.
        """
        for compared in self.cells:
            if compared.cell.id == cell_id:
                return compared
        raise PaperbenchError(f"No cell {cell_id!r} here. {nearest(cell_id, [c.cell.id for c in self.cells])}")

    def holds(self, requirement: Requirement = "no difference") -> bool:
        """Whether no cell differs from the paper; or, with "reproduced", whether all are reproduced."""
        return self.comparison.holds(requirement)

    def render(self, form: Format = "table", requirement: Requirement = "no difference") -> str:
        """The report in a format.

        Args:
            requirement: What a cell must be to pass, in JUnit's XML.

        Raises:
            PaperbenchError: There is no such format.
        """
        report = build_report(self.comparison, len(self.complaints))
        match form:  # what a format needs is imported for it alone
            case "table" | "markdown":
                from paperbench.report import text

                return text.render(report, self._store, form)
            case "latex":
                from paperbench.report import latex

                return latex.render(report)
            case "junit":
                from paperbench.report import junit

                return junit.render(report, requirement)
            case "json" | "csv":
                from paperbench.report import csv_format, document

                facts = document.document(self.comparison, self.complaints)
                return document.render(facts) if form == "json" else csv_format.render(facts)
        raise PaperbenchError(f"Unknown format {form!r}. {nearest(str(form), FORMATS)}")

    def __str__(self) -> str:
        return self.render("table")

    def __repr__(self) -> str:
        cells = ", ".join(f"{n} {verdict}" for verdict, n in Counter(c.verdict for c in self.cells).items())
        claims = ", ".join(f"{n} {standing}" for standing, n in Counter(c.standing for c in self.claims).items())
        return f"<{self.comparison.table.id} compared: {cells}{f'; claims: {claims}' if claims else ''}>"

    def _repr_markdown_(self) -> str:
        return "\n\n".join([self.render("markdown"), *(f"Left out: {complaint}" for complaint in self.complaints)])


class PublishedTable:
    """A table as the paper prints it. `str` is that, as text.

    Attributes:
        table: Everything known of it.
    """

    def __init__(self, table: Table, root: Path) -> None:
        self.table, self._root = table, root

    @property
    def id(self) -> str:
        return self.table.id

    @property
    def title(self) -> str:
        return self.table.experiment.title

    @property
    def cells(self) -> tuple[Cell, ...]:
        return self.table.all_cells

    def compare(
        self,
        results: str | PathLike[str] = "results",
        *,
        cells: str = "*",
        profile: str = "paper",
        seeds: int | None = None,
    ) -> JudgedTable:
        """Judge the results in a directory.

        Args:
            cells: A shell pattern, see `Table.cells`.
            seeds: Runs a cell, fixed beforehand, if not as many as the table says.

        Raises:
            PaperbenchError: There is no such directory, profile or cell.
        """
        self.table.profiles.named(profile)
        chosen = self.table.cells(cells, on_request=True)
        folder = Path(results)
        if folder.exists() and not folder.is_dir():
            raise PaperbenchError(f"{folder} is no directory. Name a results directory (`--results`).")
        if not folder.is_dir():
            raise PaperbenchError(
                f"There is no directory {folder}. Name the one with the results (`--results`), or make one: "
                f"`paperbench run {self.id} --profile {profile} --results {folder}`."
            )
        store = Store(folder)
        found = store.sound_records()
        externals, complaints = read_externals(folder)
        comparison = compare(
            self.table,
            chosen,
            profile,
            found.records,
            externals,
            training_mean=store.training_mean,
            seeds=seeds,
            other_tables=self._others,
        )
        models = {setting.reference.name for cell in chosen for setting in cell.settings}
        of_these_nets = {r.spec.profile for r in found.records if re.split(r"[.(]", r.net)[0] in models}
        others = sorted((of_these_nets & set(self.table.profiles.profiles)) - {profile})
        return JudgedTable(comparison, store, [*found.complaints, *complaints], others)

    def _others(self) -> Iterator[Table]:
        for one in table_ids(self._root):
            if one != self.id:
                with suppress(PaperbenchError):  # whoever asks for that table is told what is wrong with it
                    yield read_table(one, self._root)

    def __str__(self) -> str:
        return f"{self.table.source.table}: {self.title}\n\n{published_table(self.table)}"

    def __repr__(self) -> str:
        return f"<{self.id}: {self.title}>"

    def _repr_markdown_(self) -> str:
        grid = paper_grid(self.table, self.cells)
        lines = tabulate(grid.rows, grid.headers, "github", disable_numparse=True, colalign=grid.alignment)
        return f"**{self.table.source.table}: {self.title}**\n\n{lines}"


def _printable(text: str) -> str:
    """Text without what file names can hold and no encoding can."""
    return text.encode("utf-8", "backslashreplace").decode()


def load_table(table: str, root: str | PathLike[str] | None = None) -> PublishedTable:
    """A table of the paper.

    Args:
        table: Its id, such as "table2".
        root: A folder with experiments/ and expected/; by default those of paperbench.

    Raises:
        PaperbenchError: There is no such table, or one of its files is not as it should be.
    """
    folder = spec_root(Path(root) if root is not None else None)
    return PublishedTable(read_table(table, folder), folder)
