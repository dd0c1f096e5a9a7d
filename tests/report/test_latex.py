from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
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

from paperbench.compare.comparison import Comparison
from paperbench.report import latex
from paperbench.report.latex import escape
from paperbench.report.report import Report
from paperbench.specs.table import Table, load_table
from tests.compare.judging import COPY, compared, external, in_cell, record, records
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


def rows(text: str) -> list[list[str]]:
    """Return the cells of the outer tabular as printed, each in one line."""
    (table,) = environments(parsed(text), "table")
    (tabular,) = environments(table.nodelist, "tabular")
    return list(_rows(tabular))


def _rows(tabular: LatexEnvironmentNode) -> Iterator[list[str]]:
    cells: list[list[LatexNode]] = [[]]
    for node in tabular.nodelist:
        if isinstance(node, LatexMacroNode) and node.macroname == "\\":
            texts = map(LatexNodes2Text().nodelist_to_text, cells)
            yield [" ".join(text.rpartition("@")[2].split()) for text in texts]  # "@": of a tabular within
            cells = [[]]
        elif isinstance(node, LatexSpecialsNode) and node.specials_chars == "&":
            cells.append([])
        elif not (isinstance(node, LatexMacroNode) and node.macroname in ("toprule", "midrule", "bottomrule")):
            cells[-1].append(node)
    assert not "".join(node.latex_verbatim() for cell in cells for node in cell).strip()


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
    table2 = load_table("table2", root)
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
    tables: dict[str, Table], numbers: Comparison, failing: Comparison, hostile: Comparison
) -> dict[str, Comparison]:
    table2 = tables["table2"]
    smoke = record(table2, "preact/resnet110", 9.0, profile="smoke")
    return {
        **{name: compared(table, on_request=True) for name, table in tables.items()},
        "numbers": numbers,
        "failing": failing,
        "smoke": compared(table2, smoke, profile="smoke"),
        "one column": compared(table2, cells="resnet110"),
        "hostile": hostile,
    }


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
        assert {len(row) for row in rows(text)} == {len(declared)}, name
        assert text.isascii()
        assert text.endswith("\\end{table}\n")


def test_published_numbers_and_ours_are_side_by_side(numbers: Comparison) -> None:
    headers, *lines = rows(render(numbers))
    of_both = ["ResNet-110, paper", "ours", "verdict", "ResNet-164, paper", "ours", "verdict"]
    assert headers == ["case", "Fig.", *of_both]
    assert lines[1][:5] == ["BN after addition", "4(b)", "8.17", "10.02 (+1.85)", "worse"]
    assert lines[1][5:] == ["6.50", "5.08 (-1.42)", "better"]
    assert (lines[2][4], lines[2][6]) == ("underpoweredb", "6.15 (+0.01), n=2")
    assert (lines[3][4], lines[3][6:]) == ("not comparabled", ["(at 1,000)", "not run"])


def below(comparison: Comparison) -> str:
    """Return the notes below the table as printed."""
    text: str = LatexNodes2Text().latex_to_text(render(comparison).partition(r"\end{tabular}}")[2])
    return text


def test_runs_deviations_and_claims_are_below(numbers: Comparison, failing: Comparison) -> None:
    text = below(numbers)
    for errors in (
        "relu_before_addition/resnet110: 7.80, 7.90, diverged, 7.70, 7.85",
        "relu_before_addition/resnet164: 6.10, 6.20; seed 2 is at iteration 1,000",
    ):
        assert errors in text
    for bias in range(1, 6):
        assert f"exclusive_gating_0_to_5/resnet110 (gate_bias=-{bias}): 90.00, diverged, 35.00" in below(failing)
    for deviation in numbers.deviations:
        way = f"{deviation.paper} → {deviation.ours}" if deviation.paper else deviation.ours
        assert f"{deviation.topic}: {way}" in text
    assert "(re-encoded) (relu_only_preact/resnet110)" in text
    standings = Counter(claim.standing for claim in numbers.claims)
    assert all(f"{number} {standing}" in text for standing, number in standings.items())
    assert "Contradicted: bn_after_addition_worse_164." in text


def test_table_without_runs_has_no_notes_on_runs(comparisons: dict[str, Comparison]) -> None:
    text = below(comparisons["table1"])
    assert "No run of this table" in text
    assert not any(absent in text for absent in ("Claims", "Deviations", "Test error of each run"))


