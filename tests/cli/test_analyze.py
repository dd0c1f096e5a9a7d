"""`paperbench analyze`: formats, files, and what stops it."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from paperbench.analysis.record import Analysis, read_analyses
from paperbench.cli.main import main
from tests.cli.conftest import Run

FULL = pytest.mark.full
NET = (
    *("preact_resnet20", "--set", "depth=8", "--dataset", "digits"),
    *("--images", "2", "--size", "8", "--measure", "channels"),
)
MAGIC = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results directory with the analysis of one net."""
    results = tmp_path_factory.mktemp("analyzed") / "results"
    assert main(["analyze", *NET, "--device", "cpu", "--results", str(results)]) == 0
    return results


@pytest.fixture
def results(once: Path, tmp_path: Path) -> Path:
    """A copy of it, where commands look for it by default."""
    return shutil.copytree(once, tmp_path / "results")


@pytest.fixture
def analysis(results: Path) -> Analysis:
    ((one,), _) = read_analyses(results)
    return one


def test_text_is_printed_from_the_results_directory(run: Run, analysis: Analysis) -> None:
    code, out, err = run("analyze", *NET)
    assert (code, err) == (0, "")
    assert "Signal and gradient in the residual units:\n" in out
    assert f"{analysis.passes.gradient_norm[0]:.3g}" in out


def test_json_is_the_file_in_a_list(run: Run, results: Path) -> None:
    (file,) = (results / "analysis").iterdir()
    _, out, _ = run("analyze", *NET, "--format", "json")
    assert json.loads(out) == [json.loads(file.read_text())]


def test_markdown_is_written_by_its_suffix(run: Run, results: Path) -> None:
    code, out, _ = run("analyze", *NET, "--format", "markdown")
    assert code == 0
    assert "\n| net " in out
    assert run("analyze", *NET, "--out", "net.md")[0] == 0
    assert Path("net.md").read_text() == out


def test_csv_has_a_row_for_each_unit(run: Run, analysis: Analysis) -> None:
    assert run("analyze", *NET, "--out", "units.csv") == (0, "Wrote units.csv.\n", "")
    rows = list(csv.DictReader(io.StringIO(Path("units.csv").read_text())))
    assert [float(row["gradient_norm"]) for row in rows] == list(analysis.passes.gradient_norm)


@FULL
@pytest.mark.parametrize("form", ["png", "svg", "pdf"])
def test_pictures_are_written(run: Run, results: Path, form: str) -> None:
    name = f"preact_resnet20-analysis.{form}"
    assert run("analyze", *NET, "--format", form) == (0, f"Wrote {name}.\n", "")
    assert Path(name).read_bytes().startswith(MAGIC[form])


def test_the_second_net_is_subtracted(run: Run, results: Path) -> None:
    code, out, _ = run("analyze", *NET, "--minus", "original_resnet20", "--out", "both.svg")
    assert (code, out) == (0, "Wrote both.svg.\n")
    assert "preact_resnet20(depth=8) minus" in Path("both.svg").read_text()
    assert len(read_analyses(results)[0]) == 2


@FULL
def test_nothing_but_its_own_lines_is_printed_on_stderr(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    command = [sys.executable, "-m", "paperbench", "analyze", *NET, "--results", str(tmp_path)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ended.stderr == "[1/1] preact_resnet20(depth=8), seed 0, iteration 0\n"


def test_unreadable_analyses_are_named_on_stderr(run: Run, results: Path) -> None:
    (results / "analysis" / "damaged.json").write_text("{")
    code, out, err = run("analyze", "--format", "csv")
    assert (code, len(list(csv.DictReader(io.StringIO(out))))) == (0, 3)
    assert err.startswith("paperbench: left out: results/analysis/damaged.json is not JSON")
