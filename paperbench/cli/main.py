"""The command `paperbench`. Each subcommand is a module that imports what it needs only when it runs."""

from __future__ import annotations

import argparse
import platform
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, NoReturn

import paperbench
from paperbench.ambient import prepare_for_torch
from paperbench.cli.arguments import REMOVED
from paperbench.errors import PaperbenchError, nearest, one_line
from paperbench.streams import standard_streams

SUBCOMMANDS = {
    "Inspect": ("list", "show", "models"),
    "Train": ("plan", "run", "status"),
    "Compare": ("compare", "record", "verify", "evaluate", "analyze"),
    "Present": ("report", "plot", "export"),
    "Utilities": ("init", "runs", "check", "doctor", "bench", "data", "schema"),
}
"""The subcommands, under the headings of `paperbench --help`. Each is a module of `paperbench.cli`."""

_NO_THREADS = ("Resource temporarily unavailable", "can't start new thread")
"""Messages of torch and of Python."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one or two lines and suggest the nearest option or choice.

    It takes no abbreviated options, so that a later option cannot change the meaning of a script.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse arguments; argparse calls this for each subcommand too, so unknown arguments are refused here."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            for one in unknown:
                self._refuse_removed(one.partition("=")[0])
            option = unknown[0].partition("=")[0]
            if not option.startswith("-"):
                self.error(f"Unexpected argument {unknown[0]!r}.")
            known = re.findall(r"^ +(?:-\w, )?(--[a-z][\w-]*)", self.format_help(), re.MULTILINE)
            self.error(f"Unknown option {option}. {nearest(option, known)}")
        return parsed, []

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            what = action.option_strings[-1] if action.option_strings else str(action.metavar).lower()
            self._refuse_removed(f"{what} {value}")
            raise argparse.ArgumentError(None, f"Unknown {what} {value!r}. {nearest(str(value), action.choices)}")

    def _refuse_removed(self, option: str) -> None:
        if option in REMOVED:
            self.error(f"{option} has been removed. {REMOVED[option]}")

    def error(self, message: str) -> NoReturn:
        if message.endswith("required: TABLE"):
            message = f"Name a table first, such as `{self.prog} table2`. `paperbench list` shows all tables."
        self.exit(2, f"paperbench: error: {message.removeprefix('argument ')}\nSee `{self.prog} --help`.\n")


def build_parser() -> Parser:
    width = max(20, get_terminal_size().columns - 2)  # as argparse does
    parser = Parser(
        prog="paperbench",
        description=textwrap.fill(
            "Re-run the tables of He et al., Identity Mappings in Deep Residual Networks (arXiv:1603.05027), and "
            "compare the results with the paper.",
            width,
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="paperbench COMMAND ...",
    )
    parser.add_argument("--version", action="version", version=f"paperbench {paperbench.__version__}")
    subparsers = parser.add_subparsers(prog="paperbench", dest="command", metavar="COMMAND", help=argparse.SUPPRESS)
    groups = []
    for title, names in SUBCOMMANDS.items():
        lines = [f"{title}:"]
        for name in names:
            module = import_module(f"paperbench.cli.{'list_tables' if name == 'list' else name}")
            summary = module.SUMMARY
            description = getattr(module, "DESCRIPTION", f"{summary[0].upper()}{summary[1:]}.")
            command = subparsers.add_parser(name, description=description)
            module.add_arguments(command)
            command.set_defaults(execute=module.execute)
            lines.append(textwrap.fill(f"  {name:<8}  {summary}", width, subsequent_indent=" " * 12))
        groups.append("\n".join(lines))
    start = (
        "Start with `paperbench run table2 --profile smoke`: it trains and judges a small Table 2 in three minutes on "
        "two cores. `paperbench COMMAND --help` describes a command."
    )
    parser.epilog = "\n\n".join([*groups, textwrap.fill(start, width)])
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit status: 0; 1 if `doctor`, `verify`, `data` or `list` finds a problem or `compare` a difference; 2 for
        an error that the user can fix; 128 + N after signal N.
    """
    with standard_streams():
        return exit_status(partial(_execute, arguments))


def _execute(arguments: Sequence[str] | None) -> int:
    if platform.system() == "Windows":
        print("paperbench: Windows does not rename open files, so no run can be saved. Use WSL 2.", file=sys.stderr)
    prepare_for_torch()
    parser = build_parser()
    args = parser.parse_args(arguments)
    if args.command is None:
        parser.print_help()
        return 2
    if "tables" in args and args.tables is None:
        from paperbench.specs.table_files import tables_here

        given = [vars(args).get(name) or () for name in ("table", "what", "names")]
        named = {name for one in given for name in ([one] if isinstance(one, str) else one)}
        args.tables = None if named.isdisjoint(tables_here()) else Path()
    if vars(args).get("changes"):
        from paperbench.specs.profile import changed_profile

        args.profile, _ = changed_profile(args.profile or "paper", args.changes)
    return int(args.execute(args))


def exit_status(execute: Callable[[], int]) -> int:
    """Execute a command; print errors that the user can fix in place of a traceback, and return the exit status."""
    try:
        try:
            return execute()
        finally:
            sys.stdout.flush()
    except PaperbenchError as error:
        why = str(error).replace("\n", "\n  ")  # so that a file name cannot look like a separate message
    except OSError as error:
        why = f"{error}. Fix this, then repeat the command."
    except (MemoryError, ImportError, RuntimeError) as error:
        why = one_line(str(error)) or "an allocation failed"
        if why in _NO_THREADS:
            why = f"no more threads can start ({why}). Raise the limit of processes (`ulimit -u`, or the container's)."
        elif _is_out_of_memory(error):
            why = f"out of memory ({why}). Close other programs and repeat this."
        else:
            raise
    except KeyboardInterrupt:
        print("paperbench: interrupted. What was saved is kept; repeat the command to go on.", file=sys.stderr)
        return 130
    print(f"paperbench: error: {why}", file=sys.stderr)
    return 2


def _is_out_of_memory(error: Exception) -> bool:
    of_training = sys.modules.get("paperbench.training.memory")  # whose import would take even more memory
    is_known = isinstance(error, MemoryError) or "failed to map segment" in str(error)  # of a shared library
    return is_known or (of_training is not None and of_training.is_out_of_memory(error))
