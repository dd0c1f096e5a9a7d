"""paperbench models: the nets that timm can build."""

from __future__ import annotations

import argparse
from pathlib import Path

from paperbench.cli.arguments import Subparsers, add_tables_root


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("models", help="list the nets registered with timm")
    parser.add_argument("pattern", nargs="?", default="*", help="shell pattern of names, such as 'preact_*'")
    add_tables_root(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    from fnmatch import fnmatchcase

    from tabulate import tabulate

    from paperbench.catalogue import NETS, PLACEMENTS
    from paperbench.errors import PaperbenchError, nearest
    from paperbench.specs.locate import spec_root

    names = [name for name in NETS if fnmatchcase(name, args.pattern)]
    if not names:
        raise PaperbenchError(f"No net matches {args.pattern!r}. {nearest(args.pattern, NETS)}")
    tables = _tables_by_net(spec_root(args.tables))
    rows = []
    for name in names:
        net = NETS[name]
        units = f"3 x {net.units_per_stage} {net.family}"
        placement = PLACEMENTS[net.placement]
        rows.append(
            (name, net.depth, units, f"{placement.title}, Fig. {placement.figure}", _parameters(name), tables.get(name))
        )
    headers = ["net", "layers", "units", "placement", "parameters", "tables"]
    print(tabulate(rows, headers, intfmt=","))
    return 0


def _parameters(name: str) -> int:
    """Counted on the nets with one and two units a stage; each further unit adds what the second added."""
    import torch

    from paperbench.catalogue import FAMILIES, NETS, resolve
    from paperbench.models import CifarResNet

    layers_per_n = FAMILIES[NETS[name].family].layers_per_n
    with torch.device("meta"):
        small = [CifarResNet(resolve(name, depth=layers_per_n * n + 2)) for n in (1, 2)]
    one, two = (sum(p.numel() for p in net.parameters()) for net in small)
    return one + (NETS[name].units_per_stage - 1) * (two - one)


def _tables_by_net(root: Path) -> dict[str, str]:
    from paperbench.specs.table import load_table, table_ids

    tables: dict[str, list[str]] = {}
    for table_id in table_ids(root):
        for cell in load_table(table_id, root).cells():
            tables.setdefault(cell.reference.model, []).append(table_id)
    return {name: ", ".join(dict.fromkeys(ids)) for name, ids in tables.items()}
