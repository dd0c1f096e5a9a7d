"""paperbench plot WHAT: training curves of a table, a figure of the paper, or the units of a net."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paperbench.cli.arguments import add_shared, number_of_runs
from paperbench.errors import PaperbenchError, nearest

if TYPE_CHECKING:
    from paperbench.catalogue import Net
    from paperbench.specs.table import Table

SUMMARY = "draw training curves, a figure of the paper, or a net"
PICTURES = ("svg", "pdf", "png")
FORMATS = ("text", "csv", *PICTURES)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        metavar="WHAT",
        help="a table, such as table2; a figure of the paper, fig1 to fig6; or a net, such as preact_resnet164",
    )
    parser.add_argument("--format", choices=FORMATS, help="default: that of --out's name, else text")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the file to write (default: WHAT.FORMAT; text and csv are printed)"
    )
    parser.add_argument("--x", choices=("iterations", "epochs"), default="iterations", help="default: iterations")
    add_shared(parser, "--cells", "--profile")
    parser.add_argument("--seeds", type=number_of_runs, metavar="N", help="runs per cell, as for compare")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="for a net: one of its arguments, as for timm.create_model, such as depth=20; repeatable",
    )
    add_shared(parser, "--results", "--tables")


def execute(args: argparse.Namespace) -> int:
    from paperbench.catalogue import NETS
    from paperbench.specs.table import find_spec_root, load_table, table_ids

    if args.what.partition(".")[0] in NETS:
        return _plot_net(args)
    root = find_spec_root(args.tables)
    tables = {one: load_table(one, root) for one in table_ids(root)}
    figures = {figure.id: table for table in tables.values() for figure in table.experiment.figures}
    if args.what in tables:
        return _plot_table(args, tables[args.what], None)
    if args.what in figures:
        return _plot_table(args, figures[args.what], args.what)
    raise PaperbenchError(f"Nothing to draw is called {args.what!r}. {nearest(args.what, [*tables, *figures, *NETS])}")


def _plot_table(args: argparse.Namespace, table: Table, figure: str | None) -> int:
    """Draw the curves of a table, or one of its figures."""
    raise NotImplementedError


def _plot_net(args: argparse.Namespace) -> int:
    """Draw the kinds of units of a net, and the whole net as a strip."""
    raise NotImplementedError


def _net(name: str, settings: list[str]) -> Net:
    from paperbench.catalogue import resolve

    arguments = dict(map(_setting, settings))
    if len(arguments) < len(settings):
        raise PaperbenchError("--set sets an argument twice. Set it once.")
    return resolve(name, **arguments)


def _setting(text: str) -> tuple[str, Any]:
    """Split `key=value`; the value is parsed as JSON if possible, else kept as text."""
    key, _, value = text.partition("=")
    if not key or not value:
        raise PaperbenchError(f"--set takes KEY=VALUE, such as depth=20 or shortcut=conv, not {text!r}.")
    try:
        return key, json.loads(value)
    except (ValueError, RecursionError):
        return key, value