def test_notes_on_verdicts_are_footnotes(numbers: Comparison) -> None:
    text = render(numbers)
    table, _, notes = text.partition(r"\end{tabular}}")
    unbroken = table.replace(r"\begin{tabular}[t]{@{}l@{}}", "").replace(r"\\ \quad", "")
    for row, note in (
        ("original Residual Unit", "shifted by +0.17"),
        ("ReLU-only pre-activation", in_cell(numbers, "relu_only_preact/resnet110").reason),
        ("full pre-activation", "beyond the tolerance, but not after Holm's correction"),
    ):
        (line,) = (line for line in notes.splitlines() if note in line)
        letter = line.partition("}")[0] + "}"
        assert letter.startswith(r"\textsuperscript{")
        (of_row,) = (line for line in unbroken.splitlines() if line.startswith(row))
        assert letter in of_row
    assert (
        "preact/resnet164: 5.50 (+0.04), n=10, reported by =A lab, by e-mail: reproduced; errors: 5.20, 5.90"
        in below(numbers)
    )
    assert "2 cells differ from the paper" in notes


def test_noise_is_named(shared: Comparison) -> None:
    assert "Noise between runs: estimated from all cells of the table; own noise: preact/resnet164." in below(shared)


def test_footnotes_of_the_paper_are_printed_if_used(comparisons: dict[str, Comparison]) -> None:
    text = render(comparisons["table4"])
    assert "4.62† (4.69±0.20)" in [row[1] for row in rows(text)]
    assert r"\textdagger{} mini-batches of 64 instead of 128" in text
    assert "dagger" not in render(compared(comparisons["table4"].table, cells="preact_resnet164"))


def test_reduced_profile_has_no_verdicts(comparisons: dict[str, Comparison]) -> None:
    text = render(comparisons["smoke"])
    assert "verdict" not in rows(text)[0]
    assert "reproduced" not in text
    assert "Not comparable with the paper" in text
    assert r"\label{tab:table2-smoke}" in text


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


def test_long_titles_are_broken_in_wide_tables_only(comparisons: dict[str, Comparison], tmp_path: Path) -> None:
    wide = render(comparisons["table5"])
    assert r"\begin{tabular}[t]{@{}l@{}}ResNet-152, original\\ \quad Residual Unit\end{tabular} &" in wide, re.findall(
        r"ResNet-152.{60}", wide
    )
    assert "\noriginal Residual Unit & 4(a) &" in render(comparisons["table2"])
    table5 = comparisons["table5"].table
    with_runs = render(compared(table5, *(record(table5, f"{row.id}/top1", 20.1) for row in table5.experiment.rows)))
    assert r"ResNet-\\" not in with_runs
    assert r"& underpowered\textsuperscript" in with_runs
    root = copy_of_specs(tmp_path)
    change_yaml(root / "experiments" / "table5.yaml", (("rows", 2, "title"), "scaled ResNets by 1 - g(x)"))
    text = render(compared(load_table("table5", root)))
    assert r"scaled ResNets by\\ \quad $1-g(x)$\end{tabular}" in text


def log_of(texts: Iterable[str], directory: Path) -> str:
    """Return LaTeX's log for tables in the article class."""
    compiler = shutil.which("pdflatex") or shutil.which("tectonic")
    if compiler is None:
        pytest.skip("needs pdflatex or tectonic")
    begin = r"\documentclass{article}\usepackage{booktabs,graphicx}\begin{document}"
    tables = "\\clearpage\n".join(texts)
    (directory / "tables.tex").write_text(f"{begin}\n{tables}\n\\end{{document}}\n", encoding="ascii")
    options = ["-interaction=nonstopmode", "-halt-on-error"] if compiler.endswith("pdflatex") else ["--keep-logs"]
    result = subprocess.run(
        [compiler, *options, "tables.tex"], cwd=directory, capture_output=True, text=True, check=False, timeout=300
    )
    if ".sty' not found" in result.stdout + result.stderr:
        pytest.skip("needs the LaTeX packages booktabs and graphicx")
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return (directory / "tables.log").read_text(encoding="utf-8", errors="replace")


def test_it_compiles(comparisons: dict[str, Comparison], tmp_path: Path) -> None:
    assert "Missing character" not in log_of(map(render, comparisons.values()), tmp_path)


def test_no_table_is_larger_than_a_page(
    tables: dict[str, Table], comparisons: dict[str, Comparison], tmp_path: Path
) -> None:
    without = [comparison for name, comparison in comparisons.items() if name != "hostile"]
    full = [everything_run(table, are_external=name == "table5") for name, table in tables.items()]
    extended = everything_run(tables["table1"], runs=20)
    log = log_of(map(render, [*without, *full, extended]), tmp_path)
    assert [line for line in log.splitlines() if "Overfull" in line or "Float too large" in line] == []
