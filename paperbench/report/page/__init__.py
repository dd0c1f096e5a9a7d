"""The page of `paperbench report`: tables, verdicts, curves and runs in one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Any

import jinja2
from markupsafe import Markup

from paperbench import __version__
from paperbench.errors import count, printable
from paperbench.report.curves import CurvePanel
from paperbench.report.drawing import as_svg, units_drawing
from paperbench.report.grid import NOTHING, Grid, Marked
from paperbench.report.page.charts import chart_data
from paperbench.report.page.intervals import IntervalScale
from paperbench.report.report import WORDS, Report, method, percent
from paperbench.runs.record import Record


@dataclass(frozen=True, eq=False)
class Part:
    """A table in one profile, as the page shows it.

    Attributes:
        left_out: Files, records and results that were not used, a sentence each.
        commands: Commands that repeat it, and what they do.
        earlier: The parts above it on the page, whose curves and runs it does not repeat.
    """

    report: Report
    panels: Sequence[CurvePanel]
    left_out: Sequence[str]
    commands: Sequence[tuple[str, str]]
    earlier: tuple[Part, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.report.comparison.table.id}-{self.report.comparison.profile}"

    @property
    def name(self) -> str:
        return f"{self.report.comparison.table.name}, profile {self.report.comparison.profile}"

    @property
    def meanings(self) -> Iterator[tuple[str, str]]:
        """The verdicts and standings that occur, and what they mean."""
        comparison = self.report.comparison
        found = {claim.standing for claim in comparison.claims} if self.report.claims else set()
        words: set[str] = {*found, *((cell.verdict for cell in comparison.cells) if self.report.has_verdicts else ())}
        return ((word, text) for word, (_, text) in WORDS.items() if word in words)

    @property
    def cells(self) -> Grid:
        """The errors of each net, with its verdict and its interval drawn."""
        grid, nets, scale = self.report.cell_grid, self.report.tried, self.scale
        if not self.report.has_verdicts:
            return grid
        further = [[Marked(net.net.verdict, []), *([scale.draw(net)] if scale else [])] for net in nets]
        return Grid(
            (*grid.headers, "verdict", *([scale.axis()] if scale else [])),
            tuple((*row, *added) for row, added in zip(grid.rows, further, strict=True)),
            (*grid.alignment, "left", *(["drawn"] if scale else [])),
        )

    @property
    def grid(self) -> Grid:
        """The table, whose numbers of figures lead to the drawings of the units."""
        grid, link = self.report.grid, Markup('<a href="#{}-{}">{}</a>')
        ids = {number: unit_id for _, drawn in self.units for number, unit_id, _ in drawn}
        columns = [n for n, header in enumerate(grid.headers) if header == "Fig." and grid.parts[n] == "minor"]
        rows = (
            [link.format(self.id, ids[t], printable(t)) if n in columns and t in ids else t for n, t in enumerate(row)]
            for row in grid.rows
        )
        return replace(grid, rows=tuple(map(tuple, rows)))

    @property
    def heads(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """The heads of the table's columns with their alignment, under the titles of the paper's columns of results."""
        grid, columns = self.report.grid, self.report.comparison.table.experiment.columns
        titles = {column.id: column.title for column in columns}
        heads = list(zip(grid.headers, grid.alignment, strict=True))
        groups = groupby(range(len(heads)), lambda n: grid.parts[n] if grid.parts[n] in titles else str(n))
        return [
            (title := titles.get(part, ""), [(heads[n][0].removeprefix(f"{title}, "), heads[n][1]) for n in numbers])
            for part, numbers in groups
        ]

    @cached_property
    def units(self) -> list[tuple[str, list[tuple[str, str, Markup]]]]:
        """The paper's figures of units: the title, and the number, such as "4(a)", id and drawing of each unit."""
        found = []
        for i, figure in enumerate(self.report.comparison.table.experiment.figures):
            drawings = []
            for j, unit in enumerate(figure.units):
                drawing = Markup(as_svg(units_drawing([unit])))  # noqa: S704  (it escapes all text)
                number = f"{figure.id.removeprefix('fig')}{unit.title.partition(' ')[0]}"
                drawings.append((number, f"unit-{i}-{j}", drawing))
            found += [(figure.title, drawings)] if drawings else []
        return found

    @cached_property
    def scale(self) -> IntervalScale | None:
        """The scale of the drawn intervals; None without any."""
        return IntervalScale.of([net for net in self.report.tried if net.compared.interval])

    def drawn_in(self, panel: CurvePanel) -> Part:
        """The first part of the page that has all of a panel's curves in one panel."""
        runs = _runs_of(panel)
        return next((one for one in self.earlier if any(runs <= _runs_of(other) for other in one.panels)), self)

    @property
    def listed_before(self) -> Iterator[tuple[Part, int]]:
        """The parts above that list runs of this one, and how many."""
        left = {record.run for record in self.report.records}
        for part in self.earlier:
            found = left & {record.run for record in part.report.records}
            left -= found
            if found:
                yield part, len(found)

    @property
    def runs(self) -> Grid:
        """The runs that no earlier part lists, with the machine that trained each."""
        headers = ("run", "net", "seed", "prec.", "status", "test error", "iterations", "minutes", "engine", "machine")
        alignment = ("left", "left", "right", "left", "left", "right", "right", "right", "left", "left")
        listed = {record.run for part in self.earlier for record in part.report.records}
        rows = tuple(_run_row(record) for record in self.report.records if record.run not in listed)
        return Grid(headers, rows, alignment)

    @property
    def versions(self) -> list[str]:
        """The versions of paperbench that trained the runs."""
        codes: dict[str, set[str]] = defaultdict(set)
        for code in (session.code for record in self.report.records for session in record.sessions):
            codes[code.version].add(code.commit or f"source {code.source}")
        return [f"{version}: {', '.join(sorted(commits))}" for version, commits in sorted(codes.items())]

    @property
    def data(self) -> list[str]:
        facts = {record.data.fingerprint: record.data for record in self.report.records}
        return sorted(f"{one.name} ({one.origin}), fingerprint {key}" for key, one in facts.items())


