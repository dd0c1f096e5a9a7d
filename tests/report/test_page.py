"""The page of `paperbench report`: what it shows, that it is sound HTML, and that no text of others becomes markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import html5lib
import pytest

import paperbench
from paperbench import __version__
from paperbench.runs.external import write_external
from paperbench.specs.table import Table, read_table
from tests.compare.judging import COPY, external, record, records
from tests.golden import assert_golden
from tests.helpers import a_session, change_yaml, copy_of_specs
from tests.report.conftest import SWEEP
from tests.report.stores import make_store

SVG = "{http://www.w3.org/2000/svg}"
HEADINGS = ("h1", "h2", "h3", "h4")


def parsed(html: str) -> Element:
    """Parse a page; any error of its HTML is an error here."""
    return html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(html)


def text_of(element: Element) -> str:
    return " ".join("".join(element.itertext()).split())


def rows_of(document: Element, caption: str) -> list[list[str]]:
    """Return the texts of the rows of the table with a caption."""
    (table,) = [one for one in document.iter("table") if text_of(one.find("caption")).startswith(caption)]
    return [[text_of(cell) for cell in row] for row in table.iter("tr")]


def words_of(document: Element) -> str:
    """Return all text of a page but scripts and styles."""
    return text_of(without(document, "script", "style"))


def without(document: Element, *tags: str) -> Element:
    """Take elements out of a page, not the text after them."""
    for one in document.iter():
        if one.tag in tags:
            tail = one.tail
            one.clear()
            one.tail = tail
    return document


def printed(document: Element) -> str:
    """Return the text of a page but records and drawn units, a row of a table in a line."""
    for row in without(document, "script", "style", "pre", "figure").iter("tr"):
        cells = " | ".join(map(text_of, row))
        row.clear()
        row.text, row.tail = cells, "\n"
    lines = (" ".join(line.split()) for line in "".join(document.itertext()).splitlines())
    return "\n".join(filter(None, lines))


@pytest.fixture(scope="module")
def root(table2: Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results directory with a cell for every verdict."""
    root = tmp_path_factory.mktemp("store")
    make_store(
        root,
        [
            *records(table2, "original/resnet110", (6.58, 6.64, 6.49, 6.71, 6.60)),
            *records(table2, "bn_after_addition/resnet110", (9.95, 10.10, 10.02, 9.90, 10.20)),
            *records(table2, "bn_after_addition/resnet164", (5.10, 5.05, 5.12, 5.01, 5.08)),
            *records(table2, "relu_before_addition/resnet110", (7.80, 7.90, inf), iteration=20_000),
            *records(table2, "relu_only_preact/resnet110", (9.0, 9.1, 9.2), data=COPY),
            record(table2, "relu_only_preact/resnet164", None),
            record(table2, "original/resnet110", 6.7, precision="bf16"),
        ],
    )
    write_external(root, external(table2, "preact/resnet164", 5.5, source="=a lab"))
    return root


@pytest.fixture(scope="module")
def html(root: Path) -> str:
    return paperbench.make_page("table2", results=root).html


@pytest.fixture
def document(html: str) -> Element:
    return parsed(html)


def test_text_of_the_page(document: Element) -> None:
    assert_golden("page", printed(document).replace(f"Made by paperbench {__version__}", "Made by paperbench"))


def test_intervals_are_drawn_beside_the_cells_that_have_one(document: Element, root: Path) -> None:
    tested = {cell.id for cell in paperbench.load_table("table2").compare(root).document.cells if cell.interval}
    (table,) = [one for one in document.iter("table") if text_of(one.find("caption")).startswith("Errors")]
    drawn = [text_of(row[0]) for row in table.find("tbody") for svg in row.iter(f"{SVG}svg")]
    assert (set(drawn), len(drawn)) == (tested, 3)


