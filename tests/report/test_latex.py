from __future__ import annotations

import re
import shutil
import subprocess
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
from paperbench.report.latex import escape, render
from paperbench.specs.table import Table, load_table
from tests.helpers import ROOT, copy_of_specs, edit
from tests.report.comparing import (
    COPY,
    compared,
    every_verdict_of_failing,
    every_verdict_of_numbers,
    everything_run,
    external,
    more_than_looked_at,
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
        if isinstance(node, LatexEnvironmentNode) and node.environmentname == name:
            found.append(node)
        elif isinstance(node, LatexEnvironmentNode | LatexGroupNode):
            found += environments(node.nodelist, name)
    return found


def rows(text: str) -> list[list[str]]:
    """The cells of the outer tabular, printed, each in one line."""
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
def tables() -> dict[str, Table]:
    return {name: load_table(name, ROOT) for name in TABLES}


@pytest.fixture(scope="module")
def comparisons(tables: dict[str, Table], hostile: Comparison) -> dict[str, Comparison]:
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
        assert r"\usepackage{booktabs,graphicx}" in comment.comment
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
    assert headers == [
        *("case", "Fig."),
        *("ResNet-110, paper", "ours", "verdict"),
        *("ResNet-164, paper", "ours", "verdict"),
    ]
    assert lines[1][:5] == ["BN after addition", "4(b)", "8.17", "10.02 (+1.85)", "worse"]
    assert lines[1][5:] == ["6.50", "5.08 (-1.42)", "better"]
    assert lines[0][2:5] == ["6.61", "6.60 (-0.01)", "reproduced"]
    assert lines[2][6] == "6.15 (+0.01), n=2"
    assert lines[3][6:] == ["(at 1,000)", "not run"]
    assert lines[4][6] == "5.50 (+0.04), n=10"


def test_verdicts_that_are_too_wide_are_shortened_and_explained(comparisons: dict[str, Comparison]) -> None:
    text = render(comparisons["numbers"])
    _, *lines = rows(text)
    assert lines[2][4].startswith("open")
    assert lines[3][4].startswith("n/c")
    below = text.partition(r"\end{tabular}}")[2]
    assert "open: underpowered" in below
    assert "n/c: not comparable" in below
    for name in ("failing", "smoke"):
        assert "open:" not in render(comparisons[name])


def test_only_the_runs_looked_at_are_behind_a_median_and_a_count(tables: dict[str, Table]) -> None:
    sweep, numbers = map(render, more_than_looked_at(tables["table1"], tables["table2"]))
    assert rows(numbers)[1][3] == "6.60 (-0.01)"
    assert "6.60; not looked at: seed~5:~9.00, 9.00" in numbers
    (gating,) = (row for row in rows(sweep) if row[-1] == "init b_g=0 to -5")
    assert gating[5] == "30 of 30 fail"


def test_every_run_is_named_with_its_error(comparisons: dict[str, Comparison]) -> None:
    below = render(comparisons["numbers"]).partition(r"\end{tabular}}")[2]
    for cell, errors in (
        (r"relu\_before\_addition/resnet110", "7.80, 7.90, diverged, 7.70, 7.85"),
        (r"relu\_before\_addition/resnet164", "6.10, 6.20"),
        ("preact/resnet164", "5.20, 5.90, 5.30, 5.80, 5.50, 5.45, 5.40, 5.50, 5.55, 5.50"),
    ):
        assert rf"{cell}: {errors}\par" in below
    assert r"relu\_only\_preact/resnet164: " not in below


def test_seeds_are_named_where_one_is_missing(tables: dict[str, Table]) -> None:
    table2 = tables["table2"]
    runs = [record(table2, "preact/resnet110", 6.0 + seed / 10, seed=seed) for seed in (0, 1, 3, 4)]
    assert r"preact/resnet110: 6.00, 6.10, seed~3:~6.30, 6.40\par" in render(compared(table2, runs))


def test_nets_of_a_sweep_are_named_by_their_settings(comparisons: dict[str, Comparison]) -> None:
    text = render(comparisons["failing"])
    for bias in range(1, 6):
        assert rf"exclusive\_gating\_0\_to\_5/resnet110 (gate\_bias=$-${bias}): 90.00, diverged, 35.00" in text


def test_deviations_stand_below(comparisons: dict[str, Comparison]) -> None:
    comparison = comparisons["numbers"]
    below = LatexNodes2Text().latex_to_text(render(comparison).partition(r"\end{tabular}}")[2])
    for deviation in comparison.deviations:
        way = f"{deviation.paper} → {deviation.ours}" if deviation.paper else deviation.ours
        assert f"{deviation.topic}: {way}" in below
    assert "(re-encoded) (relu_only_preact/resnet110)" in below
    silent = below.partition("Where the paper does not say: ")[2]
    assert "A (all but original/resnet164" in silent
    assert "B (original/resnet164, " in silent


def test_claims_are_counted_and_the_contradicted_ones_named(comparisons: dict[str, Comparison]) -> None:
    comparison = comparisons["numbers"]
    (line,) = (line for line in render(comparison).splitlines() if line.startswith("Claims"))
    standings = [claim.standing for claim in comparison.claims]
    for standing in set(standings):
        assert f"{standings.count(standing)} {standing}" in line
    assert r"Contradicted: bn\_after\_addition\_worse\_164." in line
    whole = render(everything_run(comparison.table))
    assert "Contradicted" not in whole
    assert "Claims, by our runs alone: " in whole


def test_without_a_run_nothing_is_said_of_runs(comparisons: dict[str, Comparison]) -> None:
    below = render(comparisons["table1"]).partition(r"\end{tabular}}")[2]
    assert "No run yet." in below
    for absent in ("Claims", "Deviations", "Test error of each run"):
        assert absent not in below


def test_failing_is_told_by_numbers_of_runs(comparisons: dict[str, Comparison]) -> None:
    lines = {(row[0], row[-1]): row for row in rows(render(comparisons["failing"]))}
    sweep = lines["exclusive gating", "init b_g=0 to -5"]
    assert sweep[4:6] == ["fail", "30 of 30 fail"]
    assert lines["constant scaling", "This is a plain net"][5] == "diverged"


def test_what_must_be_said_of_a_verdict_is_a_footnote(comparisons: dict[str, Comparison]) -> None:
    text = render(comparisons["numbers"])
    below = text.partition(r"\end{tabular}}")[2]
    unbroken = text.replace(r"\begin{tabular}[t]{@{}l@{}}", "").replace(r"\\ \quad", "")
    for row, note in (
        ("original Residual Unit", "shifted by +0.17"),
        ("ReLU-only pre-activation", "CIFAR-10 (some copy) does not have the pixels of the paper's data"),
        ("full pre-activation", "by itself, but not after Holm's correction over the table"),
        ("full pre-activation", "as reported by =A lab, by e-mail"),
    ):
        (line,) = (line for line in below.splitlines() if note in line)
        letter = line.partition("}")[0] + "}"
        assert letter.startswith(r"\textsuperscript{")
        (of_row,) = (line for line in unbroken.splitlines() if line.startswith(row))
        assert letter in of_row
    assert "2 cells differ from the paper" in below


def test_marks_of_the_paper_are_explained_where_they_stand(comparisons: dict[str, Comparison]) -> None:
    text = render(comparisons["table4"])
    assert "4.62† (4.69±0.20)" in [row[1] for row in rows(text)]
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
    assert r"2 cells differ from the paper.\par" in render(comparisons["failing"])
    table1 = comparisons["table1"].table
    one = compared(table1, records(table1, "conv_shortcut/resnet110", [None] * 5))
    assert r"1 cell differs from the paper.\par" in render(one)
    for name in ("hostile", "smoke", "table1"):
        assert "from the paper." not in render(comparisons[name])


PRINTED = st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="\"'`^<>| -,?!") | st.sampled_from(
    "éèêëñçöüåčőŁłøßœ±†≤≥≈∞—“”\N{MULTIPLICATION SIGN}\N{EN DASH}"
)


