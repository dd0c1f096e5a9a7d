"""The health of trainings as a table: what was measured, what is taught, and what nets that trained had."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

from paperbench.analysis.record import ALL, Analysis, Health
from paperbench.report.grid import Grid

Values = list[tuple[float, str]]
"""Values with the modules that have them; none if they are unavailable."""

ITERATIONS = (0, 100, 990)
"""Iterations, of 1,000, after which the nets of results/health were measured."""


def _of(column: str, over: str | None = None, *, of_all: bool = False) -> Callable[[Health], Values]:
    """Return what takes a column of `Modules`, or its ratio to another, without or only in the row of `ALL`."""

    def values(found: Health) -> Values:
        rows = [row for row in found.modules.rows() if (row["name"] == ALL) == of_all and row[column] is not None]
        return [(row[column] / (row[over] if over else 1), row["name"]) for row in rows if not over or row[over]]

    return values


def _spread(found: Health) -> Values:
    gradients = sorted(value for value, _ in _of("gradient")(found))
    return [(gradients[-1] / gradients[0], "")] if gradients[0] else []


def _gap(found: Health) -> Values:
    return [] if found.test_error is None or found.train_error is None else [(found.test_error - found.train_error, "")]


QUANTITIES: dict[str, tuple[Callable[[Health], Values], str, tuple[str, ...]]] = {
    "gradient norm": (_of("gradient"), "0.1 to 10", ("-", "-", "-")),
    "gradient norm of all parameters": (_of("gradient", of_all=True), "0.1 to 10", ("-", "-", "-")),
    "largest gradient / smallest": (_spread, "0.1 to 10", ("-", "-", "-")),
    "gradient / weight": (_of("gradient", "weight"), "0.001 to 0.01", ("-", "-", "-")),
    "update / weight": (_of("update", "weight"), "0.001 to 0.01", ("-", "-", "-")),
    "mean after ReLU": (_of("mean"), "-0.5 to 0.5", ("-", "-", "-")),
    "deviation after ReLU": (_of("std"), "0.5 to 2", ("-", "-", "-")),
    "dead channels, share": (_of("dead", "channels"), "-", ("-", "-", "-")),
    "chi of units": (_of("chi"), "-", ("-", "-", "-")),
    "correlation of images": (_of("correlation"), "-", ("-", "-", "-")),
    "test - train error, points": (_gap, "below 5", ("-", "-", "-")),
}
"""What is told about a net: its values, the range that circulates in teaching texts, none of which names a source that
measured it, and the range of the medians in the nets of results/health that trained, for each of `ITERATIONS`."""


def as_grid(groups: Iterable[tuple[str, Sequence[Analysis]]]) -> Grid:
    """Return a row for each quantity of each net; of several seeds the medians.

    Args:
        groups: The analyses of each net with its label.
    """
    rows = []
    for label, analyses in groups:
        found, spec = [one.health for one in analyses if one.health], analyses[0].spec
        stage = -1 if spec.weights else bisect_right(ITERATIONS, spec.iteration) - 1
        for name, (of, taught, trained) in QUANTITIES.items() if found else ():
            known = [sorted(values) for values in map(of, found) if values]
            notes = {"update / weight": f" ({found[0].update_is})"}
            notes |= {} if known else {"test - train error, points": " (unavailable: no test by a run yet)"}
            ends = [(one[0], one[-1]) for one in known if len(one) > 1]
            smallest, largest = (_median([end[index][0] for end in ends]) for index in (0, 1))
            middle = _median([statistics.median(value for value, _ in one) for one in known]) or "-"
            places = "; ".join(place for _, place in ends[0]) if len(ends) == 1 else ""
            rows.append((label, name + notes.get(name, ""), smallest, middle, largest, places, taught, trained[stage]))
            label = ""
    headers = ("net", "quantity", "smallest", "median", "largest", "in", "taught", "nets that trained")
    return Grid(headers, tuple(rows), ("left", "left", *["right"] * 3, *["left"] * 3))


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3g}" if values else ""
