"""A comparison as a LaTeX table in the paper's layout: published numbers, ours, verdicts.

What comes out is a complete `table` environment and no document. It needs the packages booktabs and graphicx and
nothing else, and no font or input encoding: every character that is not ASCII is written as a command, or as its number
where there is none. A table that is wider than the text is scaled down to it.
"""

from __future__ import annotations

import math
import re
import string
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, get_args

from paperbench import __version__
from paperbench.compare.claims import Standing
from paperbench.compare.comparison import Comparison
from paperbench.compare.deviations import Deviation
from paperbench.compare.evidence import Run
from paperbench.compare.statistics import FIRST_LOOK
from paperbench.compare.verdicts import CellComparison, Verdict
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
_TERM = r"(?:[A-Za-z]_[A-Za-z0-9]|[a-z]\([a-z]\))"
_MATH = re.compile(
    rf"(?<![\w.\-])(?:(?:[0-9]+ [-+] )?{_TERM}(?: = \N{{MINUS SIGN}}?[0-9]+)?|[1-9][0-9]*(?:x[1-9][0-9]*)+)(?![\w(])"
)
_MINUS = re.compile(r"(?<![\w)\]])-(?=\d)")
_LIGATURES = "-',"  # two of them in a row would be printed as another character


_NOTHING = "-"

_LINE_LENGTHS = (40, 24, 20)  # of titles and labels; the first that makes a table narrow enough
_CHARACTERS = 102  # so many in a row are scaled down to some 6.5 points in the class article
_NOTE_LINE = 100  # so many characters of a note are a line in the class article
_SHORTER: dict[Verdict, tuple[str, str]] = {
    "underpowered": ("open", "underpowered: too few runs, or too much noise, to say either"),
    "not comparable": ("n/c", "not comparable: our runs are not of the paper's experiment"),
}
"""Verdicts that take too much room, with what stands in their place and what explains it."""


class _Latex(str):
    """A text that is LaTeX already, and one line."""

    __slots__ = ()


