"""Arguments that several subcommands share."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paperbench.errors import PaperbenchError
from paperbench.seeds import MAX_SEEDS

if TYPE_CHECKING:
    from paperbench.api import Plan

DEFAULT_RESULTS = Path("results")
_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
DAY = _SECONDS["d"]


def positive_int(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def number_of_runs(text: str) -> int:
    """Parse a number of runs per cell."""
    if positive_int(text) > MAX_SEEDS:
        raise argparse.ArgumentTypeError(f"must be at most {MAX_SEEDS}, not {text}")
    return int(text)


def seconds(text: str) -> float:
    """Parse a time, such as 90 (seconds), 45s, 1h30m or 2d, into seconds."""
    parts = re.findall(r"(\d*\.?\d+)([dhms])", text)
    value = sum(_number(number) * _SECONDS[unit] for number, unit in parts) if parts else _number(text)
    if "".join(map("".join, parts)) not in ("", text) or not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a time such as 90 (seconds), 45m, 1h30m or 2d, not {text!r}")
    return value


def rate(text: str) -> tuple[str, float]:
    """Parse a net and its images per second, such as preact_resnet110=2000."""
    from paperbench.catalogue import resolve

    name, _, number = text.partition("=")
    resolve(name)
    if not 0 < _number(number) < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a net and its images per second, such as {name}=2000, not {text!r}")
    return name, _number(number)


def positive_points(text: str) -> float:
    if not 0 < _number(text) <= 100:
        raise argparse.ArgumentTypeError(f"must be a positive number of percentage points, not {text!r}")
    return _number(text)


def _number(text: str) -> float:
    """Parse a number; return 0 for anything else."""
    try:
        return float(text)
    except ValueError:
        return 0.0


_SHARED: dict[str, dict[str, Any]] = {
    "table": {"metavar": "TABLE", "help": "id of a table, such as table2; `paperbench list` shows all"},
    "--cells": {
        "action": "extend",
        "nargs": "+",
        "metavar": "GLOB",
        "help": "only the cells whose row, column or row/column matches one of these patterns, such as `--cells "
        "original preact` or `--cells '*/resnet110'`; repeatable",
    },
    "--profile": {
        "default": "paper",
        "metavar": "P",
        "help": "paper (default): the paper's experiment; shallow, smoke: smaller ones, see `paperbench list`",
    },
    "--device": {
        "default": "auto",
        "metavar": "D",
        "help": "auto (default: the first GPU that works, else the CPU), cpu, cuda or cuda:N",
    },
    "--precision": {
        "metavar": "P",
        "help": "fp32, tf32 or bf16 (default: the table's if it sets one, else tf32 on GPUs that have it, else fp32)",
    },
    "--engine": {
        "default": "auto",
        "metavar": "E",
        "help": "eager, graph (a CUDA graph: same numbers as eager, bit for bit), streams (the same with batch-norm "
        "groups side by side), compile (torch.compile: rounds differently) or auto (default: the fastest that suits "
        "the device and the number of iterations)",
    },
    "--stop-at": {
        "type": positive_int,
        "metavar": "ITER",
        "help": "pause every run after this iteration; repeat the command without it, or with a higher one, to resume",
    },
    "--data": {
        "type": Path,
        "metavar": "DIR",
        "help": "directory with the data sets (default: $PAPERBENCH_DATA, else ./data)",
    },
    "--results": {
        "type": Path,
        "default": DEFAULT_RESULTS,
        "metavar": "DIR",
        "help": "results directory (default: ./results)",
    },
    "--tables": {
        "type": Path,
        "metavar": "DIR",
        "help": "directory with your own experiments/ and expected/ (default: those of paperbench)",
    },
}

REMOVED = {
    "--breakdown": 'Paste the script of "Where a step\'s time goes" in docs/speed.md.',
    "--budget": "`paperbench plan TABLE` lists the runs that decide most first; limit the time with `run "
    "--max-seconds 8h`.",
    "--incompatible continue": "Resume with the versions that began the run, or restart it: `--incompatible restart`.",
    "--memory": "`paperbench plan TABLE` and `paperbench doctor` say what a training step needs.",
    "--noise": "Cells share their noise. To judge one by its own, compare a results directory that holds only its "
    "runs.",
    "schema mapping": "Mapping files have been removed. `paperbench evaluate --mapping` knows three implementations by "
    "name; for another, save a file that says which net and which input it has: see docs/nets.md.",
}
"""What to use instead of options and choices of the version before."""


def add_shared(parser: argparse.ArgumentParser, *names: str) -> None:
    for name in names:
        parser.add_argument(name, **_SHARED[name])
    if "table" in names:
        parser.usage = f"{parser.prog} TABLE [options]"  # argparse puts TABLE last, where `--cells` would take it


def warn(warning: str) -> None:
    print(f"paperbench: warning: {warning}", file=sys.stderr)


def plan_of(args: argparse.Namespace, **changes: Any) -> Plan:
    """Plan the runs of a command; see `api.plan`."""
    from paperbench import api

    names = "profile seeds precision device engine data stop_at max_seconds incompatible"
    options = {name: getattr(args, name) for name in names.split() if hasattr(args, name)} | changes
    return api.plan(args.table, args.results, cells=args.cells or "*", root=args.tables, **options)


def say_what_is_skipped(plan: Plan, args: argparse.Namespace) -> None:
    """Name the rows and GPUs that a plan skips."""
    for row in plan.unnamed_rows if args.cells else ():
        print(f"paperbench: skipped row {row}: it runs only if named in full (`--cells {row}`).", file=sys.stderr)
    for warning in plan.warnings:
        warn(warning)


def name_left_out(complaints: Iterable[str]) -> None:
    """Name the files, records and results that could not be used."""
    for complaint in complaints:
        print(f"paperbench: left out: {complaint}", file=sys.stderr)


def name_other_profiles(results: Path, profiles: Collection[str]) -> None:
    """Say that there are runs of profiles that were not shown."""
    if profiles:
        options = " or ".join(f"--profile {profile}" for profile in profiles)
        print(f"paperbench: {results} has runs of other profiles: {options} shows them.", file=sys.stderr)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add `--set`, whose values `parse_settings` reads."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="settings",
        help="for a net: one of its arguments, as for timm.create_model, such as depth=20; repeatable",
    )


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Return a net's arguments from texts `key=value`; a value is parsed as JSON if possible, else kept as text."""
    settings: dict[str, Any] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if not key or not value:
            raise PaperbenchError(f"--set takes KEY=VALUE, such as depth=20 or shortcut=conv, not {text!r}.")
        if key in settings:
            raise PaperbenchError("--set sets an argument twice. Set it once.")
        try:
            settings[key] = json.loads(value)
        except (ValueError, RecursionError):
            settings[key] = value
    return settings


def command_for(name: str, args: argparse.Namespace) -> str:
    """Return another command for the table, with the options that were given."""
    parts = ["paperbench", name, args.table]
    of_run = ("--precision", "--device", "--engine", "--stop-at", "--data") if name == "run" else ()
    for option in ("--cells", "--profile", "--seeds", *of_run, "--results", "--tables"):
        value = getattr(args, option[2:].replace("-", "_"), None)
        if value and value != _SHARED.get(option, {}).get("default"):
            parts += [option, *map(str, value if isinstance(value, list) else [value])]
    return shlex.join(parts)
