"""paperbench analyze WHAT: measure signal and gradient in every unit of a net."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paperbench.cli.arguments import add_settings, add_shared, chosen
from paperbench.cli.output import PICTURES, add_output, check_directory, format_of, import_figures, write
from paperbench.errors import PaperbenchError
from paperbench.options import AnalysisOptions, differing, options_of, parse_settings

if TYPE_CHECKING:
    from paperbench.report.analyses import Analyses

SUMMARY = "measure signal and gradient in every unit of a net"
DESCRIPTION = (
    "Measure what Sections 2 and 3 of the paper say about signal and gradient in every residual unit of a net, at "
    "initialisation or trained, on one batch of images. Analyses are kept in the results directory, so repeating a "
    "command prints them again."
)
FORMATS = ("text", "markdown", "json", "csv", *PICTURES)
OPTIONS = ("trained", "cells", "profile", "seeds", "dataset", "data", "device")
"""The options that `api.analyze` takes as they are, if they are given."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} [WHAT] [options]"
    parser.add_argument(
        "what",
        nargs="?",
        metavar="WHAT",
        help="a net, such as preact_resnet164, or a table, such as table2: its nets at initialisation; without it, "
        "--run and --weights: all analyses in --results",
    )
    parser.add_argument(
        "--run", metavar="RUN", help="the net of this run (its id or directory) as far as it is trained"
    )
    parser.add_argument("--weights", type=Path, metavar="FILE", help="the net in a weights file of paperbench")
    parser.add_argument(
        "--trained", action="store_true", help="the nets of the table's runs in --results, as far as they are trained"
    )
    add_shared(parser, "--seeds", help="initialisations per net (default: 1)")
    add_settings(parser)
    add_shared(parser, "--cells", "--profile")
    parser.add_argument(
        "--dataset", metavar="KEY", help="of a net: cifar10 (default), cifar100, imagenet, digits, digits8, photos"
    )
    for flag, settings in options_of(AnalysisOptions).items():
        parser.add_argument(flag, **settings)
    parser.add_argument(
        "--minus",
        metavar="NET",
        help="in pictures of channels, subtract this net, which has the same units; after --run a run, after --weights "
        "a file",
    )
    add_output(parser, FORMATS, "WHAT-analysis.FORMAT; what is no picture is printed")
    add_shared(parser, "--data", "--device", "--results", "--tables")


def execute(args: argparse.Namespace) -> int:
    form = format_of(args, FORMATS)
    if args.minus and (form not in PICTURES or "channels" not in (args.measure or ())):
        raise PaperbenchError("--minus is for the picture of all channels. Add `--measure channels --format svg`.")
    if args.out:
        check_directory(args.out)
    figures = import_figures("analysis_figures") if form in PICTURES else None
    named = {name: vars(args)[name] for name in ("what", "run", "weights") if vars(args)[name] is not None}
    if args.minus and not named:
        raise PaperbenchError("--minus needs a net to subtract from. Name one.")
    analyses = _analyse(args, named)
    if figures:
        minus = _analyse(args, dict.fromkeys(named, args.minus)) if args.minus else None
        content = figures.to_bytes(figures.draw(analyses, minus), form)
    else:
        content = analyses.render(form).encode()
    what = args.what or Path(args.run or (args.weights.stem if args.weights else args.results.resolve())).name
    write(args, form, content, f"{what}-analysis")
    return 0


def _analyse(args: argparse.Namespace, named: dict[str, Any]) -> Analyses:
    from paperbench import api

    options = {name: vars(args)[name] for name in OPTIONS} | {"settings": parse_settings(args.settings)}
    given = {name: value for name, value in options.items() if value and (name, value) != ("profile", "paper")}
    given |= differing(chosen(AnalysisOptions, args))
    paths = {"results": args.results, "root": args.tables}
    return api.analyze(**named, **given, **paths, announce=lambda text: print(text, file=sys.stderr))
