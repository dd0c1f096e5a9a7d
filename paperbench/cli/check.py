"""paperbench check WHAT: find out the facts of nets and their training, and compare them with earlier ones."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from paperbench.cli.arguments import add_settings, add_shared, name_left_out
from paperbench.errors import PaperbenchError
from paperbench.options import parse_settings, positive_int

if TYPE_CHECKING:
    from paperbench.runs.check import Subject
    from paperbench.specs.facts import Facts

SUMMARY = "find out whether a net, or its training, is still the same"
DESCRIPTION = (
    "Find out facts of nets and their training that no machine changes: layers, initialisation, weight decay, learning "
    "rates, images, and outputs and gradients in float64. Compare them with those in a file, or those with which runs "
    "were trained. Exit status: 1 if any differs, else 0."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} WHAT [WHAT ...] [options]"
    parser.add_argument(
        "what",
        nargs="+",
        metavar="WHAT",
        help="a table, such as table2: its nets; a net, such as preact_resnet164; a run (its id or directory), which "
        "is compared with itself; timm:NAME; or MODULE:FUNCTION, which makes a net",
    )
    parser.add_argument(
        "--against", type=Path, metavar="PATH", help="a file that --save wrote, or a results directory with runs"
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep the facts in this file, as JSON")
    add_settings(parser)
    add_shared(parser, "--cells", "--profile")
    parser.add_argument(
        "--size", type=positive_int, metavar="N", help="of a net of another library: side of its images in pixels"
    )
    add_shared(parser, "--results", "--tables")


def execute(args: argparse.Namespace) -> int:
    from paperbench.ambient import neutral
    from paperbench.files import write_named
    from paperbench.runs.check import earlier_facts, subjects
    from paperbench.specs.facts import FactsFile, difference
    from paperbench.specs.table import find_spec_root

    root, settings = find_spec_root(args.tables), parse_settings(args.settings)
    found: dict[str, Subject] = {}
    for what in args.what:
        of_table = args.profile, args.cells or ("*",)
        found |= {one.name: one for one in subjects(what, settings, root, *of_table, args.results, args.size)}
    is_of_runs = args.against and args.against.is_dir()
    if is_of_runs:
        found = {name: one for name, one in found.items() if one.training}
    earlier = earlier_facts(args.against, name_left_out)
    if is_of_runs and not any(map(earlier, found.values())):
        raise PaperbenchError(f"{args.against} has no runs of these trainings with facts. Train some, or name a file.")
    facts: dict[str, Facts] = {}
    outcomes: Counter[str] = Counter()
    with neutral():
        for name, subject in found.items():
            now = facts[name] = subject.find()
            before = earlier(subject)
            differences = [f"{text} ({where})" for where, one in before.items() if (text := difference(one, now))]
            outcome = "different" if differences else "equal" if before else "not compared"
            outcomes[outcome] += 1
            print(f"{outcome:<13} {name}: {differences[0] if differences else now.hash}", flush=True)
    print(", ".join(f"{number} {outcome}" for outcome, number in outcomes.items()) + ".")
    if args.save:
        write_named(args.save, FactsFile(1, facts).to_bytes(), "--save FILE")
        print(f"Wrote {args.save}.")
    is_lacking = args.against and not is_of_runs and outcomes["not compared"]
    return 1 if outcomes["different"] or is_lacking else 0
