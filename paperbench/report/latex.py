"""A comparison as a LaTeX table in the paper's layout: published numbers, ours, verdicts.

What comes out is a complete `table` environment and no document. It needs the package booktabs and nothing else, and no
font or input encoding: every character that is not ASCII is written as a command, or as its number where there is none.
"""

from __future__ import annotations

import math
import re
import string
import unicodedata
from collections.abc import Iterator, Sequence

from paperbench import __version__
from paperbench.compare.comparison import Comparison
from paperbench.compare.failing import failing
from paperbench.compare.statistics import FIRST_LOOK
from paperbench.compare.verdicts import CellComparison
from paperbench.report.layout import Beside, Grid, paper_grid
from paperbench.specs.table import Cell

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",  # the default font has other characters in the places of these three
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    '"': r"\textquotedblright{}",
    "\t": " ",
    "\n": " ",
    "\r": " ",
    "\N{NO-BREAK SPACE}": "~",
    "\N{PLUS-MINUS SIGN}": r"$\pm$",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "\N{MINUS SIGN}": "$-$",
    "\N{MIDDLE DOT}": r"$\cdot$",
    "\N{DAGGER}": r"$\dagger$",
    "\N{DOUBLE DAGGER}": r"$\ddagger$",
    "\N{SECTION SIGN}": r"\S{}",
    "\N{PILCROW SIGN}": r"\P{}",
    "\N{RIGHTWARDS ARROW}": r"$\rightarrow$",
    "\N{LESS-THAN OR EQUAL TO}": r"$\leq$",
    "\N{GREATER-THAN OR EQUAL TO}": r"$\geq$",
    "\N{ALMOST EQUAL TO}": r"$\approx$",
    "\N{NOT EQUAL TO}": r"$\neq$",
    "\N{INFINITY}": r"$\infty$",
    "\N{MICRO SIGN}": r"$\mu$",
    "\N{EN DASH}": r"\textendash{}",
    "\N{EM DASH}": r"\textemdash{}",
    "\N{HORIZONTAL ELLIPSIS}": r"\dots{}",
    "\N{LEFT SINGLE QUOTATION MARK}": r"\textquoteleft{}",
    "\N{RIGHT SINGLE QUOTATION MARK}": r"\textquoteright{}",
    "\N{LEFT DOUBLE QUOTATION MARK}": r"\textquotedblleft{}",
    "\N{RIGHT DOUBLE QUOTATION MARK}": r"\textquotedblright{}",
    "\N{LATIN SMALL LETTER SHARP S}": r"\ss{}",
    "\N{LATIN SMALL LETTER AE}": r"\ae{}",
    "\N{LATIN CAPITAL LETTER AE}": r"\AE{}",
    "\N{LATIN SMALL LIGATURE OE}": r"\oe{}",
    "\N{LATIN CAPITAL LIGATURE OE}": r"\OE{}",
    "\N{LATIN SMALL LETTER O WITH STROKE}": r"\o{}",
    "\N{LATIN CAPITAL LETTER O WITH STROKE}": r"\O{}",
    "\N{LATIN SMALL LETTER L WITH STROKE}": r"\l{}",
    "\N{LATIN CAPITAL LETTER L WITH STROKE}": r"\L{}",
    "\N{LATIN SMALL LETTER DOTLESS I}": r"\i{}",
}
_ACCENTS = {
    "\N{COMBINING GRAVE ACCENT}": r"\`",
    "\N{COMBINING ACUTE ACCENT}": r"\'",
    "\N{COMBINING CIRCUMFLEX ACCENT}": r"\^",
    "\N{COMBINING TILDE}": r"\~",
    "\N{COMBINING MACRON}": r"\=",
    "\N{COMBINING BREVE}": r"\u",
    "\N{COMBINING DOT ABOVE}": r"\.",
    "\N{COMBINING DIAERESIS}": r"\"",
    "\N{COMBINING RING ABOVE}": r"\r",
    "\N{COMBINING DOUBLE ACUTE ACCENT}": r"\H",
    "\N{COMBINING CARON}": r"\v",
    "\N{COMBINING CEDILLA}": r"\c",
}
_MINUS = re.compile(r"(?<![\w)\]])-(?=\d)")
_LIGATURES = "-',"  # two of them in a row would be printed as another character


