"""paperbench bench: measure training speed on this machine."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paperbench.cli.arguments import add_shared, tell
from paperbench.errors import PaperbenchError
from paperbench.launch import Launch
from paperbench.options import positive_int, seconds

if TYPE_CHECKING:
    from paperbench.bench.timing import Rounds

MODELS = {
    "cpu": ("preact_resnet20", "preact_resnet110"),
    "cuda": ("preact_resnet110", "preact_resnet164", "preact_resnet1001"),
}

BUILD_SHARE = 0.8
"""Share of a net's time after which nothing more is built, to leave time for a round of what was built."""

SUMMARY = "measure training speed on this machine against a plain PyTorch loop"
DESCRIPTION = (
    "Measure images per second with every engine and precision, and with plain PyTorch loops, in interleaved rounds. A "
    "variant is timed only if its first losses equal those of eager in the same precision, bit for bit. With --loader: "
    "measure how fast ImageNet's crops are made. With --scaling: measure how fast several processes train one run. "
    "Exit status: 1 if a variant failed or made wrong steps, or nothing was measured, else 0; running out of memory or "
    "time is not a failure."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models",
        nargs="+",
        metavar="NAME",
        help=f"nets for 32-pixel images, see `paperbench models` (default: {' '.join(MODELS['cuda'])}; on a CPU: "
        f"{' '.join(MODELS['cpu'])})",
    )
    parser.add_argument(
        "--loader",
        action="store_true",
        help="measure images per second of decoding, of decoding and cropping, and of the threads that feed a training "
        "on ImageNet, on this machine's processor",
    )
    parser.add_argument(
        "--scaling",
        action="store_true",
        help="measure a training step by one process and by all that torchrun or srun has started, and what the "
        "latter spend on each other; --models may take photographs",
    )
    help_ = "with --loader: data directory with ImageNet's index (default: scikit-learn's two photographs)"
    parser.add_argument("--data", type=Path, metavar="DIR", help=help_)
    help_ = "as for `run` (default: all that this machine supports). With --scaling: one (default: as for `run`)"
    parser.add_argument("--engines", nargs="+", default=[], metavar="E", help=help_)
    help_ = "such as fp32 bf16 (default: all that the device supports). With --scaling: one (default: as for `run`)"
    parser.add_argument("--precisions", nargs="+", default=[], metavar="P", help=help_)
    add_shared(parser, "--at-once", nargs="+", default=[], help="also measure so many trainings in turn, as in `run`")
    add_shared(parser, "--device")
    parser.add_argument(
        "--batch-size", type=positive_int, metavar="N", help="images per step (default: 128; 256 photographs)"
    )
    parser.add_argument("--rounds", type=positive_int, metavar="N", help="measurements of each variant (default: 7)")
    parser.add_argument(
        "--seconds", type=seconds, default=1.5, metavar="S", help="minimum length of a measurement (default: 1.5)"
    )
    parser.add_argument(
        "--minutes",
        type=positive_int,
        metavar="M",
        help="time limit, shared by the nets: at the limit no variant or round is started, except one round of what "
        "was built (default: none)",
    )
    help_ = "also write all measurements, and facts about the machine, to this file"
    parser.add_argument("--json", type=Path, metavar="FILE", help=help_)


def execute(args: argparse.Namespace) -> int:
    if args.json and (args.json.is_dir() or not args.json.parent.is_dir()):
        raise PaperbenchError(f"{args.json}: cannot write here. Name a file in an existing directory.")
    launch = Launch.of(os.environ)
    if launch and not args.scaling:
        raise PaperbenchError("Several processes measure only --scaling. Start one process for anything else.")
    if args.loader:
        return _measure_loader(args)
    if args.data:
        raise PaperbenchError("--data is for --loader alone.")
    if args.scaling:
        return _measure_scaling(args, launch)
    return _measure(args)


