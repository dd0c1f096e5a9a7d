"""A comparison as CSV (RFC 4180, but with plain newlines): one line per run, and one for each net without runs.

Values of a cell, net or group of runs are repeated in the lines of all its runs. An empty field means no value. Numbers
are in full precision, flags are `true` or `false`, and the versions in `numerics` are separated by spaces.

Spreadsheets treat text that begins with =, +, - or @ as a formula, so it gets an apostrophe in front. So does such text
after a semicolon, which many spreadsheets take for a separator even inside quotes. Numbers are left alone.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from paperbench.report.json_format import ComparisonDocument

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

_FORMULA_BEGINS = re.compile(r'(?:^|;)(?=[\s"]*[=+\-@\uff1d\uff0b\uff0d\uff20])')  # the last four: full-width forms


def render(document: ComparisonDocument) -> str:
    """Return the comparison as CSV with a header line."""
    return as_csv(COLUMNS, ([_value(line, path) for path in COLUMNS.values()] for line in _lines(document)))


def as_csv(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return values as CSV with a header line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(map(_text, row))
    return text.getvalue()


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
