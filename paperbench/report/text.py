"""A report for terminals and as Markdown: in short the table and the claims; in full also runs, tests, deviations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from paperbench.catalogue import DATASETS
from paperbench.compare.claims import ClaimVerdict
from paperbench.compare.comparison import Comparison
from paperbench.compare.statistics import FIRST_ALPHA, SECOND_ALPHA, binomial_standard_error
from paperbench.errors import PaperbenchError, count
from paperbench.report.grid import Grid, as_markdown, as_text, escape_markdown, paragraph, published
from paperbench.report.report import NOTHING, NetReport, Report, format_interval, method, percent
from paperbench.runs.history import History
from paperbench.runs.record import Record
from paperbench.runs.store import Store

_MAX_SUMMARY_ROWS = 10


@dataclass(frozen=True)
class _Style:
    """The marks of a format."""

    heading: str
    subheading: str
    item: str
    subitem: str
    is_markdown: bool

    def paragraph(self, text: str, indent: str = "") -> str:
        """Wrap prose for a terminal; in Markdown, make it one line, which readers wrap themselves."""
        return " ".join(text.split()) if self.is_markdown else paragraph(text, indent)

    def items(self, items: Iterable[tuple[str, Sequence[str]]]) -> str:
        """Format a list of texts, each with a list below it."""
        lines = []
        for text, below in items:
            lines.append(self.paragraph(f"{self.item}{text}", "    "))
            lines += [self.paragraph(f"{self.subitem}{one}", "        ") for one in below]
        return "\n".join(lines)

    def titled(self, title: str, texts: Sequence[str]) -> list[str]:
        """Format a list with its title; empty without texts."""
        return [f"{title}:", self.items((text, ()) for text in texts)] if texts else []

    def table(self, grid: Grid, long: bool = True) -> str:
        return as_markdown(grid) if self.is_markdown else as_text(grid, long)


_STYLES = {"table": _Style("", "", "  ", "      ", False), "markdown": _Style("## ", "### ", "- ", "  - ", True)}


def render(report: Report, store: Store, form: Literal["table", "markdown"], long: bool = True) -> str:
    """Format a report; if `long`, with errors, intervals, evidence for claims, deviations and runs."""
    style, comparison = _STYLES[form], report.comparison
    table, planned = comparison.table, comparison.planned
    usual = table.seeds_in(table.profiles.named(comparison.profile))
    by_option = f" by --seeds; the table says {usual}" if usual != planned else ""
    design = f"Profile {comparison.profile}; {count(planned, 'run')} per cell, fixed beforehand{by_option}"
    title = f"{style.heading}{report.title}: {table.experiment.title}"
    parts = [style.paragraph(title), style.paragraph(design), style.table(report.grid, long)]
    parts += [style.paragraph(f"{mark}: {text}") for mark, text in report.footnotes.items()]
    if report.letters:
        letters = [style.paragraph(f"[{letter}] {text}") for text, letter in report.letters.items()]
        parts.append(("  \n" if style.is_markdown else "\n").join(letters))
    if long:
        parts += map(style.paragraph, (*report.short_notes, *report.method_notes))
        choices = style.titled("Our choices where the paper is silent", report.choices)
        for heading, blocks in (
            ("Cells", _cells(report, style)),
            ("External results", [style.items((text, ()) for text in report.external_results())]),
            ("Claims", _claims(report, style)),
            ("Deviations from the paper", [*style.titled("Paper -> our runs", report.deviations), *choices]),
            ("Runs", _runs(report, style, store)),
        ):
            filled = list(filter(None, blocks))
            parts += [f"{style.subheading}{heading}", *filled] if filled else []
    else:
        external = report.external_results(long=False)
        parts += ["\n".join(block) for block in [style.titled("External results", external)] if block]
        parts += map(style.paragraph, report.short_notes)
        parts += _short_claims(report)
        if report.has_runs:
            parts.append(paragraph("`--long` adds errors, intervals, evidence for claims, deviations and the runs."))
    text = "\n\n".join(parts)
    return escape_markdown(text) if style.is_markdown else text


def summary(report: Report) -> str:
    """Format the cells with our results, or all cells if there are none: some, or many row by row as in the paper."""
    comparison = report.comparison
    what = "" if report.has_verdicts else ": not comparable with the paper"
    cells = [cell for cell in report.cells if cell.ours != NOTHING] or report.cells
    width = 3 if report.has_verdicts else 2
    results = {c.compared.cell.id: (published(c.compared.cell), c.ours, c.verdict)[:width] for c in cells}
    headers, alignment = ("paper", "ours", "verdict")[:width], ("right", "right", "left")[:width]
    grid = Grid(("cell", *headers), tuple((name, *texts) for name, texts in results.items()), ("left", *alignment))
    columns = list(dict.fromkeys(c.compared.cell.column.id for c in cells))
    if len(cells) > _MAX_SUMMARY_ROWS and len(columns) > 1:
        rows = dict.fromkeys(c.compared.cell.row.id for c in cells)
        grid = Grid(
            ("row", *(f"{column}, {header}" for column in columns for header in headers)),
            tuple((r, *(text for c in columns for text in results.get(f"{r}/{c}", ("",) * width))) for r in rows),
            ("left", *alignment * len(columns)),
            ("key", *(column for column in columns for _ in headers)),
        )
    return f"{comparison.table.source.table}, profile {comparison.profile}{what}\n{as_text(grid)}"


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
    rows = [_cell_row(net) for net in report.nets if net.ours and net.errors]
    if rows:
        headers = ("cell", "errors by seed from 0", "median", "interval", "std", "tol.")
        width = len(headers) if report.has_verdicts else headers.index("interval")
        alignment = ("left", "left", "right", "right", "right", "right")
        yield style.table(Grid(headers[:width], tuple(row[:width] for row in rows), alignment[:width]))
        if any(c.compared.assessment.interval for c in report.cells):
            yield style.paragraph(
                f"interval: confidence interval of our {report.estimates} minus the published median, in points "
                f"({1 - 2 * FIRST_ALPHA:.0%}; {1 - 2 * SECOND_ALPHA:.0%} after the extension). std: standard deviation "
                f"of a single run, in points{_weights(report)}. tol.: tolerance, in points."
            )
        yield from map(style.paragraph, _test_set_noise(report.comparison))
    yield from style.titled("Not pooled with these", [f"{n.name}: {text}" for n in report.nets for text in n.others])
    diverged: dict[str, list[str]] = {}
    for record in _records(report):
        if record.divergence:
            diverged.setdefault(str(record.divergence), []).append(record.run)
    yield from style.titled("Diverged", [f"{', '.join(runs)}: {how}" for how, runs in diverged.items()])


def _test_set_noise(comparison: Comparison) -> Iterator[str]:
    """Report how much errors would vary over other test images, which no verdict includes."""
    by_size: dict[int, list[float]] = {}
    for compared in comparison.tested:
        by_size.setdefault(DATASETS[compared.cell.dataset].test_images, []).append(compared.cell.number or 0.0)
    for images, errors in by_size.items():
        of_each = [f"{binomial_standard_error(e, images):.2f} points at {e:.2f} %" for e in (min(errors), max(errors))]
        yield (
            f"Other test images: the binomial standard error on {images:,} is {', '.join(dict.fromkeys(of_each))}. No "
            "verdict includes it, as our errors and the published ones are over the same images."
        )


def _weights(report: Report) -> str:
    """Explain the parentheses of the column "std"."""
    noises = [c.compared.assessment.noise for c in report.cells if c.compared.assessment.noise]
    parts = ["of the other cells' variance (table)"] if any(noise.table_weight for noise in noises) else []
    parts += ["of the published variance (paper)"] if any(noise.published_weight for noise in noises) else []
    return f"; in parentheses the weight {' or '.join(parts)} in it" if parts else ""


def _cell_row(report: NetReport) -> tuple[str, ...]:
    cell, net, noise, interval = report.cell, report.net, report.net.assessment.noise, report.net.assessment.interval
    weights = {"table": noise.table_weight, "paper": noise.published_weight} if noise else {}
    share = "".join(f" ({whose} {weight:.0%})" for whose, weight in weights.items() if weight)
    return (
        report.name,
        report.errors,
        percent(net.median) if net.median is not None else NOTHING,
        format_interval(interval) if interval else NOTHING,
        f"{noise.std:.2f}{share}" if noise else NOTHING,
        f"{cell.tolerance:g}" if cell.number is not None else NOTHING,
    )


def _records(report: Report) -> Iterable[Record]:
    """Return the records of all runs, each once."""
    groups = [group for net in report.nets for group in (net.net.shown, *net.net.others) if group]
    return {record.run: record for group in groups for record in group.records}.values()


def _claims(report: Report, style: _Style) -> Iterator[str]:
    if not report.claims:
        return
    yield style.paragraph(
        f"{report.claims} Judged on our runs alone, each at its own level, with no correction across claims. In "
        f"brackets: {1 - 2 * FIRST_ALPHA:.0%} confidence intervals."
    )
    profile, claims = report.comparison.profile, report.comparison.claims
    if not report.has_verdicts:
        yield style.paragraph(
            f"Profile {profile} trains other nets or data: a claim that holds here need not hold for the paper's nets."
        )
    for standing in ("supported", "contradicted", "undecided"):
        found = [
            (f"{_standing(c)}: {c.claim.says} ({c.claim.section}; {c.claim.id}). {method(c)}", c.findings)
            for c in claims
            if c.standing == standing and c.findings
        ]
        if found:
            yield style.items(found)
    for standing in ("undecided", "not run"):
        by_reason: dict[str, list[str]] = {}
        cells: dict[str, None] = {}
        for c in claims:
            if c.standing == standing and not c.findings:
                why, _, missing = c.reason.partition("no runs of our own: ")
                by_reason.setdefault(why, []).append(c.claim.id)
                cells |= dict.fromkeys(missing.split(", ")) if missing else {}
        by_reason = {why or f"no runs of our own: {', '.join(cells)}": ids for why, ids in by_reason.items()}
        reasons = [f"{', '.join(ids)}: {why}" for why, ids in by_reason.items()]
        yield from style.titled(standing.capitalize(), reasons)


def _runs(report: Report, style: _Style, store: Store) -> Iterator[str]:
    headers = ("run", "net", "prec.", "status", "iteration", "train loss", "train err", "moving avg err", "test err")
    rows, complaints = [], []
    for record in _records(report):
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
