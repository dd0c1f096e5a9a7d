"""paperbench init DIR: a table of one's own, to be changed."""

from __future__ import annotations

import argparse
import re
from importlib.resources import files
from pathlib import Path

from paperbench.errors import PaperbenchError
from paperbench.files import write_named
from paperbench.options import Selection, command

SUMMARY = "write a table of your own, which trains as it is"
DESCRIPTION = (
    "Write DIR/experiments/NAME.yaml, a small table with comments, and DIR/nets.py, a net of your own for it. NAME is "
    "made of the directory's name. Nothing is overwritten."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help="a directory, which is made if needed")


def execute(args: argparse.Namespace) -> int:
    from paperbench.report.grid import paragraph
    from paperbench.specs.table import find_spec_root, table_ids

    root: Path = args.directory
    name = re.sub("[^a-z0-9]+", "_", root.resolve().name.lower()).strip("_") or "table"
    if name in ("table", "profiles", *table_ids(find_spec_root())):  # which would be no id, or another's
        name = f"my_{name}"
    template = files("paperbench.cli") / "template"
    sources = {root / "experiments" / f"{name}.yaml": "table.yaml", root / "nets.py": "nets.py"}
    if existing := [path for path in sources if path.exists()]:
        raise PaperbenchError(f"{existing[0]} exists already. Name another directory, or move it away.")
    for path, source in sources.items():
        write_named(path, (template / source).read_bytes().replace(b"my_table", name.encode()), "DIR")
    table, small = (Selection(name, profile=profile, root=root) for profile in ("paper", "smoke"))
    commands = command("show", table), command("run", small), command("report", table, None, "--out=page")
    print("\n  ".join([f"Wrote {' and '.join(map(str, sources))}. Next:", *commands]))
    print(paragraph("The second trains small nets on digits, in minutes on two cores. There, leave out --tables."))
    return 0
