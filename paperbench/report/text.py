"""A report for terminals and as Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from tabulate import tabulate

from paperbench.report.layout import Grid, narrowed
from paperbench.report.model import Report
from paperbench.report.sections import Items, sections
from paperbench.runs.store import Store

_WIDTH = 120


@dataclass(frozen=True)
class _Style:
    heading: str
    subheading: str
    item: str
    subitem: str

    @property
    def is_markdown(self) -> bool:
        return bool(self.heading)

    def block(self, block: str | Items | Grid) -> str:
        match block:
            case str():
                return self._paragraph(block)
            case Items():
                return "\n".join(self._lines(block))
            case Grid():
                return self._table(block)

    def _table(self, grid: Grid) -> str:
        if self.is_markdown:
            rows = [[text.replace("|", "\\|").replace("<", "&lt;") for text in row] for row in grid.rows]
            return tabulate(rows, grid.headers, "github", disable_numparse=True, colalign=grid.alignment)
        headers, narrow = narrowed(grid, _WIDTH, gap=2)
        rule = ["-" * max(map(len, chain.from_iterable(column))) for column in zip(headers, *narrow, strict=True)]
        rows = [["\n".join(lines) for lines in row] for row in (headers, [[r] for r in rule], *narrow)]
        return tabulate(rows, (), "plain", disable_numparse=True, colalign=grid.alignment)  # pads no headers

    def _lines(self, items: Items) -> Iterator[str]:
        if items.heading:
            yield from (f"{items.heading}:", "")
        for text, findings in items.items:
            yield self._paragraph(f"{self.item}{text}", "    ")
            for finding in findings:
                yield self._paragraph(f"{self.subitem}{finding}", "        ")

    def _paragraph(self, text: str, indent: str = "") -> str:
        """Prose, in lines that fit a terminal; what reads Markdown breaks lines by itself."""
        if self.is_markdown:
            return text
        return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


_STYLES = {"table": _Style("", "", "  ", "      "), "markdown": _Style("## ", "### ", "- ", "  - ")}


def render(report: Report, store: Store, form: Literal["table", "markdown"]) -> str:
    """The whole report: the table with verdicts, what they rest on, claims, deviations, runs.

    Args:
        store: Where the histories of the runs are.
    """
    style = _STYLES[form]
    footnotes = [f"{mark}: {text}" for mark, text in report.footnotes.items()]
    letters = [f"[{letter}] {text}" for letter, text in report.letters.items()]
    parts = [f"{style.heading}{report.title}", report.design, style.block(report.grid)]
    parts += [style.block(note) for note in footnotes]
    if letters:
        parts.append(("  \n" if style.is_markdown else "\n").join(map(style.block, letters)))
    parts += [style.block(note) for note in report.notes]
    for section in sections(report, store):
        parts += [f"{style.subheading}{section.heading}", *map(style.block, section.blocks)]
    return "\n\n".join(parts)
