"""paperbench bench: images per second of every engine and precision on this machine, beside a plain PyTorch loop."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from paperbench.cli.arguments import Subparsers, add_device, positive_int, positive_seconds
from paperbench.cli.run import wait_without_spinning
from paperbench.errors import PaperbenchError

MODELS = {
    "cpu": ("preact_resnet20", "preact_resnet110"),
    "cuda": ("preact_resnet110", "preact_resnet164", "preact_resnet1001"),
}

BUILD_SHARE = 0.8
"""Of a net's time, after which nothing more is built: one round of all that was built follows in any case."""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="measure how fast this machine trains, beside a plain PyTorch loop",
        description="Images per second of every engine and precision, in rounds in which all take turns. A variant "
        "whose first steps are not those of eager float32 gets no figure. With --breakdown: where the time of one "
        "net's step goes. Exit status: 1 if there is a variant without a figure for another reason than lack of memory "
        "or time, or no figure at all; else 0.",
    )
    parser.add_argument(
        "--models",
        nargs="+",
        metavar="NAME",
        help=f"nets for 32-pixel images, see `paperbench models` (default: {' '.join(MODELS['cuda'])}; on a CPU "
        f"{' '.join(MODELS['cpu'])})",
    )
    parser.add_argument(
        "--breakdown",
        metavar="NET",
        help="measure one net's step by kind of kernel, beside the floors of bytes, arithmetic and launches",
    )
    parser.add_argument(
        "--engines",
        nargs="+",
        default=[],
        metavar="E",
        help="eager, graph, compile (default: all that run here, but on a CPU, where compiling takes minutes, eager "
        "alone). With --breakdown: one (default: as `run` chooses)",
    )
    parser.add_argument(
        "--precisions",
        nargs="+",
        default=[],
        metavar="P",
        help="such as fp32 bf16 (default: all that the device has). With --breakdown: one (default: as `run` chooses)",
    )
    add_device(parser)
    parser.add_argument(
        "--batch-size", type=positive_int, default=128, metavar="N", help="images per step (default: 128)"
    )
    parser.add_argument("--rounds", type=positive_int, metavar="N", help="turns of each (default: 7)")
    parser.add_argument(
        "--seconds", type=positive_seconds, default=1.5, metavar="S", help="least length of a turn (default: 1.5)"
    )
    parser.add_argument(
        "--minutes",
        type=positive_seconds,
        metavar="M",
        help="time for everything, shared by the nets; when it is over nothing is begun, but what is under way, and "
        "one round of what was built, come to their end (default: no limit)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures and the machine's facts there too")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace) -> int:
    if args.json and (args.json.is_dir() or not args.json.parent.is_dir()):
        raise PaperbenchError(f"{args.json} cannot be written: name a file in a folder that is there.")
    wait_without_spinning()
    if not args.breakdown:
        return _measure(args)
    if args.models or args.minutes or args.rounds or len(args.engines) > 1 or len(args.precisions) > 1:
        raise PaperbenchError(
            "--breakdown measures one net, one engine and one precision, without --minutes or --rounds."
        )
    return _break_down(args)


def _measure(args: argparse.Namespace) -> int:
    from paperbench.bench.figures import BenchReport
    from paperbench.bench.plain_loop import WORKERS
    from paperbench.bench.setup import bench_training, machine_facts
    from paperbench.bench.text import notes, render_net
    from paperbench.bench.throughput import bench_variants, measure_net
    from paperbench.training.engine import available_engines
    from paperbench.training.precision import choose_device

    device = choose_device(args.device)
    variants = bench_variants(args.engines, args.precisions, device)
    names = list(dict.fromkeys(args.models or MODELS[device.type]))
    trainings = [bench_training(name, args.batch_size, device) for name in names]
    end = time.monotonic() + 60 * (args.minutes or float("inf"))
    nets = []
    for number, training in enumerate(trainings):
        now = time.monotonic()  # a net gets its share of what the ones before have left
        deadline = now + BUILD_SHARE * (end - now) / (len(names) - number)
        nets.append(measure_net(training, variants, args.rounds or 7, args.seconds, deadline, _say))
        print(render_net(nets[-1]), end="\n\n", flush=True)
        # After each net, so that what ends the command early costs no figure.
        _write(args.json, BenchReport(1, machine_facts(device), tuple(nets)))
    print(notes(device.type, variants[0].precision, WORKERS[device.type]))
    for engine, why in available_engines(device).items():
        if why and not args.engines:
            print(f"{engine} is not measured: {why}.")
    return 0 if all(net.is_sound for net in nets) and any(net.has_figures for net in nets) else 1


def _break_down(args: argparse.Namespace) -> int:
    from paperbench.bench.breakdown import render_breakdown
    from paperbench.bench.profiling import measure_breakdown
    from paperbench.bench.setup import bench_training
    from paperbench.training.engine import choose_engine
    from paperbench.training.precision import choose_device, choose_precision

    device = choose_device(args.device)
    precision = choose_precision(args.precisions[0] if args.precisions else None, device)
    training = bench_training(args.breakdown, args.batch_size, device)
    engine = choose_engine((args.engines or ["auto"])[0], device, training.recipe.iterations).name
    found = measure_breakdown(training, engine, precision, args.seconds, _say)
    print(render_breakdown(found))
    _write(args.json, found)
    return int(any(step.problem for step in found.steps))


def _say(line: str) -> None:
    print(f"paperbench: {line}", file=sys.stderr, flush=True)


def _write(path: Path | None, report: Any) -> None:
    from paperbench.files import write_atomically
    from paperbench.typed import to_json

    if path is not None:
        write_atomically(path, to_json(report, indent=1).encode() + b"\n")
