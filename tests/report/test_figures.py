"""Training curves as matplotlib draws them."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from math import inf
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import paperbench
from paperbench.report import csv_format
from paperbench.report.curves import notes_on
from paperbench.report.drawing import units_drawing
from paperbench.report.figures import COLOURS, draw_curves, to_bytes
from paperbench.specs.table import Table
from tests.compare.judging import COPY, record, records
from tests.golden import assert_golden
from tests.report.stores import make_store

ORIGINAL = "original/resnet110"


@pytest.fixture(scope="module")
def root(tables: dict[str, Table], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory, table2 = tmp_path_factory.mktemp("results"), tables["table2"]
    how = {"data": COPY}
    make_store(
        directory,
        [
            *records(table2, ORIGINAL, (6.58, 6.64, 6.49, 6.71, None), **how),
            *records(table2, "bn_after_addition/resnet110", (8.1, 8.2, inf), iteration=20_000, **how),
            record(table2, "preact/resnet164", None, iteration=8_000, **how),
            record(table2, "preact/resnet164", None, iteration=4_000, seed=1, **how),
        ],
    )
    return directory


@pytest.fixture(scope="module")
def judged(root: Path) -> paperbench.JudgedTable:
    return paperbench.load_table("table2").compare(root)


@pytest.fixture(scope="module")
def drawn(judged: paperbench.JudgedTable) -> Figure:
    panels = judged.panels()
    return draw_curves(panels, notes_on([one for panel in panels for one in panel.curves], judged.comparison))


def lines(axes: Axes, gid: str) -> list[Line2D]:
    return [line for line in axes.lines if line.get_gid() == gid]


def texts(figure: Figure) -> str:
    wrapped = [text.get_text() for axes in figure.axes if (box := axes.get_legend()) for text in box.get_texts()]
    legends = [text.replace("\n", " ") for text in wrapped]
    return "\n".join([*legends, *(axes.get_title() for axes in figure.axes), figure.get_supxlabel()])


def test_lines_of_runs_are_the_lines_of_their_histories(drawn: Figure, root: Path) -> None:
    drawn_runs = 0
    for directory in (root / "runs").iterdir():
        found = [json.loads(text) for text in (directory / "history.jsonl").read_text().splitlines()]
        for measure in ("train_loss", "test_error"):
            at = [(one["iteration"], one[measure]) for one in found if one[measure] is not None]
            for axes in drawn.axes:
                for line in lines(axes, f"{measure} of {directory.name}"):
                    finite = line.get_xydata()[np.isfinite(line.get_ydata())]  # type: ignore[index, arg-type]
                    np.testing.assert_array_equal(finite, at)
                    drawn_runs += 1
    assert drawn_runs == 2 * (5 + 3 + 2)


def test_bold_line_is_the_median_of_the_csv(drawn: Figure, judged: paperbench.JudgedTable) -> None:
    rows = list(
        csv.DictReader(io.StringIO(csv_format.as_csv(csv_format.CURVE_COLUMNS, csv_format.curve_rows(judged.curves()))))
    )
    for number, measure in enumerate(("train_loss", "test_error")):
        values: dict[int, list[float]] = {}
        for row in rows:
            if row["cell"] == ORIGINAL and row["status"] == "finished" and row[measure]:
                values.setdefault(int(row["iteration"]), []).append(float(row[measure]))
        (line,) = lines(drawn.axes[number], f"{measure} of {ORIGINAL}")
        np.testing.assert_array_equal(line.get_xdata(), list(values))
        np.testing.assert_allclose(line.get_ydata(), [np.median(one) for one in values.values()])  # type: ignore[arg-type]


def test_loss_is_dashed_on_a_log_axis_and_error_solid(drawn: Figure) -> None:
    losses, errors = drawn.axes[:2]
    assert (losses.get_yscale(), errors.get_yscale(), errors.get_ylim()) == ("log", "linear", (0, 20))
    (loss,), (error,) = lines(losses, f"train_loss of {ORIGINAL}"), lines(errors, f"test_error of {ORIGINAL}")
    assert (loss.get_linestyle(), error.get_linestyle()) == ("--", "-")
    faint = next(line for line in losses.lines if str(line.get_gid()).endswith("-s0"))
    assert faint.get_linewidth() < loss.get_linewidth()
    assert (faint.get_alpha() or 1) < 0.5


def test_drops_of_the_rate_are_vertical_lines(drawn: Figure) -> None:
    left, right = drawn.axes[0], drawn.axes[2]
    assert sorted(line.get_xdata()[0] for line in lines(left, "drop")) == [32_000, 48_000]  # type: ignore[index]
    assert lines(right, "drop") == []  # its prefixes end before


def test_ends_of_prefixes_and_diverged_runs_are_marked(drawn: Figure) -> None:
    left, right = drawn.axes[0], drawn.axes[2]
    marks = [(line.get_xdata()[0], line.get_marker()) for line in lines(left, "end")]  # type: ignore[index]
    assert sorted(marks) == [(1_000, "o"), (19_900, "X")]  # the line at 20,000 has no loss
    assert [line.get_xdata()[0] for line in lines(right, "end")] == [8_000, 4_000]  # type: ignore[index]


def test_triangles_mark_the_medians_of_the_reported_errors(drawn: Figure) -> None:
    (mark,) = lines(drawn.axes[1], f"reported of {ORIGINAL}")
    assert mark.get_xydata().tolist() == [[64_000, (6.58 + 6.64) / 2]]  # type: ignore[union-attr]


def test_texts_of_pictures(drawn: Figure, judged: paperbench.JudgedTable, table2: Table, tmp_path: Path) -> None:
    make_store(tmp_path, records(table2, ORIGINAL, [55.0], profile="smoke"))
    smoke = paperbench.load_table("table2").compare(tmp_path, profile="smoke")
    of_smoke = draw_curves(smoke.panels(), notes_on(smoke.curves(), smoke.comparison))
    assert of_smoke.axes[1].get_ylim()[1] > 55
    (panel, _) = judged.panels("fig6")
    run = panel.curves[0].runs[0]
    exploding = replace(run, lines=(replace(run.lines[0], train_loss=11.0), *run.lines[1:]))
    calm = replace(run, lines=tuple(replace(line, test_error=None) for line in run.lines))
    unreadable = (replace(run, lines=(), problem="it is damaged"), *panel.curves[0].runs[1:])
    changed = (
        draw_curves([replace(panel, curves=(replace(panel.curves[0], runs=runs),), labels=["a"])])
        for runs in ((exploding,), (calm,), unreadable)
    )
    assert_golden("texts_of_pictures", "\n\n".join(" ".join(texts(one).split()) for one in (drawn, of_smoke, *changed)))


def test_many_curves_are_split_and_each_panel_has_the_baseline(tables: dict[str, Table], tmp_path: Path) -> None:
    table1 = tables["table1"]
    runs = [
        record(table1, cell.id, 30.0, setting=setting.label) for cell in table1.cells("*") for setting in cell.settings
    ]
    make_store(tmp_path, runs)
    figure = draw_curves(paperbench.load_table("table1").compare(tmp_path).panels())
    labels = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in figure.axes[::2]]
    assert all(one[0] == "original: 1 run" and len(one) <= len(COLOURS) for one in labels)
    assert len({label for one in labels for label in one}) == len(runs) == 16


def test_curves_differ_in_grey() -> None:
    luminance = sorted(np.dot((0.2126, 0.7152, 0.0722), to_rgb(colour)) for colour in COLOURS)
    assert min(np.diff(luminance)) > 0.05


@pytest.mark.parametrize("longer", ["", " of a table with long names" * 5])
def test_every_text_and_line_is_inside_the_picture(judged: paperbench.JudgedTable, longer: str) -> None:
    panels = [replace(p, title=p.title + longer, labels=[one + longer for one in p.labels]) for p in judged.panels()]
    figure = draw_curves(panels, ["A note " * 30])
    figure.draw_without_rendering()
    box, page = figure.get_tightbbox(), figure.get_size_inches()
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert (box.x1, box.y1) <= tuple(page)
    left, right = (axes.get_tightbbox() for axes in (figure.axes[1], figure.axes[2]))
    assert left.x1 <= right.x0  # type: ignore[union-attr]


@pytest.mark.full  # SVG is compared below
@pytest.mark.parametrize("form", ["pdf", "png"])
def test_pictures_are_the_same_bytes_each_time(judged: paperbench.JudgedTable, form: str) -> None:
    first, second = (to_bytes(draw_curves(judged.panels("fig6")), form) for _ in range(2))
    assert first == second


def test_settings_of_matplotlib_neither_leak_nor_matter(judged: paperbench.JudgedTable) -> None:
    panels = judged.panels("fig6")
    usual = to_bytes(draw_curves(panels), "svg")
    with matplotlib.rc_context({"font.size": 30, "lines.linestyle": ":", "svg.fonttype": "path"}):
        before = dict(matplotlib.rcParams)
        assert to_bytes(draw_curves(panels), "svg") == usual
        assert dict(matplotlib.rcParams) == before


@pytest.mark.full
def test_fonts_are_embedded(judged: paperbench.JudgedTable) -> None:
    pdf = to_bytes(draw_curves(judged.panels("fig6")), "pdf")
    assert b"/FontType 42" in pdf or b"/CIDFontType2" in pdf
    assert b"/Type3" not in pdf
    width = re.search(rb"/MediaBox \[ ?0 0 ([0-9.]+)", pdf)
    assert width is not None
    assert float(width[1]) == pytest.approx(6.9 * 72)


def test_texts_stay_text_and_those_of_strangers_are_no_markup(judged: paperbench.JudgedTable) -> None:
    note = "Data: $\\frac{$ <script>alert(1)</script> a\u202eb"
    svg = to_bytes(draw_curves(judged.panels("fig6"), [note]), "svg").decode()
    assert "original Residual Unit: 4 runs" in svg
    assert r"$\frac{$ &lt;script&gt;" in svg
    assert "<script" not in svg
    assert "\u202e" not in svg


def test_an_unreadable_history_leaves_the_others_drawn(judged: paperbench.JudgedTable) -> None:
    (panel, _) = judged.panels("fig6")
    first, *others = panel.curves[0].runs
    runs = (replace(first, lines=(), problem="it is damaged"), *others)
    figure = draw_curves([replace(panel, curves=(replace(panel.curves[0], runs=runs), panel.curves[1]))])
    (line,) = lines(figure.axes[0], f"train_loss of {ORIGINAL}")
    its_median = np.median([[v for _, v in run.points("train_loss")] for run in others[:3]], axis=0)
    np.testing.assert_allclose(line.get_ydata(), its_median)  # type: ignore[arg-type]
    empty = replace(panel.curves[1], runs=tuple(replace(run, lines=()) for run in panel.curves[1].runs))
    axes = draw_curves([replace(panel, curves=(panel.curves[0], empty))], x="epochs").axes[0]
    assert axes.get_xlim()[1] == lines(axes, f"train_loss of {ORIGINAL}")[0].get_xdata()[-1] == pytest.approx(163.84)  # type: ignore[index]


def test_units_are_at_the_left_of_the_curves(judged: paperbench.JudgedTable, tables: dict[str, Table]) -> None:
    (fig1,) = tables["table3"].experiment.figures
    panel = judged.panels("fig6")[0]
    figure = draw_curves([panel], units=units_drawing(fig1.units))
    figure.draw_without_rendering()
    curves, _, units = figure.axes
    assert [text.get_text() for text in units.texts if text.get_text().startswith("(")] == [
        "(a) original",
        "(b) proposed",
    ]
    of_units, of_curves = units.get_tightbbox(), curves.get_tightbbox()
    assert of_units is not None
    assert of_curves is not None
    assert 0 <= of_units.x0 < of_units.x1 < of_curves.x0
    assert figure.get_size_inches()[0] == pytest.approx(2 * 3.3)
