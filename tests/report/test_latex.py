from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pylatexenc.latex2text import LatexNodes2Text
from pylatexenc.latexwalker import (
    LatexCommentNode,
    LatexEnvironmentNode,
    LatexMacroNode,
    LatexNode,
    LatexSpecialsNode,
    LatexWalker,
)

from paperbench.compare.comparison import Comparison
from paperbench.report.latex import escape, render
from paperbench.specs.table import load_table
from tests.helpers import ROOT, copy_of_specs, edit
from tests.report.comparing import (
    COPY,
    compared,
    every_verdict_of_failing,
    every_verdict_of_numbers,
    external,
    record,
    records,
)

TABLES = ("table1", "table2", "table3", "table4", "table5")
HOSTILE = (
    r"""[1] *100%* & more_#1 {x} ~ ^ \end{table} $5 "q" -- '' ,, <<a>> ?` | 5-3 e` """
    "é ñ ł ß ế 中 \u0301 \u0131 \u00a0 § ± † … “q” \N{MULTIPLICATION SIGN} \N{MINUS SIGN} \N{EN DASH}"
)


def parsed(text: str) -> list[LatexNode]:
    """The nodes of a text; whatever is unbalanced is an error."""
    nodes: list[LatexNode] = LatexWalker(text, tolerant_parsing=False).get_latex_nodes()[0]
    return nodes


def environments(nodes: list[Any], name: str) -> list[LatexEnvironmentNode]:
    found = []
    for node in nodes:
        if isinstance(node, LatexEnvironmentNode):
            if node.environmentname == name:
                found.append(node)
            else:
                found += environments(node.nodelist, name)
    return found


def rows(text: str) -> list[list[str]]:
    """The cells of the outer tabular, printed."""
    (table,) = environments(parsed(text), "table")
    (tabular,) = environments(table.nodelist, "tabular")
    return list(_rows(tabular))


