"""paperbench run TABLE: train what the table still lacks, then print it."""

from __future__ import annotations

import argparse
import os
import sys

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
        "--seeds", type=number_of_runs, metavar="N", help="runs per cell (default: the table's, or the profile's)"
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
    from paperbench import api
    from paperbench.report.progress import Progress

    plan = api.plan(
        args.table,
        args.results,
        cells=args.cells,
        profile=args.profile,
        seeds=args.seeds,
        precision=args.precision,
        device=args.device,
        engine=args.engine,
        data=args.data,
        stop_at=args.stop_at,
        max_seconds=args.max_seconds,
        incompatible=args.incompatible,
        root=args.tables,
    )
    for row in plan.unnamed_rows if args.cells != "*" else ():
        print(f"paperbench: not run: {row}, which must be named in full (`--cells {row}`).", file=sys.stderr)
    if args.dry_run:
        print(plan)
        return 0
    progress = Progress(plan.remaining, len(plan.runs), sys.stderr)
    outcome = api.run(plan, progress)
    left, failed = len(outcome.remaining), len(outcome.failed)
    for complaint in outcome.judged.complaints:
        progress.say(f"paperbench: left out: {complaint}")
    if left and outcome.is_cut_short:
        why = "stopped by a signal" if outcome.signal else f"{args.max_seconds:g} seconds are over"
        progress.say(f"paperbench: {why}; runs still to do: {left}.")
    elif left > failed:
        progress.say(f"paperbench: runs left to other processes: {left - failed}.")
    if failed:
        ids = ", ".join(run.id for run in outcome.failed)
        progress.say(f"paperbench: error: runs that failed, see above: {ids}")
    try:
        print(outcome.summary(), flush=True)
    except BrokenPipeError:  # the runs ended as they did, whether or not the summary is read
        discard_output()
    return 128 + outcome.signal if outcome.signal else 2 if failed else 0
