"""paperbench show TABLE: the published numbers, the recipe, and the net of each cell."""

from __future__ import annotations

import argparse

from paperbench.cli.arguments import Subparsers, add_profile, add_table, add_tables_root


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("show", help="show a table as published, with its claims, nets and recipe")
    add_table(parser)
    add_profile(parser)
    add_tables_root(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    from paperbench.report.published import describe
    from paperbench.specs.locate import spec_root
    from paperbench.specs.table import load_table

    print(describe(load_table(args.table, spec_root(args.tables)), args.profile))
    return 0
