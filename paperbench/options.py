"""What a user chooses, declared once: for `paperbench.plan`, for the command line, and for commands that are printed.

The docstring under a field is also the help of its option.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import math
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

from paperbench.errors import PaperbenchError, nearest
from paperbench.seeds import MAX_SEEDS

_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
DAY = _SECONDS["d"]

Incompatible = Literal["refuse", "restart"]
Deletable = Literal["checkpoints", "superseded", "damaged", "leftovers"]
"""Files of a results directory by `runs.housekeeping.KINDS`."""
Measure = Literal["channels", "jacobians", "paths", "left_out", "health"]


def number(text: str) -> float:
    """Parse a number; return 0 for anything else."""
    try:
        return float(text)
    except ValueError:
        return 0.0


def positive_int(text: str) -> int:
    """Parse a whole number of at least 1."""
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
    value = sum(number(amount) * _SECONDS[unit] for amount, unit in parts) if parts else number(text)
    if "".join(map("".join, parts)) not in ("", text) or not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a time such as 90 (seconds), 45m, 1h30m or 2d, not {text!r}")
    return value


def parse_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Return values by their keys from texts `key=value`; a value is parsed as JSON if possible, else kept as text."""
    settings: dict[str, Any] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if not key or not value:
            raise PaperbenchError(f"--set takes KEY=VALUE, such as depth=20 or iterations=2000, not {text!r}.")
        if key in settings:
            raise PaperbenchError("--set sets a value twice. Set it once.")
        try:
            settings[key] = json.loads(value)
        except (ValueError, RecursionError):
            settings[key] = value
    return settings


def _option(
    metavar: str | None = None, parse: Callable[[str], Any] = str, default: Any = None, flag: str = "", **settings: Any
) -> Any:
    """Return a field that is an option.

    Args:
        flag: As it is typed; by default like the field.
        settings: Further ones of `argparse.ArgumentParser.add_argument`.
    """
    usual = None if isinstance(default, tuple) else default  # argparse would add to it what is given
    settings = {"metavar": metavar, "type": parse, "default": usual, **settings}
    return field(default=default, metadata={"flag": flag, "settings": settings})


@dataclass(frozen=True)
class Selection:
    """Some cells of a table, and where their results are."""

    table: str = field(metadata={"flag": "table", "settings": {"metavar": "TABLE"}})
    """id of a table, such as table2; `paperbench list` shows all"""

    cells: tuple[str, ...] = _option("GLOB", default=("*",), action="extend", nargs="+")
    """only the cells whose row, column or row/column matches one of these patterns, such as `--cells original preact`
    or `--cells '*/resnet110'`; repeatable"""

    profile: str = _option("P", default="paper")
    """paper (default): the paper's experiment; shallow, smoke: smaller ones, see `paperbench list`"""

    seeds: int | None = _option("N", number_of_runs)
    """runs per cell (default: the table's, or the profile's)"""

    results: Path = _option("DIR", Path, Path("results"))
    """results directory (default: ./results)"""

    root: Path | None = _option("DIR", Path, flag="--tables")
    """directory with your own experiments/ (default: paperbench's; for a table that is only in ./experiments, .)"""

    def __post_init__(self) -> None:
        if self.seeds is not None and not 1 <= self.seeds <= MAX_SEEDS:
            raise PaperbenchError(f"seeds must be from 1 to {MAX_SEEDS}, not {self.seeds}.")


