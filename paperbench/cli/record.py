"""paperbench record TABLE CELL: record a result that was not trained here."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from paperbench.cli.arguments import add_shared, chosen
from paperbench.errors import PaperbenchError, listing, nearest
from paperbench.options import Selection, command

if TYPE_CHECKING:
    from paperbench.runs.external import ExternalResult
    from paperbench.specs.cell import Cell
    from paperbench.specs.experiment import Setting
    from paperbench.specs.table import Table

SUMMARY = "record a result that was not trained here"
DESCRIPTION = (
    "Record a result that was not trained here. It is marked as external: `compare` shows it with its source and never "
    "pools it with your own runs."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shared(parser, "table")
    parser.usage = f"{parser.prog} TABLE CELL\n           --seed S --error E --source TEXT [options]"
    parser.add_argument("cell", metavar="CELL", help="id of one cell, row/column, such as preact/resnet110")
    parser.add_argument(
        "--seed", type=int, required=True, metavar="S", help="seed of the run, or another number that identifies it"
    )
    parser.add_argument(
        "--error", type=_error, required=True, metavar="E", help="test error in percent, such as 6.37, or: diverged"
    )
    parser.add_argument(
        "--below-1-percent", action="store_true", help="confirm that an error between 0 and 1 is in percent"
    )
    parser.add_argument(
        "--source", type=str.strip, required=True, metavar="TEXT", help="one line: who reports the result, and where"
    )
    parser.add_argument("--setting", metavar="LABEL", help="the net, in cells with several nets, such as gate_bias=-3")
    add_shared(parser, "--results", "--tables")


def execute(args: argparse.Namespace) -> int:
    if args.error is not None and 0 < args.error < 1 and not args.below_1_percent:
        raise PaperbenchError(
            f"--error {args.error:g}: {args.error:g} % or {100 * args.error:g} %? Errors are in percent. Give "
            f"`--error {100 * args.error:g}`, or add --below-1-percent if {args.error:g} % is right."
        )
    enter(make_result(args, *named(args), args.error), args)
    return 0


def make_result(
    args: argparse.Namespace, table: Table, cell: Cell, setting: Setting, error: float | None
) -> ExternalResult:
    """Return an external result with the seed and source of the arguments."""
    from paperbench.runs.external import ExternalResult
    from paperbench.runs.hashed import SCHEMA
    from paperbench.typed import TypedError, from_json

    values = {
        "schema": SCHEMA,
        "kind": "external",
        "table": table.id,
        "cell": cell.id,
        "setting": setting.label,
        "experiment": table.experiment_digest(cell, setting),
        "seed": args.seed,
        "error": error,
        "source": args.source,
    }
    try:
        return from_json(ExternalResult, json.dumps(values))
    except TypedError as problem:
        found = (f"--{p.path[0]} {p.message}" if p.path else p.message for p in problem.problems)
        raise PaperbenchError(" ".join(found)) from problem


def enter(result: ExternalResult, args: argparse.Namespace) -> None:
    """Write an external result into the results directory, and say so."""
    from paperbench.report.report import percent
    from paperbench.runs.external import write_external

    path = write_external(args.results, result)
    label = f" ({result.setting})" if result.setting else ""
    outcome = "diverged" if result.error is None else f"{percent(result.error)} %"
    print(f"Recorded {result.table} {result.cell}{label}, seed {result.seed}: {outcome}\nin {path}")
    print(f"Next: `{command('compare', chosen(Selection, args))}`")


def named(args: argparse.Namespace) -> tuple[Table, Cell, Setting]:
    """Return the table, the cell and the net that are named; a pattern is refused with the cells that it matches."""
    from paperbench.specs.table import find_spec_root, read_table

    table = read_table(args.table, find_spec_root(args.tables))
    cell, *others = table.cells(args.cell, on_request=True)
    if cell.id != args.cell:
        ids = listing([one.id for one in (cell, *others)])
        raise PaperbenchError(f"{args.cell!r} is not the id of a cell. Name one: {ids}.")
    known, label = {setting.label: setting for setting in cell.settings}, args.setting
    if len(known) == 1 and label is not None:
        raise PaperbenchError(f"Cell {cell.id} has only one net. Omit --setting.")
    if len(known) > 1 and label is None:
        raise PaperbenchError(f"Cell {cell.id} has several nets. Choose one with --setting: {listing([*known])}.")
    if label is not None and label not in known:
        raise PaperbenchError(f"Cell {cell.id} has no net {label!r}. {nearest(label, known)}")
    return table, cell, known[label or ""]


def _error(text: str) -> float | None:
    """Parse a percentage, or "diverged" as None. The range is checked with the other values."""
    if text == "diverged":
        return None
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a percentage, or 'diverged', not {text!r}") from None
    return int(value) if value.is_integer() else value  # so that a message about 641 does not print 641.0
