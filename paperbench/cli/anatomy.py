"""paperbench anatomy: where a training step's time goes on this machine, as one JSON file and one page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from paperbench.cli.arguments import Subparsers, add_device, positive_seconds


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "anatomy",
        help="measure where a training step's time goes, against the floors of bytes and launches",
        description="Measures convolutions, batch norm, whole steps and their kernels, and writes DIR/anatomy.json "
        "and DIR/anatomy.md. Each part runs in a process of its own within its share of the time; one that hangs or "
        "crashes loses itself alone, and the page says so. Exit status: 0; 1 if a part was lost or "
        "nothing was measured; 128 + N after signal N, with what there was until then written.",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the two files")
    add_device(parser)
    parser.add_argument(
        "--minutes", type=positive_minutes, default=10.0, metavar="M", help="time for everything (default: 10)"
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        metavar="PART",
        help="only these: machine, convolutions, normalisation, ladder, kernels, seeds, exactness, pieces, autotuned, "
        "imagenet (default: all)",
    )
    parser.add_argument(
        "--models",
        nargs="+",
        metavar="NAME",
        help="nets for 32-pixel images, see `paperbench models` (default: preact_resnet110, 164 and 1001; on a CPU "
        "without the last)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a small net and next to no repetitions: shows that it works, no figures"
    )
    parser.set_defaults(execute=execute)


def positive_minutes(text: str) -> float:
    """Minutes from an argument."""
    return positive_seconds(text)


def execute(args: argparse.Namespace) -> int:
    from paperbench.cli.run import wait_without_spinning

    wait_without_spinning()
    from paperbench.bench.anatomy.command import measure
    from paperbench.bench.anatomy.plan import checked_parts, plan
    from paperbench.bench.anatomy.scale import checked_models, choose_scale
    from paperbench.errors import PaperbenchError

    parts = checked_parts(args.parts)
    if args.models:
        checked_models(tuple(args.models))
    if args.out.exists() and not args.out.is_dir():
        raise PaperbenchError(f"{args.out} is no directory. Choose another one (`--out DIR`).")

    from paperbench.runs.environment import code_facts  # torch, once the names are right
    from paperbench.training.precision import choose_device

    device = choose_device(args.device)
    scale = choose_scale(device.type, quick=args.quick)
    nets = checked_models(tuple(args.models or scale.models))

    def say(line: str) -> None:
        print(f"paperbench: {line}", file=sys.stderr, flush=True)

    if scale.note:
        say(f"less than on a GPU is measured: {scale.note}")
    code = code_facts("eager")
    known = {"version": code.version, "commit": code.commit, "source": code.source, "numerics": code.numerics}
    tasks = plan(parts, {name: net.depth for name, net in nets.items()})
    content = measure(tasks, nets, scale, str(device), args.minutes, args.out, known, say)
    print(args.out / "anatomy.md")
    if content["signal"]:
        return 128 + int(content["signal"])
    lost = any(part["status"] in ("killed", "crashed") for part in content["parts"])
    return int(lost or not any(part["rows"] for part in content["parts"]))
