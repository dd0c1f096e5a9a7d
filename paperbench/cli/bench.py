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

ROUNDS_SHARE = 0.2
"""Of a net's time, kept free for the rounds: one of all that was built follows in any case."""


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
        "--engines",
        nargs="+",
        metavar="E",
        help="eager, graph, compile (default: all that run here; on a CPU, where compiling takes minutes, eager alone)",
    )
    parser.add_argument(
        "--precisions", nargs="+", metavar="P", help="such as fp32 bf16 (default: all that the device has)"
    )
    parser.add_argument(
        "--breakdown",
        metavar="NET",
        help="measure one net's step by kind of kernel, beside the floors of bytes, arithmetic and launches",
    )
    parser.add_argument("--engine", metavar="E", help="of --breakdown (default: as `run` chooses)")
    parser.add_argument("--precision", metavar="P", help="of --breakdown (default: as `run` chooses)")
    add_device(parser)
    parser.add_argument(
        "--batch-size", type=positive_int, default=128, metavar="N", help="images per step (default: 128)"
    )
    parser.add_argument("--rounds", type=positive_int, default=7, metavar="N", help="turns of each (default: 7)")
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
    unused = ("models", "engines", "precisions", "minutes") if args.breakdown else ("engine", "precision")
    for name in unused:
        if getattr(args, name) is not None:
            there = "does not go with" if args.breakdown else "needs"
            raise PaperbenchError(f"--{name} {there} --breakdown. Leave it out, or see `paperbench bench --help`.")
    if args.json and (args.json.is_dir() or not args.json.parent.is_dir()):
        raise PaperbenchError(f"{args.json} cannot be written: name a file in a folder that is there.")
    wait_without_spinning()
    return _break_down(args) if args.breakdown else _measure(args)


def _measure(args: argparse.Namespace) -> int:
    from datetime import UTC, datetime

    from paperbench.bench import machine, text
    from paperbench.bench.figures import BenchReport, Settings
    from paperbench.bench.plain_loop import WORKERS
    from paperbench.bench.setup import usable_engines, usable_precisions
    from paperbench.bench.throughput import Measurement
    from paperbench.runs.environment import code_facts
    from paperbench.training.choice import available_engines
    from paperbench.training.precision import choose_device, choose_precision

    device = choose_device(args.device)
    models = tuple(dict.fromkeys(args.models or MODELS[device.type]))
    engines = tuple(args.engines or usable_engines(device))
    precisions = tuple(args.precisions or usable_precisions(device))
    how = args.batch_size, args.rounds, args.seconds
    measurements = [Measurement(name, engines, precisions, device, *how, progress=_say) for name in models]
    if not args.models and device.type == "cpu":
        _say(f"on a CPU: {' and '.join(models)}. --models names others.")
    for engine, why in available_engines(device).items():
        if not args.engines and engine not in engines:
            why = why or "compiling takes minutes here; --engines eager compile measures it"
            _say(f"not measured: {engine}: {why}.")
    settings = Settings(models, measurements[0].engines, measurements[0].precisions, *how, args.minutes)
    end = None if args.minutes is None else time.monotonic() + 60 * args.minutes
    nets = []
    for number, measurement in enumerate(measurements):
        deadline = None
        if end is not None:  # a net gets its share of what the ones before have left
            now = time.monotonic()
            deadline = now + (1 - ROUNDS_SHARE) * (end - now) / (len(models) - number)
        nets.append(measurement.run(deadline))
        print(text.render_net(nets[-1], args.batch_size), end="\n\n", flush=True)
        # After each net, so that what ends the command early costs no figure.
        date = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        facts = code_facts(), machine.machine_facts(device)
        _write(args.json, BenchReport(1, date, *facts, settings, tuple(nets)))
    print(text.notes(device.type, choose_precision(None, device), WORKERS[device.type]))
    return 0 if all(net.is_sound for net in nets) and any(net.has_figures for net in nets) else 1


def _break_down(args: argparse.Namespace) -> int:
    from paperbench.bench.breakdown import measure_breakdown
    from paperbench.bench.setup import bench_training
    from paperbench.bench.text import render_breakdown
    from paperbench.training.choice import choose_engine
    from paperbench.training.precision import choose_device, choose_precision

    device = choose_device(args.device)
    precision = choose_precision(args.precision, device)
    training = bench_training(args.breakdown, args.batch_size, device)
    engine = choose_engine(args.engine or "auto", device, training.recipe.iterations).name
    found = measure_breakdown(args.breakdown, training, engine, precision, args.seconds, _say)
    print(render_breakdown(found))
    _write(args.json, found)
    return int(any(step.problem for step in found.steps))


def _say(line: str) -> None:
    print(f"paperbench: {line}", file=sys.stderr, flush=True)


def _write(path: Path | None, report: Any) -> None:
    from paperbench.atomic import write_atomically
    from paperbench.bench.figures import json_text

    if path is not None:
        write_atomically(path, json_text(report).encode())
