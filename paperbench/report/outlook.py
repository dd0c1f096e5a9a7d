"""`paperbench plan`: what runs of a table would decide, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from paperbench.compare.power import WORSE_BY, CellOutlook, NextRuns, Outlook
from paperbench.compare.statistics import FIRST_ALPHA
from paperbench.errors import count
from paperbench.report.grid import Grid, as_text, paragraph
from paperbench.report.report import NOTHING

_MAX_CELLS_NAMED = 2
_MAX_NEXT = 8


def render(outlook: Outlook, long: bool = False) -> str:
    """Format an outlook; if `long`, with all cells that need runs and all their claims."""
    return "\n\n".join(_blocks(outlook, long))


def _blocks(outlook: Outlook, long: bool) -> Iterator[str]:
    table, planned = outlook.comparison.table, outlook.planned
    yield paragraph(
        f"{table.source.table}: what {planned} runs per cell would decide, and {2 * planned} where {planned} do not. "
        f"Simulated with {_noise(outlook)}."
    )
    yield "Cells\n" + _cells(outlook)
    yield paragraph(
        "reproduced: if our true error is the paper's. worse: if it is higher by "
        f"{WORSE_BY:g} point. false: a match called worse or better, or a difference as large as the tolerance called "
        f"reproduced; at most {FIRST_ALPHA:.0%} by design. In percent, after {planned} and after {2 * planned} runs."
    )
    if outlook.claims:
        rows = tuple((one.claim.id, *map(_percent, one.supported)) for one in outlook.claims)
        headers = ("claim", f"{planned} runs", f"{2 * planned} runs")
        yield "Claims: chance to be supported, if the printed numbers are true\n" + as_text(
            Grid(headers, rows, ("left", "right", "right"))
        )
    if outlook.left_out:
        yield paragraph(f"Not simulated: {count(outlook.left_out, 'claim')} about failures or the course of training.")
    yield from _next_runs(outlook, long)


def _noise(outlook: Outlook) -> str:
    shared = "shared across the table" if outlook.comparison.noise == "table" else "estimated for each cell alone"
    why = {
        "given": "as given",
        "seen": "as seen in the runs at hand",
        "published": "which is typical of those that the authors print; `--std` assumes another",
    }
    return f"a standard deviation of {outlook.std:.2f} points between runs, {why[outlook.source]}, and noise {shared}"


def _cells(outlook: Outlook) -> str:
    total = sum(len(one.cells) for one in outlook.cells)
    rows = tuple(
        (
            _named(one, total),
            f"{one.target.tolerance:g}",
            *(" / ".join(map(_percent, pair)) for pair in (one.reproduced, one.worse)),
            " / ".join(f"{100 * value:.1f}" for value in one.false),
        )
        for one in sorted(outlook.cells, key=lambda one: len(one.cells))
    )
    return as_text(Grid(("cells", "tol.", "reproduced", "worse", "false"), rows, ("left", *("right",) * 4)))


def _named(one: CellOutlook, total: int) -> str:
    if len(one.cells) <= _MAX_CELLS_NAMED:
        return ", ".join(one.cells)
    if len(one.cells) == total:
        return f"all {total} cells"
    data = f" on {one.target.dataset}" if one.target.dataset else ""
    return f"{len(one.cells)} cells{data}"


def _next_runs(outlook: Outlook, long: bool) -> Iterator[str]:
    runs = outlook.next_runs
    if not runs:
        yield paragraph("Next: nothing. No further run can decide a cell or a claim that is simulated.")
        return
    shown = runs if long else runs[:_MAX_NEXT]
    rows = tuple(_next_row(one) for one in shown)
    headers = ("cell", "runs", "verdict", "claims", "worth")
    more = f"\nand {len(runs) - len(shown)} more cells (`--long`)" if len(shown) < len(runs) else ""
    yield ("Next, the most valuable runs first\n" + as_text(Grid(headers, rows, ("left", *("right",) * 4))) + more)
    yield paragraph(
        "runs: missing for the next analysis. verdict: chance in percent to get one then, given the runs at hand. "
        "claims: expected number decided, once the other cells have their runs. worth: expected number of verdicts and "
        "claims decided per run."
    )


def _next_row(one: NextRuns) -> tuple[str, ...]:
    return (
        one.cell,
        f"{one.missing} of {one.total}",
        NOTHING if one.verdict is None else _percent(one.verdict),
        f"{sum(one.claims.values()):.1f} of {len(one.claims)}" if one.claims else NOTHING,
        f"{one.worth:.2f}",
    )


def _percent(chance: float) -> str:
    return f"{100 * chance:.0f}"
