"""`paperbench plan`: the runs of a table and what they cost, for a terminal; as JSON also what they would decide."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from paperbench.compare.power import Outlook
from paperbench.errors import count, duration, format_bytes
from paperbench.report.grid import Grid, as_text, paragraph
from paperbench.runs.planning import places
from paperbench.runs.record import Status
from paperbench.typed import Count, Id, Line, Natural, typed


@typed
class RunCost:
    """What is left of a run takes so many seconds of the device, and bytes of its memory and of disk."""

    seconds: float
    memory: int
    disk: int


@typed
class RunPlan:
    """A run of a plan.

    Attributes:
        id: None if its data are missing, as it depends on them.
        done, to_do: Numbers of iterations.
        cost: None if there is nothing to do, or nothing was measured.
    """

    id: Line | None
    cells: tuple[Line, ...]
    net: str
    seed: Natural
    status: Status | Literal["not started", "no record", "other facts", "unknown"]
    done: Natural
    to_do: Natural
    cost: RunCost | None


@typed
class Time:
    """How long the runs of a plan take.

    Attributes:
        in_words: With what was measured or stated.
        seconds: Of one device.
        on_workers: Seconds until `workers` such devices have trained all.
        longest: Seconds of the longest run.
    """

    in_words: str
    seconds: float
    workers: Count
    on_workers: float
    longest: float


@typed
class PlanDocument:
    """The runs that a table needs, what they cost, and what they would decide.

    Attributes:
        seeds: Runs per cell.
        remaining: Number of runs to do, if only their last test.
        disk: Bytes that they need.
        at_once: Runs that take turns on the device.
        stop_at: The iteration at which runs pause.
        skipped_rows: Rows that run only if they are named in full.
        missing_data: What is wrong with data sets that cannot be loaded.
        outlook: What the runs would decide; None if that is not simulated.
        not_simulated: Why, if that is not the profile.
    """

    schema: Literal[1]
    table: Id
    profile: Line
    seeds: Count
    runs: tuple[RunPlan, ...]
    remaining: Natural
    disk: int
    device: Line
    precisions: tuple[Line, ...]
    engine: Line
    at_once: Count
    stop_at: Count | None
    time: Time | None
    skipped_rows: tuple[Id, ...]
    warnings: tuple[str, ...]
    missing_data: tuple[str, ...]
    outlook: Outlook | None = None
    not_simulated: str = ""


def render(plan: PlanDocument) -> str:
    """List the runs and what the remaining ones take."""
    groups: dict[tuple[object, ...], list[RunPlan]] = {}
    for run in plan.runs:
        groups.setdefault((run.cells, run.net, run.status, run.done), []).append(run)
    rows = []
    for runs in groups.values():
        first, to_do = runs[0], sum(run.to_do for run in runs)
        costs, of_runs = ["", "", ""], [run.cost for run in runs if run.cost]
        if of_runs:
            hours, disk = sum(one.seconds for one in of_runs) / 3600, sum(one.disk for one in of_runs)
            costs = [*map(_short, (hours, of_runs[0].memory / 1e9, disk / 1e9))]
        status = f"at {first.done:,}" if first.status == "partial" else first.status
        place, *others = places(first.cells)
        rows.append((place, format_seeds({run.seed for run in runs}).split()[1], status, f"{to_do:,}", *costs))
        rows += [(other, *[""] * 6) for other in others]
    columns = 7 if plan.time else 4
    headers = ("cells", "seeds", "status", "to do", "hours", "memory", "disk")
    alignment = ("left", "left", "left", *("right",) * 4)
    grid = Grid(headers[:columns], tuple(row[:columns] for row in rows), alignment[:columns])
    total = count(sum(run.to_do for run in plan.runs), "iteration")
    work = f"{'at most ' if plan.missing_data else ''}{total} to do, about {format_bytes(plan.disk)} of disk"
    if not plan.remaining:
        work = "nothing to do" if plan.stop_at else "all finished"
    sentences = [
        f"{count(len(plan.runs), 'run')}, {work}.",
        f"Device {plan.device}, precision {', '.join(plan.precisions)}, engine {plan.engine}.",
    ]
    if time := plan.time:
        kind = "GPU" if plan.device.startswith("cuda") else "main"
        together = f"; {plan.at_once} at once need {plan.at_once} times as much" * (plan.at_once > 1)
        sentences += [
            f"Time: {time.in_words}",
            f"{time.workers} such devices: about {duration(time.on_workers)}, with {duration(time.longest)} for the "
            "longest run." * (time.workers > 1),
            "to do: iterations left. hours, and disk in GB: of all seeds in the line. memory: GB of "
            f"{kind} memory that one run needs at least{together}.",
        ]
    return "\n".join([as_text(grid), "", *map(paragraph, filter(None, sentences))])


def format_seeds(seeds: Collection[int]) -> str:
    """Format seeds: "seed 3", "seeds 0-4", "seeds 0,2"."""
    first, last = min(seeds), max(seeds)
    numbers = f"{first}-{last}" if last - first == len(seeds) - 1 else ",".join(map(str, sorted(seeds)))
    return f"seed {first}" if first == last else f"seeds {numbers}"


def _short(value: float) -> str:
    """Format a positive number with about two digits."""
    return f"{value:.1g}" if value < 0.095 else f"{value:#.2g}" if value < 9.95 else f"{value:,.0f}"