def render(comparison: Comparison) -> str:
    """The table as LaTeX, with a newline at the end."""
    notes = _Notes(comparison)
    grid = _grid(comparison, notes)
    columns = "".join(alignment[0] for alignment in grid.alignment)
    headers, rows = _in_lines(grid)
    lines = [
        rf"% Needs \usepackage{{booktabs,graphicx}}. Written by paperbench {__version__}.",
        r"\begin{table}",
        r"\centering",
        r"\setlength{\belowcaptionskip}{\medskipamount}",
        rf"\caption{{{escape(_caption(comparison))}}}",
        rf"\label{{tab:{re.sub('[^A-Za-z0-9]', '-', f'{comparison.table.id}-{comparison.profile}')}}}",
        r"\footnotesize",
        r"\setlength{\tabcolsep}{3pt}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}",
        r"\toprule",
        _line([_stacked(lines, column, "b") for lines, column in zip(headers, columns, strict=True)]),
        r"\midrule",
        *(_line([_stacked(lines, column, "t") for lines, column in zip(row, columns, strict=True)]) for row in rows),
        r"\bottomrule",
        r"\end{tabular}}",
        r"\par\medskip",
        r"\begin{minipage}{\linewidth}",
        r"\raggedright\scriptsize",
        *(rf"{text}\par" for text in notes.lines()),
        r"\end{minipage}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """Text as LaTeX that prints it, in ASCII."""
    text = unicodedata.normalize("NFC", _MINUS.sub("\N{MINUS SIGN}", text))
    parts = []
    done = 0
    for found in _MATH.finditer(text):
        parts += [_plain(text[done : found.start()]), _math(found[0])]
        done = found.end()
    return "".join([*parts, _plain(text[done:])])


def _math(formula: str) -> str:
    """What `_MATH` finds, as LaTeX."""
    if formula.replace("x", "").isdigit():
        formula = formula.replace("x", r"\times")
    ascii_formula = formula.replace(" ", "").replace("\N{MINUS SIGN}", "-")
    return f"${ascii_formula}$"


def _plain(text: str) -> str:
    parts = []
    before = ""
    for char in text:
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


def _line(cells: Sequence[str]) -> str:
    return _without_argument(" & ".join(cells)) + r" \\"


def _without_argument(line: str) -> str:
    """A line that does not begin as an argument of the line break before it would."""
    return ("{}" if line.startswith(("[", "*")) else "") + line


def _stacked(lines: Sequence[str], column: str, where: Literal["b", "t"]) -> str:
    """Lines, one above the other.

    Args:
        where: Whether the last or the first stands in line with the rest of the row.
    """
    first, *rest = [line if isinstance(line, _Latex) else escape(line) for line in lines]
    if not rest:
        return "--" if first == _NOTHING else first
    indent = r"\quad " if column == "l" and where == "t" else ""
    stacked = r"\\ ".join(_without_argument(part) for part in (first, *(f"{indent}{part}" for part in rest)))
    return rf"\begin{{tabular}}[{where}]{{@{{}}{column}@{{}}}}{stacked}\end{{tabular}}"


_Lines = list[list[str]]


def _in_lines(grid: Grid) -> tuple[_Lines, list[_Lines]]:
    """Headings and rows with each text broken into lines, no shorter than need be."""
    for length in _LINE_LENGTHS:
        rows = [[_broken(text, a, length) for text, a in zip(row, grid.alignment, strict=True)] for row in grid.rows]
        widths = [max(map(_width, column), default=0) for column in zip(*rows, strict=True)] or [0] * len(grid.headers)
        headers = [_heading(text, width) for text, width in zip(grid.headers, widths, strict=True)]
        whole = sum(max(width, _width(lines)) + 1 for width, lines in zip(widths, headers, strict=True))
        if whole <= _CHARACTERS:
            break
    return headers, rows


def _broken(text: str, alignment: str, length: int) -> list[str]:
    """The lines of a cell: a mean stands below its number, and a title or label has as many as it takes."""
    if isinstance(text, _Latex):
        return [text]
    if alignment == "right":
        number, gap, mean = text.partition(" (")
        return [number, f"({mean}"] if gap else [text]
    return _wrapped(text, length)


def _heading(text: str, width: int) -> list[str]:
    """The lines of a heading, broken behind its commas and where it is wider than its column."""
    parts = [_wrapped(part, max(width, 10)) for part in text.split(", ")]
    return [*(line for part in parts[:-1] for line in (*part[:-1], f"{part[-1]},")), *parts[-1]]


def _wrapped(text: str, length: int) -> list[str]:
    """Lines of at most so many characters where words and formulas allow it."""
    unbroken = _MATH.sub(lambda found: found[0].replace(" ", "\0"), _MINUS.sub("\N{MINUS SIGN}", text))
    lines = textwrap.wrap(unbroken, length, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines] or [""]


def _width(lines: Sequence[str]) -> int:
    """Characters that the longest line prints, about."""
    return max(len(re.sub(r"\\[a-z]+|[{}$]", "", line) if isinstance(line, _Latex) else line) for line in lines)


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
        return [_Latex(escape(_ours(compared))), *([notes.verdict(compared)] if has_verdicts else [])]

    headers = ("ours", *(["verdict"] if has_verdicts else []))
    beside = Beside(lambda _: headers, texts, ("right", *(["left"] if has_verdicts else [])))
    return paper_grid(comparison.table, [c.cell for c in shown], beside)


def _ours(compared: CellComparison) -> str:
    if len(compared.nets) > 1:
        counted = compared.failing
        return f"{counted.failed} of {counted.runs} fail" if counted.runs else _NOTHING
    (net,) = compared.nets
    if net.shown is None:
        return _NOTHING
    if net.median is None:
        is_on_the_way = any(record.status == "partial" for record in net.shown.records)
        return f"(at {net.shown.farthest:,})" if is_on_the_way else _NOTHING
    median, difference = _percent(net.median), compared.difference
    if difference is not None and math.isfinite(difference):
        median += f" ({difference:+.2f})"
    return median if len(net.errors) == compared.planned else f"{median}, n={len(net.errors)}"


def _percent(error: float) -> str:
    return "diverged" if math.isinf(error) else f"{error:.2f}"


class _Notes:
    """What stands below the table; what concerns single cells has letters, given in the order of need."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison
        self._lettered: dict[str, str] = {}

    def verdict(self, compared: CellComparison) -> _Latex:
        """A cell's verdict with the letters of its notes."""
        short, _ = _SHORTER.get(compared.verdict, (compared.verdict, ""))
        return _Latex(escape(short) + self._marks(compared))

    def _marks(self, compared: CellComparison) -> str:
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
            "last iteration; (+x): ours less the published; (at k): none has ended, the farthest is at iteration k."
        )
        if comparison.profile == "paper":
            verdicts = {compared.verdict for compared in comparison.cells}
            explained = [f"{short}: {meaning}" for verdict, (short, meaning) in _SHORTER.items() if verdict in verdicts]
            if explained:
                yield f"{'; '.join(explained)}."
        else:
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
        yield from _claims(comparison)
        yield from _deviations(comparison)
        yield from _errors(comparison)


