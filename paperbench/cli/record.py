"""paperbench record TABLE CELL: record a result that somebody else reports."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from paperbench.cli.arguments import Subparsers, add_results, add_table, add_tables_root
from paperbench.errors import PaperbenchError, nearest

if TYPE_CHECKING:
    from paperbench.specs.cell import Cell
    from paperbench.specs.experiment import Setting


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "record",
        help="record a result from elsewhere",
        description="Record a result that was not trained here. It is marked as external: `compare` shows it with its "
        "source and never pools it with runs of your own.",
    )
    add_table(parser)
    parser.add_argument("cell", metavar="CELL", help="id of a cell, row/column, such as preact/resnet110")
    parser.add_argument("--seed", type=int, required=True, metavar="S", help="seed of the run, or its number")
    parser.add_argument(
        "--error", type=_error, required=True, metavar="E", help="test error in percent, such as 6.37; or: diverged"
    )
    parser.add_argument(
        "--source", type=str.strip, required=True, metavar="TEXT", help="who reports it and where, in one line"
    )
    parser.add_argument(
        "--setting", metavar="LABEL", help="which net, in cells that stand for several, such as gate_bias=-3"
    )
    add_results(parser)
    add_tables_root(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    from paperbench.runs.external import ExternalResult, write_external
    from paperbench.runs.hashed import SCHEMA
    from paperbench.specs.table import find_spec_root, load_table
    from paperbench.typed import TypedError, from_json

    table = load_table(args.table, find_spec_root(args.tables))
    cell = table.cell(args.cell)
    setting = _setting(cell, args.setting)
    values = {
        "schema": SCHEMA,
        "kind": "external",
        "table": table.id,
        "cell": cell.id,
        "setting": setting.label,
        "experiment": table.experiment_digest(cell, setting),
        "seed": args.seed,
        "error": args.error,
        "source": args.source,
    }
    try:
        result = from_json(ExternalResult, json.dumps(values))
    except TypedError as error:
        found = (f"--{p.path[0]} {p.message}" if p.path else p.message for p in error.problems)
        raise PaperbenchError(" ".join(found)) from error
    path = write_external(args.results, result)
    label = f" ({setting.label})" if setting.label else ""
    print(
        f"Recorded: {table.id} {cell.id}{label}, seed {result.seed}, {result.outcome} (source: {result.source!r}), in "
        f"{path}. It is marked as external and never pooled with runs of your own."
    )
    return 0


def _setting(cell: Cell, label: str | None) -> Setting:
    """The net that a label means; it is needed if the cell stands for several."""
    known = {setting.label: setting for setting in cell.settings}
    if len(known) == 1 and label is not None:
        raise PaperbenchError(f"Cell {cell.id} stands for one net: leave --setting out.")
    if len(known) > 1 and label is None:
        listed = ", ".join(known)
        raise PaperbenchError(f"Cell {cell.id} stands for several nets: say which (`--setting LABEL`), of {listed}.")
    if label is not None and label not in known:
        raise PaperbenchError(f"Cell {cell.id} has no net {label!r}. {nearest(label, known)}")
    return known[label or ""]


def _error(text: str) -> float | None:
    """A percentage; None for a run that diverged. The range is checked with the other values."""
    if text == "diverged":
        return None
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a percentage, or 'diverged', not {text!r}") from None
    return int(value) if value.is_integer() else value  # a message about 641 is not to say 641.0
