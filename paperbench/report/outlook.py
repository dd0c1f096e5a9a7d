"""`paperbench plan`: what runs of a table would decide, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from paperbench.compare.noise import MIN_RUNS_OF_NOISE
from paperbench.compare.power import WORSE_BY, CellOutlook, NextRuns, Outlook
from paperbench.compare.statistics import FIRST_ALPHA
from paperbench.errors import count
from paperbench.report.grid import NOTHING, Grid, as_text, paragraph
from paperbench.specs.claim import ASKED

_MAX_CELLS_NAMED = 2
_MAX_NEXT = 8
_MIN_WORTH = 0.005


def valuable(outlook: Outlook) -> list[NextRuns]:
    """Return the next runs that may decide something, the most valuable first."""
    return [one for one in outlook.next_runs if one.worth >= _MIN_WORTH]


def render(outlook: Outlook, long: bool = False) -> str:
    """Format an outlook with the next runs; if `long`, with all of these."""
    planned = outlook.planned
    source = {
        "given": "as given by `--std`",
        "seen": "that of the runs at hand; `--std` sets another",
        "published": "typical of those that the authors print; `--std` sets another",
    }[outlook.source]
    heading = paragraph(
        f"{outlook.name}: what {count(planned, 'run')} per cell would decide, or "
        f"{2 * planned} where {planned} {'is' if planned == 1 else 'are'} too few. Simulated with a standard deviation "
        f"of {outlook.std:.2g} points between runs ({source}), and judged with noise shared across the table."
    )
    return "\n\n".join([heading, *_cells(outlook), *_claims(outlook), *_next_runs(outlook, long)])


def _cells(outlook: Outlook) -> Iterator[str]:
    planned, total = outlook.planned, sum(len(one.cells) for one in outlook.cells)
    rows = []
    for one in sorted(outlook.cells, key=lambda one: len(one.cells)):
        is_possible = [one.published_std is not None or n * planned >= MIN_RUNS_OF_NOISE for n in (1, 2)]
        worse = _pair(one.worse, is_possible) if one.tolerance < WORSE_BY else NOTHING
        chances = _pair(one.reproduced, is_possible), worse, _pair(one.false, is_possible, decimals=1)
        rows.append((_named(one, total), f"{one.tolerance:g}", *chances))
    grid = Grid(("cells", "tol.", "reproduced", "worse", "false"), tuple(rows), ("left", *("right",) * 4))
    yield f"Cells: chance in percent of each verdict after {planned} / {2 * planned} runs\n{as_text(grid)}"
    within = any(one.tolerance >= WORSE_BY for one in outlook.cells)
    too_few = planned < MIN_RUNS_OF_NOISE and any(one.published_std is None for one in outlook.cells)
    yield paragraph(
        "tol.: tolerance, in points. reproduced: if our true error is the paper's. "
        f"worse: if it is higher by {WORSE_BY:g} point{' (-: within the tolerance)' if within else ''}. "
        "false: a difference as large as the tolerance called reproduced, or called worse or better, whichever is "
        f"more frequent; at most {FIRST_ALPHA:.0%} by design, averaged over cells."
        + (f" -: no verdict, as fewer than {MIN_RUNS_OF_NOISE} runs need a published std." if too_few else "")
        + (" A line has the cells with the same data set and kind of published number." if len(rows) < total else "")
    )


def _pair(chances: tuple[float, float], is_possible: Sequence[bool] = (True, True), decimals: int = 0) -> str:
    texts = (f"{100 * c:.{decimals}f}" if ok else NOTHING for c, ok in zip(chances, is_possible, strict=True))
    return " / ".join(texts) if any(is_possible) else NOTHING


def _named(one: CellOutlook, total: int) -> str:
    if len(one.cells) <= _MAX_CELLS_NAMED:
        return ", ".join(one.cells)
    if len(one.cells) == total:
        return f"all {total} cells"
    metric = ", top-5" if one.metric == "top5" else ""
    return f"{len(one.cells)} cells, {one.dataset}{metric}"


def _claims(outlook: Outlook) -> Iterator[str]:
    planned = outlook.planned
    asked = [one for one in outlook.claims if one.claim.section == ASKED]
    if len(asked) < len(outlook.claims):
        heading = f"Claims: chance in percent to be supported after {planned} / {2 * planned} runs, if the printed "
        rows = tuple((one.claim.id, _pair(one.supported)) for one in outlook.claims if one not in asked)
        grid = Grid(("claim", "supported"), rows, ("left", "right"))
        yield f"{paragraph(heading + 'numbers are the true errors')}\n{as_text(grid)}"
    for one in asked:
        yes, no = _pair(one.supported), _pair(one.contradicted)
        yield paragraph(f"{one.claim.says}: supported in {yes} %, contradicted in {no} %, likewise.")
    why = "that need at least 2 runs per cell, or are " * (planned == 1) + "not about mean test errors"
    left_out = {why: outlook.unsimulated, "about cells that are not selected": outlook.unselected}
    if reasons := [f"{number} {which}" for which, number in left_out.items() if number]:
        yield paragraph(f"Claims not simulated: {'; '.join(reasons)}.")


def _next_runs(outlook: Outlook, long: bool) -> Iterator[str]:
    runs = valuable(outlook)
    if not runs:
        yield paragraph(
            "Next: nothing, as no further run is likely enough to decide a verdict or claim."
            if outlook.next_runs
            else "Next: nothing. The verdicts and claims that are simulated have all the runs they can use."
        )
        return
    rows, shown = [], runs if long else runs[:_MAX_NEXT]
    for one in shown:
        others = f" and {len(one.cells) - 1} more" if len(one.cells) > 1 else ""
        chances = _expected(one.verdicts), _expected(one.claims)
        rows.append((one.cells[0] + others, f"{one.missing} of {one.total}", *chances, f"{one.worth:.2f}"))
    grid = Grid(("cells", "runs", "verdicts", "claims", "worth"), tuple(rows), ("left", *("right",) * 4))
    more = []
    if hidden := len(runs) - len(shown):
        more.append(f"And {count(hidden, 'more net')}: `--long` lists them.")
    if useless := len(outlook.next_runs) - len(runs):
        more.append(f"The next runs of {count(useless, 'other net')} alone would decide hardly anything.")
    below = f"\n{paragraph(' '.join(more))}" if more else ""
    yield f"Next: the most valuable runs first\n{as_text(grid)}{below}"
    yield paragraph(
        "runs: to train, of those that the next analysis of these cells needs. verdicts: expected number of undecided "
        "cells that these runs would decide. claims: expected number decided, of the open claims about these runs, "
        "once their other cells have their runs. worth: expected number of verdicts and claims decided per run; a "
        "claim is divided by all runs that it still needs. All given the runs at hand, and else the printed numbers."
    )


def _expected(chances: Mapping[str, float]) -> str:
    return f"{sum(chances.values()):.1f} of {len(chances)}" if chances else NOTHING
