"""paperbench analyze WHAT: measure signal and gradient in every unit of a net."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paperbench.cli.arguments import add_settings, add_shared, number_of_runs, parse_settings, positive_int
from paperbench.cli.output import PICTURES, check_directory, format_of, import_figures, write
from paperbench.errors import PaperbenchError

if TYPE_CHECKING:
    from paperbench.report.analyses import Analyses

SUMMARY = "measure signal and gradient in every unit of a net"
DESCRIPTION = (
    "Measure what Sections 2 and 3 of the paper say about signal and gradient in every residual unit of a net, at "
    "initialisation or trained, on one batch of images. Analyses are kept in the results directory, so repeating a "
    "command prints them again."
)
FORMATS = ("text", "json", "csv", *PICTURES)


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
    parser.add_argument(
        "--seeds", type=number_of_runs, default=1, metavar="N", help="initialisations per net (default: 1)"
    )
    add_settings(parser)
    add_shared(parser, "--cells", "--profile")
    parser.add_argument(
        "--dataset", metavar="KEY", help="of a net: cifar10 (default), cifar100, imagenet, digits, photos"
    )
    parser.add_argument("--images", type=positive_int, metavar="N", help="images in the batch (default: a BN group)")
    parser.add_argument(
        "--size",
        type=positive_int,
        metavar="N",
        help="average regions of the images to N x N pixels: small nets with few images have all singular values",
    )
    parser.add_argument(
        "--batch-norm",
        choices=("batch", "averages"),
        default="batch",
        help="batch (default): statistics of the batch, as in training; averages: as in tests, on test images",
    )
    parser.add_argument(
        "--init",
        choices=("he", "orthogonal"),
        default="he",
        dest="initialisation",
        help="initial weights: he (default), as in the paper, or orthogonal",
    )
    parser.add_argument(
        "--precision", choices=("fp64", "fp32"), default="fp64", help="of the arithmetic: fp64 (default) or fp32"
    )
    parser.add_argument(
        "--measure",
        nargs="+",
        choices=("channels", "jacobians", "paths", "left-out"),
        default=[],
        help="measure these too",
    )
    parser.add_argument(
        "--minus",
        metavar="NET",
        help="in pictures of channels, subtract this net, which has the same units; after --run a run, after --weights "
        "a file",
    )
    parser.add_argument("--format", choices=FORMATS, help="default: what --out's name ends with, otherwise text")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the file to write (default: WHAT-analysis.FORMAT; text is printed)"
    )
    add_shared(parser, "--data", "--device", "--results", "--tables")


def execute(args: argparse.Namespace) -> int:
    form = format_of(args, FORMATS)
    if args.minus and (form not in PICTURES or "channels" not in args.measure):
        raise PaperbenchError("--minus is for the picture of all channels. Add `--measure channels --format svg`.")
    names = [args.what, args.run, args.weights and args.weights.stem]
    if args.minus and not any(names):
        raise PaperbenchError("--minus needs a net to subtract from. Name one.")
    if args.out:
        check_directory(args.out)
    figures = import_figures("analysis_figures") if form in PICTURES else None
    analyses = _analyze(args)
    if figures:
        minus = _analyze(args, minus=True) if args.minus else None
        content = figures.to_bytes(figures.draw(analyses, minus), form)
    else:
        content = analyses.render(form).encode()
    what = next(filter(None, names), args.results.resolve())
    write(args, form, content, f"{Path(what).name}-analysis")
    return 0


def _analyze(args: argparse.Namespace, minus: bool = False) -> Analyses:
    from paperbench import api

    names: dict[str, Any] = {"what": args.what, "run": args.run, "weights": args.weights}
    if minus:
        names = {name: args.minus if value is not None else None for name, value in names.items()}
    return api.analyze(
        **names,
        trained=args.trained,
        settings=parse_settings(args.settings),
        cells=args.cells or "*",
        profile=args.profile,
        seeds=args.seeds,
        dataset=args.dataset,
        data=args.data,
        results=args.results,
        root=args.tables,
        device=args.device,
        announce=lambda text: print(text, file=sys.stderr),
        images=args.images,
        size=args.size,
        batch_norm=args.batch_norm,
        initialisation=args.initialisation,
        precision=args.precision,
        measures=tuple(name.replace("-", "_") for name in args.measure),
    )
