"""paperbench plan TABLE: what runs would decide, before they are trained."""

from __future__ import annotations

import argparse
import sys

from paperbench.cli.arguments import DEFAULT_RESULTS, add_shared, command_for, number_of_runs, positive_points

SUMMARY = "estimate what runs would decide, before training them"
DESCRIPTION = (
    "Estimate the chance of each verdict and claim after N runs per cell, and list the runs that are worth most next. "
    "It simulates the paper's experiment, judged as by `paperbench compare`, and trains nothing."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "table", "--cells")
    parser.add_argument(
        "--seeds",
        type=number_of_runs,
        metavar="N",
        help="runs per cell (default: the table's); 2N, the extension, are simulated, too",
    )
    parser.add_argument(
        "--std",
        type=positive_points,
        metavar="S",
        help="standard deviation between runs, in percentage points (default: that of the runs at hand; without "
        "any, typical of those that the authors print)",
    )
    add_shared(parser, "--noise")
    parser.add_argument("--long", action="store_true", help="list all cells that need runs")
    add_shared(parser, "--results", "--tables")


def execute(args: argparse.Namespace) -> int:
    from paperbench.api import load_table
    from paperbench.report.outlook import render, valuable

    is_first = args.results == DEFAULT_RESULTS and not args.results.exists()
    table = load_table(args.table, args.tables)
    outlook = table.outlook(
        None if is_first else args.results, cells=args.cells or "*", seeds=args.seeds, noise=args.noise, std=args.std
    )
    print(render(outlook, args.long))
    for sentence in outlook.left_out:
        print(f"paperbench: left out: {sentence}", file=sys.stderr)
    if runs := valuable(outlook):
        usual = table.table.seeds_in(table.table.profiles.named("paper"))
        noise = "" if args.noise == "table" else f" --noise {args.noise}"
        judge = f"{command_for('compare', args)}{noise}" if noise or outlook.planned != usual else ""
        args.cells, args.seeds = [runs[0].cells[0]], runs[0].total if runs[0].total != usual else None
        print(f"\nTrain the first of these:\n{command_for('run', args)}")  # unwrapped, so that it can be copied
        if judge:
            print(f"Then compare with the options that you planned with:\n{judge}")
    return 0
