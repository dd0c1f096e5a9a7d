"""paperbench show TABLE: the published numbers, the recipes and the nets."""

from __future__ import annotations

import argparse

from paperbench.cli.arguments import add_shared

SUMMARY = "show a table as published, its recipe and its nets"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "table", "--profile", "--set")
    parser.add_argument(
        "--long", action="store_true", help="also show sources and notes, claims, and public re-implementations"
    )
    add_shared(parser, "--tables")


def execute(args: argparse.Namespace) -> int:
    from paperbench.report.published import describe
    from paperbench.specs.table import find_spec_root, read_table

    print(describe(read_table(args.table, find_spec_root(args.tables)), args.profile, args.long))
    return 0
