"""paperbench list: all tables and profiles."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from paperbench.cli.arguments import Subparsers, add_tables_root

NEXT_STEPS = (
    "Next: `paperbench show table2` prints the published numbers, the recipe and the nets. `paperbench run table2 "
    "--profile smoke` trains small nets in minutes; without --profile it runs the paper's experiment."
)


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("list", help="list the tables and profiles")
    add_tables_root(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    from paperbench.report.grid import paragraph
    from paperbench.specs.locate import spec_root
    from paperbench.specs.table import load_experiment, load_profiles, table_ids

    root = spec_root(args.tables)
    tables = [load_experiment(table, root) for table in table_ids(root)]
    rows = [
        (table.table, sum(len(row.cells) for row in table.rows if not row.on_request), table.seeds, table.title)
        for table in tables
    ]
    print(_table(rows, ["table", "cells", "runs per cell", "title"]))
    print()
    profiles = load_profiles(root).profiles
    print(_table([(name, profile.title) for name, profile in profiles.items()], ["profile", "title"]))
    print("\n" + paragraph(NEXT_STEPS))
    return 0


def _table(rows: Sequence[tuple[object, ...]], headers: Sequence[str]) -> str:
    """Lay out a table whose last column is wrapped to the terminal's width."""
    from tabulate import MIN_PADDING, tabulate

    from paperbench.report.grid import terminal_width

    columns = list(zip(*rows, strict=True))[:-1]
    widths = [
        max(len(header) + MIN_PADDING, *(len(str(text)) for text in column))
        for header, column in zip(headers, columns, strict=False)
    ]
    rest = terminal_width() - sum(widths) - 2 * len(widths)
    return tabulate(rows, headers, maxcolwidths=[*[None] * len(widths), max(rest, 20)])
