"""The data of the page's charts, against the histories."""

from __future__ import annotations

import json
import math
import statistics
from math import inf
from pathlib import Path
from typing import Any

import pytest

import paperbench
from paperbench.report.page.charts import chart_data
from paperbench.specs.table import Table
from tests.compare.judging import record, records
from tests.report.stores import make_store, write_run

DAMAGED = 1  # the seed of a run whose history is no JSON


@pytest.fixture
def store(table2: Table, tmp_path: Path) -> Path:
    root = tmp_path / "results \u202e"
    runs = [
        *records(table2, "original/resnet110", (6.58, 6.64, 6.49)),
        *records(table2, "bn_after_addition/resnet110", (8.1, inf), iteration=20_050),
        record(table2, "preact/resnet110", None, iteration=8_000),
        record(table2, "preact/resnet110", 6.3, seed=DAMAGED),
    ]
    store = make_store(root, runs)
    write_run(store, runs[-1], b'{"evil": 1}\n')
    return root


@pytest.fixture
def chart(store: Path) -> dict[str, Any]:
    data = chart_data(paperbench.load_table("table2").compare(store).panels()[0])
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    return data


def points(chart: dict[str, Any], series: dict[str, Any]) -> dict[int, float]:
    """Expand a series as charts.js does; None becomes NaN."""
    x, count = chart["xs"][series["x"]], len(series["y"])
    if isinstance(x, dict):
        x = [x["first"] + i * x["step"] for i in range(count)]
    return dict(zip(x[:count], [math.nan if y is None else y for y in series["y"]], strict=True))


def lines_of(store: Path, run: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (store / "runs" / run / "history.jsonl").read_text().splitlines()]


def curve_of(chart: dict[str, Any], cell: str) -> dict[str, Any]:
    return next(curve for curve in chart["curves"] if curve["cell"] == f"{cell}/resnet110")


def test_series_are_the_histories_with_four_digits(chart: dict[str, Any], store: Path) -> None:
    for run in (run for curve in chart["curves"] for run in curve["runs"] if not run["problem"]):
        lines = lines_of(store, run["run"])
        losses = {line["iteration"]: line["train_loss"] or math.nan for line in lines}
        errors = {line["iteration"]: line["test_error"] for line in lines if line["test_error"] is not None}
        assert points(chart, run["loss"]) == pytest.approx(losses, rel=5e-4, nan_ok=True)
        assert points(chart, run["error"]) == pytest.approx(errors, rel=5e-4)


def test_medians_are_those_of_the_seeds(chart: dict[str, Any], store: Path) -> None:
    curve = curve_of(chart, "original")
    seeds = [lines_of(store, run["run"]) for run in curve["runs"]]
    expected = [statistics.median(line["train_loss"] for line in lines) for lines in zip(*seeds, strict=True)]
    assert curve["loss"]["y"] == pytest.approx(expected, rel=5e-4)


def test_states_of_the_runs_and_rates_are_told(chart: dict[str, Any]) -> None:
    diverged = curve_of(chart, "bn_after_addition")["runs"][1]
    assert (diverged["status"], diverged["iteration"], diverged["loss"]["y"][-1]) == ("diverged", 20_050, None)
    original = curve_of(chart, "original")
    assert original["rates"] == [[32_000, 0.1], [48_000, pytest.approx(0.01)], [64_000, pytest.approx(0.001)]]
    assert (original["drops"], original["iterations"]) == ([32_000, 48_000], 64_000)
    assert original["reported"] == 6.58
    assert curve_of(chart, "bn_after_addition")["reported"] is None  # one of two runs diverged
    assert original["epochs"] == pytest.approx(128 / 50_000)


def test_a_damaged_history_is_a_problem_without_its_place(chart: dict[str, Any], tmp_path: Path) -> None:
    intact, damaged = curve_of(chart, "preact")["runs"]
    assert (intact["problem"], damaged["loss"]["y"]) == ("", [])
    assert "evil" in damaged["problem"]
    assert str(tmp_path) not in damaged["problem"]
    assert "\u202e" not in damaged["problem"]


def test_iterations_are_shared_between_runs(chart: dict[str, Any]) -> None:
    runs = [run for curve in chart["curves"] for run in curve["runs"] if run["status"] == "finished"]
    assert chart["xs"][runs[0]["loss"]["x"]] == {"first": 100, "step": 100}
    assert len({run["loss"]["x"] for run in runs if not run["problem"]}) == 1


def test_nets_that_learn_nothing_do_not_stretch_the_error_axis(table2: Table, tmp_path: Path) -> None:
    failing = [*records(table2, "bn_after_addition/resnet110", (90.0,)), *records(table2, "preact/resnet164", (90.0,))]
    make_store(tmp_path, [*failing, *records(table2, "original/resnet110", (6.6,))])
    mixed, only_failing = paperbench.load_table("table2").compare(tmp_path).panels()
    assert chart_data(mixed)["limits"]["error"] == [0, 20]
    assert chart_data(only_failing)["limits"]["error"] == [0, 100]
