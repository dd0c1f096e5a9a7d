"""paperbench list: all tables and profiles."""

from __future__ import annotations

import argparse

from paperbench.cli.arguments import add_shared
from paperbench.errors import listing

SUMMARY = "list the tables and profiles"
DESCRIPTION = (
    "List the tables and profiles. A table that cannot be read is listed with the first thing that is wrong with it. "
    "Then the exit status is 1; the other tables work."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "--tables")


def execute(args: argparse.Namespace) -> int:
    from paperbench.report.grid import NOTHING, Grid, as_text, paragraph
    from paperbench.specs.table import find_spec_root, load_profiles, read_tables
    from paperbench.specs.table_files import tables_here

    root = find_spec_root(args.tables)
    wrong: dict[str, str] = {}
    rows = []
    for table in (one.experiment for one in read_tables(root, wrong.__setitem__)):
        on_request = sum(len(row.cells) for row in table.rows if row.on_request)
        usual = sum(len(row.cells) for row in table.rows) - on_request
        cells = f"{usual} + {on_request} on request" if on_request else str(usual)
        rows.append((table.table, cells, str(table.seeds), table.title))
    rows = sorted([*rows, *((name, NOTHING, NOTHING, f"cannot be read: {why}") for name, why in wrong.items())])
    headers = ("table", "cells", "runs per cell", "title")
    print(as_text(Grid(headers, tuple(rows), ("left", "left", "right", "left"))))
    print()
    profiles = [(name, profile.title) for name, profile in load_profiles(root).profiles.items()]
    print(as_text(Grid(("profile", "title"), tuple(profiles), ("left", "left"))))
    next_steps = (
        "Next: `paperbench show table2` prints the published numbers, the recipe and the nets. `paperbench run table2 "
        "--profile smoke` trains small nets in minutes; without --profile it runs the paper's experiment."
    )
    if here := tables_here():
        next_steps = f"./experiments has others: {listing(here)}. `paperbench list --tables .` lists them."
    if args.tables is None:
        print("\n" + paragraph(next_steps))
    return 1 if wrong else 0
