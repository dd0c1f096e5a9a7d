from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import paperbench
from paperbench.report.published import describe, published_table
from paperbench.specs.table import Table
from tests.golden import assert_golden
from tests.helpers import ROOT


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


@pytest.mark.parametrize(
    ("name", "profile", "long"),
    [
        *((f"table{number}", "paper", False) for number in range(1, 6)),
        ("table2", "paper", True),
        *((name, "smoke", False) for name in ("table2", "table5")),
    ],
)
def test_description(tables: dict[str, Table], name: str, profile: str, long: bool) -> None:
    assert_golden(f"{name}_{profile}{'_long' if long else ''}", describe(tables[name], profile, long))


@pytest.mark.parametrize("columns", [60, 80])
def test_names_break_between_their_words(
    tables: dict[str, Table], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for table in tables.values():
        nets = describe(table, "paper", long=True).split("Nets in profile")[1].split("\n\n")[0]
        _, rule, *lines = nets[nets.index("\ncell") + 1 :].splitlines()
        assert len(rule.split()) <= 5
        words = {word for cell in table.all_cells for word in re.split(r"[_/(]", cell.id)}
        keys = [line[: rule.index(" ")].strip() for line in lines]
        assert {word for key in keys for word in re.split(r"[_/(]", key) if word} <= words | {"*"}


@pytest.mark.parametrize("columns", [60, pytest.param(200, marks=pytest.mark.full)])
@pytest.mark.parametrize("long", [False, True])
def test_every_line_fits_the_terminal(
    tables: dict[str, Table], columns: int, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for table in tables.values():
        for profile in ("paper", "smoke"):
            assert max(map(len, describe(table, profile, long).splitlines())) <= columns
        assert max(map(len, published_table(table).splitlines())) <= columns


@pytest.mark.parametrize("name", ["lab/lab", "own_table/mytable", "recipes_by_depth/depths"])
def test_a_table_of_ones_own_is_named_by_its_id_everywhere(name: str, tmp_path: Path) -> None:
    root, table = ROOT / "examples" / name.partition("/")[0], name.partition("/")[2]
    (tmp_path / "runs").mkdir()
    own = paperbench.load_table(table, root)
    report = own.compare(tmp_path)
    page = paperbench.make_page(table, results=tmp_path, root=root).html
    texts = [*(report.render(form) for form in ("table", "markdown", "latex")), str(own), describe(own.table, "paper")]
    for text in texts:
        assert f": {table} and our" in text or f"{table}: {own.title[:30]}" in text
    assert f"<title>{table}: paperbench</title>" in page
    assert not re.search("of arXiv|published numbers beside|Table [0-9T]", "".join([*texts, page]))


@pytest.mark.parametrize(
    ("name", "where", "profile"), [("lab", ROOT / "examples" / "lab", "paper"), ("table2", ROOT, "smoke")]
)
def test_runs_are_reported_without_verdicts_where_nothing_is_published(
    name: str, where: Path, profile: str, tmp_path: Path
) -> None:
    shutil.copytree(where / "experiments", tmp_path / "experiments")
    results = ROOT / "results" / ("lab" if name == "lab" else "smoke")
    table = paperbench.load_table(name, tmp_path)
    judged = table.compare(results, profile=profile)
    page = paperbench.make_page(name, results=results, profiles=[profile], root=tmp_path).html
    texts = [describe(table.table, profile), page, *map(judged.render, ("table", "markdown", "latex"))]
    for text in texts:
        assert "No number is published" in text
        shown = re.sub("(?s)<(style|script).*?</", "", text)
        assert not re.search(r"\bNone\b|\bverdict\b|reproduced|underpowered|[Nn]ot comparable", shown)
    assert judged.render("junit").count('"not comparable: no number is published"') == len(judged.cells)
