"""Files and pictures that subcommands write: their formats and names."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from paperbench.errors import PaperbenchError, nearest
from paperbench.files import write_named

PICTURES = ("svg", "pdf", "png")


def add_output(parser: argparse.ArgumentParser, formats: Sequence[str], default: str) -> None:
    """Add `--format` and `--out`, which `format_of` and `write` read."""
    parser.add_argument("--format", choices=formats, help="default: what --out's name ends with, otherwise text")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"the file to write (default: {default})")


def add_format(parser: argparse.ArgumentParser) -> None:
    """Add `--format` to a command that prints a typed document."""
    name = parser.prog.split()[-1]
    help_ = f"text (default), or json, as `paperbench schema {name}` describes it"
    parser.add_argument("--format", choices=("text", "json"), default="text", help=help_)


def print_json(document: object) -> None:
    from paperbench.report.json_format import render

    print(render(document), end="")


def format_of(args: argparse.Namespace, formats: Sequence[str]) -> str:
    """Return the format that --format or the name of --out asks for."""
    short = {"text": "txt", "markdown": "md"}
    suffixes = {suffix: form for form in formats for suffix in (form, short.get(form, form))}
    named = args.out.suffix[1:].lower() if args.out else ""
    if named and named not in suffixes:
        raise PaperbenchError(f"Unknown format {named!r} of {args.out}. {nearest(named, suffixes)}")
    if named and args.format not in (None, suffixes[named]):
        raise PaperbenchError(f"--format {args.format} and the name {args.out} contradict each other. Leave one out.")
    return args.format or suffixes.get(named, "text")


def check_directory(path: Path) -> None:
    if not path.parent.is_dir():
        raise PaperbenchError(f"{path.parent} is not a directory. Make it, or choose another file (`--out FILE`).")


def write(args: argparse.Namespace, form: str, content: bytes, name: str) -> None:
    """Write a file and say where; print what is no picture if no file is named.

    Args:
        name: Of a picture, if --out does not give one, without its format.
    """
    if not args.out and form not in PICTURES:
        print(content.decode(), end="")
        return
    path = args.out or Path(f"{name}.{form}")
    check_directory(path)
    write_named(path, content, "--out FILE")
    print(f"Wrote {path}.")


def import_figures(name: str = "figures") -> ModuleType:
    """Import a module of `report` that needs matplotlib."""
    os.environ.pop("MPLBACKEND", None)  # of a notebook, perhaps: this shell may lack it, and no window is opened
    try:
        return import_module(f"paperbench.report.{name}")
    except ImportError as error:
        raise PaperbenchError("Pictures need matplotlib: `pip install matplotlib`.") from error
