"""paperbench compare TABLE: judge the published numbers and claims by a results directory."""

from __future__ import annotations

import argparse
from pathlib import Path

from paperbench.cli.arguments import add_shared, chosen, name_left_out, name_other_profiles, positive_points
from paperbench.errors import PaperbenchError
from paperbench.options import Selection, command
from paperbench.report import FORMATS

SUMMARY = "judge each cell and claim of a table"
DESCRIPTION = (
    "Judge the results in a results directory. The report fits $COLUMNS, else the terminal, else 80 columns. Exit "
    "status: 1 if a cell is worse or better than published, after Holm's correction over the cells compared, or fails "
    "where the paper's does not; else 0."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "table", "--cells", "--profile", "--set")
    add_shared(
        parser,
        "--seeds",
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
    parser.add_argument("--no-notes", action="store_true", help="latex: without our notes below the table")
    parser.add_argument(
        "--cite", action="store_true", help="print BibTeX entries: what to quote of this comparison, and the paper"
    )
    help_ = "exit with 1 if any cell, including one without runs, is not reproduced"
    parser.add_argument("--require", choices=("reproduced",), default="no difference", help=help_)
    parser.add_argument(
        "--against",
        type=Path,
        metavar="DIR",
        help="compare with the runs of this results directory, not with the paper. Exit status: 1 if a net differs; "
        "else 3 if one cannot be judged; else 0",
    )
    help_ = "with --against: smallest difference of test errors that matters (default: 1)"
    parser.add_argument("--margin", type=positive_points, metavar="POINTS", help=help_)
    add_shared(parser, "--results", "--tables")


def execute(args: argparse.Namespace) -> int:
    from paperbench.api import load_table
    from paperbench.report import latex
    from paperbench.report.grid import paragraph

    if args.against is not None:
        return _compare_against(args)
    if args.margin is not None:
        raise PaperbenchError("--margin goes with --against. The paper's cells have tolerances of their own.")
    if args.no_notes and args.format != "latex":
        raise PaperbenchError("--no-notes is for --format latex. The other formats are complete.")
    if args.cite and (args.format != "table" or args.long or args.require == "reproduced"):
        raise PaperbenchError("--cite prints BibTeX entries alone. Leave out --format, --long and --require.")
    table = load_table(args.table, args.tables)
    judged = table.compare(args.results, cells=args.cells or "*", profile=args.profile, seeds=args.seeds)
    if args.cite:
        report = latex.cite(judged.report)
    else:
        report = judged.render(args.format, args.require, long=args.long, has_notes=not args.no_notes)
    print(report, end="" if report.endswith("\n") else "\n")
    if args.format == "table" and not judged.report.has_runs and not args.cite:
        print("\n" + paragraph(f"Next: `{command('run', chosen(Selection, args))}`"))
    name_left_out(judged.left_out)
    name_other_profiles(args.results, judged.other_profiles)
    return 0 if args.cite or judged.holds(args.require) else 1


def _compare_against(args: argparse.Namespace) -> int:
    from paperbench.api import load_table
    from paperbench.report import against, json_format, junit

    formats = {"table": against.render, "json": json_format.render, "junit": junit.render_changes}
    if args.format not in formats or args.seeds or args.long or args.cite or args.require == "reproduced":
        known = " or ".join(formats)
        raise PaperbenchError(f"With --against, leave out --seeds, --long, --cite and --require; --format is {known}.")
    table, how = load_table(args.table, args.tables), {"profile": args.profile, "margin": args.margin or 1.0}
    changes = table.compare_against(args.against, args.results, cells=args.cells or "*", **how)
    print(formats[args.format](changes), end="")
    name_left_out(changes.left_out)
    return changes.exit_status
