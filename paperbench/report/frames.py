"""A judged table as pandas data frames, with the names and values of the CSV.

Missing text and flags are NA, missing numbers NaN.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from paperbench.errors import PaperbenchError
from paperbench.report.csv_format import COLUMNS, comparison_rows
from paperbench.report.json_format import ComparisonDocument
from paperbench.runs.record import Record

if TYPE_CHECKING:
    import pandas

_RESULT = ("test_loss", "moving_average_test_error", "moving_average_test_loss", "best_test_error")
_CODE = ("version", "commit")
_ENVIRONMENT = ("device", "system", "python", "torch", "torchvision", "timm", "numpy", "cuda", "cudnn")

_KINDS = {name: column.kind for name, column in COLUMNS.items()}
_OF_A_RUN = ("group", "seed", "run", "status", "iteration", "error", "counted")
_OF_NETS = {name: kind for name, kind in _KINDS.items() if name not in _OF_A_RUN}
_OF_NETS |= {"published": float, "published_fails": bool}
_OF_RUNS = {name: _KINDS[name] for name in ("table", "profile", "cell", "setting", "net")}
_OF_RUNS |= dict([*_KINDS.items()][[*_KINDS].index("group") :])
_OF_RUNS |= dict.fromkeys(_RESULT, float) | {"seconds": float, "sessions": int}
_OF_RUNS |= dict.fromkeys(("engine", *_CODE, *_ENVIRONMENT), str)


def of_nets(document: ComparisonDocument) -> pandas.DataFrame:
    """Return a row for each net of each cell; see `JudgedTable.to_frame`."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for row in comparison_rows(document):
        number = row["published"] if isinstance(row["published"], float) else None
        changed = {"published": number, "published_fails": row["published"] == "fail"}
        rows.setdefault((row["cell"], row["setting"]), {**row, **changed})
    return frame(_OF_NETS, rows.values())


def of_runs(document: ComparisonDocument, records: Mapping[str, Record]) -> pandas.DataFrame:
    """Return a row for each run of each net; see `JudgedTable.runs`.

    Args:
        records: The records of the runs, by id.
    """
    rows = (row for row in comparison_rows(document) if row["seed"] is not None)
    return frame(_OF_RUNS, ({**row, **dict(_facts(records[row["run"]]) if row["run"] else ())} for row in rows))


def _facts(record: Record) -> Iterator[tuple[str, Any]]:
    """Yield the facts of a record that the comparison lacks. Texts that differ between sessions are all given."""
    if record.result:
        yield from ((name, getattr(record.result, name)) for name in _RESULT)
    yield from (("seconds", record.seconds), ("sessions", len(record.sessions)))
    yield "engine", _distinct(session.engine for session in record.sessions)
    yield from ((name, _distinct(getattr(one.code, name) for one in record.sessions)) for name in _CODE)
    yield from ((name, _distinct(getattr(one.environment, name) for one in record.sessions)) for name in _ENVIRONMENT)


def _distinct(texts: Iterable[str | None]) -> str | None:
    return "; ".join(filter(None, dict.fromkeys(texts))) or None


def frame(columns: Mapping[str, type], rows: Iterable[Mapping[str, Any]]) -> pandas.DataFrame:
    """Return rows as a frame, given the type of each column."""
    try:
        import pandas
    except ImportError as error:
        raise PaperbenchError("Data frames need pandas: `pip install pandas`.") from error
    found = list(rows)
    series = {}
    for column, kind in columns.items():
        values = [row.get(column) for row in found]
        values = [" ".join(map(str, one)) if isinstance(one, tuple) else one for one in values]
        series[column] = pandas.Series(values, dtype=_dtype(kind, values))
    return pandas.DataFrame(series)


def _dtype(kind: type, values: Collection[Any]) -> str:
    if kind is int and None not in values:
        return "int64"
    return {bool: "boolean", int: "float64", float: "float64"}.get(kind, "string")
