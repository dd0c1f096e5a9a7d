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
    add_profile,
    add_results,
    add_table,
    add_tables_root,
    positive_int,
    positive_seconds,
    print_complaints,
)

if TYPE_CHECKING:
    import torch

    from paperbench.runs.limits import Limits
    from paperbench.runs.planning import PlannedRun
    from paperbench.runs.record import Record
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
    parser.add_argument("--seeds", type=positive_int, metavar="N", help="runs a cell (default: the table's)")
    parser.add_argument(
        "--precision", metavar="P", help="fp32, tf32 or bf16 (default: tf32 on GPUs with it, else fp32)"
    )
    parser.add_argument("--device", default="auto", metavar="D", help="auto (default), cpu, cuda or cuda:N")
    parser.add_argument(
        "--stop-at", type=positive_int, metavar="ITER", help="pause every run at this iteration: a prefix, same run"
    )
    parser.add_argument(
        "--max-seconds",
        type=positive_seconds,
        metavar="S",
        help="pause after this time (loading data before, and testing a finished net after, not counted)",
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
    from paperbench.compare.comparison import compare
    from paperbench.data.sources import data_directory, load_dataset
    from paperbench.errors import PaperbenchError
    from paperbench.report.comparison import render
    from paperbench.runs.limits import Limits, stopping_on_signals
    from paperbench.runs.planning import needed_datasets, plan
    from paperbench.runs.store import Store
    from paperbench.specs.locate import spec_root
    from paperbench.specs.table import load_table

    table = load_table(args.table, spec_root(args.tables))
    profile = table.profiles.named(args.profile)
    cells = table.cells(args.cells)
    if args.results.exists() and not args.results.is_dir():
        raise PaperbenchError(f"{args.results} is no directory. Choose another one (`--results DIR`).")

    from paperbench.training.precision import choose_device, choose_precision  # torch, once the names are right

    device = choose_device(args.device)
    precision = choose_precision(args.precision, device)
    folder = data_directory(args.data)
    datasets = {key: load_dataset(key, folder) for key in needed_datasets(cells, profile)}
    runs = plan(table, cells, args.profile, precision, args.seeds or table.seeds_in(profile), datasets)

    store = Store(args.results)
    limits = Limits(args.stop_at, args.max_seconds)
    if args.dry_run:
        _print_plan(runs, store, limits)
        return 0
    with stopping_on_signals(limits):
        _train(runs, store, device, limits)
    found = store.records()
    print(render(compare(table, cells, args.profile, found.records), store, "table"))
    print_complaints(found)
    return 128 + limits.signal if limits.signal else 0


def _train(runs: list[PlannedRun], store: Store, device: torch.device, limits: Limits) -> None:
    import torch

    from paperbench.errors import PaperbenchError
    from paperbench.report.progress import Progress
    from paperbench.runs.executor import execute, is_done
    from paperbench.runs.store import RunBusyError

    records = _records(runs, store)
    progress = Progress(_remaining(runs, records, limits), len(runs), sys.stderr)
    for position, run in enumerate(runs):
        record = records[run.id]
        if record and is_done(record, run, limits):
            progress.skipped(run, f"{record.status} at iteration {record.iteration:,} already")
            continue
        if limits.exhausted:
            waiting = sum(not is_done(records[later.id], later, limits) for later in runs[position:])
            why = "stopped by a signal" if limits.signal else f"{limits.max_seconds:g} seconds are over"
            print(f"paperbench: {why}; still to do: {waiting} runs. The same command goes on.", file=sys.stderr)
            break
        try:
            execute(run, store.directory(run.id), device, limits, progress)
        except RunBusyError:
            progress.skipped(run, "another process is at it")
        except torch.OutOfMemoryError as error:
            raise PaperbenchError(
                f"{device} has no room for {run.net_name} at batch {run.recipe.batch_size}. Free it of other programs, "
                "or choose another (`--device`). The run is kept up to its last checkpoint."
            ) from error


def _records(runs: list[PlannedRun], store: Store) -> dict[str, Record | None]:
    return {run.id: store.directory(run.id).read_record() for run in runs}


def _remaining(runs: list[PlannedRun], records: dict[str, Record | None], limits: Limits) -> int:
    """Iterations that the command has to do, as far as records tell."""
    from paperbench.runs.executor import is_done

    total = 0
    for run in runs:
        record = records[run.id]
        if not is_done(record, run, limits):
            total += limits.last_iteration(run.recipe.iterations) - (record.iteration if record else 0)
    return total


def _print_plan(runs: list[PlannedRun], store: Store, limits: Limits) -> None:
    from tabulate import tabulate

    records = _records(runs, store)
    rows = []
    for run in runs:
        record = records[run.id]
        done, status = (record.iteration, record.status) if record else (0, "not started")
        goal = limits.last_iteration(run.recipe.iterations)
        rows.append((run.id, run.net_name, run.seed, ", ".join(run.cells), status, done, goal))
    print(tabulate(rows, ["run", "net", "seed", "cells", "status", "iteration", "goal"]))
    print(f"\n{len(runs)} runs, {_remaining(runs, records, limits):,} iterations to do.")
