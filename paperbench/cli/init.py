"""paperbench init DIR: a table of one's own, or a copy of an example, to be changed."""

from __future__ import annotations

import argparse
import re
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from paperbench.errors import PaperbenchError, listing
from paperbench.files import write_named
from paperbench.options import Selection, command

SUMMARY = "write a table of your own, which trains as it is"
DESCRIPTION = (
    "Write DIR/experiments/NAME.yaml, a small table with comments, and DIR/nets.py, a net of your own for it. NAME is "
    "made of the directory's name. With --from, copy an example instead. Nothing is overwritten."
)
EXAMPLES = ("lab", "own_table", "own_unit", "recipes_by_depth", "resnet_v1")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help="a directory, which is made if needed")
    help_ = f"copy an example: {', '.join(EXAMPLES)}; docs/extending.md and docs/lab.md describe them"
    parser.add_argument("--from", dest="example", choices=EXAMPLES, metavar="NAME", help=help_)


def execute(args: argparse.Namespace) -> int:
    from paperbench.report.grid import paragraph
    from paperbench.specs.table import find_spec_root, load_profiles, table_ids

    root, specs = args.directory, find_spec_root()
    if args.example:
        example = specs / "examples" / args.example
        (name,) = table_ids(example)
        copied = (path for path in sorted(example.rglob("*")) if path.suffix in (".yaml", ".py", ".ipynb"))
        sources: dict[Path, Traversable] = {root / path.relative_to(example): path for path in copied}
    else:
        name = re.sub("[^a-z0-9]+", "_", root.resolve().name.lower()).strip("_") or "table"
        if name in ("table", "profiles", *table_ids(specs)):  # which would be no id, or another's
            name = f"my_{name}"
        table, nets = (files("paperbench.cli") / "template" / file for file in ("table.yaml", "nets.py"))
        sources = {root / "experiments" / f"{name}.yaml": table, root / "nets.py": nets}
    if existing := [path for path in sources if path.exists()]:
        raise PaperbenchError(f"{existing[0]} exists already. Name another directory, or move it away.")
    for path, source in sources.items():
        write_named(path, source.read_bytes().replace(b"my_table", name.encode()), "DIR")
    whole, small = Selection(name, root=root), Selection(name, profile="smoke", root=root)
    if "smoke" not in load_profiles(root).profiles:
        small = Selection(name, seeds=1, root=root)
    commands = command("show", whole), command("run", small), command("report", whole, None, "--out=page")
    print("\n  ".join([f"Wrote {listing([*map(str, sources)])}. Next:", *commands]))
    print(paragraph("The second trains small nets on digits, in minutes on two cores. There, leave out --tables."))
    return 0