def _rows(tabular: LatexEnvironmentNode) -> Iterator[list[str]]:
    cells: list[list[LatexNode]] = [[]]
    for node in tabular.nodelist:
        if isinstance(node, LatexMacroNode) and node.macroname == "\\":
            yield [LatexNodes2Text().nodelist_to_text(cell).strip() for cell in cells]
            cells = [[]]
        elif isinstance(node, LatexSpecialsNode) and node.specials_chars == "&":
            cells.append([])
        elif not (isinstance(node, LatexMacroNode) and node.macroname in ("toprule", "midrule", "bottomrule")):
            cells[-1].append(node)
    assert not "".join(node.latex_verbatim() for cell in cells for node in cell).strip()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Text that LaTeX would choke on wherever a user can bring it in."""
    root = copy_of_specs(tmp_path_factory.mktemp("hostile"))
    quoted = "'" + HOSTILE.replace("'", "''") + "'"
    edit(root / "experiments" / "table2.yaml", "title: BN after addition", f"title: {quoted}")
    edit(root / "experiments" / "table2.yaml", "title: ReLU before addition", 'title: "* starred"')
    edit(root / "experiments" / "table2.yaml", "title: ResNet-110}", 'title: "[0.5em], *, 100%"}')
    edit(
        root / "experiments" / "table2.yaml",
        "title: Test error (%) on CIFAR-10 by placement of the activations",
        f"title: {quoted}",
    )
    edit(root / "expected" / "table2.yaml", "resnet164: 5.93", "resnet164: {value: 5.93, mark: '^_%'}")
    edit(root / "expected" / "table2.yaml", "claims:", f"footnotes: {{'^_%': {quoted}}}\nclaims:")
    table2 = load_table("table2", root)
    return compared(
        table2,
        [record(table2, "preact/resnet110", 9.0, data=replace(COPY, name=HOSTILE))],
        [external(table2, "preact/resnet164", 5.5, source=HOSTILE)],
    )


@pytest.fixture(scope="module")
def comparisons(hostile: Comparison) -> dict[str, Comparison]:
    tables = {name: load_table(name, ROOT) for name in TABLES}
    table2 = tables["table2"]
    smoke = record(table2, "preact/resnet110", 9.0, profile="smoke")
    return {
        **{name: compared(table) for name, table in tables.items()},
        "numbers": every_verdict_of_numbers(table2),
        "failing": every_verdict_of_failing(tables["table1"]),
        "smoke": compared(table2, [smoke], profile="smoke"),
        "one column": compared(table2, cells="resnet110"),
        "hostile": hostile,
    }


def test_every_table_is_one_balanced_environment_with_rows_of_equal_length(comparisons: dict[str, Comparison]) -> None:
    for name, comparison in comparisons.items():
        text = render(comparison)
        nodes = [node for node in parsed(text) if node.latex_verbatim().strip()]
        comment, table = nodes
        assert isinstance(comment, LatexCommentNode), name
        assert r"\usepackage{booktabs}" in comment.comment
        assert isinstance(table, LatexEnvironmentNode)
        assert len({len(row) for row in rows(text)}) == 1, name
        assert text.isascii()
        assert text.endswith("\\end{table}\n")


def test_the_columns_are_as_many_as_declared(comparisons: dict[str, Comparison]) -> None:
    for comparison in comparisons.values():
        text = render(comparison)
        declared = text.partition(r"\begin{tabular}{@{}")[2].partition("@{}}")[0]
        assert set(declared) <= {"l", "r"}
        assert len(declared) == len(rows(text)[0])


def test_published_numbers_and_ours_stand_side_by_side(comparisons: dict[str, Comparison]) -> None:
    headers, *lines = rows(render(comparisons["numbers"]))
    assert [" ".join(header.rpartition("@")[2].split()) for header in headers] == [
        *("case", "Fig."),
        *("ResNet-110, paper", "ours", "verdict"),
        *("ResNet-164, paper", "ours", "verdict"),
    ]
    assert lines[1] == ["BN after addition", "4(b)", "8.17", "10.02", "worse", "6.50", "5.08", "better"]
    assert lines[0][2:5] == ["6.61", "6.60", "reproduced"]
    assert lines[2][6] == "6.15, n=2"
    assert lines[3][6:] == ["(at 1,000)", "not run"]


def test_failing_is_told_by_numbers_of_runs(comparisons: dict[str, Comparison]) -> None:
    lines = {(row[0], row[-1]): row for row in rows(render(comparisons["failing"]))}
    sweep = lines["exclusive gating", "init b_g = 0 to -5"]
    assert sweep[4:6] == ["fail", "30 of 30 fail"]
    assert lines["constant scaling", "This is a plain net"][5] == "diverged"


def test_what_must_be_said_of_a_verdict_is_a_footnote(comparisons: dict[str, Comparison]) -> None:
    text = render(comparisons["numbers"])
    below = text.partition(r"\end{tabular}")[2]
    for row, note in (
        ("original Residual Unit", "shifted by +0.17"),
        ("ReLU-only pre-activation", "CIFAR-10 (some copy) has not the pixels of the paper's data"),
        ("full pre-activation", "by itself, but not after Holm's correction over the table"),
        ("full pre-activation", "as reported by =A lab, by e-mail"),
    ):
        (line,) = (line for line in below.splitlines() if note in line)
        letter = line.partition("}")[0] + "}"
        assert letter.startswith(r"\textsuperscript{")
        (of_row,) = (line for line in text.splitlines() if line.startswith(row))
        assert letter in of_row
    assert "2 cells differ from the paper" in below


def test_marks_of_the_paper_are_explained_where_they_stand(comparisons: dict[str, Comparison]) -> None:
    text = render(comparisons["table4"])
    assert r"4.62$\dagger$ (4.69$\pm$0.20)" in text
    assert r"$\dagger$ mini-batches of 64 instead of 128" in text
    table4 = comparisons["table4"].table
    assert r"\dagger" not in render(compared(table4, cells="preact_resnet164"))


def test_a_reduced_profile_has_no_verdicts_and_says_what_it_is(comparisons: dict[str, Comparison]) -> None:
    text = render(comparisons["smoke"])
    assert "verdict" not in rows(text)[0]
    assert "reproduced" not in text
    assert "Not comparable with the paper" in text
    assert r"\label{tab:table2-smoke}" in text


def test_rows_do_not_begin_with_what_a_line_break_would_take_as_its_argument(hostile: Comparison) -> None:
    text = render(hostile)
    assert "{}* starred & " in text
    for part in text.split("\\\\")[1:]:
        assert not part.lstrip().startswith(("[", "*"))


def test_a_table_that_differs_in_nothing_says_so() -> None:
    table2 = load_table("table2", ROOT)
    text = render(compared(table2, records(table2, "preact/resnet110", (6.3, 6.4, 6.4, 6.5, 6.3))))
    assert "No cell differs from the paper, after Holm's correction" in text


def test_how_many_cells_differ_is_said_only_where_some_were_judged(comparisons: dict[str, Comparison]) -> None:
    assert r"1 cell differs from the paper.\par" in render(comparisons["failing"])
    for name in ("hostile", "smoke", "table1"):
        assert "from the paper." not in render(comparisons[name])


PRINTED = st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="\"'`^<>| -,?!") | st.sampled_from(
    "éèêëñçöüåčőŁłøßœ±†≤≥≈∞—“”\N{MULTIPLICATION SIGN}\N{EN DASH}"
)


@given(st.text(PRINTED))
def test_escaped_text_prints_as_it_was(text: str) -> None:
    assert LatexNodes2Text().latex_to_text(escape(text)) == text


@given(st.text())
def test_escaped_text_is_balanced_ascii_without_any_command_of_its_own(text: str) -> None:
    escaped = escape(text)
    assert escaped.isascii()
    assert escaped.isprintable()
    assert environments(parsed(escaped), "table") == []
    for special in "%&#_":
        assert escaped.count(special) == escaped.count(f"\\{special}")


def test_a_minus_is_one_and_a_hyphen_stays() -> None:
    assert escape("-0.24 to b_g = -6") == r"$-$0.24 to b\_g = $-$6"
    assert escape("[-0.10, +0.20]") == "[$-$0.10, +0.20]"
    assert escape("ResNet-110, pre-act, 1e-05, 5-3") == "ResNet-110, pre-act, 1e-05, 5-3"


def test_what_the_default_font_has_not_in_its_place_is_written_as_a_command() -> None:
    escaped = escape("a<b>c|d^e~f`g")
    commands = ("textless", "textgreater", "textbar", "textasciicircum", "textasciitilde", "textasciigrave")
    assert escaped == "".join(f"{letter}\\{c}{{}}" for letter, c in zip("abcdef", commands, strict=True)) + "g"


def test_characters_in_a_row_are_not_made_into_others() -> None:
    assert escape("--a ---") == "-{}-a -{}-{}-"
    assert escape("''") == "'{}'"


def test_it_compiles(comparisons: dict[str, Comparison], tmp_path: Path) -> None:
    compiler = shutil.which("pdflatex") or shutil.which("tectonic")
    if compiler is None:
        pytest.skip("needs pdflatex or tectonic")
    begin = r"\documentclass{article}\usepackage[letterpaper,margin=1in]{geometry}\usepackage{booktabs}\begin{document}"
    tables = "\\clearpage\n".join(render(comparison) for comparison in comparisons.values())
    (tmp_path / "tables.tex").write_text(f"{begin}\n{tables}\n\\end{{document}}\n", encoding="ascii")
    options = ["-interaction=nonstopmode", "-halt-on-error"] if compiler.endswith("pdflatex") else ["--keep-logs"]
    result = subprocess.run(
        [compiler, *options, "tables.tex"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    if "booktabs.sty' not found" in result.stdout + result.stderr:
        pytest.skip("needs the LaTeX package booktabs")
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    log = (tmp_path / "tables.log").read_text(encoding="utf-8", errors="replace")
    assert "Missing character" not in log
    too_wide = [line for line in log.splitlines() if line.startswith("Overfull \\hbox")]
    assert len(too_wide) <= 1, too_wide  # the hostile table may be
