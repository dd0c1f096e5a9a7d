"""Arguments that several subcommands share."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from paperbench.seeds import MAX_SEEDS

Subparsers = Any  # argparse does not export the class that `add_subparsers` returns

DEFAULT_RESULTS = Path("results")


def add_table(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} TABLE [options]"  # argparse puts TABLE last, where `--cells` would take it
    parser.add_argument("table", metavar="TABLE", help="id of a table, such as table2; `paperbench list` shows all")


def add_tables_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tables",
        type=Path,
        metavar="DIR",
        help="directory with your own experiments/ and expected/ (default: those of paperbench)",
    )


def add_results(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results", type=Path, default=DEFAULT_RESULTS, metavar="DIR", help="results directory (default: ./results)"
    )


def add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="directory with the data sets (default: $PAPERBENCH_DATA, else ./data)",
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        default="auto",
        metavar="D",
        help="auto (default: the first GPU, else the CPU), cpu, cuda or cuda:N",
    )


def add_profile(parser: argparse.ArgumentParser, default: str = "paper") -> None:
    parser.add_argument(
        "--profile",
        default=default,
        metavar="P",
        help="paper (default): the paper's experiment; shallow, smoke: smaller ones, see `paperbench list`",
    )


class _Patterns(argparse.Action):
    """Collects the patterns of all occurrences of an option; the first occurrence replaces the default."""

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        _option: str | None = None,
    ) -> None:
        given = getattr(namespace, self.dest)
        setattr(namespace, self.dest, values if given is self.default else [*given, *values])


ALL_CELLS = ("*",)


def add_cells(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cells",
        action=_Patterns,
        nargs="+",
        default=ALL_CELLS,
        metavar="GLOB",
        help="only the cells whose row, column or row/column matches one of these patterns, such as `--cells original "
        "preact` or `--cells '*/resnet110'`; repeatable",
    )


def discard_output() -> None:
    """Send further output to /dev/null: the reader of stdout, such as `head`, has closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def positive_int(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def number_of_runs(text: str) -> int:
    """Parse a number of runs per cell."""
    if positive_int(text) > MAX_SEEDS:
        raise argparse.ArgumentTypeError(f"must be at most {MAX_SEEDS}, not {text}")
    return int(text)


def positive_seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, not {text!r}")
    return value
