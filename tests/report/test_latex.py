from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pylatexenc.latex2text import LatexNodes2Text
from pylatexenc.latexwalker import (
    LatexCommentNode,
    LatexEnvironmentNode,
    LatexGroupNode,
    LatexMacroNode,
    LatexNode,
    LatexSpecialsNode,
    LatexWalker,
)

from paperbench import __version__
from paperbench.compare.comparison import Comparison
from paperbench.report import latex
from paperbench.report.latex import escape
from paperbench.report.report import Report
from paperbench.specs.table import Table, read_table
from tests.compare.judging import COPY, compared, external, record, records
from tests.golden import assert_golden
from tests.helpers import change_yaml, copy_of_specs

HOSTILE = (
    r"""[1] *100%* & more_#1 {x} ~ ^ \end{table} $5 "q" -- '' ,, <<a>> ?` | 5-3 e` """
    "é ñ ł ß ế 中 \u0301 \u0131 \u00a0 § ± † … “q” \N{MULTIPLICATION SIGN} \N{MINUS SIGN} \N{EN DASH}"
)


def render(comparison: Comparison) -> str:
    return latex.render(Report(comparison))


def parsed(text: str) -> list[LatexNode]:
    """Parse LaTeX; unbalanced text is an error."""
    nodes: list[LatexNode] = LatexWalker(text, tolerant_parsing=False).get_latex_nodes()[0]
    return nodes


def environments(nodes: list[Any], name: str) -> list[LatexEnvironmentNode]:
    found = []
    for node in nodes:
        if isinstance(node, LatexEnvironmentNode) and node.environmentname == name:
            found.append(node)
        elif isinstance(node, LatexEnvironmentNode | LatexGroupNode):
            found += environments(node.nodelist, name)
    return found


def widths(text: str) -> set[int]:
    """Return how many cells the rows of the outer tabular have."""
    (table,) = environments(parsed(text), "table")
    (tabular,) = environments(table.nodelist, "tabular")
    signs = [
        node.macroname if isinstance(node, LatexMacroNode) else node.specials_chars
        for node in tabular.nodelist
        if isinstance(node, LatexMacroNode | LatexSpecialsNode)
    ]
    *rows, rest = " ".join(signs).split("\\")
    assert rest.strip() == "bottomrule"
    return {row.count("&") + 1 for row in rows}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Compare a table with LaTeX's special characters in every text that a user controls."""
    root = copy_of_specs(tmp_path_factory.mktemp("hostile"))
    change_yaml(
        root / "experiments" / "table2.yaml",
        (("title",), HOSTILE),
        (("rows", 1, "title"), HOSTILE),
        (("rows", 2, "title"), "* starred"),
        (("columns", 0, "title"), "[0.5em], *, 100%"),
    )
    change_yaml(
        root / "expected" / "table2.yaml",
        (("cells", "original", "resnet164"), {"value": 5.93, "mark": "^_%"}),
        (("footnotes",), {"^_%": HOSTILE}),
    )
    table2 = read_table("table2", root)
    return compared(
        table2,
        record(table2, "preact/resnet110", 9.0, data=replace(COPY, name=HOSTILE)),
        externals=[external(table2, "preact/resnet164", 5.5, source=HOSTILE)],
    )


def everything_run(table: Table, *, runs: int = 5, are_external: bool = False) -> Comparison:
    """Compare a whole table with `runs` runs per net near the published number.

    Args:
        are_external: Whether the results are external, as for Table 5, where several cells show one run.
    """
    found, externals = [], []
    for cell in table.cells():
        errors = [round((cell.number or 75.0) + 0.07 * (2 * (seed % 5) - 4), 2) for seed in range(runs)]
        for setting in cell.settings:
            if are_external:
                externals += [external(table, cell.id, e, seed=s, setting=setting.label) for s, e in enumerate(errors)]
            else:
                found += records(table, cell.id, errors, setting=setting.label)
    return compared(table, *found, externals=externals, on_request=True)


@pytest.fixture(scope="module")
def comparisons(
    tables: dict[str, Table],
    shared: Comparison,
    failing: Comparison,
    hostile: Comparison,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Comparison]:
    table2 = tables["table2"]
    root = copy_of_specs(tmp_path_factory.mktemp("wide"))
    change_yaml(root / "experiments" / "table5.yaml", (("rows", 2, "title"), "scaled ResNets by 1 - g(x)"))
    table5 = read_table("table5", root)
    smoke = record(table2, "preact/resnet110", 9.0, profile="smoke")
    wide = {one.run: one for row in table5.experiment.rows for one in [record(table5, f"{row.id}/top1", 20.1)]}
    return {
        **{name: compared(table, on_request=True) for name, table in tables.items()},
        "shared": shared,
        "failing": failing,
        "smoke": compared(table2, smoke, profile="smoke"),
        "one column": compared(table2, cells="resnet110"),
        "wide": compared(table5, *wide.values()),
        "hostile": hostile,
    }


@pytest.mark.parametrize("name", ["shared", "failing", "smoke", "table4", "wide"])
def test_report(comparisons: dict[str, Comparison], name: str) -> None:
    assert_golden(f"latex_{name}", render(comparisons[name]).replace(f"paperbench {__version__}", "paperbench"))


def test_every_table_is_balanced_with_the_declared_columns(
    comparisons: dict[str, Comparison],
) -> None:
    for name, comparison in comparisons.items():
        text = render(comparison)
        comment, table = [node for node in parsed(text) if node.latex_verbatim().strip()]
        assert isinstance(comment, LatexCommentNode), name
        assert r"\usepackage{booktabs,graphicx}" in comment.comment
        assert isinstance(table, LatexEnvironmentNode)
        declared = text.partition(r"\begin{tabular}{@{}")[2].partition("@{}}")[0]
        assert set(declared) <= {"l", "r"}
        assert widths(text) == {len(declared)}, name
        assert text.isascii()
        assert text.endswith("\\end{table}\n")


