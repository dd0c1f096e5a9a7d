"""`paperbench plot` of tables and figures: formats, files, and what stops it."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from contextlib import redirect_stdout
from itertools import count
from math import inf
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from paperbench.compare.comparison import compare
from paperbench.report.depth import points_of
from paperbench.report.figures import draw_depth, to_bytes
from paperbench.specs.table import Table, read_table
from tests.cli.conftest import Run
from tests.compare.judging import record, records
from tests.helpers import ROOT, change_yaml
from tests.limits import limit_file_size
from tests.report.stores import make_store

FULL = pytest.mark.full
PRINTED = {"text": "Our runs for Table 2", "csv": "profile,cell,setting"}
MAGIC = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}


@pytest.fixture(scope="module")
def store(tables: dict[str, Table], tmp_path_factory: pytest.TempPathFactory) -> Path:
    table2 = tables["table2"]
    return make_store(
        tmp_path_factory.mktemp("store"),
        [
            *records(table2, "original/resnet110", (6.58, 6.64, 6.49)),
            record(table2, "bn_after_addition/resnet110", inf, iteration=8_000),
            record(table2, "preact/resnet164", None, iteration=4_000),
        ],
    ).root


@pytest.fixture
def results(store: Path, tmp_path: Path) -> Path:
    """A results directory, where commands look for it by default."""
    return shutil.copytree(store, tmp_path / "results")


def sparklines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(("    loss ", "    error"))]


@pytest.mark.parametrize("form", PRINTED)
def test_text_and_csv_are_printed(run: Run, results: Path, form: str) -> None:
    code, out, err = run("plot", "table2", "--format", form)
    assert (code, err) == (0, "")
    assert out.startswith(PRINTED[form])
    assert sorted(results.parent.iterdir()) == [results]


@pytest.mark.parametrize("form", ["png", *(pytest.param(form, marks=FULL) for form in ("svg", "pdf"))])
def test_pictures_are_written(run: Run, results: Path, form: str) -> None:
    assert run("plot", "fig6", "--format", form) == (0, f"Wrote fig6.{form}.\n", "")
    assert Path(f"fig6.{form}").read_bytes().startswith(MAGIC[form])


@pytest.mark.parametrize(("name", "start"), [("a.TXT", "Our runs"), ("a.csv", "profile"), ("a.svg", "<?xml")])
def test_the_name_of_the_file_decides_the_format(run: Run, results: Path, name: str, start: str) -> None:
    assert run("plot", "table2", "--out", name) == (0, f"Wrote {name}.\n", "")
    assert Path(name).read_text(encoding="utf-8").startswith(start)


def test_csv_has_every_line_of_every_history(run: Run, results: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(run("plot", "table2", "--format", "csv")[1])))
    for directory in (results / "runs").iterdir():
        lines = [json.loads(text) for text in (directory / "history.jsonl").read_text().splitlines()]
        found = [row for row in rows if row["run"] == directory.name]
        for name in lines[0]:
            assert [row[name] for row in found] == ["" if one[name] is None else str(one[name]) for one in lines]
    assert len(rows) == 3 * 640 + 80 + 40


@pytest.mark.parametrize("width", [40, 133])
def test_text_fits_the_terminal(run: Run, results: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    out = run("plot", "table2")[1]
    assert max(map(len, out.splitlines())) <= width
    assert len(sparklines(out)[0]) > width - 8


def test_sparkline_falls_between_first_and_last_value(run: Run, results: Path) -> None:
    out = run("plot", "table2", "--cells", "original/resnet110")[1]
    loss, error = sparklines(out)
    histories = [
        [json.loads(line) for line in path.read_text().splitlines()] for path in results.glob("runs/*-s?/history.jsonl")
    ]
    ended = [one for one in histories if len(one) == 640]
    assert float(loss.split()[1]) == pytest.approx(sorted(one[0]["train_loss"] for one in ended)[1], rel=0.005)
    assert float(error.split()[-1]) == pytest.approx(sorted(one[-1]["test_error"] for one in ended)[1], rel=0.005)
    before, between, after = loss.split(maxsplit=2)[2].split("│")
    assert len(before) == pytest.approx(len(before + between + after) / 2, abs=6)  # the rate drops after one half
    assert max(after.split()[0]) < min(between) < min(before)
    assert {*before, *between, *after.split()[0]} <= set("▁▂▃▄▅▆▇█")


def test_text_says_what_diverged_and_what_is_a_prefix(run: Run, results: Path) -> None:
    out = run("plot", "table2")[1]
    assert "BN after addition: 1 run; diverged at 8,000" in out
    assert "full pre-activation: prefix, to 4,000" in out
    _, diverged, *_ = [line for line in sparklines(out) if "loss" in line]
    assert sum(mark in "▁▂▃▄▅▆▇█" for mark in diverged) == pytest.approx(51 * 8_000 / 64_000, abs=1)


def test_terminals_without_blocks_get_ascii(run: Run, results: Path) -> None:
    with redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="latin-1")) as stream:
        run("plot", "table2")
    stream.seek(0)
    text = stream.read()
    assert "|" in text
    assert text.isascii()


def test_cells_choose_curves(run: Run, results: Path) -> None:
    out = run("plot", "table2", "--cells", "preact")[1]
    assert "full pre-activation" in out
    assert "original" not in out


@pytest.mark.parametrize("command", ["plot table2 --format png", "analyze preact_resnet20 --format svg"])
def test_missing_matplotlib_names_the_extra(
    run: Run, results: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for module in ("figures", "analysis_figures"):
        monkeypatch.delitem(sys.modules, f"paperbench.report.{module}", raising=False)
        monkeypatch.delattr(f"paperbench.report.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = run(*command.split())
    assert code == 2
    assert "pip install matplotlib" in err


@pytest.mark.parametrize(
    ("arguments", "option"), [("plot table2 --out old/a.csv", "--out FILE"), ("report table2 --out old", "--out DIR")]
)
def test_file_that_cannot_be_written_leaves_the_old_one(run: Run, results: Path, arguments: str, option: str) -> None:
    Path("old").mkdir()
    for name in ("a.csv", "index.html"):
        Path("old", name).write_text("old")
    with limit_file_size(1_000):
        code, _, err = run(*arguments.split())
    assert code == 2
    assert "cannot be written: File too large. Raise the limit (see `ulimit -a`)" in err
    assert [path.read_text() for path in Path("old").iterdir()] == ["old"] * 2


def test_a_damaged_history_is_left_out_and_said(run: Run, results: Path) -> None:
    damaged = next(path for path in results.glob("runs/*-s1/history.jsonl"))
    damaged.write_text(damaged.read_text().replace('"epoch"', '"epoch', 1))
    code, out, err = run("plot", "table2")
    assert code == 0
    assert "original Residual Unit: 2 runs" in out
    assert "left out:" in err
    assert "was edited" in err


@pytest.mark.parametrize("form", ["text", "svg", *(pytest.param(form, marks=FULL) for form in ("pdf", "png"))])
def test_a_figure_of_units_needs_no_runs(run: Run, form: str) -> None:
    code, out, err = run("plot", "fig4", "--format", form)
    assert (code, err) == (0, "")
    text = out if form == "text" else Path(f"fig4.{form}").read_bytes().decode("latin-1")
    if form in ("text", "svg"):
        assert "(d) ReLU-only pre-activation" in text
    else:
        assert text.startswith(MAGIC[form].decode("latin-1"))


def test_figure_1_has_units_beside_curves(run: Run, tables: dict[str, Table], tmp_path: Path) -> None:
    make_store(tmp_path / "results", [record(tables["table3"], "cifar10_resnet1001/preact", 4.9)])
    assert run("plot", "fig1", "--format", "svg")[0] == 0
    texts = [one.text for one in ElementTree.parse("fig1.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert {"(a) original", "(b) proposed", "ResNet-1001", "pre-activation unit: 1 run"} <= set(texts)


def test_published_numbers_by_depth_need_no_results(run: Run) -> None:
    code, text, err = run("plot", "table3", "--x", "depth")
    assert (code, err) == (0, "")
    assert text.startswith("Published numbers of Table 3 of arXiv:1603.05027 alone")
    rows = csv.DictReader(io.StringIO(run("plot", "table3", "--x", "depth", "--format", "csv")[1]))
    gains = {(r["net"].split(", ")[1], r["depth"], float(r["published_gain"])) for r in rows if "pre-act" in r["net"]}
    large = {("bottleneck", "1001", 2.69), ("bottleneck", "164", 0.83), ("bottleneck", "1001", 5.11)}
    assert gains == {("one-layer", "110", 0.99), ("basic", "110", 0.24), ("bottleneck", "164", 0.47), *large}


def test_rows_of_the_lab_are_lines_by_depth_with_gaps_and_its_rates_panels(tmp_path: Path) -> None:
    lab, errors = shutil.copytree(ROOT / "examples" / "lab", tmp_path / "lab"), count(1)
    rows = read_table("lab", lab).experiment.rows
    numbers = {row.id: {column: float(next(errors)) for column in row.cells} for row in rows}
    del numbers["preact"]["layers56"]
    change_yaml(lab / "expected" / "lab.yaml", (("cells",), numbers))
    table = read_table("lab", lab)
    points = points_of(compare(table, table.all_cells, "paper", ()))
    assert {point.panel for point in points} == {f"handwritten digits at 8x8, rate {rate}" for rate in ("0.1", "0.02")}
    assert [point.depth for point in points] == [20, 56, 110] * 12
    assert {point.published_gain for point in points if "plain" in point.net} == {3.0}  # numbered row by row
    lines = {line.get_gid(): line.get_ydata() for line in draw_depth(points).axes[0].lines}
    np.testing.assert_equal(lines["published of full pre-activation"], [7, np.nan, 9])


def test_results_of_others_are_drawn_by_depth_and_said(run: Run, results: Path) -> None:
    run("record", "table3", "cifar10_resnet1001/preact", "--seed", "0", "--error", "5.25", "--source", "A report")
    text = run("plot", "table3", "--x", "depth")[1]
    assert "Reported by others, not our runs: cifar10_resnet1001/preact." in text
    assert "  5.25  " in text


def test_a_table_without_published_numbers_has_no_column_for_them(run: Run, tmp_path: Path) -> None:
    of_lab = ("--tables", ROOT / "examples" / "lab", "--results", tmp_path)
    run("record", "lab", "preact/layers20", "--seed", "0", "--error", "2.5", "--source", "A report", *of_lab)
    head = run("compare", "lab", *of_lab)[1].split("---")[0]
    assert "20 layers, ours" in head
    assert ", paper" not in head


def test_picture_by_depth_has_every_run_and_failures_at_the_top(tables: dict[str, Table]) -> None:
    table3, found = tables["table3"], {"original": (inf, 7.7, inf), "preact": (5.0, 4.8, 4.9)}
    runs = [one for unit, e in found.items() for one in records(table3, f"cifar10_resnet1001/{unit}", e, iteration=9)]
    figure = draw_depth(points_of(compare(table3, table3.cells("cifar10_*"), "paper", runs, seeds=3)))
    to_bytes(figure, "png")
    lines = {line.get_gid(): np.array(line.get_xydata()) for axes in figure.axes for line in axes.lines}
    drawn = {gid: xy[np.isfinite(xy).all(1)].tolist() for gid, xy in lines.items()}
    top = figure.axes[0].get_ylim()[1]
    assert drawn["runs of baseline unit, bottleneck"] == [[1001, top], [1001, 7.7], [1001, top]]
    assert drawn["ours of baseline unit, bottleneck"] == [[1001, top]]
    assert drawn["ours of pre-activation unit, bottleneck"] == [[1001, 4.9]]
    assert drawn["published of pre-activation unit, bottleneck"] == [[164, 5.46], [1001, 4.92]]
    assert not any(str(gid).startswith("our_gain") for gid in drawn)  # over a net that diverged
