"""paperbench list: all tables and profiles."""

from __future__ import annotations

import argparse

from paperbench.cli.arguments import add_shared

SUMMARY = "list the tables and profiles"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "--tables")


def execute(args: argparse.Namespace) -> int:
    from paperbench.report.grid import Grid, as_text, paragraph
    from paperbench.specs.table import find_spec_root, load_experiment, load_profiles, table_ids

    root = find_spec_root(args.tables)
    tables = [load_experiment(table, root) for table in table_ids(root)]
    rows = []
    for table in tables:
        on_request = sum(len(row.cells) for row in table.rows if row.on_request)
        usual = sum(len(row.cells) for row in table.rows) - on_request
        cells = f"{usual} + {on_request} on request" if on_request else str(usual)
        rows.append((table.table, cells, str(table.seeds), table.title))
    headers = ("table", "cells", "runs per cell", "title")
    print(as_text(Grid(headers, tuple(rows), ("left", "left", "right", "left"))))
    print()
    profiles = [(name, profile.title) for name, profile in load_profiles(root).profiles.items()]
    print(as_text(Grid(("profile", "title"), tuple(profiles), ("left", "left"))))
    next_steps = (
        "Next: `paperbench show table2` prints the published numbers, the recipe and the nets. `paperbench run table2 "
        "--profile smoke` trains small nets in minutes; without --profile it runs the paper's experiment."
    )
    print("\n" + paragraph(next_steps))
    return 0
