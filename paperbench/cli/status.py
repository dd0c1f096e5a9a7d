"""paperbench status [TABLE]: which runs are done, running, waiting or failed."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from paperbench.cli.arguments import add_shared, name_left_out, name_other_profiles
from paperbench.cli.output import add_format, print_json
from paperbench.errors import PaperbenchError, one_line
from paperbench.options import seconds

if TYPE_CHECKING:
    from paperbench.runs.status import Snapshot, Statuses, TableStatus
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
    help_ = "show it again every S seconds (default: 10) until you press Ctrl-C"
    parser.add_argument("--watch", type=seconds, nargs="?", const=10.0, metavar="S", help=help_)
    help_ = "exit with 0 only if all runs are done, with 2 if any failed, with 3 if others are left"
    parser.add_argument("--exit-code", action="store_true", help=help_)
    add_shared(parser, "--results", "--tables")
    add_format(parser)


def execute(args: argparse.Namespace) -> int:
    from paperbench.specs.table import find_spec_root, read_table, read_tables

    if args.format == "json" and args.watch is not None:
        raise PaperbenchError("--watch is for people. Leave it out, or --format json.")
    root, wrong = find_spec_root(args.tables), dict[str, str]()
    tables = [read_table(args.table, root)] if args.table else [*read_tables(root, wrong.__setitem__)]
    unread = [f"{table}: {why}" for table, why in wrong.items()]
    if args.profile and tables:
        check = tables[0].profile if args.table else tables[0].profiles.named
        check(args.profile)  # raises an error if there is none
    found = _show(args, tables, unread)
    with suppress(KeyboardInterrupt):  # the usual end of --watch
        while args.watch is not None:
            time.sleep(args.watch)
            found = _show(args, tables, unread)
    if not args.exit_code:
        return 0
    return 2 if "failed" in found.states else 0 if found.states == {"done"} else 3


def _show(args: argparse.Namespace, tables: list[Table], unread: list[str]) -> Statuses:
    from paperbench.report.status import render

    found = _look(args, tables, unread)
    if args.format == "json":
        print_json(found)
        return found
    blocks = [*render(found)]
    if not found.tables:
        blocks.insert(0, f"{args.results} has no such runs. Train some: `paperbench run table2`.")
    if args.watch is not None:
        blocks.insert(0, f"{time.strftime('%H:%M:%S')}, every {args.watch:g} seconds; Ctrl-C ends it")
        if sys.stdout.isatty():
            sys.stdout.flush()
            os.write(sys.stdout.fileno(), b"\x1b[H\x1b[2J")
    print("\n\n".join(blocks), end="\n\n" if args.watch is not None else "\n", flush=True)
    name_left_out(found.left_out)
    name_other_profiles(args.results, found.other_profiles)
    return found


def _look(args: argparse.Namespace, tables: list[Table], unread: list[str]) -> Statuses:
    """Look into the results directory; `unread` says what is wrong with tables that cannot be read."""
    from paperbench.executors import name_of_store
    from paperbench.runs.status import Snapshot, Statuses, slurm_jobs
    from paperbench.runs.store import Store

    seen = Snapshot(Store.existing(args.results, args.table or "table2"))
    statuses = tuple(_statuses(args, seen, tables))
    has_logs_of_jobs = (args.results / "slurm").is_dir()
    jobs = slurm_jobs(name_of_store(args.results)) if has_logs_of_jobs else Counter[str]()
    is_elsewhere = args.table and not statuses[0].shown
    others = seen.profiles_of(tables[0], args.cells or "*") if is_elsewhere else ()
    return Statuses(1, statuses, jobs, others, tuple(map(one_line, (*unread, *seen.complaints))))


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
