"""The data of the page's interactive charts; charts.js draws them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from paperbench.errors import printable, without_paths
from paperbench.report.curves import Curve, CurveMeasure, CurvePanel, RunCurve

_SERIES: dict[str, CurveMeasure] = {"loss": "train_loss", "error": "test_error"}


def chart_data(panel: CurvePanel) -> dict[str, Any]:
    """Return the curves of a panel as compact JSON values.

    Returns:
        Each series {"x": index, "y": values} has its iterations in "xs", of which it takes as many as it has values:
        either {"first", "step"}, or a list. Values have four significant digits; None where one is not finite.
    """
    xs: list[Any] = []
    curves = [_curve(*one, xs) for one in zip(panel.labels, panel.curves, strict=True)]
    learning = [curve for curve in panel.curves if all(error < 50 for _, error in curve.median("test_error")[-1:])]
    max_error = replace(panel, curves=tuple(learning) or panel.curves).max_error  # the others get marks at the top
    limits = {"loss": [*panel.loss_limits], "error": [0, max_error]}
    return {"title": panel.title, "limits": limits, "curves": curves, "xs": xs}


def _curve(label: str, curve: Curve, xs: list[Any]) -> dict[str, Any]:
    longest = max((run.lines for run in curve.runs), key=lambda lines: lines[-1].iteration if lines else -1)
    changes = [line for line, following in pairwise(longest) if following.lr != line.lr]
    return {
        "label": label,
        "state": curve.state,
        "cell": curve.name,
        "conditions": str(curve.conditions),
        "prefix": curve.is_prefix,
        "iterations": curve.iterations,
        "farthest": curve.farthest,
        "drops": list(curve.drops),
        "reported": curve.reported,
        "epochs": epochs if math.isfinite(epochs := curve.unit("epochs")) else None,  # in one iteration
        "rates": [[line.iteration, line.lr] for line in (*changes, *longest[-1:])],  # [last iteration with it, rate]
        "runs": [_run(run, xs) for run in curve.runs],
        **{name: _series(curve.median(measure), xs) for name, measure in _SERIES.items()},
    }


def _run(run: RunCurve, xs: list[Any]) -> dict[str, Any]:
    return {
        "run": run.record.run,
        "seed": run.record.seed,
        "status": run.record.status,
        "iteration": run.record.iteration,
        "problem": printable(without_paths(run.problem)),
        **{name: _series(run.points(measure), xs) for name, measure in _SERIES.items()},
    }


def _series(points: Sequence[tuple[int, float]], xs: list[Any]) -> dict[str, Any]:
    iterations = [iteration for iteration, _ in points]
    steps = {after - before for before, after in pairwise(iterations)}
    x = {"first": iterations[0], "step": steps.pop()} if len(steps) == 1 else iterations
    if x not in xs:
        xs.append(x)
    return {"x": xs.index(x), "y": [_number(y) for _, y in points]}


def _number(value: float) -> float | None:
    """Four significant digits, enough for any screen, since the page has thousands of values."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
