"""Tables as objects, for scripts, notebooks and the command line.

    import paperbench
    judged = paperbench.load_table("table2").compare("results/")
    judged.cells[0].verdict

    plan = paperbench.plan("table2", profile="smoke", cells="*/resnet110")
    print(plan)
    judged = paperbench.run(plan).judged

Only `plan`, `run`, `evaluate` and `analyze` load torch and timm.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property
from os import PathLike
from pathlib import Path
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Any

from paperbench.ambient import neutral
from paperbench.analysis.record import read_analyses
from paperbench.compare.against import Changes, find_changes
from paperbench.compare.claims import ClaimVerdict
from paperbench.compare.comparison import Comparison, Requirement, compare
from paperbench.compare.evidence import Evidence
from paperbench.compare.noise import MIN_RUNS_OF_NOISE
from paperbench.compare.origins import Origins, find_origins
from paperbench.compare.power import Outlook, assess_outlook
from paperbench.compare.responses import ReadAnalyses
from paperbench.compare.verdicts import CellFacts
from paperbench.errors import PaperbenchError, count, listing, nearest, one_line, without_paths
from paperbench.files import write_named
from paperbench.options import Incompatible, Selection, TrainingOptions, command
from paperbench.report import FORMATS, Format
from paperbench.report.curves import Curve, CurvePanel, curves_of, panels_of, thinned
from paperbench.report.grid import escape_markdown, paragraph
from paperbench.report.planned import PlanDocument, RunCost, RunPlan, Time, format_seeds
from paperbench.report.planned import render as render_plan
from paperbench.report.published import published_table
from paperbench.report.report import Report
from paperbench.runs.external import ExternalResult, read_externals
from paperbench.runs.record import Record
from paperbench.runs.rerun_record import read_reruns
from paperbench.runs.store import Store
from paperbench.specs.cell import Cell
from paperbench.specs.claim import asked_claim
from paperbench.specs.experiment import bare_name
from paperbench.specs.table import Table, find_spec_root, read_table, read_tables

if TYPE_CHECKING:
    import pandas
    import torch

    from paperbench.bench.cost import Cost
    from paperbench.data.dataset import Dataset
    from paperbench.report.analyses import Analyses
    from paperbench.report.json_format import ComparisonDocument
    from paperbench.runs.observer import Observer
    from paperbench.runs.planning import PlannedRun
    from paperbench.training.evaluation import EvaluationMetrics
    from paperbench.training.processes import Processes


_MAX_LINES, _MIN_PARTS = 500_000, 50
"""Lines of histories that a page draws, and parts of a training that it draws of each run in any case."""


class JudgedTable:
    """A table of the paper with a verdict for each cell and claim. `str` is the short report for a terminal.

    Attributes:
        comparison: The objects behind the verdicts.
        other_profiles: Other profiles with runs of these nets.
    """

    def __init__(self, comparison: Comparison, results: _Results, other_profiles: Sequence[str]) -> None:
        self.comparison, self._results, self._store = comparison, results, results.store
        self.other_profiles = tuple(other_profiles)

    @cached_property
    def document(self) -> ComparisonDocument:
        """What `--format json` writes, under the same names."""
        from paperbench.report.json_format import document

        return document(self.comparison, self._results.complaints, self.origins)

    @property
    def cells(self) -> tuple[CellFacts, ...]:
        return self.document.cells

    @property
    def claims(self) -> tuple[ClaimVerdict, ...]:
        return self.document.claims

    @property
    def left_out(self) -> tuple[str, ...]:
        """Files, records and results that could not be used, one sentence each."""
        return self.document.left_out

    @cached_property
    def origins(self) -> Origins:
        """Who trained the runs, on which machines, and whether these agree."""
        return find_origins(self.comparison, self._results.found, self._results.reruns)

    def cell(self, cell_id: str) -> CellFacts:
        """Return the cell `row/column`."""
        cells = {cell.id: cell for cell in self.cells}
        if cell_id not in cells:
            raise PaperbenchError(f"No cell {cell_id!r} here. {nearest(cell_id, cells)}")
        return cells[cell_id]

    def curves(self, parts: int = sys.maxsize) -> tuple[Curve, ...]:
        """Return the training curves of every net with runs, the longer ones thinned to so many parts of a training."""
        return tuple(curves_of(self.comparison, lambda r: thinned(self._store.history(r.run), r, parts)))

    def panels(self, figure: str | None = None) -> list[CurvePanel]:
        """Return the training curves as panels, of the whole table or of one of the paper's figures, such as "fig6"."""
        figures = {one.id: one for one in self.comparison.table.experiment.figures}
        if figure is not None and figure not in figures:
            raise PaperbenchError(f"{self.comparison.table.id} has no figure {figure!r}. {nearest(figure, figures)}")
        return panels_of(self.curves(), self.comparison, figures[figure] if figure else None)

    def to_frame(self) -> pandas.DataFrame:
        """Return a row for each net of each cell: published and our numbers, verdict, interval, as the CSV names them.

        `published` is missing where the paper prints no number; `published_fails` says whether it prints "fail". Data,
        precision and `median` are of the runs that the verdict is about.
        """
        from paperbench.report.frames import of_nets

        return of_nets(self.document)

    def runs(self) -> pandas.DataFrame:
        """Return a row for each run of each net: its line in the CSV, and its time, software and hardware.

        `group` is 1 for runs that the verdict is about, and more for others.
        """
        from paperbench.report.frames import of_runs

        return of_runs(self.document, self.comparison.records)

    def histories(self) -> pandas.DataFrame:
        """Return a row for each line of the histories of `curves()`, with the names of `HistoryLine`.

        Histories that cannot be read have no rows; `RunCurve.problem` says why.
        """
        from paperbench.report.csv_format import CURVE_COLUMNS, curve_rows
        from paperbench.report.frames import frame

        return frame(CURVE_COLUMNS, curve_rows(self.curves()))

    def holds(self, requirement: Requirement = "no difference") -> bool:
        """Whether no cell differs from the paper or, with "reproduced", whether all cells are reproduced."""
        return self.comparison.holds(requirement)

    @cached_property
    def report(self) -> Report:
        """The contents of the report, before it is formatted."""
        shown = [net.shown for cell in self.comparison.cells for net in cell.nets if net.shown]
        ended = {run.run for group in shown for run in group.runs if run.run and run.status != "partial"}

        def resting_on_records() -> int:
            records = self.comparison.records
            return sum(not self._store.directory(run).has_weights_or_checkpoint(records[run]) for run in ended)

        return Report(self.comparison, self.origins, len(self.left_out), resting_on_records)

    def render(
        self,
        form: Format = "table",
        requirement: Requirement = "no difference",
        *,
        long: bool = False,
        has_notes: bool = True,
    ) -> str:
        """Format the report.

        Args:
            requirement: The condition for a cell to pass, in "junit".
            long: Whether "table" is the full report; the other formats always are.
            has_notes: Whether "latex" has notes of ours below the table.
        """
        from paperbench.report import csv_format, json_format, junit, latex, text

        if form not in FORMATS:
            raise PaperbenchError(f"Unknown format {form!r}. {nearest(str(form), FORMATS)}")
        if form == "table" or form == "markdown":
            return text.render(self.report, self._store, form, long or form == "markdown")
        if form == "latex":
            return latex.render(replace(self.report, has_notes=has_notes))
        if form == "junit":
            return junit.render(self.report, requirement)
        return json_format.render(self.document) if form == "json" else csv_format.render(self.document)

    def __str__(self) -> str:
        return self.render("table")

    def __repr__(self) -> str:
        return repr(self.document)

    def _repr_markdown_(self) -> str:
        left_out = [escape_markdown(f"Left out: {complaint}") for complaint in self.left_out]
        return "\n\n".join([self.render("markdown"), *left_out])


