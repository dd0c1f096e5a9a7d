"""paperbench list: all tables and profiles."""

from __future__ import annotations

import argparse

from paperbench.cli.arguments import add_shared
from paperbench.cli.output import add_format, print_json
from paperbench.errors import listing

SUMMARY = "list the tables and profiles"
DESCRIPTION = (
    "List the tables and profiles. A table that cannot be read is listed with the first thing that is wrong with it. "
    "Then the exit status is 1; the other tables work."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "--tables")
    add_format(parser)


def execute(args: argparse.Namespace) -> int:
    from paperbench.report.grid import paragraph
    from paperbench.report.published import TableList, render_list
    from paperbench.specs.table import find_spec_root
    from paperbench.specs.table_files import tables_here

    found = TableList.read(find_spec_root(args.tables))
    if args.format == "json":
        print_json(found)
        return 1 if found.left_out else 0
    print(render_list(found))
    next_steps = (
        "Next: `paperbench show table2` prints the published numbers, the recipe and the nets. `paperbench run table2 "
        "--profile smoke` trains small nets in minutes; without --profile it runs the paper's experiment."
    )
    if here := tables_here():
        next_steps = f"./experiments has others: {listing(here)}. `paperbench list --tables .` lists them."
    if args.tables is None:
        print("\n" + paragraph(next_steps))
    return 1 if found.left_out else 0
