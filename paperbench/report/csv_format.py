"""A comparison as CSV (RFC 4180, but with plain newlines): one line per run, and one for each net without runs.

A net stands in a cell, its runs in groups that may be pooled; what holds for all runs of a cell, net or group is
repeated in each of their lines. A value that there is none of is empty, numbers are in full precision, and flags are
`true` or `false`. The columns:

table, profile         which table, and what was trained: `paper` or a reduced profile
cell, row, column      id of the cell, titles of its row and column
metric, dataset        top1 or top5; key of the data set of the paper's net
published              test error in percent, `fail` or `unprinted`
published_n            runs behind it
published_std          their standard deviation in percentage points, where the paper prints one
tolerance              percentage points within which two medians count as the same
verdict, reason        of the cell
difference             median of our counted runs minus the published number, in percentage points
low, high, level       interval of the difference in percentage points, error level of each of its sides
p_value                of the hypothesis that the true difference is within the tolerance
differs                whether the cell differs from the paper after Holm's correction, which the exit status tells too
setting, net           which net of a sweep; the paper's net as one would ask timm for it
net_verdict            of this net alone
group                  1 for the runs that the verdict is about, 2 and so on for those that are not pooled with them
data, fingerprint      what the pixels are called; hash of pixels and labels
canonical              whether the pixels are verified to be the original ones
precision              arithmetic of the training
numerics, is_mixed     versions of the training arithmetic, with spaces between; whether a run mixes versions
source                 who reported the result, if it is not ours
median                 in percent: of group 1 over the counted runs, of others over all that have ended; empty too
                       where it is infinite, as most of them diverged
seed, run              of the run; its id, if it is ours
status, iteration      partial, finished or diverged; iterations done
error                  test error in percent, of finished runs
counted                whether verdict, median and difference are about the run

Spreadsheets take text that begins with =, +, - or @ for a formula. Such text gets an apostrophe in front, which they
read as "this is text". Numbers are left alone.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import fields

from paperbench.report.document import CellFacts, ComparisonDocument, GroupFacts, NetFacts, RunFacts

COLUMNS = (
    *("table", "profile", "cell", "row", "column", "metric", "dataset"),
    *("published", "published_n", "published_std", "tolerance"),
    *("verdict", "reason", "difference", "low", "high", "level", "p_value", "differs"),
    *("setting", "net", "net_verdict"),
    *("group", "data", "fingerprint", "canonical", "precision", "numerics", "is_mixed", "source", "median"),
    *("seed", "run", "status", "iteration", "error", "counted"),
)

_FORMULA_BEGINS = tuple("=+-@\uff1d\uff0b\uff0d\uff20")  # the latter four are the former in full width

_Value = str | float | bool | None


def render(document: ComparisonDocument) -> str:
    """The comparison as CSV, the names of the columns first."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for line in _lines(document):
        writer.writerow({column: _text(value) for column, value in line.items()})
    return text.getvalue()


def _lines(document: ComparisonDocument) -> Iterator[dict[str, _Value]]:
    for cell in document.cells:
        of_cell = {"table": document.table, "profile": document.profile, **_of_cell(cell)}
        for net in cell.nets:
            of_net = {**of_cell, **_of_net(net)}
            if not net.shown:
                yield of_net
                continue
            for number, group in enumerate((net.shown, *net.others), 1):
                of_group = {**of_net, "group": number, **_of_group(group)}
                for run in group.runs:
                    yield {**of_group, **{field.name: getattr(run, field.name) for field in fields(RunFacts)}}


def _of_cell(cell: CellFacts) -> dict[str, _Value]:
    return {
        "cell": cell.id,
        **{name: getattr(cell, name) for name in ("row", "column", "metric", "dataset")},
        "published": cell.published.value,
        "published_n": cell.published.n,
        "published_std": cell.published.std,
        "tolerance": cell.published.tolerance,
        **{name: getattr(cell, name) for name in ("verdict", "reason", "difference", "p_value", "differs")},
        **{name: getattr(cell.interval, name, None) for name in ("low", "high", "level")},
    }


def _of_net(net: NetFacts) -> dict[str, _Value]:
    return {"setting": net.setting, "net": net.net, "net_verdict": net.verdict}


def _of_group(group: GroupFacts) -> dict[str, _Value]:
    conditions = group.conditions
    data = conditions.data
    return {
        "data": data.name if data else None,
        "fingerprint": data.fingerprint if data else None,
        "canonical": data.canonical if data else None,
        "precision": conditions.precision,
        "numerics": " ".join(map(str, conditions.numerics)),
        "is_mixed": conditions.is_mixed if conditions.source is None else None,
        "source": conditions.source,
        "median": group.median,
    }


def _text(value: _Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"'{value}" if value.lstrip().startswith(_FORMULA_BEGINS) else value
    return str(value)
