"""paperbench doctor: what this machine has, what `run` would take here, and what would fail."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from paperbench.cli.arguments import add_shared, tell
from paperbench.cli.output import add_format, print_json
from paperbench.errors import PaperbenchError, format_bytes

if TYPE_CHECKING:
    from paperbench.runs.diagnosis import Diagnosis

SUMMARY = "check whether this machine can train, and say what `run` would take"
DESCRIPTION = (
    "Print one page to read before the first run, or to paste into an issue: no host name, user name or path is in it. "
    "It lists the software, GPUs and data sets of this machine, what `run` would take for each table, and "
    "what would fail. It runs a small convolution on each GPU and loads the data sets. Exit status: 1 if anything "
    "would fail, else 0, even if data sets are missing."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "--device", "--data", "--results")
    add_format(parser)


def execute(args: argparse.Namespace) -> int:
    tell("examining this machine; this takes some seconds.")
    try:
        from paperbench.data.sources import data_directory
        from paperbench.runs.doctor import diagnose
        from paperbench.specs.table import find_spec_root, read_table, table_ids
    except ImportError as error:
        raise PaperbenchError(f"A library does not load: {error}. Install paperbench again.") from error
    root = find_spec_root()
    tables = [read_table(name, root) for name in table_ids(root)]
    found = diagnose(args.device, data_directory(args.data), args.results, tables)
    if args.format == "json":
        print_json(found)
    else:
        print(page(found))
    return int(bool(found.problems))


def page(found: Diagnosis) -> str:
    from paperbench.report.grid import Grid, as_text, paragraph

    indent = " " * 12
    blocks = ["\n".join(paragraph(f"{name:<12}{fact}", indent) for name, fact in found.facts.items())]
    if found.choices:
        headers, alignment = ("table", "precision", "engine", "memory"), ("left", "left", "left", "right")
        blocks.append(f"`paperbench run` takes, on {found.device}:")
        rows = ((one.table, one.precision, one.engine, format_bytes(one.memory)) for one in found.choices)
        blocks.append(as_text(Grid(headers, tuple(rows), alignment)))
        notes = ["memory: for a step of the largest net", *found.reasons]
        blocks.append("\n".join(paragraph(note, "  ") for note in notes))
    if found.missing:
        blocks.append("\n".join(["Missing data:", *(paragraph(f"- {one}", "  ") for one in found.missing)]))
    numbered = [paragraph(f"{number}. {problem}", "   ") for number, problem in enumerate(found.problems, 1)]
    return "\n\n".join([*blocks, "\n".join(["Problems:" if numbered else "No problem found.", *numbered])])
