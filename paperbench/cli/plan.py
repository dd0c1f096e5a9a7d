"""paperbench plan TABLE: what runs would decide, before they are trained."""

from __future__ import annotations

import argparse

from paperbench.cli.arguments import DEFAULT_RESULTS, add_shared, command_for, number_of_runs, positive_points

SUMMARY = "say what N runs per cell would decide"
DESCRIPTION = (
    "Simulate the paper's experiment with the rules of `paperbench compare`: the chance of each verdict and claim "
    "after N runs per cell, and which runs are worth most next. Trains nothing."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "table", "--cells")
    parser.add_argument(
        "--seeds", type=number_of_runs, metavar="N", help="runs per cell (default: the table's); 2N with the extension"
    )
    parser.add_argument(
        "--std",
        type=positive_points,
        metavar="S",
        help="standard deviation between runs, in percentage points (default: as in the runs at hand, or without any "
        "as the authors print)",
    )
    add_shared(parser, "--noise")
    parser.add_argument("--long", action="store_true", help="list all cells that need runs")
    add_shared(parser, "--results", "--tables")


def execute(args: argparse.Namespace) -> int:
    from paperbench.api import load_table
    from paperbench.report.grid import paragraph
    from paperbench.report.outlook import render

    is_first = args.results == DEFAULT_RESULTS and not args.results.exists()
    outlook = load_table(args.table, args.tables).outlook(
        None if is_first else args.results, cells=args.cells or "*", seeds=args.seeds, noise=args.noise, std=args.std
    )
    print(render(outlook, args.long))
    if outlook.next_runs:
        args.cells, args.seeds = [outlook.next_runs[0].cell], outlook.next_runs[0].total
        print("\n" + paragraph(f"`{command_for('run', args)}` trains the first of these."))
    return 0