def _claims(comparison: Comparison) -> Iterator[str]:
    """How many of the paper's claims stand, and which do not."""
    counts = Counter(claim.standing for claim in comparison.claims)
    if counts:
        told = ", ".join(f"{counts[standing]} {standing}" for standing in get_args(Standing) if counts[standing])
        contradicted = ", ".join(c.claim.id for c in comparison.claims if c.standing == "contradicted")
        yield f"Claims, by our runs alone: {told}.{f' Contradicted: {contradicted}.' if contradicted else ''}"


def _deviations(comparison: Comparison) -> Iterator[str]:
    """Where our runs differ from what the authors did, and what the authors do not say."""
    nets = [(c.cell.id, net.shown) for c in comparison.cells for net in c.nets]
    ours = dict.fromkeys(cell for cell, shown in nets if shown and shown.records)

    def cells(deviation: Deviation) -> str:
        others = [cell for cell in ours if cell not in deviation.cells]
        if not deviation.cells or not others:
            return ""
        is_most = len(others) < len(deviation.cells)
        return f" (all but {', '.join(others)})" if is_most else f" ({', '.join(deviation.cells)})"

    arrow = "\N{RIGHTWARDS ARROW}"
    different = [f"{d.topic}: {d.paper} {arrow} {d.ours}{cells(d)}" for d in comparison.deviations if d.paper]
    silent = [f"{d.topic}: {d.ours}{cells(d)}" for d in comparison.deviations if not d.paper]
    if different:
        yield f"Deviations, the paper's way {arrow} ours: {'; '.join(different)}."
    if silent:
        yield f"Where the paper does not say: {'; '.join(silent)}."


def _errors(comparison: Comparison) -> Iterator[str]:
    """Every run's error, and which runs were not looked at."""
    lines = []
    for compared in comparison.cells:
        for net in compared.nets:
            ended = net.shown.ended if net.shown else []
            if ended:
                setting = f" ({net.setting.label})" if net.setting.label else ""
                later = [run for run in ended if run not in net.counted]
                not_looked_at = f"; not looked at: {_by_seed(later)}" if later else ""
                lines.append(f"{compared.cell.id}{setting}: {_by_seed(net.counted)}{not_looked_at}")
    if lines:
        heading = "Test error of each run, by seed from 0 on."
        is_short = max(map(len, lines)) <= _NOTE_LINE
        yield from [heading, *lines] if is_short else [f"{heading} {'. '.join(lines)}."]


def _by_seed(runs: Iterable[Run]) -> str:
    """Errors in the order of their seeds; a seed is named where it is not the one after the last."""
    texts, following = [], 0
    for run in runs:
        if run.error is not None:
            named = "" if run.seed == following else f"seed\N{NO-BREAK SPACE}{run.seed}:\N{NO-BREAK SPACE}"
            texts.append(f"{named}{_percent(run.error)}")
            following = run.seed + 1
    return ", ".join(texts)


def _how_many_differ(comparison: Comparison) -> str:
    number = len(comparison.differing)
    return f"{number or 'No'} cell{'s differ' if number > 1 else ' differs'} from the paper"


def _letter(number: int) -> str:
    """Letters a to z, then aa, ab and so on."""
    first, second = divmod(number, 26)
    return (string.ascii_lowercase[first - 1] if first else "") + string.ascii_lowercase[second]