def _runs_of(panel: CurvePanel) -> set[str]:
    return {run.record.run for curve in panel.curves for run in curve.runs}


def _run_row(record: Record) -> tuple[str, ...]:
    error = percent(record.result.test_error) if record.result else NOTHING
    return (
        Markup('<a href="#record-{0}"><code>{0}</code></a>').format(record.run),
        *(record.net, str(record.seed), record.spec.precision, record.status, error),
        *(f"{record.iteration:,}", f"{record.seconds / 60:,.1f}"),
        ", ".join(dict.fromkeys(session.engine for session in record.sessions)),
        record.machine,
    )


def render(parts: Sequence[Part]) -> str:
    """Return the page, whose only styles and scripts are those that its policy names by their hashes."""
    loader = jinja2.PackageLoader("paperbench.report", "page")
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_visible,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}

    def source(*names: str) -> Markup:
        return Markup("\n".join(loader.get_source(environment, name)[0] for name in names))  # noqa: S704  (our own)

    style, script = source("page.css", "charts.css"), source("charts.js")
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'"
    parts = [replace(part, earlier=tuple(parts[:number])) for number, part in enumerate(parts)]
    several = "Published tables beside our runs" if parts[0].report.comparison.table.source.arxiv else "Our own tables"
    return environment.get_template("page.html").render(
        parts=parts,
        records={record.run: record for part in parts for record in part.report.records},
        title=parts[0].report.comparison.table.cited() if len(parts) == 1 else several,
        paperbench=__version__,
        style=style,
        script=script,
        policy=f"{policy}; form-action 'none'",
        words=WORDS,
        count=count,
        method=method,
        chart_data=chart_data,
    )


def _visible(value: Any) -> Any:
    """Show characters that control a terminal or the direction of text, unless it is markup of ours."""
    return value if isinstance(value, Markup) else printable(str(value))


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