@dataclass(frozen=True)
class _Results:
    """What a results directory holds, with a complaint about each file that could not be read.

    Attributes:
        found: See `Store.records_by_run`.
        reruns: Whether retrained starts of runs agreed, by the hash of their history.
    """

    store: Store
    found: Mapping[str, Sequence[tuple[str, Record]]]
    reruns: Mapping[str, bool]
    externals: Sequence[ExternalResult]
    complaints: Sequence[str]
    analyses: ReadAnalyses

    @classmethod
    def read(cls, directory: Path, table: str = "table2", profile: str = "paper") -> _Results:
        """Read a results directory; if there is none, an error says how to train a table there."""
        store = Store.existing(directory, table, profile)
        found, damaged = store.records_by_run()
        externals, wrong_externals = store.gather(read_externals)
        externals = [*{one.file_name: one for one in reversed(externals)}.values()]  # the first of each
        kept, wrong_reruns = store.gather(read_reruns)
        reruns = {one.history_sha256: one.holds for one in sorted(kept, key=lambda one: one.holds, reverse=True)}
        analyses = cache(lambda: store.gather(read_analyses))
        return cls(store, found, reruns, externals, [*damaged, *wrong_externals, *wrong_reruns], analyses)

    @property
    def records(self) -> list[Record]:
        return [its[0][1] for its in self.found.values()]


