"""`paperbench report`: what it writes, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from paperbench.specs.table import Table
from tests.cli.conftest import Run
from tests.compare.judging import record, records
from tests.report.stores import make_store


@pytest.fixture
def results(table2: Table, tmp_path: Path) -> Path:
    """A results directory in its default place."""
    runs = [
        *records(table2, "preact/resnet164", (5.4, 5.5), iteration=900),
        record(table2, "preact/resnet164", 30.0, profile="smoke"),
    ]
    return make_store(tmp_path / "results", runs).root


def test_every_table_and_profile_with_runs_is_on_the_page(run: Run, results: Path) -> None:
    code, out, err = run("report", "--out", "page")
    assert (code, err) == (0, "")
    listed = ", ".join(f"table{number} {profile}" for number in (2, 3, 4) for profile in ("paper", "smoke"))
    assert out == f"Wrote page/index.html: {listed}.\n"
    html = Path("page/index.html").read_text()
    assert all(f'<section id="{one}"' in html for one in ("table2-paper", "table2-smoke", "table4-paper"))


def test_named_tables_and_profiles_appear_without_runs(run: Run, results: Path) -> None:
    assert run("report", "table5", "--out", "a")[1] == "Wrote a/index.html: table5 paper.\n"
    wrote = run("report", "table2", "table1", "--profile", "shallow", "smoke", "--out", "b")[1]
    assert wrote == "Wrote b/index.html: table2 shallow, table2 smoke, table1 shallow, table1 smoke.\n"
    assert run("report", "table3", "--cells", "cifar10_resnet164_no_warm_up/preact", "--out", "c")[0] == 0
    assert "No cell is judged." in Path("c/index.html").read_text()


def test_options_of_compare_choose_and_are_repeated(run: Run, results: Path) -> None:
    assert run("report", "--profile", "paper", "--cells", "preact/resnet164", "--seeds", 2, "--out", "a")[0] == 0
    html = Path("a/index.html").read_text()
    assert "Of 1 cell," in html
    assert "paperbench compare table2 --cells preact/resnet164 --seeds 2" in html
    assert 'id="table3-paper"' not in html


def test_only_the_index_of_a_directory_is_replaced(run: Run, results: Path) -> None:
    Path("page").mkdir()
    Path("page/index.html").write_text("old")
    Path("page/mine.txt").write_text("mine")
    assert run("report", "table2", "--out", "page")[0] == 0
    assert {path.name for path in Path("page").iterdir()} == {"index.html", "mine.txt"}
    assert Path("page/index.html").read_text() != "old"
    assert Path("page/mine.txt").read_text() == "mine"


def test_damaged_records_are_named_on_the_page_and_on_stderr(run: Run, results: Path) -> None:
    (results / "runs" / "x").mkdir()
    (results / "runs" / "x" / "record.json").write_text("{")
    code, _, err = run("report", "table2", "--profile", "paper", "--out", "page")
    assert code == 0
    assert err.startswith("paperbench: left out: results/runs/x/record.json is not JSON")
    assert len(err.splitlines()) == 1
    assert "results/runs/x/record.json is not JSON" in Path("page/index.html").read_text()


@pytest.mark.parametrize("command", ["report table2 --out page", "plot fig4 --out page/index.svg"])
def test_a_link_is_neither_followed_nor_replaced(run: Run, results: Path, command: str) -> None:
    Path("page").mkdir()
    Path("mine").write_text("mine")
    for name in ("html", "svg"):
        Path(f"page/index.{name}").symlink_to("../mine")
    code, _, err = run(*command.split())
    assert code == 2
    assert "cannot be written: it is not a regular file" in err
    assert all(path.is_symlink() for path in Path("page").iterdir())
    assert Path("mine").read_text() == "mine"
