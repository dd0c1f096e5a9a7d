"""paperbench models: the nets registered with timm."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from paperbench.cli.arguments import add_shared, positive_int
from paperbench.errors import PaperbenchError, count, nearest

if TYPE_CHECKING:
    from paperbench.catalogue import Net
    from paperbench.specs.run_spec import Precision

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
    actions = parser.add_mutually_exclusive_group()
    actions.add_argument("--long", action="store_true", help="list all columns, even if wider than the terminal")
    actions.add_argument(
        "--memory",
        action="store_true",
        help="print the memory of a training step, with and without recomputing the inside of residual units (gradient "
        "checkpointing, timm's `set_grad_checkpointing`); measured on a GPU, otherwise estimated from tensor sizes",
    )
    parser.add_argument(
        "--batch-size", type=positive_int, metavar="N", help="with --memory: images per step (default: 128)"
    )
    parser.add_argument("--device", metavar="D", help="with --memory: auto (default), cpu, cuda or cuda:N")
    add_shared(parser, "--tables")


def execute(args: argparse.Namespace) -> int:
    from paperbench.catalogue import NETS, resolve

    if args.pattern.partition(".")[0] in NETS:
        resolve(args.pattern)  # checks the tag, if any
        names = [args.pattern]
    else:
        names = [name for name in NETS if fnmatchcase(name, args.pattern)]
    if not names:
        raise PaperbenchError(f"No net matches {args.pattern!r}. {nearest(args.pattern, NETS)}")
    for option, value in (("--batch-size", args.batch_size), ("--device", args.device)):
        if value and not args.memory:
            raise PaperbenchError(f"{option} needs --memory. Add --memory, or omit {option}.")
    if args.tables and args.memory:
        raise PaperbenchError("--tables is for the list of nets. Omit it, or --memory.")
    if args.memory:
        print(_memory(names, args.batch_size or 128, args.device or "auto"))
    else:
        print(_table(names, args.tables, args.long))
    return 0


def _table(names: Iterable[str], tables_root: Path | None, long: bool) -> str:
    """Return a row for each net: the most important columns, or all."""
    from paperbench.report.grid import Grid, as_text, paragraph

    columns = _COLUMNS if long else _SHORT_COLUMNS
    rows = tuple(tuple(row[column] for column in columns) for row in _rows(names, tables_root))
    grid = Grid(columns, rows, tuple("right" if column in _RIGHT_ALIGNED else "left" for column in columns))
    notes = [text for column, text in _NOTES.items() if column in columns]
    if not long:
        notes.append("`--long` adds units, placement, shortcut and multiply-accumulates.")
    notes.append("`paperbench plot NAME` draws a net.")
    return "\n".join([as_text(grid, width=sys.maxsize if long else None), "", *map(paragraph, notes)])


def _rows(names: Iterable[str], tables_root: Path | None) -> list[dict[str, str]]:
    """Return the text of every column for each net."""
    from paperbench.architecture import macs, parameters
    from paperbench.catalogue import FAMILIES, PLACEMENTS, resolve
    from paperbench.specs.table import find_spec_root, load_table, table_ids

    tables: dict[str, dict[str, None]] = {}
    root = find_spec_root(tables_root)
    for table_id in table_ids(root):
        for cell in load_table(table_id, root).all_cells:
            tables.setdefault(cell.settings[0].reference.name, {})[table_id.removeprefix("table")] = None
    rows = []
    for name in names:
        net = resolve(name)
        family, placement = FAMILIES[net.family], PLACEMENTS[net.placement]
        # The depth alone does not determine the units per stage of the ImageNet nets.
        n_units = "+".join(map(str, net.units)) if family.depths else sum(net.units)
        texts = (
            name,
            f"{n_units} {family.unit}",
            f"{placement.figure} {placement.title}",
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
    return f"{shortcut.figure} {shortcut.title}{details}"


def _memory(names: Sequence[str], batch_size: int, wanted_device: str) -> str:
    where = "" if wanted_device == "auto" else f" on {wanted_device}"
    print(
        f"paperbench: computing the memory of {count(len(names), 'net')}{where}; a deep net can take a minute.",
        file=sys.stderr,
        flush=True,
    )
    import torch

    from paperbench.catalogue import resolve
    from paperbench.report.grid import Grid, as_text, paragraph
    from paperbench.training.device import choose_device
    from paperbench.training.memory import step_memory

    device = choose_device(wanted_device, lambda why: print(f"paperbench: {why}", file=sys.stderr))
    variants: list[tuple[Precision, bool]] = [("fp32", False), ("fp32", True), ("bf16", False), ("bf16", True)]
    rows = []
    for name in names:
        row = [name]
        for precision, checkpointing in variants:
            try:
                size = step_memory(resolve(name), batch_size, precision, device, grad_checkpointing=checkpointing)
                row.append(f"{size / 1e9:.2f}")
            except torch.OutOfMemoryError:
                row.append("too much")
        rows.append(tuple(row))
    how = "estimated from tensor sizes; kernels need some workspace on top"
    if device.type == "cuda":
        how = f"measured on {torch.cuda.get_device_name(device)}"
    headers = ("net", "fp32", "fp32, recomputing", "bf16", "bf16, recomputing")
    table = as_text(Grid(headers, tuple(rows), ("left", *("right",) * 4)))
    return f"{table}\n\n" + paragraph(f"GB for a training step on {count(batch_size, 'image')}, {how}.")
