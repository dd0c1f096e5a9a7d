"""paperbench compare TABLE: judge the published numbers and claims by a results directory."""

from __future__ import annotations

import argparse

from paperbench.cli.arguments import add_shared, command_for, name_left_out, name_other_profiles, number_of_runs
from paperbench.report import FORMATS

SUMMARY = "judge each cell and claim of a table"
DESCRIPTION = (
    "Judge the results in a results directory. The report fits $COLUMNS, else the terminal, else 80 columns. Exit "
    "status: 1 if a cell is worse or better than published, after Holm's correction over the cells compared, or fails "
    "where the paper's does not; else 0."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "table", "--cells", "--profile")
    parser.add_argument(
        "--seeds",
        type=number_of_runs,
        metavar="N",
        help="runs per cell, fixed beforehand (default: the table's); results are tested after N runs and, if "
        "these are too few, after 2N",
    )
    parser.add_argument("--format", choices=FORMATS, default="table", help="default: table")
    parser.add_argument(
        "--long",
        action="store_true",
        help="table: also show the errors of all runs, intervals, the evidence for claims, deviations from the paper, "
        "and the runs (the other formats always do)",
    )
    parser.add_argument(
        "--require",
        choices=("reproduced",),
        default="no difference",
        help="exit with 1 if any cell, including one without runs, is not reproduced",
    )
    add_shared(parser, "--results", "--tables")


def execute(args: argparse.Namespace) -> int:
    from paperbench.api import load_table
    from paperbench.report.grid import paragraph

    table = load_table(args.table, args.tables)
    judged = table.compare(args.results, cells=args.cells or "*", profile=args.profile, seeds=args.seeds)
    report = judged.render(args.format, args.require, long=args.long)
    print(report, end="" if report.endswith("\n") else "\n")
    if args.format == "table" and not judged.report.has_runs:
        print("\n" + paragraph(f"Next: `{command_for('run', args)}`"))
    name_left_out(judged.left_out)
    name_other_profiles(args.results, judged.other_profiles)
    return 0 if judged.holds(args.require) else 1
