"""paperbench run TABLE: train what the table still lacks, then print it."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from paperbench.cli.arguments import (
    Subparsers,
    add_cells,
    add_data,
    add_device,
    add_profile,
    add_results,
    add_table,
    add_tables_root,
    discard_output,
    number_of_runs,
    positive_int,
    positive_seconds,
)

if TYPE_CHECKING:
    from paperbench.runs.limits import Limits
    from paperbench.runs.planning import PlannedRun
    from paperbench.runs.store import Store


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "run",
        help="train the cells of a table",
        description="Train what a table still lacks, then print it. The same command again continues or does only "
        "what is missing.",
    )
    add_table(parser)
    add_cells(parser)
    add_profile(parser)
    parser.add_argument(
        "--seeds", type=number_of_runs, metavar="N", help="runs a cell (default: the table's, or the profile's)"
    )
    parser.add_argument(
        "--precision",
        metavar="P",
        help="fp32, tf32, bf16 or bf16-fp32-stream (default: the table's, if it names one; else tf32 on GPUs with it, "
        "else fp32)",
    )
    add_device(parser)
    parser.add_argument(
        "--engine",
        default="auto",
        metavar="E",
        help="how a step is carried out: eager, graph (captured as a CUDA graph: the same numbers) or compile (rounds "
        "otherwise); auto (default) chooses, and says why",
    )
    parser.add_argument(
        "--stop-at", type=positive_int, metavar="ITER", help="pause every run at this iteration: a prefix, same run"
    )
    parser.add_argument(
        "--max-seconds",
        type=positive_seconds,
        metavar="S",
        help="pause after this time (loading data before, and testing a finished net after, not counted)",
    )
    parser.add_argument(
        "--incompatible",
        choices=("refuse", "restart", "continue"),
        default="refuse",
        help="what to do with a run by another numerics version or major version of torch, or with no readable "
        "checkpoint: refuse it (default); restart it, with its old files kept aside; continue it if it can be, marked "
        "as mixed",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be trained, and stop")
    add_data(parser)
    add_results(parser)
    add_tables_root(parser)
    parser.set_defaults(execute=execute)


def wait_without_spinning() -> None:
    """Let the threads of GNU OpenMP, which torch computes with on CPUs, sleep soon while they wait for each other.

    By default they spin for milliseconds. Beside another busy process on the same cores that made training up to twenty
    times slower. Takes effect only before torch is loaded; what the user has set stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def execute(args: argparse.Namespace) -> int:
    wait_without_spinning()
    from paperbench.api import load_table
    from paperbench.data.sources import data_directory, load_dataset
    from paperbench.errors import PaperbenchError
    from paperbench.report.progress import Progress
    from paperbench.runs.limits import Limits, stopping_on_signals
    from paperbench.runs.planning import needed_datasets, plan
    from paperbench.runs.store import Store

    published = load_table(args.table, args.tables)
    table = published.table
    profile = table.profiles.named(args.profile)
    cells = table.cells(args.cells)
    for row in dict.fromkeys(c.row.id for c in table.cells(args.cells, on_request=True) if c not in cells):
        if args.cells != "*":
            print(f"paperbench: not run: {row}, which must be named in full (`--cells {row}`).", file=sys.stderr)
    if args.results.exists() and not args.results.is_dir():
        raise PaperbenchError(f"{args.results} is no directory. Choose another one (`--results DIR`).")

    from paperbench.runs.executor import Executor, to_be_done  # torch, once the names are right
    from paperbench.runs.room import check_room, in_words
    from paperbench.training.choice import choose_engine
    from paperbench.training.precision import choose_device, choose_precision

    device = choose_device(args.device)
    choose_engine(args.engine, device, iterations=0)  # complains, if it must, before data are read
    precision = choose_precision(args.precision or table.experiment.precision, device)
    folder = data_directory(args.data)
    datasets = {key: load_dataset(key, folder) for key in needed_datasets(cells, profile)}
    runs = plan(table, cells, args.profile, precision, args.seeds or table.seeds_in(profile), datasets)

    store = Store(args.results)
    limits = Limits(args.stop_at, args.max_seconds)
    to_do = to_be_done(runs, store, limits, args.incompatible)
    needed = check_room([run for run, _ in to_do], store, begin_anew=args.incompatible == "restart")
    if args.dry_run:
        _print_plan(runs, store, limits)
        iterations = sum(missing for _, missing in to_do)
        print(f"\n{len(runs)} runs, {iterations:,} iterations to do, about {in_words(needed)} of disk to be filled.")
        return 0
    progress = Progress(to_do, len(runs), sys.stderr)
    with stopping_on_signals(limits):
        failed = Executor(store, device, limits, progress, args.incompatible, args.engine).work_off(runs)
    waiting = to_be_done(runs, store, limits, args.incompatible)
    if waiting and limits.exhausted:
        why = "stopped by a signal" if limits.signal else f"{limits.max_seconds:g} seconds are over"
        progress.say(f"paperbench: {why}; runs still to do: {len(waiting)}. The same command goes on.")
    elif len(waiting) > len(failed):
        progress.say(f"paperbench: runs left to other processes: {len(waiting) - len(failed)}.")
    args.results.mkdir(parents=True, exist_ok=True)  # there was perhaps no time to begin any run
    usual = table.seeds_in(profile)
    planned = args.seeds if args.seeds not in (None, 2 * usual) else usual  # 2N: the extension of N
    judged = published.compare(args.results, cells=args.cells, profile=args.profile, seeds=planned)
    try:
        print(judged, flush=True)
    except BrokenPipeError:  # what was trained, and how it ended, stands
        discard_output()
    for complaint in judged.complaints:
        progress.say(f"paperbench: left out: {complaint}")
    if failed:
        ids = ", ".join(run.id for run in failed)
        progress.say(f"paperbench: error: runs that failed, see above: {ids}")
    return 128 + limits.signal if limits.signal else 2 if failed else 0


def _print_plan(runs: list[PlannedRun], store: Store, limits: Limits) -> None:
    from tabulate import tabulate

    rows = []
    for run in runs:
        record = store.readable_record(run.id)
        is_there = store.directory(run.id).path.exists()
        done, status = (record.iteration, record.status) if record else (0, "no record" if is_there else "not started")
        goal = limits.last_iteration(run.recipe.iterations)
        rows.append((run.id, run.net_name, run.seed, ", ".join(run.cells), status, done, goal))
    print(tabulate(rows, ["run", "net", "seed", "cells", "status", "iteration", "goal"]))
