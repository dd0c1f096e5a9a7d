"""paperbench show TABLE: the published numbers, the recipes and the nets."""

from __future__ import annotations

import argparse

from paperbench.cli.arguments import add_shared
from paperbench.cli.output import add_format, print_json

SUMMARY = "show a table as published, its recipe and its nets"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "table", "--profile", "--set")
    parser.add_argument(
        "--long", action="store_true", help="also show sources and notes, claims, and public re-implementations"
    )
    add_shared(parser, "--tables")
    add_format(parser)


def execute(args: argparse.Namespace) -> int:
    from paperbench.report.published import ShownTable, describe
    from paperbench.specs.table import find_spec_root, read_table

    table = read_table(args.table, find_spec_root(args.tables))
    if args.format == "json":
        print_json(ShownTable.of(table, args.profile))
    else:
        print(describe(table, args.profile, args.long))
    return 0
