"""`paperbench status`: how far the runs of tables are, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from paperbench.errors import count, duration, one_line
from paperbench.report.grid import Grid, as_text, paragraph
from paperbench.runs.status import STATES, RunStatus, SlurmJobs, TableStatus

_NOTHING = "-"  # as in report.report, whose import takes half a second


def render(status: TableStatus) -> str:
    """Format the status of a table: cells, runs in training, and runs that failed."""
    return "\n\n".join(_blocks(status))


def render_jobs(jobs: SlurmJobs | None) -> str:
    """Format the jobs in Slurm's queue; None means that it did not answer."""
    if jobs is None:
        return "Slurm: squeue did not answer."
    states = ", ".join(f"{number:,} {one_line(state)}" for state, number in jobs.states.most_common())
    reasons = ", ".join(f"{number:,} {one_line(reason)}" for reason, number in jobs.reasons.most_common())
    return paragraph(f"Slurm: {states}{f' ({reasons})' if reasons else ''}.")


def _blocks(status: TableStatus) -> Iterator[str]:
    counts, wanted = status.counts, len(status.runs)
    where = f" ({' and '.join(status.shown)})" if status.shown else ""
    states = [f"{counts[state]:,} {state}" for state in STATES[1:] if counts[state]]
    title = f"{status.table.source.table}, profile {status.profile}{where}"
    done = f"{counts['done']:,} of {count(wanted, 'run')} done"
    yield paragraph(f"{title}: {', '.join([done, *states])}.")
    rows = []
    for cell, runs in status.cells.items():
        numbers = [sum(run.state == state for run in runs) for state in STATES]
        rows.append((cell, f"{len(runs):,}", *(f"{number:,}" if number else _NOTHING for number in numbers)))
    yield as_text(Grid(("cell", "runs", *STATES), tuple(rows), ("left", *("right",) * (1 + len(STATES)))))
    if status.others:
        others = "; ".join(f"{count(number, 'run')} on {which}" for which, number in status.others.items())
        yield paragraph(f"Not counted here: {others}.")
    if running := [run for run in status.runs if run.progress]:
        yield as_text(_running(running))
    for run in status.runs:
        if run.silent is not None:
            yield paragraph(
                f"{_name(run)} is silent: its process, on another machine or hidden from you, has given no sign of life "
                f"for {duration(run.silent)}. `paperbench run` takes the run over."
            )
        if run.state == "failed" and run.failure:
            yield paragraph(f"{_name(run)} failed: {run.failure.message}")


def _running(runs: list[RunStatus]) -> Grid:
    has_jobs = any(run.progress and run.progress.job for run in runs)
    rows = []
    for run in runs:
        if one := run.progress:
            speed, left = one.images_per_second, one.seconds_left
            texts = (
                _name(run),
                f"{one.iteration:,} of {one.iterations:,}",
                _NOTHING if speed is None else f"{speed:,.{1 if speed < 10 else 0}f}",
                _NOTHING if left is None else duration(left),
            )
            rows.append((*texts, one.job or _NOTHING) if has_jobs else texts)
    headers = ("running", "iterations", "images/s", "left", "job")
    width = len(headers) if has_jobs else len(headers) - 1
    return Grid(headers[:width], tuple(rows), ("left", *("right",) * (width - 1)))


def _name(run: RunStatus) -> str:
    return f"{run.cell}, seed {run.seed}"
