"""paperbench report [TABLES ...] --out DIR: published tables beside our runs, as one page of HTML."""

from __future__ import annotations

import argparse
from pathlib import Path

from paperbench.cli.arguments import add_shared, name_left_out

SUMMARY = "write a page with tables, verdicts, curves and runs"
DESCRIPTION = (
    "Write DIR/index.html, one file that needs neither a network nor other files: the paper's tables beside our runs, "
    "verdicts, intervals, claims, training curves, deviations, every run with its record, and how to repeat it."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} [TABLES ...] --out DIR [options]"
    parser.add_argument(
        "names", nargs="*", metavar="TABLES", help="ids of tables, shown even without runs (default: all with runs)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", required=True, help="where to write index.html")
    help_ = "only runs of these profiles (default: all)"
    add_shared(parser, "--profile", action="extend", nargs="+", default=[], help=help_)
    add_shared(parser, "--cells")
    add_shared(parser, "--seeds", help="runs per cell, as for compare")
    add_shared(parser, "--results", "--tables")


def execute(args: argparse.Namespace) -> int:
    from paperbench.api import make_page

    how = {"results": args.results, "profiles": args.profile, "seeds": args.seeds, "root": args.tables}
    page = make_page(*args.names, cells=args.cells or "*", **how)
    print(f"Wrote {page.write(args.out)}: {', '.join(' '.join(one) for one in page.tables)}.")
    name_left_out(page.left_out)
    return 0
