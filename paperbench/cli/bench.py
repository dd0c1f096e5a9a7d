"""paperbench bench: images per second of every engine and precision on this machine, beside a plain PyTorch loop."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from paperbench.cli.arguments import Subparsers, add_device, positive_int, positive_seconds
from paperbench.cli.run import wait_without_spinning

MODELS = {
    "cpu": ("preact_resnet20", "preact_resnet110"),
    "cuda": ("preact_resnet110", "preact_resnet164", "preact_resnet1001"),
}


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "bench",
        help="measure how fast this machine trains, beside a plain PyTorch loop",
        description="Images per second of every engine and precision, in rounds in which all take turns. A variant "
        "whose first steps are not those of eager float32 gets no figure. Exit status: 1 if there is such a variant, "
        "or one that broke, or no figure at all; else 0.",
    )
    parser.add_argument(
        "--models",
        nargs="+",
        metavar="NAME",
        help=f"nets for 32-pixel images, see `paperbench models` (default: {' '.join(MODELS['cuda'])}; on a CPU "
        f"{' '.join(MODELS['cpu'])})",
    )
    parser.add_argument(
        "--engines",
        nargs="+",
        metavar="E",
        help="eager, graph, compile (default: all that run here; on a CPU, where compiling takes minutes, eager alone)",
    )
    parser.add_argument(
        "--precisions", nargs="+", metavar="P", help="such as fp32 bf16 (default: all that the device has)"
    )
    add_device(parser)
    parser.add_argument(
        "--batch-size", type=positive_int, default=128, metavar="N", help="images a step (default: 128)"
    )
    parser.add_argument("--rounds", type=positive_int, default=7, metavar="N", help="turns of each (default: 7)")
    parser.add_argument(
        "--seconds", type=positive_seconds, default=1.5, metavar="S", help="least length of a turn (default: 1.5)"
    )
    parser.add_argument(
        "--minutes",
        type=positive_minutes,
        metavar="M",
        help="time for everything, shared by the nets; when it is over nothing is begun, but what is under way, and "
        "one round of what was built, come to their end (default: no limit)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rounds and the machine's facts there too")
    parser.set_defaults(execute=execute)


ROUNDS_SHARE = 0.2
"""Of a net's time, kept free for the rounds: one of all that was built follows in any case."""


def positive_minutes(text: str) -> float:
    """Minutes from an argument."""
    return positive_seconds(text)


def execute(args: argparse.Namespace) -> int:
    wait_without_spinning()
    from paperbench.atomic import write_atomically
    from paperbench.bench import bench_json, machine, text
    from paperbench.bench.plain_loop import WORKERS, shipped_precision
    from paperbench.bench.throughput import (
        bench_recipe,
        checked_engines,
        checked_net,
        measure_net,
        usable_engines,
        usable_precisions,
    )
    from paperbench.errors import PaperbenchError
    from paperbench.runs.environment import code_facts
    from paperbench.training.choice import available_engines
    from paperbench.training.precision import choose_device, choose_precision

    device = choose_device(args.device)
    models = tuple(dict.fromkeys(args.models or MODELS[device.type]))
    for name in models:
        checked_net(name)
    engines = checked_engines(args.engines, device) if args.engines else usable_engines(device)
    wanted = args.precisions or usable_precisions(device)
    precisions = tuple(dict.fromkeys(choose_precision(precision, device) for precision in wanted))
    bench_recipe(args.batch_size)
    if args.json and (args.json.is_dir() or not args.json.parent.is_dir()):
        raise PaperbenchError(f"{args.json} cannot be written: name a file in a folder that is there.")

    def say(line: str) -> None:
        print(f"paperbench: {line}", file=sys.stderr, flush=True)

    if not args.models and device.type == "cpu":
        say(f"on a CPU: {' and '.join(models)}. --models names others.")
    for engine, why in available_engines(device).items():
        if not args.engines and engine not in engines:
            say(
                f"not measured: {engine}: {why or 'compiling takes minutes here; --engines eager compile measures it'}."
            )

    settings = bench_json.Settings(
        models, engines, precisions, args.batch_size, args.rounds, args.seconds, args.minutes
    )
    code = code_facts("eager")
    known = {"version": code.version, "commit": code.commit, "source": code.source, "numerics": code.numerics}
    end = None if args.minutes is None else time.monotonic() + 60 * args.minutes
    nets = []
    for number, name in enumerate(models):
        deadline = None
        if end is not None:  # a net gets its share of what the ones before have left
            now = time.monotonic()
            deadline = now + (1 - ROUNDS_SHARE) * (end - now) / (len(models) - number)
        figures = measure_net(
            name,
            engines=engines,
            precisions=precisions,
            device=device,
            batch_size=args.batch_size,
            rounds=args.rounds,
            seconds=args.seconds,
            deadline=deadline,
            progress=say,
        )
        print(text.render_net(figures), end="\n\n", flush=True)
        nets.append(figures)
        if args.json:  # after each net, so that what ends the command early costs no figure
            content = bench_json.document(nets, settings, machine.facts(device), known)
            write_atomically(args.json, bench_json.to_json(content).encode())
    print(text.notes(device.type, shipped_precision(device), WORKERS[device.type]))
    return 0 if all(net.is_sound for net in nets) and any(net.has_figures for net in nets) else 1
