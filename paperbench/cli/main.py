"""The command `paperbench`. Each subcommand is a module that imports what it needs only when it runs."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from typing import Any

import paperbench
from paperbench.cli import bench, compare, data, list_tables, models, record, run, schema, show, verify
from paperbench.cli.arguments import discard_output
from paperbench.errors import PaperbenchError

SUBCOMMANDS = (list_tables, show, run, compare, record, verify, models, bench, data, schema)


class _Parser(argparse.ArgumentParser):
    """Takes options by their full names only, so that a later option cannot change what a script means."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)


def build_parser() -> argparse.ArgumentParser:
    """The parser of `paperbench` with all subcommands."""
    parser = _Parser(
        prog="paperbench",
        description="Re-run the tables of He et al., Identity Mappings in Deep Residual Networks (arXiv:1603.05027), "
        "and compare.",
        epilog="Start with `paperbench run table2 --profile smoke`: the whole machinery in three minutes on two cores.",
    )
    parser.add_argument("--version", action="version", version=f"paperbench {paperbench.__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in SUBCOMMANDS:
        module.add_parser(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        0; 1 if `verify` finds a problem; 2 for anything the user can mend; 128 + N if signal N ended it.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may know no dagger
    args = build_parser().parse_args(arguments)
    try:
        code = int(args.execute(args))
        sys.stdout.flush()
        return code
    except PaperbenchError as error:
        print(f"paperbench: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        discard_output()
        return 0
    except OSError as error:  # of a file that nobody thought could fail
        print(f"paperbench: error: {error}. Mend that, and give the same command again.", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("paperbench: interrupted; what was checkpointed is kept.", file=sys.stderr)
        return 130