FORMULA = re.compile(r"[A-Za-z]_[A-Za-z0-9]|[a-z]\([a-z]\)|[0-9]x[0-9]")


@given(st.text(PRINTED))
def test_escaped_text_prints_as_it_was(text: str) -> None:
    assume(not FORMULA.search(text))
    assert LatexNodes2Text().latex_to_text(escape(text)) == text


@given(st.text())
def test_escaped_text_is_balanced_ascii_without_any_command_of_its_own(text: str) -> None:
    escaped = escape(text)
    assert escaped.isascii()
    assert escaped.isprintable()
    assert environments(parsed(escaped), "table") == []
    for special in "%&#_" if not FORMULA.search(text) else "%&#":
        assert escaped.count(special) == escaped.count(f"\\{special}")


@given(st.from_regex(rf"\A{FORMULA.pattern}", fullmatch=True))
def test_formulas_are_balanced_whatever_is_in_them(text: str) -> None:
    parsed(escape(text))


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("g(x)", "$g(x)$"),
        ("1 - g(x)", "$1-g(x)$"),
        ("b_g", "$b_g$"),
        ("init b_g = 0 to -5", "init $b_g=0$ to $-$5"),
        ("(init b_g = -6)", "(init $b_g=-6$)"),
        ("1x1 conv", r"$1\times1$ conv"),
        ("224x224", r"$224\times224$"),
        ("3x3x16", r"$3\times3\times16$"),
        ("a 320x320 crop, 3x3", r"a $320\times320$ crop, $3\times3$"),
    ],
)
def test_formulas_are_math(text: str, latex: str) -> None:
    assert escape(text) == latex


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("0x10", "0x10"),
        ("a1x1", "a1x1"),
        ("1x1a", "1x1a"),
        ("Fig. 4(b)", "Fig. 4(b)"),
        ("gate_bias", r"gate\_bias"),
        ("top_1", r"top\_1"),
        ("a_b_c", r"a\_b\_c"),
        ("log(x)", "log(x)"),
        ("5 - 3", "5 - 3"),
    ],
)
def test_what_only_looks_like_a_formula_is_text(text: str, latex: str) -> None:
    assert escape(text) == latex


