"""paperbench plan TABLE: what runs cost and what they would decide, before they are trained."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from paperbench.cli.arguments import add_shared, name_left_out, plan_of, positive_points, rate, warn
from paperbench.cli.output import add_format, print_json
from paperbench.errors import PaperbenchError, one_line
from paperbench.options import command, positive_int

if TYPE_CHECKING:
    from paperbench.api import Plan
    from paperbench.compare.power import NextRuns, Outlook

SUMMARY = "estimate what runs cost and what they would decide, before training them"
DESCRIPTION = (
    "List the runs of a table, their status, and the hours of one device (by measured training steps), memory and disk "
    "space that they need. Then simulate how likely N runs per cell are to decide each verdict and claim, and list the "
    "runs that are worth most next. Needs no data, but cannot tell without it which runs are done."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "table", "--cells", "--profile", "--set")
    help_ = "runs per cell (default: the table's, or the profile's); 2N, the extension, are simulated, too"
    add_shared(parser, "--seeds", help=help_)
    parser.add_argument(
        "--rate",
        type=rate,
        action="append",
        default=[],
        metavar="NET=N",
        help="images per second of a net, such as preact_resnet110=2000: estimate all nets of its kind from that "
        "instead of a measured step, and for a GPU that is not here nets of other kinds, too; repeatable",
    )
    help_ = "devices such as this one that take runs at once, as with `run --executor`: say how long they take, too"
    parser.add_argument("--workers", type=positive_int, default=1, metavar="N", help=help_)
    parser.add_argument(
        "--claim",
        action="append",
        metavar="'A < B'",
        help="also simulate how likely this is decided, such as 'preact/resnet110 < original/resnet110' or 'A < B by "
        "0.5' points of test error; repeatable",
    )
    parser.add_argument(
        "--std",
        type=positive_points,
        metavar="S",
        help="standard deviation between runs, in percentage points (default: that of the runs at hand; without "
        "any, typical of those that the authors print)",
    )
    parser.add_argument("--long", action="store_true", help="list all cells that need runs")
    add_shared(
        parser, "--precision", "--device", "--engine", "--at-once", "--stop-at", "--data", "--results", "--tables"
    )
    add_format(parser)


def execute(args: argparse.Namespace) -> int:
    from paperbench.report.grid import paragraph
    from paperbench.report.outlook import render, valuable
    from paperbench.report.planned import render as render_plan

    outlook, problem = _outlook(args)
    plan = plan_of(args, estimate_only=True)
    cost, unmeasured = None, ""
    try:
        cost = plan.cost(dict(args.rate)) if plan.remaining else None
    except PaperbenchError as error:
        if args.rate:
            raise
        warn(unmeasured := f"could not measure how long this takes: {error}")
    document = plan.document(cost, args.workers)
    if args.format == "json":
        warnings = (*document.warnings, *filter(None, [one_line(unmeasured)]))
        print_json(replace(document, outlook=outlook, not_simulated=problem, warnings=warnings))
        return 0
    profile = "" if args.profile == "paper" else f", profile {args.profile}"
    print(paragraph(f"{plan.table.table.name}{profile}: what its runs cost"))
    print(render_plan(document))
    if plan.missing_data:
        print(paragraph("Status unknown: ids of runs depend on their data, so without it none can be looked up."))
    heading, commands = "Next, train them:", [command("run", plan.selection, plan.training)]
    if not plan.remaining:
        heading, commands = "Next, print the report:", [plan.compare_command]
    if outlook:
        print(f"\n{render(outlook, args.long)}")
        name_left_out(outlook.left_out)
        runs = valuable(outlook)
        heading, commands = "Train the first of these:", _commands(plan, outlook, runs[0]) if runs else []
    for sentence in filter(None, (*plan.missing_data, problem)):
        print(f"\n{sentence}")
    if commands:
        print(f"\n{heading}", *commands, sep="\n")  # unwrapped, so that they can be copied
    return 0


def _outlook(args: argparse.Namespace) -> tuple[Outlook | None, str]:
    """Return what runs of the paper's profile would decide, and why that cannot be simulated if so."""
    from paperbench.api import load_table
    from paperbench.compare.power import NotSimulatedError

    if args.profile != "paper":
        if args.claim:
            raise PaperbenchError("--claim is about the paper's errors. Omit --profile and --set.")
        return None, ""
    table, results = load_table(args.table, args.tables), args.results if args.results.exists() else None
    try:
        how = {"cells": args.cells or "*", "seeds": args.seeds, "std": args.std, "claims": args.claim or ()}
        return table.outlook(results, **how), ""
    except NotSimulatedError as error:
        return None, str(error)


def _commands(plan: Plan, outlook: Outlook, first: NextRuns) -> list[str]:
    """Return the command that trains some runs and, under a heading, the one that judges them if it needs options."""
    table = plan.table.table
    usual = table.seeds_in(table.profiles.named("paper"))
    judge = ["Then compare with the options that you planned with:", command("compare", plan.selection)]
    seeds = first.total if first.total != usual else None
    train = command("run", replace(plan.selection, cells=first.cells[:1], seeds=seeds), plan.training)
    return [train, *(judge if outlook.planned != usual else ())]
