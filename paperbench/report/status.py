"""`paperbench status`: how far the runs of tables are, for a terminal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from paperbench.errors import count, duration, listing
from paperbench.report.grid import NOTHING, Grid, as_text, paragraph
from paperbench.runs.status import STATES, RunProgress, RunStatus, Statuses, TableStatus


def render(found: Statuses) -> Iterator[str]:
    """Yield blocks: the tables, and the jobs in Slurm's queue."""
    yield from (block for one in found.tables for block in _render_table(one))
    if "done" in found.states:
        yield "Facts are not looked at: `paperbench plan TABLE` says which runs have others."
    if found.jobs is None:
        yield "Slurm: squeue did not answer."
    elif found.jobs:
        listed = ", ".join(f"{number:,} {state}" for state, number in Counter(found.jobs).most_common())
        jobs = count(sum(found.jobs.values()), "job")
        yield paragraph(f"Slurm: {jobs} of yours on this results directory: {listed}.")


def _render_table(status: TableStatus) -> Iterator[str]:
    """Yield blocks of the status of a table: its cells, the runs in training, and what is wrong with others."""
    counts = Counter(run.state for run in status.runs)
    where = f" ({' and '.join(status.shown)})" if status.shown else ""
    states = [f"{counts['done']:,} of {count(counts.total(), 'run')} done"]
    states += [f"{counts[state]:,} {state}" for state in STATES[1:] if counts[state]]
    yield paragraph(f"{status.name}, profile {status.profile}{where}: {', '.join(states)}.")
    rows = []
    for cell, runs in status.cells.items():
        of_cell = Counter(run.state for run in runs)
        numbers = (f"{of_cell[state]:,}" if of_cell[state] else NOTHING for state in STATES)
        rows.append((cell, f"{len(runs):,}", *numbers))
    yield as_text(Grid(("cell", "runs", *STATES), tuple(rows), ("left", *("right",) * (1 + len(STATES)))))
    if status.others:
        others = "; ".join(f"{count(number, 'run')} {which}" for which, number in status.others.items())
        yield paragraph(f"Not counted here: {others}.")
    if running := [(run, run.progress) for run in status.runs if run.progress]:
        yield as_text(_running(running))
    if silent := [f"{_name(run)} ({duration(run.silent)})" for run in status.runs if run.silent is not None]:
        yield paragraph(
            f"Silent, so not counted as running: {listing(silent)}. The process, on another machine or hidden from "
            "you, has given no sign of life for this long. `paperbench run` takes such a run over."
        )
    failed = defaultdict(list)
    for run in status.runs:
        if run.state == "failed" and run.failure:
            failed[run.failure.message].append(_name(run))
    for message, names in failed.items():
        yield paragraph(f"Failed: {listing(names)}. {message}")


def _running(running: list[tuple[RunStatus, RunProgress]]) -> Grid:
    rows = []
    for run, progress in running:
        done, speed = f"{progress.iteration:,} of {progress.iterations:,}", progress.images_per_second
        images = NOTHING if speed is None else f"{speed:,.{1 if speed < 10 else 0}f}"
        left = NOTHING if progress.seconds_left is None else duration(progress.seconds_left)
        left = "final test" if progress.iteration == progress.iterations else left
        rows.append((_name(run), done, images, left, progress.job or NOTHING))
    headers = ("running", "iterations", "images/s", "time left", "Slurm job")
    return Grid(headers, tuple(rows), ("left", *("right",) * 4))


def _name(run: RunStatus) -> str:
    return f"{run.cell}, seed {run.seed}"