_NOTHING = "-"


class _Latex(str):
    """A text that is LaTeX already."""

    __slots__ = ()


def render(comparison: Comparison) -> str:
    """The table as LaTeX, with a newline at the end."""
    notes = _Notes(comparison)
    grid = _grid(comparison, notes)
    columns = "".join(alignment[0] for alignment in grid.alignment)
    lines = [
        rf"% Needs \usepackage{{booktabs}}. Written by paperbench {__version__}.",
        r"\begin{table}",
        r"\centering",
        r"\setlength{\belowcaptionskip}{\medskipamount}",
        rf"\caption{{{escape(_caption(comparison))}}}",
        rf"\label{{tab:{re.sub('[^A-Za-z0-9]', '-', f'{comparison.table.id}-{comparison.profile}')}}}",
        r"\footnotesize",
        r"\setlength{\tabcolsep}{3pt}",
        rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
        r"\toprule",
        _line([_heading(text, alignment[0]) for text, alignment in zip(grid.headers, grid.alignment, strict=True)]),
        r"\midrule",
        *(_line([_cell(text) for text in row]) for row in grid.rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\par\medskip",
        r"\begin{minipage}{\linewidth}",
        r"\raggedright",
        *(rf"{text}\par" for text in notes.lines()),
        r"\end{minipage}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """Text as LaTeX that prints it, in ASCII."""
    parts = []
    before = ""
    for char in unicodedata.normalize("NFC", _MINUS.sub("\N{MINUS SIGN}", text)):
        if char == before and char in _LIGATURES:
            parts.append("{}")
        parts.append(_character(char))
        before = char
    return "".join(parts)


def _character(char: str) -> str:
    if char in _SPECIAL:
        return _SPECIAL[char]
    if " " <= char <= "~":
        return char
    parts = unicodedata.normalize("NFD", char)
    if len(parts) == 2 and parts[0] in string.ascii_letters and parts[1] in _ACCENTS:
        return f"{_ACCENTS[parts[1]]}{{{parts[0]}}}"
    return f"[U+{ord(char):04X}]"


def _cell(text: str) -> str:
    if isinstance(text, _Latex):
        return text
    return "--" if text == _NOTHING else escape(text)


def _line(cells: Sequence[str]) -> str:
    return _without_argument(" & ".join(cells)) + r" \\"


def _without_argument(line: str) -> str:
    """A line that does not begin as an argument of the line break before it would."""
    return ("{}" if line.startswith(("[", "*")) else "") + line


def _heading(text: str, alignment: str) -> str:
    """A column's heading, broken behind its commas."""
    parts = [escape(part) for part in text.split(", ")]
    if len(parts) == 1:
        return parts[0]
    stacked = r",\\ ".join(map(_without_argument, parts))
    return rf"\begin{{tabular}}[b]{{@{{}}{alignment}@{{}}}}{stacked}\end{{tabular}}"


def _caption(comparison: Comparison) -> str:
    table = comparison.table
    reduced = "" if comparison.profile == "paper" else f" in the reduced profile {comparison.profile}"
    return f"{table.experiment.title}: {table.source.table} of arXiv:{table.source.arxiv} and our runs{reduced}."


def _grid(comparison: Comparison, notes: _Notes) -> Grid:
    shown = [c for c in comparison.cells if c.cell.expected.value != "unprinted" or c.shown]
    by_id = {c.cell.id: c for c in shown}
    has_verdicts = comparison.profile == "paper"

    def texts(cell: Cell) -> list[str]:
        compared = by_id[cell.id]
        return [_ours(compared), *([_Latex(escape(compared.verdict) + notes.marks(compared))] if has_verdicts else [])]

    headers = ("ours", *(["verdict"] if has_verdicts else []))
    beside = Beside(lambda _: headers, texts, ("right", *(["left"] if has_verdicts else [])))
    return paper_grid(comparison.table, [c.cell for c in shown], beside)


def _ours(compared: CellComparison) -> str:
    if len(compared.nets) > 1:
        groups = [net.shown for net in compared.nets if net.shown]
        errors = [error for group in groups for error in group.errors]
        counted = failing(errors, compared.cell.dataset)
        return f"{counted.failed} of {counted.runs} fail" if errors else _NOTHING
    group = compared.shown
    if group is None:
        return _NOTHING
    if group.median is None:
        return f"(at {group.farthest:,})"
    median = "diverged" if math.isinf(group.median) else f"{group.median:.2f}"
    return median if len(group.errors) == compared.planned else f"{median}, n={len(group.errors)}"


class _Notes:
    """What stands below the table; what concerns single cells has letters, given in the order of need."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self._lettered: dict[str, str] = {}

    def marks(self, compared: CellComparison) -> str:
        """The letters of a cell's notes, as LaTeX."""
        texts = list(self._of_cell(compared))
        for text in texts:
            self._lettered.setdefault(text, _letter(len(self._lettered)))
        return rf"\textsuperscript{{{','.join(self._lettered[text] for text in texts)}}}" if texts else ""

    def lines(self) -> Iterator[str]:
        """All notes, as LaTeX."""
        comparison = self._comparison
        marks = {c.cell.expected.mark for c in comparison.cells}
        for mark, text in comparison.table.expected.footnotes.items():
            if mark in marks:
                yield f"{escape(mark)} {escape(text)}"
        for text, letter in self._lettered.items():
            yield rf"\textsuperscript{{{letter}}} {escape(text)}"
        for text in self._of_table():
            yield escape(text)

    def _of_cell(self, compared: CellComparison) -> Iterator[str]:
        judgement, group = compared.judgement, compared.shown
        if judgement.shift is not None:
            yield f"shifted by {judgement.shift:+.2f}"
        if compared.reason and compared.verdict != "not run":
            yield compared.reason
        is_alone = compared.verdict in ("worse", "better") and compared not in self._comparison.differing
        if is_alone and judgement.p_value is not None:
            yield "by itself, but not after Holm's correction over the table"
        if group is not None and group.conditions.source is not None:
            yield f"as reported by {group.conditions.source}"

    def _of_table(self) -> Iterator[str]:
        comparison = self._comparison
        started = [net.shown for c in comparison.cells for net in c.nets if net.shown is not None]
        if not started:
            yield "No run yet."
            return
        yield (
            f"Errors in percent. Ours: median of the runs, {comparison.planned} unless n says otherwise, after the "
            "last iteration; (at k): none has ended, the farthest is at iteration k."
        )
        if comparison.profile != "paper":
            title = comparison.table.profiles.named(comparison.profile).title
            yield f"Profile {comparison.profile}: {title}. Not comparable with the paper."
        conditions = sorted({str(group.conditions) for group in started if group.conditions.source is None})
        if conditions:
            yield f"Runs on (data, precision, numerics version): {'; '.join(conditions)}."
        tested = comparison.tested
        if tested:
            tolerances = sorted({c.cell.tolerance for c in tested})
            margin = f"{tolerances[0]:g}" if len(tolerances) == 1 else f"{tolerances[0]:g} to {tolerances[-1]:g}"
            yield (
                f"Verdicts: two one-sided tests, each at {FIRST_LOOK:.0%}, of whether the medians are within {margin} "
                f"points. {_how_many_differ(comparison)}, after Holm's correction over the table."
            )
        elif any(c.judgement.rests_on_rule for c in comparison.cells):
            yield f"{_how_many_differ(comparison)}."


def _how_many_differ(comparison: Comparison) -> str:
    number = len(comparison.differing)
    return f"{number or 'No'} cell{'s differ' if number > 1 else ' differs'} from the paper"


def _letter(number: int) -> str:
    """Letters a to z, then aa, ab and so on."""
    first, second = divmod(number, 26)
    return (string.ascii_lowercase[first - 1] if first else "") + string.ascii_lowercase[second]
