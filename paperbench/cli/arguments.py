"""Arguments, and remarks, that several subcommands share."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from paperbench.seeds import MAX_SEEDS

Subparsers = Any  # argparse keeps the class of `add_subparsers` to itself

DEFAULT_RESULTS = Path("results")


def add_table(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("table", help="id of a table, such as table2")


def add_tables_root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tables", type=Path, metavar="DIR", help="folder with experiments/ and expected/ (default: paperbench's own)"
    )


def add_results(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results", type=Path, default=DEFAULT_RESULTS, metavar="DIR", help="results directory (default: ./results)"
    )


def add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder with the data sets (default: $PAPERBENCH_DATA, else ./data)"
    )


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", metavar="D", help="auto (default), cpu, cuda or cuda:N")


def add_profile(parser: argparse.ArgumentParser, default: str = "paper") -> None:
    parser.add_argument(
        "--profile", default=default, metavar="P", help="paper (default): exact; shallow, smoke: reduced, see `list`"
    )


class _Once(argparse.Action):
    """An option that is refused, rather than replaced, when it is given again."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest) != self.default:
            parser.error(f"{option_string} was given twice; give one pattern, such as '[ab]*/*', or two commands")
        setattr(namespace, self.dest, values)


def add_cells(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cells",
        action=_Once,
        default="*",
        metavar="GLOB",
        help="only cells whose row/column matches, such as 'preact/*' or resnet110",
    )


def discard_output() -> None:
    """Write no more to stdout: its reader, such as `head`, has had enough."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def positive_int(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 up, not {text!r}")
    return int(text)


def number_of_runs(text: str) -> int:
    """A number of runs a cell that somebody could train."""
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
