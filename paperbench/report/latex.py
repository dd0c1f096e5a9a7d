"""A report as a LaTeX table in the paper's layout: published numbers, ours, verdicts.

The output is a `table` environment, not a document. It needs the packages booktabs and graphicx, and no font or input
encoding: characters outside ASCII are written as commands, or as code points if no font has them. A wide table
is scaled down to the width of the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from pylatexenc.latexencode import RULE_DICT, RULE_REGEX, UnicodeToLatexConversionRule, UnicodeToLatexEncoder

from paperbench import __version__
from paperbench.report.grid import FORMULA, NOTHING, NUMBERS, Lines, Marked, fitted
from paperbench.report.report import Report

_CHARACTERS = 102  # a row of this length is scaled down to about 6.5 points in the article class
_NOTE_LINE = 100  # characters in a line of notes in the article class

_NOT_IN_THE_FONTS = re.compile(
    "[^ -~\xa0-\u017f\u0391-\u03a9\u03b1-\u03c9–—‘’“”†‡•…←→≠≤≥≈∞\N{MINUS SIGN}]|[\xa8\xab\xad\xb4\xbb"  # noqa: RUF001
    "ÐÞðþĄąĐđĘęĮįĲĳĸŉŊŋŲųŰű]"
)
_COMMANDS = {"<": "less", ">": "greater", "|": "bar", "`": "asciigrave", '"': "quotedblright"}


def _formula(found: re.Match[str]) -> str:
    formula = found[0].replace(" ", "")
    return f"${formula.replace('x', chr(92) + 'times')}$" if formula.replace("x", "").isdigit() else f"${formula}$"


def _number(char: str) -> str:
    return f"[U+{ord(char):04X}]"


_TO_TEXT: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"\s"), lambda found: "~" if found[0] == "\xa0" else " "),
    (_NOT_IN_THE_FONTS, lambda found: _number(found[0])),
    (FORMULA, _formula),
    (re.compile("->"), r"\\textrightarrow{}"),
    (re.compile(r"(?<![\w)\]])-(?=\d)"), "$-$"),
    (re.compile(r"(?<=(.))(?=[-',])\1"), r"{}\1"),  # two in a row would print as another character
]
_ENCODER = UnicodeToLatexEncoder(
    conversion_rules=[
        UnicodeToLatexConversionRule(RULE_REGEX, _TO_TEXT),
        UnicodeToLatexConversionRule(RULE_DICT, {ord(char): rf"\text{name}" for char, name in _COMMANDS.items()}),
        "defaults",
    ],
    replacement_latex_protection="braces-after-macro",
    unknown_char_policy=_number,
    unknown_char_warning=False,
)


def escape(text: str) -> str:
    """Return LaTeX, in ASCII, that prints a text."""
    return str(_ENCODER.unicode_to_latex(unicodedata.normalize("NFC", text)))


def cite(report: Report) -> str:
    """Return BibTeX entries of this comparison, with what must be quoted of it, and of the table's paper."""
    table, paper = report.comparison.table, report.comparison.table.source.paper or ""
    quoted = f"{table.cited()}: {report.design}. {report.result}"
    of_us = {"author": "{The paperbench authors}", "title": "{paperbench}", "version": __version__}
    entries = {f"@software{{paperbench-{table.id}": of_us | {"note": escape(quoted)}}
    if paper:
        *authors, title, where = paper.rsplit(". ", 2) if paper.count(". ") > 1 else (paper, "")
        eprint = {"eprint": table.source.arxiv, "archiveprefix": "arXiv"} if table.source.arxiv else {}
        of_paper = {"author": escape("".join(authors)).replace(", ", " and "), "title": f"{{{escape(title)}}}"}
        entries[f"@misc{{of-{table.id}"] = of_paper | {"note": escape(where)} | eprint
    texts = [",\n".join([key, *(f"  {name} = {{{text}}}" for name, text in of.items())]) for key, of in entries.items()]
    return "\n".join(f"{text}\n}}\n" for text in texts)


