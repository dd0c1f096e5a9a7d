"""paperbench list: the tables and profiles there are."""

from __future__ import annotations

import argparse

from paperbench.cli.arguments import Subparsers, add_tables_root


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("list", help="list tables and profiles")
    add_tables_root(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    from tabulate import tabulate

    from paperbench.specs.table import find_spec_root, load_experiment, load_profiles, table_ids

    root = find_spec_root(args.tables)
    tables = [load_experiment(table, root) for table in table_ids(root)]
    rows = [(t.table, sum(len(r.cells) for r in t.rows if not r.on_request), t.seeds, t.title) for t in tables]
    print(tabulate(rows, ["table", "cells", "seeds", "title"]))
    print()
    profiles = load_profiles(root).profiles
    print(tabulate([(name, profile.title) for name, profile in profiles.items()], ["profile", "what it runs"]))
    return 0
