"""paperbench models: the nets that timm can build, and pictures of them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paperbench.cli.arguments import Subparsers, add_tables_root, positive_int
from paperbench.errors import PaperbenchError, nearest

if TYPE_CHECKING:
    from paperbench.catalogue import Net
    from paperbench.specs.run_spec import Precision

_NOTES = """
Figures are those of the paper; x: signal, F: residual function, b: initial bias of the gate.
MACs: multiply-accumulates on one image, of 224 x 224 pixels for nets of four stages, else of 32 x 32.
`paperbench models NAME --diagram` draws a net."""

_COUNTED = "counted from the tensors that a step makes, not measured: kernels need some workspace beside them"


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("models", help="list the nets registered with timm, or draw one")
    parser.add_argument("pattern", nargs="?", default="*", help="shell pattern of names, such as 'preact_*'")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--diagram", action="store_true", help="draw the one net that is named, unit by unit")
    shown.add_argument(
        "--memory",
        action="store_true",
        help="what a training step takes, with and without recomputing what is inside the residual units (gradient "
        "checkpointing, `set_grad_checkpointing` of timm's models); measured on a GPU, else counted",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="with --diagram: an argument of the net, as one would give it to timm, such as depth=20; repeatable",
    )
    parser.add_argument("--batch-size", type=positive_int, metavar="N", help="with --memory: images (default: 128)")
    parser.add_argument("--device", metavar="D", help="with --memory: auto (default), cpu, cuda or cuda:N")
    add_tables_root(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    from paperbench.catalogue import NETS, resolve

    if args.pattern.partition(".")[0] in NETS:
        resolve(args.pattern)  # it may have a tag
        names = [args.pattern]
    else:
        names = [name for name in NETS if fnmatchcase(name, args.pattern)]
    if not names:
        raise PaperbenchError(f"No net matches {args.pattern!r}. {nearest(args.pattern, NETS)}")
    for option, value, needed, is_there in (
        ("--set", args.settings, "--diagram", args.diagram),
        ("--batch-size", args.batch_size, "--memory", args.memory),
        ("--device", args.device, "--memory", args.memory),
    ):
        if value and not is_there:
            raise PaperbenchError(f"{option} needs {needed}. Add that, or leave {option} out.")
    if args.tables and (args.diagram or args.memory):
        raise PaperbenchError("--tables is for the list of nets. Leave it out, or --diagram and --memory.")
    if args.diagram:
        print(_diagram(names, args.pattern, args.settings))
    elif args.memory:
        print(_memory(names, args.batch_size or 128, args.device or "auto"))
    else:
        print(_table(names, args.tables))
    return 0


def _diagram(names: list[str], pattern: str, settings: list[str]) -> str:
    from paperbench.catalogue import resolve
    from paperbench.report.diagram import diagram

    if len(names) > 1:
        few = ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:5])} or another"
        raise PaperbenchError(f"--diagram draws one net, and {pattern!r} matches {len(names)}. Name one: {few}.")
    arguments = dict(map(_setting, settings))
    if len(arguments) < len(settings):
        raise PaperbenchError("--set gives an argument twice. Give it once.")
    return diagram(resolve(names[0], **arguments))


def _setting(text: str) -> tuple[str, Any]:
    """Key and value of `key=value`; the value is what JSON takes it for, else a text."""
    key, _, value = text.partition("=")
    if not key or not value:
        raise PaperbenchError(f"--set takes KEY=VALUE, such as depth=20 or shortcut=conv, not {text!r}.")
    try:
        return key, json.loads(value)
    except (ValueError, RecursionError):
        return key, value


def _table(names: Iterable[str], chosen_root: Path | None) -> str:
    from tabulate import tabulate

    from paperbench.architecture import macs, parameters
    from paperbench.catalogue import FAMILIES, PLACEMENTS, resolve
    from paperbench.specs.table import find_spec_root, load_table, table_ids

    tables: dict[str, dict[str, None]] = {}
    root = find_spec_root(chosen_root)
    for table_id in table_ids(root):
        for cell in load_table(table_id, root).all_cells:
            tables.setdefault(cell.settings[0].reference.name, {})[table_id.removeprefix("table")] = None
    rows = []
    for name in names:
        net = resolve(name)
        family, placement = FAMILIES[net.family], PLACEMENTS[net.placement]
        count = "+".join(map(str, net.units)) if family.depths else sum(net.units)  # depth alone does not say the first
        row = (name, f"{count} {family.unit}", f"{placement.figure} {placement.title}", _shortcut(net), net.depth)
        used = ", ".join(tables.get(name.partition(".")[0], ()))
        rows.append((*row, f"{parameters(net):,}", f"{macs(net) / 1e6:.1f}M", used))
    headers = ["net", "units", "Fig., placement", "Fig., shortcut", "layers", "params", "MACs", "tables"]
    alignment = ("left", "left", "left", "left", "right", "right", "right", "left")
    return tabulate(rows, headers, disable_numparse=True, colalign=alignment) + "\n" + _NOTES


def _shortcut(net: Net) -> str:
    from paperbench.catalogue import SHORTCUTS

    shortcut = SHORTCUTS[net.shortcut]
    details = ""
    if net.shortcut_scale is not None:
        details = f", {net.shortcut_scale:g}x + {'' if net.residual_scale == 1 else f'{net.residual_scale:g}'}F"
    elif net.gate_bias is not None:
        details = f", b={net.gate_bias:g}"
    return f"{shortcut.figure} {shortcut.title}{details}"


def _memory(names: Iterable[str], batch_size: int, wanted_device: str) -> str:
    import torch
    from tabulate import tabulate

    from paperbench.catalogue import resolve
    from paperbench.training.memory import step_memory
    from paperbench.training.precision import choose_device

    device = choose_device(wanted_device)
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
        rows.append(row)
    how = f"measured on {torch.cuda.get_device_name(device)}" if device.type == "cuda" else _COUNTED
    headers = ["net", "fp32", "recomputing", "bf16", "recomputing"]
    table = tabulate(rows, headers, disable_numparse=True, colalign=("left", *("right",) * 4))
    return f"{table}\n\nGB for a training step on {batch_size} images at once; {how}."
