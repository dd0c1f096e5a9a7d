"""Training curves of the nets of a comparison."""

from __future__ import annotations

import math
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

import paperbench
from paperbench.errors import PaperbenchError
from paperbench.report.curves import notes_on, thinned
from paperbench.runs.record import Record
from paperbench.specs.table import Table
from tests.compare.judging import COPY, record, records
from tests.golden import assert_golden
from tests.report.stores import history_of, make_store


@pytest.fixture
def judged(table2: Table, tmp_path: Path) -> paperbench.JudgedTable:
    make_store(
        tmp_path,
        [
            *records(table2, "original/resnet110", (6.58, 6.64, 6.49, 6.71, None)),
            *records(table2, "bn_after_addition/resnet110", (inf, 8.1, 8.2), iteration=20_000),
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
    curve = next(curve for curve in judged.curves() if curve.cell.row.id == "bn_after_addition")
    lost, *others = [dict(run.points("train_loss"))[20_000] for run in curve.runs]
    assert math.isnan(lost)
    assert _median_at(judged, "bn_after_addition/resnet110", 20_000) == max(others)
    errors = sorted(dict(run.points("test_error"))[20_000] for run in curve.runs)
    assert dict(curve.median("test_error"))[20_000] == errors[1]  # it was still tested there


def test_the_median_of_prefixes_ends_with_the_shortest(judged: paperbench.JudgedTable) -> None:
    assert math.isfinite(_median_at(judged, "preact/resnet164", 4_000))
    assert _median_at(judged, "preact/resnet164", 4_100) == -1.0


def test_unknown_figure_is_refused(judged: paperbench.JudgedTable) -> None:
    with pytest.raises(PaperbenchError, match="no figure 'fig7'"):
        judged.panels("fig7")


def test_smoothed_losses_are_called_so(judged: paperbench.JudgedTable, table2: Table) -> None:
    curve, smooth = judged.curves()[0], record(table2, "original/resnet110", 6.0, recipe={"label_smoothing": 0.1})
    assert replace(curve, runs=(replace(curve.runs[0], record=smooth),)).state == "1 run; smoothed loss"


def printed(judged: paperbench.JudgedTable, figure: str | None = None) -> list[str]:
    """Return panels with the labels, states and cells of their curves, what is not in them, and the notes."""
    panels = judged.panels(figure)
    lines, drawn = list[str](), {curve.name for panel in panels for curve in panel.curves}
    for panel in panels:
        curves = zip(panel.legend, panel.curves, strict=True)
        lines += [panel.title, *(f"  {text} ({curve.name}{', a prefix' * curve.is_prefix})" for text, curve in curves)]
    lines += [f"not drawn again: {curve.name}" for curve in judged.curves() if curve.name not in drawn and not figure]
    return [*lines, *notes_on([curve for panel in panels for curve in panel.curves], judged.comparison)]


def test_panels(judged: paperbench.JudgedTable, tables: dict[str, Table], tmp_path: Path) -> None:
    table1, table2, table3, table5 = (tables[f"table{n}"] for n in (1, 2, 3, 5))
    sweep = table1.cell("exclusive_gating_0_to_5/resnet110").settings[1]
    one_title = [cell.id for cell in table5.cells("*/top1") if cell.row.title.startswith("ResNet-152")]
    without_top5 = {cell.row.id for cell in table5.all_cells} - {
        cell.row.id for cell in table5.all_cells if cell.column.id == "top5"
    }
    states = {"original/resnet110": [6.5, inf, None, None], "preact/resnet110": [inf], "preact/resnet164": [None]}
    stores: dict[str, tuple[Table, list[Record]]] = {
        "a single curve of a row": (table3, [record(table3, "cifar100_resnet164/preact", 24.0)]),
        "rows of one title, by labels": (
            table1,
            [
                *(
                    record(table1, f"{row}/resnet110", 12.0)
                    for row in ("constant_scaling", "plain", "exclusive_gating_6")
                ),
                record(table1, "exclusive_gating_0_to_5/resnet110", 90.0, setting=sweep.label),
            ],
        ),
        "rows of one title, tested at 224 and 320": (
            table5,
            list({run.run: run for run in (record(table5, cell, 21.0) for cell in one_title)}.values()),
        ),
        "one training of two rows and two errors": (table5, [record(table5, one_title[0], None, iteration=10_000)]),
        "a panel without further runs": (
            table5,
            [record(table5, f"{row}/top1", 21.0) for row in ("preact_resnet152", min(without_top5))],
        ),
        "states": (
            table2,
            [
                *(
                    record(table2, cell, e, seed=s, iteration=900 + s)
                    for cell in states
                    for s, e in enumerate(states[cell])
                ),
            ],
        ),
        "other conditions, and runs not drawn": (
            table2,
            [
                *(record(table2, "original/resnet110", 6.5, precision="bf16", seed=seed) for seed in (0, 1)),
                *(record(table2, "preact/resnet164", 5.5, precision=precision) for precision in ("fp32", "tf32")),
                record(table2, "original/resnet110", 6.5),
                record(table2, "preact/resnet110", 6.3, data=COPY),
            ],
        ),
    }
    lines = ["figure 6", *printed(judged, "fig6"), "table 2", *printed(judged)]
    for number, (name, (table, runs)) in enumerate(stores.items()):
        make_store(tmp_path / str(number), runs)
        lines += ["", name, *printed(paperbench.load_table(table.id).compare(tmp_path / str(number)))]
    assert_golden("curve_panels", "\n".join(lines))


def test_limits_show_where_nets_end_and_no_explosion(judged: paperbench.JudgedTable) -> None:
    panel = judged.panels("fig6")[0]
    assert panel.max_error == 20.0
    low, high = panel.loss_limits
    losses = [line.train_loss for curve in panel.curves for run in curve.runs for line in run.lines if line.train_loss]
    assert (low, high) == (min(losses), max(losses))
    run = panel.curves[0].runs[0]
    bad = [replace(line, train_loss=1e30, test_error=line.test_error and 55.0) for line in run.lines]
    exploding = replace(panel.curves[0], runs=(replace(run, lines=tuple(bad)),))
    worse = replace(panel, curves=(exploding, panel.curves[1]))
    assert (worse.max_error, worse.loss_limits[1]) == (60.0, 10.0)
    tested = [line for line in run.lines if line.test_error is not None]
    for errors, limit in (
        ([9.0] * 63 + [55.0], 60.0),
        ([55.0] * 33 + [9.0] * 31, 60.0),
        ([55.0] * 9 + [9.0] * 55, 20.0),
    ):
        lines = tuple(replace(line, test_error=e, train_loss=0.5) for line, e in zip(tested, errors, strict=True))
        shown = replace(panel, curves=(replace(panel.curves[0], runs=(replace(run, lines=lines),)),))
        assert (shown.max_error, shown.loss_limits) == (limit, (0.05, 0.5))
    tiny = replace(run, lines=(replace(run.lines[0], train_loss=1e-300), *run.lines[1:]))
    stray = replace(panel, curves=(replace(panel.curves[0], runs=(tiny,)),))
    assert stray.loss_limits[0] == min(line.train_loss for line in run.lines[1:])


def test_only_runs_that_the_verdict_counts_make_the_median(table2: Table, tmp_path: Path) -> None:
    make_store(tmp_path, records(table2, "original/resnet110", (6.5, 6.6, 6.4, 6.7, 6.6, *[9.0] * 15)))
    (curve,) = paperbench.load_table("table2").compare(tmp_path).curves()
    first = [dict(run.points("test_error"))[64_000] for run in curve.runs[:5]]
    assert curve.median("test_error")[-1] == (64_000, sorted(first)[2])
    assert curve.state == "20 runs; 5 counted"


def test_batches_of_64_make_shorter_epochs_of_one_axis(tables: dict[str, Table], tmp_path: Path) -> None:
    rows = ("preact_resnet1001", "preact_resnet1001_batch64")
    make_store(tmp_path, [record(tables["table4"], f"{row}/cifar10", 4.8) for row in rows])
    (panel,) = paperbench.load_table("table4").compare(tmp_path).panels()
    last = max(line.iteration for curve in panel.curves for run in curve.runs for line in run.lines)
    assert panel.extent("iterations") == last
    assert panel.extent("epochs") == pytest.approx(last * 64 / 50_000, rel=1e-4)  # 200, not 400


def test_long_histories_are_thinned_at_equal_iterations(table2: Table) -> None:
    runs = [record(table2, "original/resnet110", 6.5), record(table2, "original/resnet110", None, iteration=33_000)]
    full, short = (history_of(one) for one in runs)
    assert thinned(full, runs[0], 640) is full
    kept, prefix = (thinned(lines, one, 50) for lines, one in zip((full, short), runs, strict=True))
    assert {*kept} <= {*full}
    assert 50 <= len(kept) <= 100
    assert [line.iteration for line in prefix[:-1]] == [line.iteration for line in kept][: len(prefix) - 1]
    assert (kept[-1], prefix[-1]) == (full[-1], short[-1])
    assert sum(line.test_error is not None for line in kept) == 50
