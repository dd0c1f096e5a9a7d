"""paperbench runs: what a results directory holds and takes, and the deletion of what no result needs."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import get_args

from paperbench.cli.arguments import add_shared
from paperbench.errors import count, format_bytes, one_line
from paperbench.options import Deletable

SUMMARY = "say what a results directory holds and takes; delete what no result needs"
DESCRIPTION = (
    "Count the files of a results directory and their bytes. --delete first deletes what no result needs: checkpoints "
    "of finished runs whose trained net is there and whole, superseded runs, files set aside as damaged, and what "
    "killed processes left. It says what it kept, and why: never is anything deleted in a run that a process works on."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "--results")
    kinds = get_args(Deletable)
    parser.add_argument("--delete", nargs="+", choices=kinds, default=(), metavar="KIND", help=", ".join(kinds))
    parser.add_argument("--long", action="store_true", help="also list the runs")


def execute(args: argparse.Namespace) -> int:
    from paperbench.report.grid import Grid, as_text
    from paperbench.runs.housekeeping import KINDS, delete, survey
    from paperbench.runs.store import Store

    store = Store.existing(args.results)
    for files, why_kept in delete(store, args.delete):
        what, size = KINDS[files[0].kind][0], format_bytes(sum(file.size for file in files))
        done = f"kept, as {why_kept}" if why_kept else "deleted"
        print(one_line(f"{files[0].path.parent}: {count(len(files), 'file')} ({what}), {size}: {done}."), flush=True)
    files, of_runs = [*survey(store)], Counter[str]()
    sizes = {what: [file.size for file in files if file.kind == kind] for kind, (what, _) in KINDS.items()}
    sizes["all"] = [file.size for file in files]
    rows = [(what, f"{len(some):,}", format_bytes(sum(some))) for what, some in sizes.items() if some]
    print(as_text(Grid(("files", "number", "size"), tuple(rows), ("left", "right", "right"))))
    if args.long:
        for file in files:
            of_runs[file.run] += file.size if file.kind != "superseded" else 0
        runs = []
        for run in sorted(filter(None, of_runs)):
            record = store.readable_record(run)
            known = (one_line(record.net), str(record.seed), record.status) if record else ("", "", "no record")
            runs.append((run, *known, format_bytes(of_runs[run])))
        headers, alignment = ("run", "net", "seed", "status", "size"), ("left", "left", "right", "left", "right")
        print(f"\n{as_text(Grid(headers, tuple(runs), alignment))}")
    return 0
