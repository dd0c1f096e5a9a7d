"""paperbench show TABLE: the published numbers, the recipes and the nets."""

from __future__ import annotations

import argparse

from paperbench.cli.arguments import Subparsers, add_profile, add_table, add_tables_root


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("show", help="show a table as published, its recipe and its nets")
    add_table(parser)
    add_profile(parser)
    parser.add_argument(
        "--long",
        action="store_true",
        help="also show sources and notes, claims, public re-implementations, and all settings of the recipes",
    )
    add_tables_root(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    from paperbench.report.published import describe
    from paperbench.specs.locate import spec_root
    from paperbench.specs.table import load_table

    print(describe(load_table(args.table, spec_root(args.tables)), args.profile, args.long))
    return 0
