"""Training curves of the nets of a comparison."""

from __future__ import annotations

import math
from math import inf
from pathlib import Path

import pytest

import paperbench
from paperbench.errors import PaperbenchError
from paperbench.specs.table import Table
from tests.compare.judging import record, records
from tests.report.stores import make_store


@pytest.fixture
def judged(table2: Table, tmp_path: Path) -> paperbench.JudgedTable:
    make_store(
        tmp_path,
        [
            *records(table2, "original/resnet110", (6.58, 6.64, 6.49, 6.71, None)),
            *records(table2, "bn_after_addition/resnet110", (8.1, 8.2, inf), iteration=20_000),
            record(table2, "preact/resnet164", None, iteration=8_000),
            record(table2, "preact/resnet164", None, iteration=4_000, seed=1),
        ],
    )
    return paperbench.load_table("table2").compare(tmp_path)


def _median_at(judged: paperbench.JudgedTable, cell: str, iteration: int) -> float:
    curve = next(curve for curve in judged.curves() if curve.name == cell)
    return dict(curve.median("train_loss")).get(iteration, -1.0)


def _losses_at(judged: paperbench.JudgedTable, cell: str, iteration: int) -> list[float]:
    curve = next(curve for curve in judged.curves() if curve.name == cell)
    return [dict(run.points("train_loss"))[iteration] for run in curve.runs if run.lines[-1].iteration >= iteration]


def test_the_median_is_over_runs_that_have_ended(judged: paperbench.JudgedTable) -> None:
    *ended, running = _losses_at(judged, "original/resnet110", 500)
    assert _median_at(judged, "original/resnet110", 500) == pytest.approx((sorted(ended)[1] + sorted(ended)[2]) / 2)
    assert running not in ended


def test_a_diverged_run_counts_as_infinite_from_its_end_on(judged: paperbench.JudgedTable) -> None:
    finished = _losses_at(judged, "bn_after_addition/resnet110", 30_000)
    assert len(finished) == 2
    assert _median_at(judged, "bn_after_addition/resnet110", 30_000) == max(finished)


def test_the_median_of_prefixes_ends_with_the_shortest(judged: paperbench.JudgedTable) -> None:
    assert math.isfinite(_median_at(judged, "preact/resnet164", 4_000))
    assert _median_at(judged, "preact/resnet164", 4_100) == -1.0


def test_figures_have_the_papers_panels(judged: paperbench.JudgedTable) -> None:
    left, right = judged.panels("fig6")
    assert (left.title, left.labels) == ("ResNet-110", ["original Residual Unit", "BN after addition"])
    assert (right.title, right.labels) == ("ResNet-164", ["full pre-activation"])
    with pytest.raises(PaperbenchError, match="no figure 'fig7'"):
        judged.panels("fig7")


def test_epochs_are_those_of_50_000_images(judged: paperbench.JudgedTable) -> None:
    assert judged.curves()[0].epochs(64_000) == pytest.approx(163.84)
