"""paperbench list: all tables and profiles."""

from __future__ import annotations

import argparse
from pathlib import Path

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
    from paperbench.specs.table import find_spec_root, load_profiles, read_tables, table_ids

    root = find_spec_root(args.tables)
    wrong: dict[str, str] = {}
    tables = {table.id: table.experiment for table in read_tables(root, wrong.__setitem__)}
    rows = []
    for name in table_ids(root):
        if name in wrong:
            rows.append((name, NOTHING, NOTHING, f"cannot be read: {wrong[name]}"))
            continue
        table = tables[name]
        on_request = sum(len(row.cells) for row in table.rows if row.on_request)
        usual = sum(len(row.cells) for row in table.rows) - on_request
        cells = f"{usual} + {on_request} on request" if on_request else str(usual)
        rows.append((name, cells, str(table.seeds), table.title))
    headers = ("table", "cells", "runs per cell", "title")
    print(as_text(Grid(headers, tuple(rows), ("left", "left", "right", "left"))))
    print()
    profiles = [(name, profile.title) for name, profile in load_profiles(root).profiles.items()]
    print(as_text(Grid(("profile", "title"), tuple(profiles), ("left", "left"))))
    next_steps = (
        "Next: `paperbench show table2` prints the published numbers, the recipe and the nets. `paperbench run table2 "
        "--profile smoke` trains small nets in minutes; without --profile it runs the paper's experiment."
    )
    further = [] if args.tables else sorted({*table_ids(Path())} - {*table_ids(root)})
    if further:
        next_steps = f"./experiments has further files: {listing(further)}. `paperbench list --tables .` lists them."
    print("\n" + paragraph(next_steps))
    return 1 if wrong else 0