class PublishedTable:
    """A table as the paper prints it, which is also its `str`.

    Attributes:
        root: The directory with its experiments/.
    """

    def __init__(self, table: Table, root: Path) -> None:
        self.table, self.root = table, root

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
        results: str | PathLike[str] | None = "results",
        *,
        cells: str | Sequence[str] = "*",
        profile: str = "paper",
        seeds: int | None = None,
    ) -> JudgedTable:
        """Judge the results in a results directory.

        Args:
            results: Its path; None for the published numbers alone.
            cells: One shell pattern or several, see `Table.cells`.
            seeds: Runs per cell, fixed beforehand; by default the table's.
        """
        self.table.profile(profile)
        chosen = self.table.cells(cells, on_request=True)
        read = _Results(Store(Path()), {}, {}, (), (), lambda: ((), ()))
        if results is not None:
            read = _Results.read(Path(results), self.id, profile)
        return self._judge(read, chosen, profile, seeds)

    def compare_against(
        self,
        baseline: str | PathLike[str],
        results: str | PathLike[str] = "results",
        *,
        cells: str | Sequence[str] = "*",
        profile: str = "paper",
        margin: float = 1.0,
    ) -> Changes:
        """Say what changed in the runs of a results directory against those of another one, the baseline.

        Args:
            cells: See `compare`.
            margin: Smallest difference of test errors that matters, in percentage points.
        """
        if not margin > 0:
            raise PaperbenchError(f"The margin must be a positive number of percentage points, not {margin}.")
        self.table.profile(profile)
        chosen = self.table.cells(cells, on_request=True)
        sides = [_Results.read(Path(one), self.id, profile) for one in (results, baseline)]
        context = self.table, profile, MIN_RUNS_OF_NOISE
        evidence = [Evidence(*context, one.records, (), self._others) for one in sides]
        found = find_changes(chosen, evidence, [one.store.history for one in sides], margin)
        return replace(found, left_out=(*sides[0].complaints, *sides[1].complaints, *found.left_out))

    def _judge(self, results: _Results, chosen: Sequence[Cell], profile: str, seeds: int | None) -> JudgedTable:
        comparison = compare(
            *(self.table, chosen, profile, results.records, results.externals),
            training_mean=results.store.training_mean,
            analyses=results.analyses,
            seeds=seeds,
            other_tables=self._others,
        )
        models = {setting.reference.name for cell in chosen for setting in cell.settings}
        of_these_nets = {r.spec.profile for r in results.records if bare_name(r.net) in models}
        others = sorted({*self.table.profiles_among(of_these_nets)} - {profile})
        return JudgedTable(comparison, results, others)

    def outlook(
        self,
        results: str | PathLike[str] | None = None,
        *,
        cells: str | Sequence[str] = "*",
        seeds: int | None = None,
        std: float | None = None,
        claims: Sequence[str] = (),
    ) -> Outlook:
        """Say what runs of the paper's experiment would decide, by simulation.

        Args:
            results: Results directory with the runs at hand; None if there are none yet.
            cells, seeds: See `compare`.
            std: Standard deviation between runs in percentage points; by default as seen in the runs at hand.
            claims: Further ones, each "A < B" or "A < B by 0.5", see `asked_claim`.
        """
        chosen = {cell.id for cell in self.table.cells(cells)}
        asked = [asked_claim(one, n) for n, one in enumerate(claims)]
        expected = replace(self.table.expected, claims=(*self.table.expected.claims, *asked))
        judged = PublishedTable(replace(self.table, expected=expected), self.root).compare(results, seeds=seeds)
        found = assess_outlook(judged.comparison, std, cells=chosen)
        for one in asked:
            if one not in [simulated.claim for simulated in found.claims]:
                needs = "selected cells, each with one published error, no failed run, and 2 runs (--seeds) or more"
                raise PaperbenchError(f"The simulation of {one.says!r} needs {needs}.")
        return replace(found, left_out=judged.left_out)

    def _others(self) -> Iterator[Table]:
        return (one for one in read_tables(self.root) if one.id != self.id)

    def __str__(self) -> str:
        return f"{paragraph(f'{self.table.name}: {self.title}')}\n\n{published_table(self.table)}"

    def __repr__(self) -> str:
        return f"<{self.id}: {self.title}>"

    def _repr_markdown_(self) -> str:
        title = escape_markdown(f"**{self.table.name}: {self.title}**")
        return f"{title}\n\n{published_table(self.table, 'markdown')}"


def load_table(table: str, root: str | PathLike[str] | None = None) -> PublishedTable:
    """Load a table of the paper.

    Args:
        table: Its id, such as "table2".
        root: A directory with experiments/; by default paperbench's own.
    """
    directory = find_spec_root(Path(root) if root is not None else None)
    return PublishedTable(read_table(table, directory), directory)