def test_a_minus_is_one_and_a_hyphen_stays() -> None:
    assert escape("-0.24 to bias_g = -6") == r"$-$0.24 to bias\_g = $-$6"
    assert escape("[-0.10, +0.20]") == "[$-$0.10, +0.20]"
    assert escape("ResNet-110, pre-act, 1e-05, 5-3") == "ResNet-110, pre-act, 1e-05, 5-3"


def test_what_the_default_font_has_not_in_its_place_is_written_as_a_command() -> None:
    escaped = escape("a<b>c|d^e~f`g")
    commands = ("textless", "textgreater", "textbar", "textasciicircum", "textasciitilde", "textasciigrave")
    assert escaped == "".join(f"{letter}\\{c}{{}}" for letter, c in zip("abcdef", commands, strict=True)) + "g"


def test_formulas_are_not_broken_over_lines(tmp_path: Path) -> None:
    root = copy_of_specs(tmp_path)
    title = "title: ResNet-152, pre-act Residual Unit"
    edit(root / "experiments" / "table5.yaml", title, "title: scaled ResNets by 1 - g(x)")
    text = render(compared(load_table("table5", root)))
    assert r"scaled ResNets by\\ \quad $1-g(x)$\end{tabular}" in text


def test_long_titles_are_broken_where_the_table_is_wide_and_only_there(comparisons: dict[str, Comparison]) -> None:
    wide = render(comparisons["table5"])
    assert r"\begin{tabular}[t]{@{}l@{}}ResNet-152, original\\ \quad Residual Unit\end{tabular} &" in wide
    assert "\noriginal Residual Unit & 4(a) &" in render(comparisons["table2"])


def test_characters_in_a_row_are_not_made_into_others() -> None:
    assert escape("--a ---") == "-{}-a -{}-{}-"
    assert escape("''") == "'{}'"


def log_of(texts: Iterable[str], folder: Path) -> str:
    """What LaTeX says of tables in the class article with its own margins."""
    compiler = shutil.which("pdflatex") or shutil.which("tectonic")
    if compiler is None:
        pytest.skip("needs pdflatex or tectonic")
    begin = r"\documentclass{article}\usepackage{booktabs,graphicx}\begin{document}"
    tables = "\\clearpage\n".join(texts)
    (folder / "tables.tex").write_text(f"{begin}\n{tables}\n\\end{{document}}\n", encoding="ascii")
    options = ["-interaction=nonstopmode", "-halt-on-error"] if compiler.endswith("pdflatex") else ["--keep-logs"]
    result = subprocess.run(
        [compiler, *options, "tables.tex"], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    if ".sty' not found" in result.stdout + result.stderr:
        pytest.skip("needs the LaTeX packages booktabs and graphicx")
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return (folder / "tables.log").read_text(encoding="utf-8", errors="replace")


def test_it_compiles(comparisons: dict[str, Comparison], tmp_path: Path) -> None:
    assert "Missing character" not in log_of(map(render, comparisons.values()), tmp_path)


def test_no_table_is_larger_than_the_page(
    tables: dict[str, Table], comparisons: dict[str, Comparison], tmp_path: Path
) -> None:
    without = [comparison for name, comparison in comparisons.items() if name != "hostile"]
    full = [everything_run(tables[name], of_elsewhere=name == "table5") for name in TABLES]
    extended = everything_run(tables["table1"], runs=20)
    log = log_of(map(render, [*without, *full, extended]), tmp_path)
    assert [line for line in log.splitlines() if "Overfull" in line or "Float too large" in line] == []
