"""A comparison as CSV (RFC 4180, but with plain newlines): one line a run, and one for a net without any.

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
difference             median of our runs looked at less the published number in percentage points
low, high, level       interval of the difference in percentage points, error level of each of its sides
p_value                of the hypothesis that the true difference is within the tolerance
differs                whether the cell differs from the paper after Holm's correction, which the exit code tells too
setting, net           which net of a sweep; the paper's net as one would ask timm for it
net_verdict            of this net alone
group                  1 for the runs that the verdict is about, 2 and so on for those that are not pooled with them
data, fingerprint      what the pixels are called; hash of pixels and labels
canonical              whether the pixels are verified to be the original ones
precision              arithmetic of the training
numerics, mixed        versions of the training arithmetic, with spaces between; whether a run mixes versions
source                 who reported the result, if it is not ours
median                 in percent: of group 1 over the runs looked at, of others over all that have ended; empty too
                       where it is infinite, as most of them diverged
seed, run              of the run; its id, if it is ours
status, iteration      partial, finished or diverged; iterations done
error                  test error in percent, of finished runs
looked_at              whether verdict, median and difference are about the run

Spreadsheets take text that begins with =, +, - or @ for a formula. Such text gets an apostrophe in front, which they
read as "this is text". Numbers are left alone.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator

from paperbench.compare.comparison import Comparison
from paperbench.compare.evidence import Conditions, Run
from paperbench.compare.verdicts import CellComparison, NetComparison
from paperbench.report.json_format import run_status

COLUMNS = (
    *("table", "profile", "cell", "row", "column", "metric", "dataset"),
    *("published", "published_n", "published_std", "tolerance"),
    *("verdict", "reason", "difference", "low", "high", "level", "p_value", "differs"),
    *("setting", "net", "net_verdict"),
    *("group", "data", "fingerprint", "canonical", "precision", "numerics", "mixed", "source", "median"),
    *("seed", "run", "status", "iteration", "error", "looked_at"),
)

_FORMULA_BEGINS = tuple("=+-@\uff1d\uff0b\uff0d\uff20")  # the latter four are the former in full width

_Value = str | float | bool | None


def render(comparison: Comparison) -> str:
    """The comparison as CSV, the names of the columns first."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for line in _lines(comparison):
        writer.writerow({column: _text(line.get(column)) for column in COLUMNS})
    return text.getvalue()


def _lines(comparison: Comparison) -> Iterator[dict[str, _Value]]:
    for compared in comparison.cells:
        of_cell = _of_cell(comparison, compared)
        for net in compared.nets:
            of_net = {**of_cell, **_of_net(net)}
            if not net.shown:
                yield of_net
                continue
            groups = [(net.shown, net.median, net.counted), *((group, group.median, ()) for group in net.others)]
            for number, (group, median, counted) in enumerate(groups, 1):
                of_group = {**of_net, "group": number, **_of_conditions(group.conditions), "median": median}
                for run in group.runs:
                    yield {**of_group, **_of_run(run), "looked_at": run in counted}


def _of_cell(comparison: Comparison, compared: CellComparison) -> dict[str, _Value]:
    cell, judgement, interval = compared.cell, compared.judgement, compared.judgement.interval
    return {
        "table": comparison.table.id,
        "profile": comparison.profile,
        "cell": cell.id,
        "row": cell.row.title,
        "column": cell.column.title,
        "metric": cell.column.metric,
        "dataset": cell.dataset,
        "published": cell.expected.value,
        "published_n": cell.published_runs if cell.expected.value != "unprinted" else None,
        "published_std": cell.expected.std,
        "tolerance": cell.tolerance if cell.number is not None else None,
        "verdict": compared.verdict,
        "reason": compared.reason,
        "difference": compared.difference,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "level": interval.level if interval else None,
        "p_value": judgement.p_value,
        "differs": compared in comparison.differing,
    }


def _of_net(net: NetComparison) -> dict[str, _Value]:
    return {"setting": net.setting.label, "net": str(net.setting.reference), "net_verdict": net.judgement.verdict}


def _of_conditions(conditions: Conditions) -> dict[str, _Value]:
    data, is_ours = conditions.data, conditions.source is None
    return {
        "data": data.name if data else None,
        "fingerprint": data.fingerprint if data else None,
        "canonical": data.canonical if data else None,
        "precision": conditions.precision,
        "numerics": " ".join(map(str, conditions.numerics)),
        "mixed": conditions.is_mixed if is_ours else None,
        "source": conditions.source,
    }


def _of_run(run: Run) -> dict[str, _Value]:
    return {
        "seed": run.seed,
        "run": run.record.run if run.record else None,
        "status": run_status(run),
        "iteration": run.record.iteration if run.record else None,
        "error": run.error,
    }


def _text(value: _Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"'{value}" if value.lstrip().startswith(_FORMULA_BEGINS) else value
    return str(value) if math.isfinite(value) else ""
