"""A report for terminals and as Markdown: in short the table and the claims; in full also runs, tests, deviations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from paperbench.compare.claims import ClaimVerdict, Standing
from paperbench.errors import PaperbenchError
from paperbench.report.grid import NOTHING, Grid, as_markdown, as_text, escape_markdown, paragraph, published
from paperbench.report.report import Report, method
from paperbench.runs.history import History
from paperbench.runs.record import Record
from paperbench.runs.store import Store

_MAX_SUMMARY_ROWS = 10
_OPEN: tuple[Standing, ...] = ("undecided", "not run")


@dataclass(frozen=True)
class _Style:
    """What differs between the two formats."""

    is_markdown: bool

    def mark(self, markdown: str, text: str = "") -> str:
        return markdown if self.is_markdown else text

    def paragraph(self, text: str, indent: str = "") -> str:
        """Wrap prose for a terminal; in Markdown, make it one line, which readers wrap themselves."""
        return " ".join(text.split()) if self.is_markdown else paragraph(text, indent)

    def items(self, items: Iterable[tuple[str, Sequence[str]]]) -> str:
        """Format a list of texts, each with a list below it."""
        lines = []
        for text, below in items:
            lines.append(self.paragraph(f"{self.mark('- ', '  ')}{text}", "    "))
            lines += [self.paragraph(f"{self.mark('  - ', '      ')}{one}", "        ") for one in below]
        return "\n".join(lines)

    def titled(self, title: str, texts: Sequence[str]) -> list[str]:
        """Format a list with its title; empty without texts."""
        return [f"{title}:", self.items((text, ()) for text in texts)] if texts else []

    def table(self, grid: Grid, long: bool = True) -> str:
        return as_markdown(grid) if self.is_markdown else as_text(grid, long)


def render(report: Report, store: Store, form: Literal["table", "markdown"], long: bool = True) -> str:
    """Format a report; if `long`, with errors, intervals, evidence for claims, deviations and runs."""
    style = _Style(form == "markdown")
    title = f"{style.mark('## ')}{report.comparison.table.cited()}: {report.comparison.table.experiment.title}"
    parts = [style.paragraph(title), style.paragraph(report.design)]
    parts += [style.table(report.grid, long)] if report.grid.rows else []
    parts += [style.paragraph(f"{mark}: {text}") for mark, text in report.footnotes.items()]
    if report.letters:
        letters = [style.paragraph(f"[{letter}] {text}") for text, letter in report.letters.items()]
        parts.append(style.mark("  \n", "\n").join(letters))
    if long:
        parts += map(style.paragraph, (*report.short_notes, *report.method_notes))
        choices = style.titled("Our choices where the paper is silent", report.choices)
        origins = []
        if report.origins.trained:
            origins = [style.table(report.origin_grid), style.items((text, ()) for text in report.origin_notes)]
        for heading, blocks in (
            ("Cells", _cells(report, style)),
            ("External results", [style.items((text, ()) for text in report.external_results())]),
            ("Claims", _claims(report, style)),
            ("Deviations from the paper", [*style.titled("Paper -> our runs", report.deviations), *choices]),
            ("Runs", _runs(report, style, store)),
            ("Origins", origins),
        ):
            filled = list(filter(None, blocks))
            parts += [f"{style.mark('### ')}{heading}", *filled] if filled else []
    else:
        external = style.titled("External results", report.external_results(long=False))
        parts += ["\n".join(external)] if external else []
        parts += map(style.paragraph, report.short_notes)
        parts += _short_claims(report)
        if report.has_runs:
            parts.append(paragraph("`--long` adds errors, intervals, evidence for claims, deviations and the runs."))
    text = "\n\n".join(parts)
    return escape_markdown(text) if style.is_markdown else text


def summary(report: Report) -> str:
    """Format the cells with our results, or all cells if there are none: some, or many row by row as in the paper."""
    comparison = report.comparison
    is_comparable = report.has_verdicts or not comparison.table.has_numbers
    what = "" if is_comparable else ": not comparable with the paper"
    cells = [cell for cell in report.cells if cell.ours != NOTHING] or report.cells
    shown = slice(0 if comparison.table.has_numbers else 1, 3 if report.has_verdicts else 2)
    results = {c.cell.id: (published(c.cell), c.ours, c.verdict)[shown] for c in cells}
    headers, alignment = ("paper", "ours", "verdict")[shown], ("right", "right", "left")[shown]
    grid = Grid(("cell", *headers), tuple((name, *texts) for name, texts in results.items()), ("left", *alignment))
    columns = list(dict.fromkeys(c.cell.column.id for c in cells))
    if len(cells) > _MAX_SUMMARY_ROWS and len(columns) > 1:
        rows = dict.fromkeys(c.cell.row.id for c in cells)
        of_columns = ("row", *(f"{column}, {header}" for column in columns for header in headers))
        lacking = ("",) * len(headers)
        parts = ("key", *(column for column in columns for _ in headers))
        texts = tuple((r, *(text for c in columns for text in results.get(f"{r}/{c}", lacking))) for r in rows)
        grid = Grid(of_columns, texts, ("left", *alignment * len(columns)), parts)
    return f"{comparison.table.name}, profile {comparison.profile}{what}\n{as_text(grid)}"


def _short_claims(report: Report) -> Iterator[str]:
    """One line for each claim, if any has been judged."""
    if not report.claims:
        return
    counts, _, _ = report.claims.partition(" Contradicted:")
    lines, judged = [f"Claims: {counts}"], report.comparison.claims
    if any(claim.standing != "not run" for claim in judged):
        lines += [f"  {_standing(claim):<12}  {claim.claim.id}" for claim in judged]
    yield "\n".join(paragraph(line, "    ") for line in lines)


def _standing(claim: ClaimVerdict) -> str:
    return claim.standing.upper() if claim.standing == "contradicted" else claim.standing


def _cells(report: Report, style: _Style) -> Iterator[str]:
    if report.cell_grid.rows:
        yield style.table(report.cell_grid)
        yield from map(style.paragraph, report.cell_notes)
    yield from style.titled("Not pooled with these", report.not_pooled)
    yield from style.titled("Diverged", report.diverged)


def _claims(report: Report, style: _Style) -> Iterator[str]:
    if not report.claims:
        return
    yield from map(style.paragraph, report.claim_notes)
    judged = [
        (f"{_standing(c)}: {c.claim.says} ({c.claim.section}; {c.claim.id}). {method(c)}", c.findings)
        for c in report.judged_claims
    ]
    if judged:
        yield style.items(judged)
    for standing in _OPEN:
        by_reason = report.open_claims(standing).items()
        reasons = [f"{', '.join(c.claim.id for c in claims)}: {why}" for why, claims in by_reason]
        yield from style.titled(standing.capitalize(), reasons)


def _runs(report: Report, style: _Style, store: Store) -> Iterator[str]:
    headers = ("run", "net", "prec.", "status", "iteration", "train loss", "train err", "moving avg err", "test err")
    rows, complaints = [], []
    for record in report.records:
        try:
            rows.append(_run_row(record, History.read(store.directory(record.run).history_file)))
        except PaperbenchError as error:
            complaints.append(f"Left out: {error}")
    if rows:
        parts = ("key", *("training",) * 4, *("results",) * 5)
        yield style.table(Grid((*headers, "minutes"), tuple(rows), (*("left",) * 4, *("right",) * 6), parts))
        yield style.paragraph(
            "moving avg err: test error with batch norm's moving averages. test err: the reported test error."
        )
    yield from map(style.paragraph, complaints)


def _run_row(record: Record, history: History) -> tuple[str, ...]:
    def number(value: float | None, digits: int = 2) -> str:
        return NOTHING if value is None else f"{value:.{digits}f}"

    loss, error, tested = (history.newest(m, record.iteration) for m in ("train_loss", "train_error", "test_error"))
    result = record.result
    return (
        *(record.run, record.net, record.spec.precision, record.status, f"{record.iteration:,}"),
        number(loss, 4),
        number(error),
        number(result.moving_average_test_error if result else tested),
        number(result.test_error if result else None),
        number(record.seconds / 60, 1),
    )
