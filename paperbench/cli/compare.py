"""paperbench compare TABLE: published numbers and those in a results directory."""

from __future__ import annotations

import argparse
import sys

from paperbench.cli.arguments import (
    Subparsers,
    add_cells,
    add_profile,
    add_results,
    add_table,
    add_tables_root,
    print_complaints,
)


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("compare", help="put recorded runs beside the published numbers")
    add_table(parser)
    add_cells(parser)
    add_profile(parser)
    parser.add_argument("--format", choices=("table", "markdown"), default="table", help="default: table")
    add_results(parser)
    add_tables_root(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    from paperbench.compare.comparison import compare
    from paperbench.errors import PaperbenchError
    from paperbench.report.comparison import render
    from paperbench.runs.store import Store
    from paperbench.specs.locate import spec_root
    from paperbench.specs.table import load_table

    table = load_table(args.table, spec_root(args.tables))
    cells = table.cells(args.cells)
    table.profiles.named(args.profile)
    if not args.results.is_dir():
        raise PaperbenchError(
            f"{args.results} is no directory. "
            f"`paperbench run {table.id} --profile {args.profile} --results {args.results}` makes one with results."
        )
    store = Store(args.results)
    found = store.records()
    print(render(compare(table, cells, args.profile, found.records), store, args.format))
    print_complaints(found)
    elsewhere = sorted({r.spec.profile for r in found.records} - {args.profile})
    if elsewhere:
        profiles = " or ".join(elsewhere)
        print(
            f"paperbench: {args.results} has runs of other profiles: --profile {profiles} shows them.", file=sys.stderr
        )
    return 0