def _measure(args: argparse.Namespace) -> int:
    from paperbench.bench.figures import BenchReport
    from paperbench.bench.plain_loop import WORKERS
    from paperbench.bench.setup import bench_training, machine_facts
    from paperbench.bench.text import format_legend, format_net
    from paperbench.bench.throughput import bench_variants, measure_net
    from paperbench.training.device import choose_device
    from paperbench.training.engines import ENGINES
    from paperbench.training.turns import most_at_once

    device = choose_device(args.device, tell)
    variants = bench_variants(args.engines, args.precisions, device, args.at_once)
    names = list(dict.fromkeys(args.models or MODELS[device.type]))
    trainings = [bench_training(name, args.batch_size or 128, device) for name in names]
    most = most_at_once(trainings[0].recipe.groups)
    if device.type == "cuda" and max(args.at_once, default=1) > most:
        raise PaperbenchError(f"At most {most} of these trainings can share a GPU. Choose a smaller --at-once.")
    end = time.monotonic() + 60 * (args.minutes or float("inf"))
    nets = []
    for number, training in enumerate(trainings):
        now = time.monotonic()  # share the remaining time equally among the remaining nets
        deadline = now + BUILD_SHARE * (end - now) / (len(names) - number)
        nets.append(measure_net(training, variants, _rounds(args, deadline)))
        print(format_net(nets[-1]), end="\n\n", flush=True)
        if (nets[-1].noise or 0) > 0.2:
            tell(f"Noise of {nets[-1].noise:.0%}: close other programs or raise --rounds.")
        # after each net, so that an interrupted command keeps its measurements
        _write(args.json, BenchReport(1, machine_facts(device), tuple(nets)))
    print(format_legend(device.type, variants[0].precision, WORKERS[device.type]))
    for engine, kind in ENGINES.items():
        if (why := kind.why_not(device)) and not args.engines:
            print(f"Not measured: {engine} ({why}).")
    has_figures = any(variant.status == "measured" for net in nets for variant in net.variants)
    return 0 if has_figures and all(net.is_sound for net in nets) else 1


def _measure_loader(args: argparse.Namespace) -> int:
    from paperbench.bench.loader import measure_loader
    from paperbench.bench.text import format_loader

    others = (args.models, args.engines, args.precisions, args.at_once, args.batch_size, args.minutes)
    if any(others) or args.device != "auto":
        raise PaperbenchError("--loader takes only --data, --rounds, --seconds and --json.")
    found = measure_loader(args.data, _rounds(args))
    print(format_loader(found))
    _write(args.json, found)
    return 0


def _measure_scaling(args: argparse.Namespace, launch: Launch | None) -> int:
    if len(args.engines) > 1 or len(args.precisions) > 1 or args.at_once:
        raise PaperbenchError("--scaling takes one engine and one precision, and no --at-once.")
    if launch is None:
        raise PaperbenchError(
            "--scaling measures several processes. Start them with `torchrun --nproc-per-node 2 -m paperbench bench "
            "--scaling`, or with srun."
        )
    from paperbench.bench.figures import ScalingFigures, ScalingReport
    from paperbench.bench.scaling import measure_scaling, scaling_training
    from paperbench.bench.setup import machine_facts
    from paperbench.bench.text import SCALING_LEGEND, format_scaling
    from paperbench.training.device import choose_device, own_device
    from paperbench.training.engines import engine_candidates
    from paperbench.training.precision import choose_precision
    from paperbench.training.processes import Processes, refusal, together

    device = choose_device(own_device(args.device, launch), tell)
    precision = choose_precision(args.precisions[0] if args.precisions else None, device)
    engine = engine_candidates((args.engines or ["auto"])[0], device)[0]
    names = list(dict.fromkeys(args.models or MODELS[device.type]))
    trainings = [scaling_training(name, args.batch_size, device) for name in names]

    def check() -> None:
        for one in trainings:
            if problem := refusal(launch.count, one.net, one.recipe, one.dataset.num_train):
                raise PaperbenchError(f"{one.name}: {problem}")

    def work(processes: Processes) -> int:
        processes.agreed(check)
        end = time.monotonic() + 60 * (args.minutes or float("inf"))
        nets: list[ScalingFigures] = []
        for one in trainings:
            now = time.monotonic()
            deadline = now + (end - now) / (len(names) - len(nets))
            if figures := measure_scaling(one, engine, precision, processes, _rounds(args, deadline)):
                nets.append(figures)
                print(format_scaling(figures), end="\n\n", flush=True)
                _write(args.json, ScalingReport(1, machine_facts(device), tuple(nets)))
        if launch.rank:
            return int(processes.first_text())
        print(SCALING_LEGEND)
        return int(any(net.is_equal is False for net in nets))

    return together(launch, device, work)


def _rounds(args: argparse.Namespace, deadline: float = float("inf")) -> Rounds:
    from paperbench.bench.timing import Rounds

    return Rounds(args.rounds or 7, args.seconds, tell, deadline)


def _write(path: Path | None, report: Any) -> None:
    from paperbench.files import write_named
    from paperbench.typed import to_json

    if path is not None:
        write_named(path, to_json(report, indent=1).encode() + b"\n", "--json FILE")
