"""paperbench models: the nets registered with timm."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from paperbench.cli.arguments import add_shared, all_tables
from paperbench.errors import PaperbenchError, nearest

if TYPE_CHECKING:
    from paperbench.catalogue import Net

_NOTES = {
    "MACs": "MACs: multiply-accumulates per image, of 224 x 224 pixels for nets with four stages, else of 32 x 32.",
    "placement": "placement: figure of the paper and name.",
    "shortcut": "shortcut: figure of the paper and name; x: signal, F: residual function, b: initial gate bias.",
}
"""Explanations of columns."""

_COLUMNS = ("net", "units", "placement", "shortcut", "layers", "params", "MACs", "tables")
_SHORT_COLUMNS = ("net", "layers", "params", "tables")
_RIGHT_ALIGNED = {"layers", "params", "MACs"}

SUMMARY = "list the nets registered with timm"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "pattern", nargs="?", default="*", metavar="NAME", help="name of a net, or a shell pattern such as 'preact_*'"
    )
    parser.add_argument("--long", action="store_true", help="list all columns, even if wider than the terminal")
    add_shared(parser, "--tables")


def execute(args: argparse.Namespace) -> int:
    from paperbench.catalogue import NETS, resolve
    from paperbench.report.grid import Grid, as_text, paragraph

    if args.pattern.partition(".")[0] in NETS:
        resolve(args.pattern)  # checks the tag, if any
        names = [args.pattern]
    else:
        names = [name for name in NETS if fnmatchcase(name, args.pattern)]
    if not names:
        raise PaperbenchError(f"No net matches {args.pattern!r}. {nearest(args.pattern, NETS)}")
    columns = _COLUMNS if args.long else _SHORT_COLUMNS
    rows = tuple(tuple(row[column] for column in columns) for row in _rows(names, args.tables))
    grid = Grid(columns, rows, tuple("right" if column in _RIGHT_ALIGNED else "left" for column in columns))
    notes = [text for column, text in _NOTES.items() if column in columns]
    if not args.long:
        notes.append("`--long` adds units, placement, shortcut and multiply-accumulates.")
    notes.append("`paperbench plot NAME` draws a net.")
    print(as_text(grid, width=sys.maxsize if args.long else None), "", *map(paragraph, notes), sep="\n")
    return 0


def _rows(names: Iterable[str], tables_root: Path | None) -> list[dict[str, str]]:
    """Return the text of every column for each net."""
    from paperbench.architecture import macs, parameters
    from paperbench.catalogue import FAMILIES, PLACEMENTS, resolve
    from paperbench.specs.table import find_spec_root

    tables: dict[str, dict[str, None]] = {}
    for table in all_tables(find_spec_root(tables_root)):
        for cell in table.all_cells:
            tables.setdefault(cell.settings[0].reference.name, {})[table.id.removeprefix("table")] = None
    rows = []
    for name in names:
        net = resolve(name)
        family, placement = FAMILIES[net.family], PLACEMENTS[net.placement]
        # The depth alone does not determine the units per stage of the ImageNet nets.
        n_units = "+".join(map(str, net.units)) if family.depths else sum(net.units)
        texts = (
            name,
            f"{n_units} {family.unit}",
            f"{placement.figure} {placement.title}".lstrip(),
            _shortcut(net),
            str(net.depth),
            f"{parameters(net):,}",
            f"{macs(net) / 1e6:.1f}M",
            ", ".join(tables.get(name.partition(".")[0], ())),
        )
        rows.append(dict(zip(_COLUMNS, texts, strict=True)))
    return rows


def _shortcut(net: Net) -> str:
    from paperbench.catalogue import SHORTCUTS

    shortcut = SHORTCUTS[net.shortcut]
    details = ""
    if net.shortcut_scale is not None:
        details = f", {net.shortcut_scale:g}x + {'' if net.residual_scale == 1 else f'{net.residual_scale:g}'}F"
    elif net.gate_bias is not None:
        details = f", b={net.gate_bias:g}"
    return f"{shortcut.figure} {shortcut.title}{details}".lstrip()