def test_numbers_of_figures_lead_to_the_drawings_of_units(document: Element) -> None:
    drawings = {one.get("id"): text_of(one) for one in document.iter("div") if "-unit-" in (one.get("id") or "")}
    links = {text_of(a): a.get("href").removeprefix("#") for a in document.iter("a") if "-unit-" in a.get("href")}
    assert links.keys() == {f"4({letter})" for letter in "abcde"}
    assert all(number.removeprefix("4") in drawings[unit] for number, unit in links.items())


def test_a_table_does_not_repeat_the_curves_and_runs_of_an_earlier_one(table2: Table, tmp_path: Path) -> None:
    cells = ("original/resnet110", "preact/resnet110")
    make_store(tmp_path, [one for cell in cells for one in records(table2, cell, (6.6, 6.5))])
    document = parsed(paperbench.make_page("table2", "table3", "table4", results=tmp_path).html)
    charts = [one for one in document.iter("figure") if one.get("class") == "chart"]
    assert [text_of(one.find("figcaption")) for one in charts] == ["ResNet-110"]
    assert len(rows_of(document, "Every")) == 1 + 4
    words = words_of(document)
    assert "ResNet-110, CIFAR-10: see the curves of Table 2, profile paper, which have the same runs." in words
    assert re.findall(r"(\d) runs are among the runs of Table (\d)", words) == [("4", "2"), ("2", "2")]


def test_every_run_is_listed_with_its_record(document: Element, root: Path) -> None:
    files = sorted((root / "runs").glob("*/record.json"))
    _, *rows = rows_of(document, "Every run")
    assert sorted(row[0] for row in rows) == [file.parent.name for file in files]
    shown = {pre.get("id"): json.loads("".join(pre.itertext())) for pre in document.iter("pre")}
    assert shown == {f"record-{file.parent.name}": json.loads(file.read_text()) for file in files}


def test_the_papers_units_are_drawn_with_their_titles(document: Element) -> None:
    (figure, chain) = [one for one in document.iter("figure") if one.get("class") == "units"]
    assert text_of(figure.find("figcaption")) == "Placements of BN and ReLU in a residual unit"
    drawings = list(figure.iter(f"{SVG}svg"))
    assert [text_of(svg)[text_of(svg).index("(") :][:3] for svg in drawings] == [f"({letter})" for letter in "abcde"]
    assert {Counter(text_of(one) for one in svg.iter(f"{SVG}text"))["weight"] for svg in drawings} == {2}
    assert "asymmetric" in text_of(chain)


def test_a_sweep_has_a_row_for_each_setting(table1: Table, tmp_path: Path) -> None:
    sweep = [
        run
        for setting in table1.cell(SWEEP).settings
        for run in records(table1, SWEEP, (90.0, inf, 35.0), setting=setting.label, iteration=900)
    ]
    make_store(tmp_path, sweep)
    document = parsed(paperbench.make_page("table1", results=tmp_path).html)
    names = [row[0] for row in rows_of(document, "Errors")[1:]]
    assert names == [f"{SWEEP} (gate_bias={bias})" for bias in range(0, -6, -1)]
    assert not [svg for svg in document.iter(f"{SVG}svg") if svg.get("class") == "interval"]


def test_a_table_without_runs_says_what_to_run(tmp_path: Path) -> None:
    page = paperbench.make_page("table5", results=tmp_path)
    document = parsed(page.html)
    assert page.tables == (("table5", "paper"),)
    assert "No run of this table in this profile yet." in words_of(document)
    assert not list(document.iter("figure"))
    assert not [section for section in document.iter("section") if section.get("id") == "records"]


def test_headings_ids_links_and_tables_are_sound(document: Element) -> None:
    levels = [HEADINGS.index(one.tag) for one in document.iter() if one.tag in HEADINGS]
    assert levels.count(0) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    ids = [one.get("id") for one in document.iter() if one.get("id")]
    assert len(ids) == len(set(ids))
    links = [one.get("href") for one in document.iter("a")]
    assert {link.removeprefix("#") for link in links} <= set(ids)
    for table in document.iter("table"):
        assert text_of(table.find("caption"))
        assert {one.get("scope") for one in table.iter("th")} <= {"col", "colgroup", "row"}


