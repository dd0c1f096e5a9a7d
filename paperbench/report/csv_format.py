"""Comparisons and training curves as rows, and as CSV (RFC 4180, but with plain newlines).

A comparison has a row for each run, and one for each net without runs; values of a cell, net or group of runs are
repeated in the rows of all its runs. Training curves have a row for each line of a history. An empty field means no
value. Numbers are in full precision, flags are `true` or `false`, and the versions in `numerics` are separated by
spaces.

Spreadsheets treat text that begins with =, +, - or @ as a formula, so it gets an apostrophe in front. So does such text
after a semicolon, which many spreadsheets take for a separator even inside quotes. Numbers are left alone.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from paperbench.compare.evidence import GroupFacts, RunFacts
from paperbench.compare.verdicts import CellFacts, NetFacts
from paperbench.report.curves import Curve
from paperbench.report.json_format import ComparisonDocument
from paperbench.runs.history import HistoryLine
from paperbench.runs.record import DataFacts


class Line(NamedTuple):
    """What a row is about; without group and run for a net without runs.

    Attributes:
        number: 1 for `shown`, the runs that the verdict is about; 2 and so on for `others`.
    """

    document: ComparisonDocument
    cell: CellFacts
    net: NetFacts
    number: int | None = None
    group: GroupFacts | None = None
    run: RunFacts | None = None

    @property
    def data(self) -> DataFacts | None:
        return self.group.conditions.data if self.group else None


class Column(NamedTuple):
    """The type of a column's values other than None, and the value in a row."""

    kind: type
    of: Callable[[Line], object]


COLUMNS = {
    "table": Column(str, lambda line: line.document.table),
    "profile": Column(str, lambda line: line.document.profile),
    "noise": Column(str, lambda line: line.document.noise),
    "cell": Column(str, lambda line: line.cell.id),
    "row": Column(str, lambda line: line.cell.row),
    "column": Column(str, lambda line: line.cell.column),
    "metric": Column(str, lambda line: line.cell.metric),
    "dataset": Column(str, lambda line: line.cell.dataset),
    "published": Column(object, lambda line: line.cell.published.value),
    "published_n": Column(int, lambda line: line.cell.published.n),
    "published_std": Column(float, lambda line: line.cell.published.std),
    "tolerance": Column(float, lambda line: line.cell.published.tolerance),
    "verdict": Column(str, lambda line: line.cell.verdict),
    "reason": Column(str, lambda line: line.cell.reason),
    "difference": Column(float, lambda line: line.cell.difference),
    # of the Hodges-Lehmann estimate if the noise rests on the table
    "tested_difference": Column(float, lambda line: line.cell.interval and line.cell.interval.difference),
    "low": Column(float, lambda line: line.cell.interval and line.cell.interval.low),
    "high": Column(float, lambda line: line.cell.interval and line.cell.interval.high),
    "level": Column(float, lambda line: line.cell.interval and line.cell.interval.level),
    "p_value": Column(float, lambda line: line.cell.p_value),
    "noise_std": Column(float, lambda line: line.cell.noise and line.cell.noise.std),
    "noise_rests_on": Column(str, lambda line: line.cell.noise and line.cell.noise.rests_on),
    "differs": Column(bool, lambda line: line.cell.differs),
    "setting": Column(str, lambda line: line.net.setting),
    "net": Column(str, lambda line: line.net.net),
    "net_verdict": Column(str, lambda line: line.net.verdict),
    "n": Column(int, lambda line: line.net.failures and line.net.failures.runs),  # those that count
    "failed": Column(int, lambda line: line.net.failures and line.net.failures.failed),
    "group": Column(int, lambda line: line.number),
    "data": Column(str, lambda line: line.data and line.data.name),
    "fingerprint": Column(str, lambda line: line.data and line.data.fingerprint),
    "canonical": Column(bool, lambda line: line.data and line.data.canonical),
    "unverified": Column(bool, lambda line: line.data and line.data.unverified),
    "precision": Column(str, lambda line: line.group and line.group.conditions.precision),
    "numerics": Column(tuple, lambda line: line.group and line.group.conditions.numerics),
    "is_mixed": Column(bool, lambda line: line.group and line.group.conditions.is_mixed),
    "source": Column(str, lambda line: line.group and line.group.conditions.source),
    "median": Column(float, lambda line: line.group and line.group.median),
    "seed": Column(int, lambda line: line.run and line.run.seed),
    "run": Column(str, lambda line: line.run and line.run.run),
    "status": Column(str, lambda line: line.run and line.run.status),
    "iteration": Column(int, lambda line: line.run and line.run.iteration),
    "error": Column(float, lambda line: line.run and line.run.error),
    "counted": Column(bool, lambda line: line.run and line.run.counted),
}
"""The columns of a comparison, by name."""

CURVE_COLUMNS: dict[str, type] = {
    **dict.fromkeys(("profile", "cell", "setting", "net", "data", "precision"), str),
    "seed": int,
    "run": str,
    "status": str,
    "counted": bool,
    **{field.name: int if field.name == "iteration" else float for field in fields(HistoryLine)},
}
"""The columns of training curves with their types: the run's, then those of `HistoryLine`."""

_FORMULA_BEGINS = re.compile(r'(?:^|;)(?=[\s"]*[=+\-@\uff1d\uff0b\uff0d\uff20])')  # the last four: full-width forms


def render(document: ComparisonDocument) -> str:
    """Return a comparison as CSV with a header line."""
    return as_csv(COLUMNS, comparison_rows(document))


def as_csv(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV with a header line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_text(value) for value in row.values()] for row in rows)
    return text.getvalue()


def comparison_rows(document: ComparisonDocument) -> Iterator[dict[str, Any]]:
    """Yield a row, with a value for each of `COLUMNS`, for each run and each net without runs."""
    for cell in document.cells:
        for net in cell.nets:
            groups = enumerate(net.groups, 1)
            lines = [Line(document, cell, net, number, group, run) for number, group in groups for run in group.runs]
            for line in lines or [Line(document, cell, net)]:
                yield {name: column.of(line) for name, column in COLUMNS.items()}


def curve_rows(curves: Iterable[Curve]) -> Iterator[dict[str, Any]]:
    """Yield a row, with a value for each of `CURVE_COLUMNS`, for each line of the history of each run."""
    for curve in curves:
        for run in curve.runs:
            record = run.record
            of_data = (record.data.name, record.spec.precision)
            of_run = (record.spec.profile, curve.cell.id, curve.setting, record.net, *of_data)
            for line in run.lines:
                facts = (*of_run, record.seed, record.run, record.status, run.counted)
                yield dict(zip(CURVE_COLUMNS, (*facts, *vars(line).values()), strict=True))


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case tuple():
            return " ".join(map(str, value))
        case str():
            return _FORMULA_BEGINS.sub(r"\g<0>'", value)
    return str(value)