def render(report: Report) -> str:
    """Return the table as LaTeX, with a newline at the end."""
    comparison, columns = report.comparison, "".join(alignment[0] for alignment in report.grid.alignment)
    reduced = f" in the reduced profile {comparison.profile}" if report.is_reduced else ""
    caption = f"{comparison.table.experiment.title}: {comparison.table.cited()} and our runs{reduced}."
    notes = [rf"{note}\par" for note in _notes(report)]
    below = [
        r"\par\medskip",
        r"\begin{minipage}{\linewidth}",
        r"\raggedright\fontsize{6.5}{7.5}\selectfont",  # lets Table 1's extension fit a page
        *notes,
        r"\end{minipage}",
    ]
    headers, rows = fitted(report.grid, _CHARACTERS, 1, NUMBERS)
    lines = [
        rf"% Needs \usepackage{{booktabs,graphicx}}. Written by paperbench {__version__}.",
        r"\begin{table}",
        r"\centering",
        r"\setlength{\belowcaptionskip}{\medskipamount}",
        rf"\caption{{{escape(caption)}}}",
        rf"\label{{tab:{re.sub('[^A-Za-z0-9]', '-', f'{comparison.table.id}-{comparison.profile}')}}}",
        r"\footnotesize",
        r"\setlength{\tabcolsep}{3pt}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
        r"\toprule",
        _row(headers, columns, "b"),
        r"\midrule",
        *(_row(row, columns, "t") for row in rows),
        r"\bottomrule",
        r"\end{tabular}}",
        *(below if notes else ()),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[Lines], columns: str, where: Literal["b", "t"]) -> str:
    """Format a row of cells with several lines each, aligned at the bottom or top line."""
    texts = [_stacked(lines, column, where) for lines, column in zip(cells, columns, strict=True)]
    return _without_argument(" & ".join(texts)) + r" \\"


def _stacked(lines: Lines, column: str, where: Literal["b", "t"]) -> str:
    first, *rest = map(_entry, lines)
    if not rest:
        return first
    indent = r"\quad " if column == "l" and where == "t" else ""
    stacked = r"\\ ".join(_without_argument(part) for part in (first, *(f"{indent}{part}" for part in rest)))
    return rf"\begin{{tabular}}[{where}]{{@{{}}{column}@{{}}}}{stacked}\end{{tabular}}"


def _entry(text: str) -> str:
    if isinstance(text, Marked):
        letters = ",".join(text.letters)
        return _entry(text.text) + (rf"\textsuperscript{{{letters}}}" if letters else "")
    return "--" if text == NOTHING else escape(text)


def _without_argument(line: str) -> str:
    """Protect a line that the line break before it would take for its argument."""
    return ("{}" if line.startswith(("[", "*")) else "") + line


def _notes(report: Report) -> Iterator[str]:
    yield from (f"{escape(mark)} {escape(text)}" for mark, text in report.footnotes.items())
    if not report.has_notes:
        return
    yield from (rf"\textsuperscript{{{letter}}} {escape(text)}" for text, letter in report.letters.items())
    yield from map(escape, (*report.short_notes, *report.method_notes))
    if not report.has_runs:
        return
    if report.claims:
        yield escape(f"Claims, by our runs alone: {report.claims}")
    if report.deviations:
        yield escape(f"Deviations (paper -> ours): {'; '.join(report.deviations)}.")
    if report.choices:
        yield escape(f"Where the paper does not say: {'; '.join(report.choices)}.")
    if errors := [f"{net.name}: {net.errors}" for net in report.nets if net.ours and net.errors]:
        heading = "Test error of each run, by seed from 0."
        is_short = max(map(len, errors)) <= _NOTE_LINE
        yield from map(escape, [heading, *errors] if is_short else [f"{heading} {'. '.join(errors)}."])
    if external := report.external_results():
        yield escape(f"External results. {'. '.join(external)}.")