def test_rows_do_not_begin_with_an_argument_of_a_line_break(hostile: Comparison) -> None:
    text = render(hostile)
    assert "{}* starred & " in text
    for part in text.split("\\\\")[1:]:
        assert not part.lstrip().startswith(("[", "*"))


PRINTED = st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="\"'`^<>| -,?!") | st.sampled_from(
    "éèêëñçöüåčőŁłøßœ±†≤≥≈∞—“”\N{MULTIPLICATION SIGN}\N{EN DASH}"
)


FORMULA = re.compile(r"[A-Za-z]_[A-Za-z0-9]|[a-z]\([a-z]\)|[0-9]x[0-9]")


@given(st.text(PRINTED))
def test_escaped_text_prints_as_it_was(text: str) -> None:
    assume(not FORMULA.search(text))
    assert LatexNodes2Text().latex_to_text(escape(text)) == text


@given(st.text())
def test_escaped_text_is_balanced_ascii_without_commands(text: str) -> None:
    escaped = escape(text)
    assert escaped.isascii()
    assert escaped.isprintable()
    assert environments(parsed(escaped), "table") == []
    for special in "%&#_" if not FORMULA.search(text) else "%&#":
        assert escaped.count(special) == escaped.count(f"\\{special}")


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("1 - g(x)", "$1-g(x)$"),
        ("init b_g = 0 to -5", "init $b_g=0$ to $-$5"),
        ("(init b_g = -6)", "(init $b_g=-6$)"),
        ("3x3x16", r"$3\times3\times16$"),
        ("a 320x320 crop, 3x3", r"a $320\times320$ crop, $3\times3$"),
        # no formulas
        ("0x10 a1x1 1x1a", "0x10 a1x1 1x1a"),
        ("gate_bias top_1 a_b_c", r"gate\_bias top\_1 a\_b\_c"),
        # minus signs, hyphens, arrows
        ("-0.24 to bias_g = -6", r"$-$0.24 to bias\_g = $-$6"),
        ("ResNet-110, pre-act, 1e-05, 5-3", "ResNet-110, pre-act, 1e-05, 5-3"),
        ("Caffe -> PyTorch", r"Caffe \textrightarrow{} PyTorch"),
        # characters that the default font lacks or joins
        (
            "a<b>c|d^e~f`g",
            r"a\textless{}b\textgreater{}c\textbar{}d\textasciicircum{}e\textasciitilde{}f\textasciigrave{}g",
        ),
        ("--a --- ''", "-{}-a -{}-{}- '{}'"),
        ("e\u0301", r"\'e"),
        ("中 Đ", "[U+4E2D] [U+0110]"),
    ],
)
def test_text_is_escaped(text: str, latex: str) -> None:
    assert escape(text) == latex


COMPILER = shutil.which("pdflatex") or shutil.which("tectonic") or ""
NEEDS_LATEX = pytest.mark.skipif(not COMPILER, reason="needs pdflatex or tectonic")


def log_of(texts: Iterable[str], directory: Path) -> str:
    """Return LaTeX's log for tables in the article class."""
    begin = r"\documentclass{article}\usepackage{booktabs,graphicx}\begin{document}"
    tables = "\\clearpage\n".join(texts)
    (directory / "tables.tex").write_text(f"{begin}\n{tables}\n\\end{{document}}\n", encoding="ascii")
    options = ["-interaction=nonstopmode", "-halt-on-error"] if COMPILER.endswith("pdflatex") else ["--keep-logs"]
    result = subprocess.run(
        [COMPILER, *options, "tables.tex"], cwd=directory, capture_output=True, text=True, check=False, timeout=300
    )
    if ".sty' not found" in result.stdout + result.stderr:
        pytest.skip("needs the LaTeX packages booktabs and graphicx")
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return (directory / "tables.log").read_text(encoding="utf-8", errors="replace")


@NEEDS_LATEX
def test_it_compiles(comparisons: dict[str, Comparison], tmp_path: Path) -> None:
    assert "Missing character" not in log_of(map(render, comparisons.values()), tmp_path)


def test_without_notes_no_letter_is_left(comparisons: dict[str, Comparison]) -> None:
    text = latex.render(Report(comparisons["failing"], has_notes=False))
    assert "textsuperscript" not in text
    assert "minipage" not in text


@pytest.mark.skipif(not shutil.which("bibtex"), reason="needs bibtex")
def test_bibtex_reads_citations_of_any_table(comparisons: dict[str, Comparison], tmp_path: Path) -> None:
    for comparison in comparisons.values():
        (tmp_path / "it.bib").write_text(latex.cite(Report(comparison)), encoding="ascii")
        (tmp_path / "it.aux").write_text("\\citation{*}\n\\bibstyle{plain}\n\\bibdata{it}\n")
        done = subprocess.run(["bibtex", "it"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        printed = (tmp_path / "it.bbl").read_text()
        assert comparison.table.source.paper is None or "Deep Residual Networks" in " ".join(printed.split()), printed


@NEEDS_LATEX
def test_no_table_is_larger_than_a_page(
    tables: dict[str, Table], comparisons: dict[str, Comparison], tmp_path: Path
) -> None:
    without = [comparison for name, comparison in comparisons.items() if name != "hostile"]
    full = [everything_run(table, are_external=name == "table5") for name, table in tables.items()]
    extended = everything_run(tables["table1"], runs=20)
    log = log_of(map(render, [*without, *full, extended]), tmp_path)
    assert [line for line in log.splitlines() if "Overfull" in line or "Float too large" in line] == []
