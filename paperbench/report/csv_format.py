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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from paperbench.report.curves import Curve
from paperbench.report.json_format import ComparisonDocument
from paperbench.runs.history import HistoryLine

COLUMNS = {
    "table": "document.table",
    "profile": "document.profile",
    "noise": "document.noise",
    "cell": "cell.id",
    "row": "cell.row",
    "column": "cell.column",
    "metric": "cell.metric",
    "dataset": "cell.dataset",
    "published": "cell.published.value",
    "published_n": "cell.published.n",
    "published_std": "cell.published.std",
    "tolerance": "cell.published.tolerance",
    "verdict": "cell.verdict",
    "reason": "cell.reason",
    "difference": "cell.difference",
    "tested_difference": "cell.interval.difference",  # of the Hodges-Lehmann estimate if the noise rests on the table
    "low": "cell.interval.low",
    "high": "cell.interval.high",
    "level": "cell.interval.level",
    "p_value": "cell.p_value",
    "noise_std": "cell.noise.std",
    "noise_rests_on": "cell.noise.rests_on",
    "differs": "cell.differs",
    "setting": "net.setting",
    "net": "net.net",
    "net_verdict": "net.verdict",
    "n": "net.failures.runs",  # those that count
    "failed": "net.failures.failed",
    "group": "number",  # 1: `shown`, the runs that the verdict is about; 2 and so on: `others`
    "data": "group.conditions.data.name",
    "fingerprint": "group.conditions.data.fingerprint",
    "canonical": "group.conditions.data.canonical",
    "unverified": "group.conditions.data.unverified",
    "precision": "group.conditions.precision",
    "numerics": "group.conditions.numerics",
    "is_mixed": "group.conditions.is_mixed",
    "source": "group.conditions.source",
    "median": "group.median",
    "seed": "run.seed",
    "run": "run.run",
    "status": "run.status",
    "iteration": "run.iteration",
    "error": "run.error",
    "counted": "run.counted",
}
"""The columns, each with its path in the JSON document; see the types in `report.json_format`."""

_OF_LINES = tuple(field.name for field in fields(HistoryLine))

CURVE_COLUMNS = (
    "profile",
    "cell",
    "setting",
    "net",
    "data",
    "precision",
    "seed",
    "run",
    "status",
    "counted",
    *_OF_LINES,
)
"""The columns of training curves: the run's, then those of `HistoryLine`."""

_FORMULA_BEGINS = re.compile(r'(?:^|;)(?=[\s"]*[=+\-@\uff1d\uff0b\uff0d\uff20])')  # the last four: full-width forms


def render(document: ComparisonDocument) -> str:
    """Return a comparison as CSV with a header line."""
    return as_csv(COLUMNS, comparison_rows(document))


def render_curves(curves: Iterable[Curve]) -> str:
    """Return training curves as CSV with a header line."""
    return as_csv(CURVE_COLUMNS, curve_rows(curves))


def as_csv(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV with a header line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_text(value) for value in row.values()] for row in rows)
    return text.getvalue()


def comparison_rows(document: ComparisonDocument) -> Iterator[dict[str, Any]]:
    """Yield a row, with a value for each of `COLUMNS`, for each run and each net without runs."""
    for line in _lines(document):
        yield {column: _value(line, path) for column, path in COLUMNS.items()}


def curve_rows(curves: Iterable[Curve]) -> Iterator[dict[str, Any]]:
    """Yield a row, with a value for each of `CURVE_COLUMNS`, for each line of the history of each run."""
    for curve in curves:
        for run in curve.runs:
            record = run.record
            of_data = (record.data.name, record.spec.precision)
            of_run = (record.spec.profile, curve.cell.id, curve.setting, record.net, *of_data)
            for line in run.lines:
                facts = (*of_run, record.seed, record.run, record.status, run.counted)
                yield dict(zip(CURVE_COLUMNS, (*facts, *(getattr(line, name) for name in _OF_LINES)), strict=True))


def _lines(document: ComparisonDocument) -> Iterator[dict[str, object]]:
    """Yield the objects to which the paths of the columns lead, for each line."""
    for cell in document.cells:
        for net in cell.nets:
            of_net = {"document": document, "cell": cell, "net": net}
            if not net.shown:
                yield of_net
                continue
            for number, group in enumerate((net.shown, *net.others), 1):
                for run in group.runs:
                    yield {**of_net, "number": number, "group": group, "run": run}


def _value(line: Mapping[str, object], path: str) -> Any:
    name, *fields = path.split(".")
    value = line.get(name)
    for field in fields:
        value = getattr(value, field) if value is not None else None
    return value


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
