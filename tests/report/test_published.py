from __future__ import annotations

import re
from pathlib import Path

import pytest

import paperbench
from paperbench.report.published import describe, published_table
from paperbench.specs.table import Table
from tests.helpers import ROOT


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def test_short_description_has_numbers_nets_and_recipe(table2: Table) -> None:
    text = describe(table2, "paper")
    for part in (
        "Table 2 of arXiv:1603.05027",
        "\noriginal Residual Unit    4(a)        6.61        5.93\n",
        "Published: median of 5 runs. Tolerance: 0.5 percentage points.",
        "preact/resnet164                preact_resnet164\n",
        "Recipe cifar: batch_size 128; iterations 64000; learning_rate 0.1;",
    ):
        assert part in text
    assert text.split("\n\n")[-1].startswith("`--long` adds")
    assert "preact_lowest_110" not in text


def test_long_description_adds_sources_claims_and_settings(table2: Table) -> None:
    text = describe(table2, "paper", long=True)
    words = " ".join(text.split())
    for part in (
        "original/resnet110: std 0.16, from arXiv:1512.03385, Table 6",
        "preact_lowest_110: Full pre-activation has the lowest test error of all placements on ResNet-110",
        "relu_only_preact/resnet164: 5.71; the paper: 5.91",
        'table: a row "BN-only pre-activation" with 5.63 for ResNet-164; the paper: the table has no such row',
        "preact_resnet164 164 bottleneck CIFAR-10",
        "Recipe cifar (arXiv:1603.05027, Appendix",
        "drops at 32000 and 48000, factor 0.1;",
    ):
        assert part in words
    peers = text.split("Public re-implementations:\n")[1].split("\n\n")[0].splitlines()[2:]
    assert ("original/resnet110", "6.60") in {tuple(peer.split()[:2]) for peer in peers}, "with both decimals"


def test_description_is_of_the_profile(table2: Table) -> None:
    text = describe(table2, "smoke", long=True)
    for part in ("preact_resnet110(depth=14)", "handwritten digits", "iterations 80;", "seeds: 1\n"):
        assert part in text


def test_rows_with_one_net_and_sweeps_take_a_line(tables: dict[str, Table]) -> None:
    assert "\npreact_resnet152/*                   preact_resnet152\n" in describe(tables["table5"], "paper")
    assert "\npreact_resnet152/*                   preact_resnet152(depth=50)\n" in describe(tables["table5"], "smoke")
    assert "resnet110_exclusive_gating(gate_bias=0 to -5)\n" in describe(tables["table1"], "paper")


def test_exceptions_and_missing_numbers_are_explained(tables: dict[str, Table]) -> None:
    assert "Tolerance: 0.5 percentage points. Exceptions: `--long`." in describe(tables["table1"], "paper")
    assert "conv_shortcut/resnet110: tolerance 1 percentage point\n" in describe(tables["table1"], "paper", long=True)
    assert "-: no number is published." in describe(tables["table3"], "paper")


def test_recipe_says_how_nets_are_tested(tables: dict[str, Table]) -> None:
    crops = {"paper": (224, 256, 320, 320), "smoke": (64, 73, 92, 92)}
    for profile, (crop, scale, *other) in crops.items():
        text = " ".join(describe(tables["table5"], profile).split())
        tests = (f"a {c}x{c} crop of a shorter side of {s}" for c, s in ((crop, scale), other))
        assert f"; tested on {' and '.join(tests)}." in text
    assert "tested on" not in describe(tables["table2"], "paper")


def test_variant_of_a_recipe_shows_what_differs(tables: dict[str, Table]) -> None:
    text = " ".join(describe(tables["table3"], "paper", long=True).split())
    assert "Recipe cifar of 12 cells (" in text
    assert ": as cifar, but warm_up none." in text


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


@pytest.mark.parametrize("name", ["lab/lab", "own_table/mytable"])
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
