"""paperbench analyze WHAT: measure signal and gradient in every unit of a net."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from paperbench.cli.arguments import add_settings, add_shared, number_of_runs, parse_settings, positive_int

SUMMARY = "measure signal and gradient in every unit of a net"
DESCRIPTION = (
    "Measure what Sections 2 and 3 of the paper say about signal and gradient in every residual unit of a net, at "
    "initialisation or trained, on one batch of images. Analyses are kept in the results directory, so repeating a "
    "command prints them again."
)
FORMATS = ("text", "json", "csv", "svg", "pdf", "png")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} WHAT [options]"
    parser.add_argument(
        "what",
        nargs="?",
        metavar="WHAT",
        help="a net, such as preact_resnet164, or a table, such as table2: its nets at initialisation",
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
    parser.add_argument("--format", choices=FORMATS, help="default: what --out's name ends with, otherwise text")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the file to write")
    add_shared(parser, "--data", "--device", "--results", "--tables")


def execute(args: argparse.Namespace) -> int:
    from paperbench import api

    analyses = api.analyze(
        args.what,
        run=args.run,
        weights=args.weights,
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
    from paperbench.report import analyses as report

    print(report.as_text(analyses))
    return 0