@dataclass(frozen=True)
class Page:
    """A page of published tables beside our runs, in HTML.

    Attributes:
        tables: Ids of the tables on it with their profiles, such as ("table2", "paper").
        left_out: Files, records and results that could not be used, one sentence each.
    """

    html: str
    tables: tuple[tuple[str, str], ...]
    left_out: tuple[str, ...]

    def write(self, directory: str | PathLike[str]) -> Path:
        """Write the page as index.html into a directory, which is made if needed; return the file."""
        path = Path(directory) / "index.html"
        write_named(path, self.html.encode(), "--out DIR")
        return path

    def __repr__(self) -> str:
        return f"<page of {', '.join(map(' '.join, self.tables))}: {len(self.html):,} characters>"


def make_page(
    *tables: str,
    results: str | PathLike[str] = "results",
    profiles: Sequence[str] = (),
    cells: str | Sequence[str] = "*",
    seeds: int | None = None,
    root: str | PathLike[str] | None = None,
) -> Page:
    """Make a page of tables beside the runs in a results directory.

    Args:
        tables: Ids of tables, which appear even without runs; by default all that have runs.
        profiles: By default all that a table has runs of; without any, the paper's.
        cells, seeds: See `PublishedTable.compare`.
        root: See `load_table`.
    """
    from paperbench.report.page import Part, render

    directory = find_spec_root(Path(root) if root is not None else None)
    read = _Results.read(Path(results))
    present = {record.spec.profile for record in read.records} | {"paper"}
    shown: list[tuple[PublishedTable, JudgedTable]] = []
    unreadable: list[str] = []
    named = [load_table(one, directory) for one in dict.fromkeys(tables)]
    all_tables = read_tables(directory, lambda table, why: unreadable.append(f"{table}: {why}"))
    for table in named or [PublishedTable(one, directory) for one in all_tables]:
        for profile in profiles:
            (table.table.profile if tables else table.table.profiles.named)(profile)
        try:
            chosen = table.table.cells(cells, on_request=True)
        except PaperbenchError:
            if tables:
                raise
            continue
        wanted = table.table.profiles_among(profiles or present)
        judged = [table._judge(read, chosen, one, seeds) for one in wanted]
        with_runs = [one for one in judged if one.report.has_runs]
        if tables:
            with_runs = judged if profiles else with_runs or judged[:1]
        shown += ((table, one) for one in with_runs)
    if not shown:
        what = f"profile {' or '.join(profiles)}" if profiles else "these cells" if cells != "*" else "any table"
        unread = f" ({count(len(read.complaints), 'file')} cannot be used: see `verify`)" if read.complaints else ""
        raise PaperbenchError(
            f"{results} has no runs of {what}{unread}. Name a table to see it without runs, or train some: `paperbench "
            "run table2 --profile smoke`."
        )

    parts = max(_MIN_PARTS, _MAX_LINES // max(1, len(read.records)))
    in_results = re.compile(rf"(?<![\w./-]){re.escape(str(Path(results)))}(?=/)")  # names may be those of people

    def part(table: PublishedTable, one: JudgedTable) -> Part:
        patterns = (cells,) if isinstance(cells, str) else tuple(cells)
        chosen = Selection(table.id, patterns, one.comparison.profile, seeds, root=directory if root else None)
        rows = {cell.cell.row.id: cell.cell.row.title for cell in one.report.cells}
        commands = {
            command("run", chosen): "trains what is missing",
            **{command("run", replace(chosen, cells=(f"{row}/*",))): f"trains {its}" for row, its in rows.items()},
            command("compare", chosen): "judges it",
            "paperbench verify --rerun 1 --save": "checks all files, retrains the start of a run, keeps what it found",
        }
        left_out = [without_paths(in_results.sub("results", text)) for text in one.left_out]
        printed = [(without_paths(one), what) for one, what in commands.items()]
        return Part(one.report, panels_of(one.curves(parts), one.comparison), left_out, printed)

    html = render([part(*one) for one in shown])
    left_out = dict.fromkeys([*unreadable, *(text for _, one in shown for text in one.left_out)])
    return Page(html, tuple((table.id, one.comparison.profile) for table, one in shown), tuple(left_out))


@dataclass(frozen=True)
class Plan:
    """The runs that a table needs, and how to train them. `str` lists the runs.

    Attributes:
        unnamed_rows: Rows that match a pattern but are run only if they are named in full.
        seeds: Runs per cell, fixed beforehand; with the paper's profile `runs` may be the extension to twice as many.
        runs: All runs of these cells and seeds.
        remaining: The runs to do, each with the number of iterations to do.
        bytes_needed: Disk space that they need.
        device: May be `training.device.OTHER_MACHINES_GPU`.
        warnings: Why each GPU that `device="auto"` passed over was not used, and that the disk is too full, if it is.
        missing_data: What is wrong with the data sets that cannot be loaded; the ids of runs on them are unknown.
    """

    table: PublishedTable
    selection: Selection
    training: TrainingOptions
    unnamed_rows: tuple[str, ...]
    seeds: int
    runs: list[PlannedRun]
    remaining: list[tuple[PlannedRun, int]]
    bytes_needed: int
    device: torch.device
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        of, to_do = f"{self.table.id}, profile {self.selection.profile}", f"{len(self.remaining):,} to do"
        return f"<plan of {of}: {count(len(self.runs), 'run')}, {to_do}>"

    @property
    def compare_command(self) -> str:
        """The command that prints the report on the results of this plan."""
        seeds = self.seeds if self.seeds == self.selection.seeds else None
        return command("compare", replace(self.selection, seeds=seeds))

    @property
    def counted(self) -> str:
        """Which runs count in the table, as a sentence."""
        text = f"Runs that count: {self.seeds} per cell ({format_seeds(range(self.seeds))})"
        if extension := {run.seed for run in self.runs} - set(range(self.seeds)):
            text += f"; {format_seeds(extension)}: the extension, for cells that these leave undecided"
        return f"{text}."

    @property
    def missing_data(self) -> tuple[str, ...]:
        from paperbench.data.dataset import MissingDataset

        return tuple(dict.fromkeys(r.dataset.error for r in self.runs if isinstance(r.dataset, MissingDataset)))

    def check_processes(self, number: int) -> None:
        """Check that so many processes can train each remaining run together."""
        from paperbench.training.processes import refusal

        if self.training.at_once > 1 and number > 1:
            raise PaperbenchError(
                "--at-once trains several runs on one device, and several processes train each run on several devices: "
                "omit one of them."
            )
        for run, _ in self.remaining:
            if problem := refusal(number, run.net, run.recipe, run.dataset.num_train):
                raise PaperbenchError(f"{run.net_name}: {problem}")

    @neutral()
    def cost(
        self, rates: Mapping[str, float] | None = None, *, only_if_long: bool = False, processes: int = 1
    ) -> Cost | None:
        """Measure for some seconds, and estimate how long the remaining runs take; see `bench.cost.estimate`."""
        from paperbench.bench.cost import estimate

        at_once = 1 if self.device.type == "cpu" else self.training.at_once  # which gains nothing on a CPU
        how = self.device, self.training.engine, at_once
        lacking = {run.id: iterations for run, iterations in self.remaining}
        runs = [(run, lacking.get(run.id, 0)) for run in self.runs]
        return estimate(runs, *how, rates=rates, only_if_long=only_if_long, processes=processes)

    @neutral()
    def document(self, cost: Cost | None = None, workers: int = 1) -> PlanDocument:
        """Return the runs and, if `cost` is given, what the remaining ones take, also on so many devices at once."""
        from paperbench.data.dataset import MissingDataset
        from paperbench.data.share import WHOLE
        from paperbench.runs.disk_space import run_files
        from paperbench.training.engines import ENGINES, engine_candidates
        from paperbench.training.memory import memory_needed

        store, lacking = Store(self.selection.results), {run.id: iterations for run, iterations in self.remaining}
        engine, *_ = engine_candidates(self.training.engine, self.device)
        memory = {
            digest: memory_needed(
                *(one.net, one.recipe, one.spec.precision, one.side, ENGINES[engine].groups_at_once(one.recipe, WHOLE))
            )
            for digest, one in {run.spec.digest: run for run, _ in self.remaining if cost}.items()
        }

        def planned(run: PlannedRun) -> RunPlan:
            record, is_there = store.readable_record(run.id), store.directory(run.id).path.exists()
            to_do, is_known = lacking.get(run.id, 0), not isinstance(run.dataset, MissingDataset)
            status: Any = record.status if record else "no record" if is_there else "not started"
            if status in ("finished", "diverged") and run.id in lacking and self.training.incompatible == "refuse":
                status = "other facts"
            needs = None
            if cost and to_do:
                needs = RunCost(cost.seconds[run.id], memory[run.spec.digest], run_files(run)[1])
            done, status = record.iteration if record else 0, status if is_known else "unknown"
            return RunPlan(run.id if is_known else None, run.cells, run.net_name, run.seed, status, done, to_do, needs)

        many, time = self.training.at_once, None
        if cost:
            longest = max(cost.seconds.values()) * many
            time = Time(str(cost), cost.total, workers, cost.on_devices(workers, many), longest)
        return PlanDocument(
            schema=1,
            table=self.table.id,
            profile=self.selection.profile,
            seeds=self.seeds,
            runs=tuple(map(planned, self.runs)),
            remaining=len(self.remaining),
            disk=self.bytes_needed,
            device=str(self.device),
            precisions=tuple({run.spec.precision: None for run in self.runs}),
            engine=engine,
            at_once=many,
            stop_at=self.training.stop_at,
            time=time,
            skipped_rows=self.unnamed_rows,
            warnings=tuple(map(one_line, self.warnings)),
            missing_data=tuple(map(one_line, self.missing_data)),
        )

    def listing(self, cost: Cost | None = None, workers: int = 1) -> str:
        """List the runs and what they take; see `document`."""
        return render_plan(self.document(cost, workers))

    __str__ = listing


@dataclass(frozen=True)
class Outcome:
    """The outcome of `run`.

    Attributes:
        failed: Runs that could not be resumed; the observer got the reasons.
        remaining: Runs still to do, including the failed ones.
        is_cut_short: Whether a signal or the time limit stopped training.
        signal: Number of the signal, if a signal stopped it.
    """

    plan: Plan
    judged: JudgedTable
    failed: list[PlannedRun]
    remaining: list[PlannedRun]
    is_cut_short: bool
    signal: int | None

    def __repr__(self) -> str:
        return f"<outcome of {self.plan.table.id}: {len(self.failed):,} failed, {len(self.remaining):,} to do>"

    def summary(self) -> str:
        """Return the results, which runs count, and the command to give next."""
        from paperbench.report.text import summary

        return f"{summary(self.judged.report)}\n{paragraph(self.plan.counted)}\n\n{self.advice}"

    @property
    def advice(self) -> str:
        """What to do next: prose, or a command on a line that is never wrapped, so that it can be copied."""
        nets = self.judged.report.nets
        if self.remaining:
            fix = "fix the errors above, then " if self.failed else ""
            return paragraph(f"Next: {fix}give the same command again ({count(len(self.remaining), 'run')} to do).")
        if self.plan.training.stop_at and any(net.ours and net.ours.ended != list(net.ours.runs) for net in nets):
            return paragraph("Next: give the same command without --stop-at, or with a later one.")
        return f"Next, print the report:\n{self.plan.compare_command}"


def plan(
    table: str,
    results: str | PathLike[str] = "results",
    *,
    cells: str | Sequence[str] = "*",
    profile: str = "paper",
    seeds: int | None = None,
    precision: str | None = None,
    device: str = "auto",
    engine: str = "auto",
    data: str | PathLike[str] | None = None,
    at_once: int = 1,
    stop_at: int | None = None,
    max_seconds: float | None = None,
    incompatible: Incompatible = "refuse",
    root: str | PathLike[str] | None = None,
    estimate_only: bool = False,
    for_other_machine: bool = False,
) -> Plan:
    """Plan the training of a table. Loads the data sets; writes nothing.

    The keywords are the options of `paperbench run`, whose `--help` describes them; `root` is `--tables`.

    Args:
        cells: One shell pattern or several, see `Table.cells`.
        estimate_only, for_other_machine: See `plan_runs`.
    """
    patterns = (cells,) if isinstance(cells, str) else tuple(cells)
    in_data, in_root = (Path(one) if one is not None else None for one in (data, root))
    selection = Selection(table, patterns, profile, seeds, Path(results), in_root)
    training = TrainingOptions(precision, device, engine, at_once, stop_at, max_seconds, incompatible, in_data)
    return plan_runs(selection, training, estimate_only=estimate_only, for_other_machine=for_other_machine)


@neutral()
def plan_runs(
    selection: Selection, training: TrainingOptions, *, estimate_only: bool = False, for_other_machine: bool = False
) -> Plan:
    """Plan the training of a selection.

    Args:
        estimate_only: Whether a missing GPU or missing data is no error, and a full disk only a warning. Such a plan
            may be unfit to run.
        for_other_machine: Whether the plan is for a GPU of another machine, which has TF32, whatever the device is. It
            cannot be run here.
    """
    published, results = load_table(selection.table, selection.root), selection.results
    table = published.table
    profile, chosen = table.profile(selection.profile), table.cells(selection.cells)
    if results.exists() and not results.is_dir():
        raise PaperbenchError(f"{results} is not a directory. Choose another one (`--results DIR`).")

    # torch from here on, once the names are right
    from paperbench.runs.disk_space import bytes_needed, check_disk_space
    from paperbench.runs.limits import Limits
    from paperbench.runs.resume import other_fact
    from paperbench.runs.worker import remaining
    from paperbench.training.device import OTHER_MACHINES_GPU, choose_device

    warnings: list[str] = []
    device = OTHER_MACHINES_GPU
    if not for_other_machine:
        device = choose_device(training.device, warnings.append, allow_other_machine=estimate_only)
    runs = _runs(table, selection, training, device, may_lack_data=estimate_only)
    usual = table.seeds_in(profile)
    seeds = selection.seeds or usual
    store = Store(results)
    to_do = remaining(runs, store, Limits(training.stop_at), training.incompatible)
    begun = [(run, record) for run in runs if (record := store.readable_record(run.id))]
    if unknown := [run.id for run, record in begun if not record.facts]:
        warnings.append(
            f"{listing(unknown)}: begun by an older version, which recorded no facts, so nothing shows whether today's "
            "code would train the same."
        )
    if estimate_only:  # else each of these runs fails, for this reason
        others = [(run, other) for run, record in begun if (other := other_fact(record, run))]
        warnings += (f"{run.id} ({run.net_name}) was trained with other facts: {other}" for run, other in others)
    _check_streams(to_do, training, device)
    needed = bytes_needed([run for run, _ in to_do], store, start_anew=training.incompatible == "restart")
    try:
        check_disk_space(needed, results)
    except PaperbenchError as error:
        if not estimate_only:
            raise
        warnings.append(str(error))
    matching = table.cells(selection.cells, on_request=True)
    return Plan(
        table=published,
        selection=selection,
        training=training,
        unnamed_rows=tuple(dict.fromkeys(cell.row.id for cell in matching if cell not in chosen)),
        # twice the planned number is its extension, which verdicts judge by the planned one
        seeds=usual if selection.profile == "paper" and seeds == 2 * usual else seeds,
        runs=runs,
        remaining=to_do,
        bytes_needed=needed,
        device=device,
        warnings=tuple(warnings),
    )


def _check_streams(to_do: list[tuple[PlannedRun, int]], training: TrainingOptions, device: torch.device) -> None:
    """Check that a GPU has streams for as many runs as are to take turns."""
    from paperbench.data.share import WHOLE
    from paperbench.training.engines import ENGINES, engine_candidates
    from paperbench.training.turns import most_at_once

    engine = ENGINES[engine_candidates(training.engine, device)[0]]
    most = most_at_once(max((engine.groups_at_once(run.recipe, WHOLE) for run, _ in to_do), default=1))
    if device.type == "cuda" and training.at_once > most:
        raise PaperbenchError(f"At most {most} of these runs can share a GPU. Use `--at-once {most}`, or fewer.")


def _runs(
    table: Table, selection: Selection, training: TrainingOptions, device: torch.device, *, may_lack_data: bool
) -> list[PlannedRun]:
    """Return the runs of a selection, done or not."""
    from paperbench.runs.planning import needed_datasets, planned_runs
    from paperbench.training.engines import engine_candidates
    from paperbench.training.precision import choose_precision

    profile, chosen = table.profiles.named(selection.profile), table.cells(selection.cells)
    engine_candidates(training.engine, device)  # raises its errors before data are loaded
    precision = choose_precision(training.precision or table.experiment.precision, device)
    datasets = _load_datasets(needed_datasets(chosen, profile), training.data, may_lack=may_lack_data)
    seeds = selection.seeds or table.seeds_in(profile)
    return planned_runs(table, chosen, selection.profile, precision, seeds, datasets)


def _load_datasets(keys: Iterable[str], data: Path | None, *, may_lack: bool) -> dict[str, Dataset]:
    """Load data sets; if they may be lacking, those that cannot be loaded are represented by what is wrong."""
    from paperbench.catalogue import DATASETS
    from paperbench.data.dataset import MissingDataset
    from paperbench.data.sources import data_directory, load_dataset

    datasets: dict[str, Dataset] = {}
    directory = data_directory(data)
    for key in keys:
        try:
            datasets[key] = load_dataset(key, directory)
        except PaperbenchError as error:
            if not may_lack:
                raise
            datasets[key] = MissingDataset(key, DATASETS[key].title, str(directory), canonical=False, error=str(error))
    return datasets


@neutral()
def run(plan: Plan, observer: Observer | None = None, processes: Processes | None = None) -> Outcome:
    """Train the remaining runs of a plan, then judge the table. Ctrl-C and SIGTERM stop it after the current iteration.

    Args:
        observer: Follows the runs; by default progress is printed on stderr.
        processes: Those that share each run, if this is number 0 of several; the others call `assist`.
    """
    for error in plan.missing_data:
        raise PaperbenchError(error)
    from paperbench.report.progress import Progress
    from paperbench.runs.limits import Limits, stopping_on_signals
    from paperbench.runs.session import SessionSetting
    from paperbench.runs.worker import Worker
    from paperbench.training.device import OTHER_MACHINES_GPU
    from paperbench.training.processes import Processes

    if plan.device == OTHER_MACHINES_GPU:
        raise PaperbenchError("This plan is for a GPU of another machine. Plan again there.")
    selection, training, processes = plan.selection, plan.training, processes or Processes()
    plan.check_processes(processes.count)
    observer = observer or Progress(plan.remaining, len(plan.runs), sys.stderr)
    processes.limits = limits = Limits(training.stop_at, training.max_seconds)
    at_once = max(1, min(training.at_once, len(plan.remaining)))
    setting = SessionSetting(plan.device, limits, observer, training.engine, processes, at_once)
    is_launched = processes.count > 1 or "PAPERBENCH_SAVED" in os.environ  # by the script of a Slurm job
    with stopping_on_signals(limits, is_launched=is_launched) if current_thread() is main_thread() else nullcontext():
        failed = Worker(Store(selection.results), setting, training.incompatible).run_all(plan.runs)
    observer.all_done()
    return conclude(plan, failed, limits.exhausted, limits.signal)


@neutral()
def assist(selection: Selection, training: TrainingOptions, processes: Processes) -> int:
    """Train, as one of several processes but not number 0, what that one chooses; return the exit status it gives."""
    from paperbench.runs.limits import Limits, stopping_on_signals
    from paperbench.runs.observer import Observer
    from paperbench.runs.session import SessionSetting
    from paperbench.runs.worker import Worker
    from paperbench.training.device import choose_device

    def planned() -> list[PlannedRun]:
        table = load_table(selection.table, selection.root).table
        return _runs(table, selection, training, device, may_lack_data=False)

    device = choose_device(training.device, lambda _: None)
    processes.limits = limits = Limits()  # process 0 has those of the command
    worker = Worker(Store(selection.results), SessionSetting(device, limits, Observer(), processes=processes))
    with stopping_on_signals(limits, is_launched=True):
        return worker.assist(processes.agreed(planned))


def conclude(plan: Plan, failed: list[PlannedRun], is_cut_short: bool, signal: int | None = None) -> Outcome:
    """Judge the table after training; see `Outcome` for the arguments."""
    from paperbench.runs.limits import Limits
    from paperbench.runs.worker import remaining

    selection, limits = plan.selection, Limits(plan.training.stop_at)
    selection.results.mkdir(parents=True, exist_ok=True)  # even if there was no time to start a run
    judged = plan.table.compare(selection.results, cells=selection.cells, profile=selection.profile, seeds=plan.seeds)
    left = [run for run, _ in remaining(plan.runs, Store(selection.results), limits, plan.training.incompatible)]
    ids = {run.id for run in left}
    failed = [run for run in failed if run.id in ids]  # another process may have finished one
    return Outcome(plan, judged, failed, left, is_cut_short, signal)


@neutral()
def evaluate(net: str, **options: Any) -> list[EvaluationMetrics]:
    """Test a net; see `runs.evaluate.prepare` for its names and the options."""
    from paperbench.runs.evaluate import prepare

    return prepare(net, **options).test()


@neutral()
def analyze(
    what: str | None = None,
    *,
    results: str | PathLike[str] = "results",
    announce: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> Analyses:
    """Measure signal and gradient in every unit of nets: Sections 2 and 3 of the paper.

    Args:
        what: A net, or a table. Without it, and without a run or weights, `results` is read, without torch.
        results: Directory in which analyses are kept.
        announce: Called with a sentence before each new analysis, and about each file that cannot be read.
        options: See `analysis.cases.analyses_of`.
    """
    from paperbench.report.analyses import Analyses

    if what is None and not {"run", "weights"} & options.keys():
        if useless := options.keys() - {"data", "device", "root"}:
            raise PaperbenchError(f"{listing(sorted(useless))}: only for a net or table that is named. Name one.")
        found, complaints = read_analyses(Path(results))
        for complaint in complaints:
            announce(f"paperbench: left out: {complaint}")
        if not found:
            raise PaperbenchError(
                f"{results} holds no analyses. Name a net, table, run or weights file, or `--results`."
            )
        found = sorted(found, key=lambda one: (len(one.stages), one.net, one.spec.iteration, one.spec.digest, one.seed))
        return Analyses(found)
    from paperbench.analysis.cases import analyses_of

    return Analyses(analyses_of(what, results=results, announce=announce, **options))