@dataclass(frozen=True)
class TrainingOptions:
    """How runs are trained."""

    precision: str | None = _option("P")
    """fp32, tf32 or bf16 (default: the table's if it sets one, else tf32 on GPUs that have it, else fp32)"""

    device: str = _option("D", default="auto")
    """auto (default: the first GPU that works, else the CPU), cpu, cuda or cuda:N"""

    engine: str = _option("E", default="auto")
    """eager, graph (a CUDA graph: same numbers as eager, bit for bit) or auto (default: the faster of the two that
    works)"""

    at_once: int = _option("K", positive_int, 1)
    """runs that take turns on the device, each with the results that it has alone; trains small nets faster on a GPU
    (default: 1; see docs/speed.md)"""

    stop_at: int | None = _option("ITER", positive_int)
    """pause every run after this iteration; repeat the command without it, or with a higher one, to resume"""

    max_seconds: float | None = _option("T", seconds)
    """pause after this time, such as 1h30m or 90 (seconds); loading the data and the final test of a run are not
    counted"""

    incompatible: Incompatible = _option(default="refuse", choices=get_args(Incompatible))
    """what to do with a run of other facts, another numerics version or major version of torch, or without a readable
    checkpoint: refuse it (default), or restart it and set its old files aside"""

    data: Path | None = _option("DIR", Path)
    """directory with the data sets (default: $PAPERBENCH_DATA, else ./data)"""

    def __post_init__(self) -> None:
        for name, value in (("at_once", self.at_once), ("stop_at", self.stop_at)):
            if value is not None and value < 1:
                raise PaperbenchError(f"{name} must be at least 1, not {value}.")
        if self.max_seconds is not None and not 0 < self.max_seconds < math.inf:
            raise PaperbenchError(f"max_seconds must be a positive number of seconds, not {self.max_seconds}.")
        if self.incompatible not in (known := get_args(Incompatible)):
            raise PaperbenchError(f"Unknown choice {self.incompatible!r}. {nearest(self.incompatible, known)}")


@dataclass(frozen=True)
class AnalysisOptions:
    """How nets are analysed; see `analysis.record.AnalysisSpec`."""

    images: int | None = _option("N", positive_int)
    """images in the batch (default: a BN group)"""

    size: int | None = _option("N", positive_int)
    """average regions of the images to N x N pixels: small nets with few images have all singular values"""

    batch_norm: Literal["batch", "averages"] = _option(default="batch", choices=("batch", "averages"))
    """batch (default): statistics of the batch, as in training; averages: as in tests, on test images"""

    initialisation: Literal["he", "orthogonal"] = _option(default="he", flag="--init", choices=("he", "orthogonal"))
    """initial weights: he (default), as in the paper, or orthogonal"""

    precision: Literal["fp64", "fp32"] = _option(default="fp64", choices=("fp64", "fp32"))
    """of the arithmetic: fp64 (default) or fp32"""

    measures: tuple[Measure, ...] = _option(
        "MEASURE", lambda name: name.replace("-", "_"), (), "--measure", nargs="+", choices=get_args(Measure)
    )
    """measure these too: channels, jacobians, paths, left-out, health"""


def is_bit_equal(engine: str) -> bool:
    """Whether an engine of a record gives the same bits as `eager`, as all of today do."""
    return engine in ("eager", "graph", "streams")  # the last is what graph was called


Options = Selection | TrainingOptions | AnalysisOptions


def flag_of(one: Field[Any]) -> str:
    """Return how an option is typed."""
    return one.metadata["flag"] or f"--{one.name.replace('_', '-')}"


def options_of(kind: type[Options]) -> dict[str, dict[str, Any]]:
    """Return the settings of `argparse.ArgumentParser.add_argument` for each option."""
    tree: Any = ast.parse(inspect.getsource(kind))
    pairs = pairwise(tree.body[0].body)
    docs = {one.target.id: " ".join(below.value.value.split()) for one, below in pairs if hasattr(one, "target")}
    return {flag_of(one): {**one.metadata["settings"], "help": docs[one.name]} for one in fields(kind)}


def differing(one: Options) -> dict[str, Any]:
    """Return the fields that differ from their defaults."""
    return {each.name: value for each in fields(one) if (value := getattr(one, each.name)) != each.default}


def arguments(name: str, selection: Selection, training: TrainingOptions | None = None, *flags: str) -> tuple[str, ...]:
    """Return the arguments of `paperbench` for a command on a table: what differs from the defaults."""
    words, directories = [name], list[str]()
    for chosen in (selection, training or TrainingOptions()):
        for field_name, value in differing(chosen).items():
            flag = flag_of(chosen.__dataclass_fields__[field_name])
            if isinstance(value, tuple):
                words += [flag, *value]
            elif isinstance(value, Path):
                directories.append(f"{flag}={value}")
            else:
                words.append(f"{flag}={value}" if flag.startswith("--") else value)
    return (*words, *flags, *sorted(directories))


def command(name: str, selection: Selection, training: TrainingOptions | None = None, *flags: str) -> str:
    """Return a command on a table, to be typed in a shell; see `arguments`."""
    words = ["paperbench"]
    for word in arguments(name, selection, training, *flags):
        # After a space, a value with a dash would be another option.
        words += word.split("=", 1) if word.startswith("--") and "=-" not in word else [word]
    return shlex.join(words)
