"""paperbench status [TABLE]: which runs are done, running, waiting or failed."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from paperbench.cli.arguments import add_shared, name_left_out, name_other_profiles, readable_tables
from paperbench.errors import PaperbenchError
from paperbench.options import seconds

if TYPE_CHECKING:
    from paperbench.runs.status import Snapshot, TableStatus
    from paperbench.specs.table import Table

SUMMARY = "show which runs are done, running, waiting or failed"
DESCRIPTION = (
    "Count the runs of each cell that are done, running, waiting (not begun), paused (begun, but no process trains "
    "them) or failed, however they were started. Then show the speed and time left of running ones, why runs failed, "
    "and the jobs in Slurm's queue."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} [TABLE] [options]"
    parser.add_argument(
        "table", nargs="?", metavar="TABLE", help="id of a table (default: every table and profile that has runs)"
    )
    add_shared(parser, "--cells", "--set")
    add_shared(parser, "--profile", default=None, help="default: paper; without TABLE, every one that has runs")
    add_shared(parser, "--seeds", help="runs wanted per cell (default: the table's)")
    parser.add_argument(
        "--watch",
        type=seconds,
        nargs="?",
        const=10.0,
        metavar="S",
        help="show it again every S seconds (default: 10) until you press Ctrl-C",
    )
    parser.add_argument(
        "--exit-code",
        action="store_true",
        help="exit with 0 only if all runs are done, with 2 if any failed, with 3 if others are left",
    )
    add_shared(parser, "--results", "--tables")


def execute(args: argparse.Namespace) -> int:
    from paperbench.specs.table import find_spec_root, read_table

    root = find_spec_root(args.tables)
    tables = [read_table(args.table, root)] if args.table else [*readable_tables(root)]
    if args.profile and tables:
        check = tables[0].profile if args.table else tables[0].profiles.named
        check(args.profile)  # raises an error if there is none
    code = _show(args, tables)
    with suppress(KeyboardInterrupt):  # the usual end of --watch
        while args.watch is not None:
            time.sleep(args.watch)
            code = _show(args, tables)
    return code if args.exit_code else 0


def _show(args: argparse.Namespace, tables: list[Table]) -> int:
    """Print the status once; return the exit status of `--exit-code`."""
    from paperbench.executors import name_of_store
    from paperbench.report.status import render, render_jobs
    from paperbench.runs.status import Snapshot, slurm_jobs
    from paperbench.runs.store import Store

    seen = Snapshot(Store.existing(args.results, args.table or "table2"))
    statuses = list(_statuses(args, seen, tables))
    blocks = [block for one in statuses for block in render(one)]
    blocks = blocks or [f"{args.results} has no such runs. Train some: `paperbench run table2`."]
    if any(run.state == "done" for one in statuses for run in one.runs):
        blocks.append("Facts are not looked at: `paperbench plan TABLE` says which runs have others.")
    if (args.results / "slurm").is_dir():  # where the logs of jobs are
        jobs = slurm_jobs(name_of_store(args.results))
        if jobs is None or jobs:
            blocks.append(render_jobs(jobs))
    if args.watch is not None:
        blocks.insert(0, f"{time.strftime('%H:%M:%S')}, every {args.watch:g} seconds; Ctrl-C ends it")
        if sys.stdout.isatty():
            sys.stdout.flush()
            os.write(sys.stdout.fileno(), b"\x1b[H\x1b[2J")
    print("\n\n".join(blocks), end="\n\n" if args.watch is not None else "\n", flush=True)
    name_left_out(seen.complaints)
    if args.table and not statuses[0].shown:
        name_other_profiles(args.results, seen.profiles_of(tables[0], args.cells or "*"))
    states = {run.state for one in statuses for run in one.runs}
    return 2 if "failed" in states else 0 if states == {"done"} else 3


def _statuses(args: argparse.Namespace, seen: Snapshot, tables: list[Table]) -> Iterator[TableStatus]:
    patterns = args.cells or "*"
    if args.table:
        yield seen.status_of(tables[0], args.profile or "paper", patterns, args.seeds)
        return
    for table in tables:
        with suppress(PaperbenchError):  # it has no such cells or profile
            for profile in seen.profiles_of(table, patterns):
                if args.profile in (None, profile):
                    yield seen.status_of(table, profile, patterns, args.seeds)