def test_only_paths_lose_the_name_of_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    damaged = Path("run/runs/0123456789ab-s0")
    damaged.mkdir(parents=True)
    (damaged / "record.json").write_text("{")
    words = words_of(parsed(paperbench.make_page("table2", results="run").html))
    assert "paperbench run table2" in words
    assert "results/runs/0123456789ab-s0/record.json" in words


def test_a_table_in_two_profiles_has_sections_of_two_names(tmp_path: Path) -> None:
    page = paperbench.make_page("table2", results=tmp_path, profiles=["paper", "smoke"])
    titles = [text_of(one).partition(":")[0] for one in parsed(page.html).iter("h2")]
    assert titles == ["Table 2, profile paper", "Table 2, profile smoke"]


def test_the_policy_allows_only_the_styles_and_scripts_of_the_page(document: Element) -> None:
    (policy,) = [one.get("content") for one in document.iter("meta") if one.get("http-equiv")]
    for tag in ("style", "script"):
        (content,) = ["".join(one.itertext()) for one in document.iter(tag) if one.get("type") is None]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ")
    attributes = [name for one in document.iter() for name in one.attrib]
    assert not [name for name in attributes if name.startswith("on") or name in ("style", "src")]


def test_the_same_store_elsewhere_gives_the_same_page(html: str, root: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(root, tmp_path / "copy of it")
    (copy / "runs" / "x").mkdir()
    (copy / "runs" / "x" / "record.json").write_text("{")
    page = paperbench.make_page("table2", results=copy)
    assert "results/runs/x/record.json is not JSON" in page.html
    assert str(tmp_path) not in page.html
    shutil.rmtree(copy / "runs" / "x")
    assert paperbench.make_page("table2", results=copy).html == html


HOSTILE = """<script>window.hacked=1</script><img src=x onerror="window.hacked=1">"'>{{7*7}}</script><!--=1+1"""
CONTROLS = "\x1b[31m\u202eevil<b>"


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Tables and results of strangers with markup in all free text, in a directory with an odd name."""
    monkeypatch.chdir(tmp_path)
    specs = Path("specs\u202e")
    specs.mkdir()
    copy_of_specs(specs)
    title = ("rows", 0, "title")
    change_yaml(
        specs / "experiments" / "table2.yaml",
        *((where, HOSTILE) for where in (("title",), ("case",), title, ("rows", 0, "figure"))),
        (("columns", 0, "title"), HOSTILE),
        (("labels",), {HOSTILE: "after"}),
        (("rows", 0, "labels"), {HOSTILE: HOSTILE}),
        (("figures", 0, "title"), HOSTILE),
        (("figures", 0, "units", 0, "title"), HOSTILE),
    )
    change_yaml(specs / "experiments" / "profiles.yaml", (("profiles", "shallow", "title"), HOSTILE))
    change_yaml(
        specs / "expected" / "table2.yaml",
        *((("source", key), HOSTILE) for key in ("paper", "arxiv", "table")),
        *((("claims", 0, key), HOSTILE) for key in ("says", "section", "note")),
        (("cells", "original", "resnet110", "mark"), "<"),
        (("footnotes",), {"<": HOSTILE}),
    )
    table = read_table("table2", specs)
    sessions = (
        a_session(5),
        a_session(
            64_000, engine=HOSTILE, fallback=HOSTILE, device=HOSTILE, system=HOSTILE, version=HOSTILE, commit=HOSTILE
        ),
    )
    data = replace(COPY, name=HOSTILE, origin=HOSTILE)
    results = tmp_path / "<b>results"
    runs = records(table, "original/resnet110", (6.58, 6.64, 6.49), data=data, sessions=sessions)
    diverged = record(table, "original/resnet164", inf, iteration=64_000, sessions=sessions)
    assert diverged.divergence
    diverged = replace(diverged, divergence=replace(diverged.divergence, module=HOSTILE))
    store = make_store(results, [*runs, diverged])
    write_external(results, external(table, "preact/resnet164", 5.5, source=HOSTILE))
    store.directory(CONTROLS).path.mkdir()
    store.directory(CONTROLS).record_file.write_text("{")
    store.directory(runs[1].run).history_file.write_text(f'{{"{HOSTILE}": 1}}\n')
    return specs, results


def test_text_of_strangers_never_becomes_markup(
    hostile: tuple[Path, Path], tmp_path: Path, open_page: Callable[..., Any]
) -> None:
    specs, results = hostile
    page = paperbench.make_page("table2", results=results, root=specs)
    document = parsed(page.html)
    assert not list(document.iter("img"))
    assert [one.get("type") for one in document.iter("script")][-1] is None
    assert {one.get("type") for one in document.iter("script")} == {"application/json", None}
    assert len([one for one in document.iter("script") if one.get("type") is None]) == 1
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", page.html)
    words = words_of(document)
    assert words.count(HOSTILE) >= 20
    assert r"results/runs/\x1b[31m\u202eevil<b>" in words
    assert r"paperbench run table2 --tables 'specs\u202e'" in words

    opened = open_page(page.write(tmp_path / "out"))
    opened.on("dialog", lambda dialog: pytest.fail(dialog.message))
    for figure in opened.locator("figure.chart").all():
        figure.scroll_into_view_if_needed()
    opened.wait_for_selector("figure.chart svg")
    assert HOSTILE in opened.locator("figure.chart .legend").first.text_content()
    assert opened.evaluate("window.hacked") is None
    assert opened.locator("img").count() == 0


@pytest.fixture(scope="module")
def file(html: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "index.html"
    path.write_text(html, encoding="utf-8")
    return path


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_problem(file: Path, open_page: Callable[..., Any], scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe
    page = open_page(file, color_scheme=scheme, bypass_csp=True)  # axe is a script of its own
    for figure in page.locator("figure.chart").all():
        figure.scroll_into_view_if_needed()
    page.wait_for_selector("figure.chart svg")
    found = axe().run(page).response["violations"]
    serious = [(one["id"], one["nodes"][0]["target"]) for one in found if one["impact"] in ("serious", "critical")]
    assert serious == []


@pytest.mark.parametrize("width", [360, pytest.param(1280, marks=pytest.mark.full)])
def test_narrow_screens_scroll_only_tables(file: Path, open_page: Callable[..., Any], width: int) -> None:
    page = open_page(file, viewport={"width": width, "height": 800})
    for figure in page.locator("figure.chart").all():
        figure.scroll_into_view_if_needed()
    assert page.evaluate("document.documentElement.scrollWidth") == width
    (first, *_) = page.locator(".scroll").all()
    assert first.evaluate("e => e.scrollWidth > e.clientWidth") == (width == 360)


def test_a_link_to_a_run_opens_its_record(file: Path, open_page: Callable[..., Any]) -> None:
    page = open_page(file)
    link = page.locator("td a, th a").filter(has_text="-s0").first
    record_id = link.get_attribute("href")
    assert not page.locator(record_id).is_visible()
    link.click()
    assert page.locator(record_id).is_visible()


def test_the_skip_link_is_the_first_stop_of_the_keyboard(file: Path, open_page: Callable[..., Any]) -> None:
    page = open_page(file)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the tables"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def many(table: Table, number: int) -> Iterator[Any]:
    for cell in (cell for cell in table.all_cells if cell.number is not None):
        errors = [cell.number + 0.01 * seed for seed in range(number)]
        yield from records(table, cell.id, errors)


@pytest.mark.full
def test_a_page_of_fifty_runs_is_below_two_megabytes(table2: Table, tmp_path: Path) -> None:
    make_store(tmp_path, many(table2, 5))
    page = paperbench.make_page("table2", results=tmp_path)
    assert page.html.count('<pre id="record-') == 50
    assert len(page.html.encode()) < 2_000_000
    charts = re.findall(r'<script type="application/json">(.*?)</script>', page.html)
    assert sum(map(len, charts)) < 350_000
