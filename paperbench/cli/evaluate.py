"""paperbench evaluate NET: test a trained net, or one of another library, on a data set."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paperbench.catalogue import DATASETS
from paperbench.cli.arguments import add_shared
from paperbench.cli.record import enter, make_result, named
from paperbench.errors import PaperbenchError, count, one_line
from paperbench.options import positive_int

if TYPE_CHECKING:
    from paperbench.runs.evaluate import Candidate
    from paperbench.runs.external import ExternalResult
    from paperbench.training.evaluation import EvaluationMetrics

SUMMARY = "test a run, a weights file, or a net of timm or torchvision"
DESCRIPTION = (
    "Test a net on every test image of a data set once. A run is tested as after its training; a net of another "
    "library has its own preprocessing. Labels count the classes as torchvision does: ImageNet's synsets in "
    "alphabetical order."
)
OPTIONS = ("weights", "pretrained", "mapping", "dataset", "data", "device", "precision", "results")
"""The options that `prepare` takes as they are."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{parser.prog} NET [options]"
    parser.add_argument(
        "net",
        metavar="NET",
        help="a run (its id or directory), a weights file of paperbench, the name of a net (`paperbench models`), "
        "timm:NAME such as timm:resnet50.a1_in1k, or torchvision:NAME such as torchvision:resnet50.IMAGENET1K_V1",
    )
    parser.add_argument(
        "--weights", type=Path, metavar="FILE", help="weights of a named net: safetensors, or of torch.save"
    )
    parser.add_argument("--pretrained", action="store_true", help="let timm or torchvision download the weights")
    help_ = "the implementation that the weights are from: akamaster, bearpaw_resnet or chenyaofo (CIFAR)"
    parser.add_argument("--mapping", metavar="M", help=help_)
    help_ = "default: the net's own; or cifar10, cifar100, imagenet, photos, digits, digits8"
    parser.add_argument("--dataset", metavar="KEY", help=help_)
    add_shared(parser, "--data", "--device")
    parser.add_argument("--precision", metavar="P", help="fp32, tf32 or bf16 (default: the run's, else tf32 or fp32)")
    parser.add_argument("--crop", type=positive_int, metavar="C", help="side of the central crop of photographs")
    parser.add_argument("--scale", type=positive_int, metavar="S", help="length of their shorter side before the crop")
    help_ = "record the error as an external result of this cell (see `paperbench record`)"
    parser.add_argument("--record", nargs=2, metavar=("TABLE", "CELL"), help=help_)
    parser.add_argument("--seed", type=int, metavar="S", help="with --record: a number that identifies the net")
    parser.add_argument("--source", type=str.strip, metavar="TEXT", help="with --record: where the net is from")
    parser.add_argument("--setting", metavar="LABEL", help="with --record: the net, in cells with several")
    add_shared(parser, "--results", "--tables")


def execute(args: argparse.Namespace) -> int:
    if (args.crop is None) != (args.scale is None):
        raise PaperbenchError("Give --crop and --scale together.")
    if args.record is None and (args.seed is not None or args.source or args.setting):
        raise PaperbenchError("--seed, --source and --setting need --record TABLE CELL.")
    from paperbench.runs.evaluate import prepare
    from paperbench.specs.recipe import Evaluation
    from paperbench.specs.table import know_functions
    from paperbench.typed import from_json, to_json

    crop = from_json(Evaluation, to_json({"crop": args.crop, "scale": args.scale})) if args.crop else None
    options = {name: vars(args)[name] for name in OPTIONS}
    know_functions(args.tables)
    return print_test(args, prepare(args.net, crop=crop, warn=lambda text: print(text, file=sys.stderr), **options))


def print_test(args: argparse.Namespace, candidate: Candidate) -> int:
    """Test a net and print the result; with --record, keep it as that of a cell."""
    args.table, args.cell = args.record or (None, None)
    if args.record:
        _external(args, candidate, None)  # what is wrong with it need not wait for the test
    _print("net", candidate.name)
    _print("input", candidate.inputs)
    data = candidate.dataset
    status = "" if data.canonical or data.unverified else "; not the data of the paper"
    _print("data", f"{data.name}: {count(data.num_test, 'test image')}{status}")
    tested = candidate.test()
    for evaluation, one in zip(candidate.evaluations, tested, strict=True):
        errors = f"top-1 error {one.error:.3f} %, top-5 error {one.top5_error:.3f} %, loss {one.loss:.6g}"
        _print("tested", f"{evaluation}: {errors}" if evaluation else errors)
    _print("on", f"{candidate.device}, {candidate.precision}")
    if tested[0].error > 100 - 200 / DATASETS[data.key].num_classes:
        order = "" if candidate.net else " The net may count the classes in another order."
        _print("remark", f"this is hardly better than chance.{order}")
    if args.record:
        enter(_external(args, candidate, tested), args)
    return 0


def _print(name: str, text: str) -> None:
    print(f"{name:<8}{one_line(text)}", flush=True)


def _external(
    args: argparse.Namespace, candidate: Candidate, tested: Sequence[EvaluationMetrics] | None
) -> ExternalResult:
    """Return the external result of a cell; before the test, with an error of 0."""
    table, cell, setting = named(args)
    paper = table.profiles.named("paper")
    evaluation, net = table.evaluation_in(paper, cell), cell.net_in(paper, setting)
    if args.seed is None or not args.source:
        raise PaperbenchError("--record needs --seed and --source.")
    data, is_test = candidate.dataset, candidate.net in (None, net) and evaluation in candidate.evaluations
    if not (is_test and data.key == cell.dataset and (data.canonical or data.unverified)):
        raise PaperbenchError(
            f"Nothing can be recorded for {table.id} {cell.id}: this is another net, data set or test. The cell is for "
            f"{setting.reference} on the original {cell.dataset}, tested on {evaluation or 'whole images'}."
        )
    metric = 0.0
    if tested:
        one = tested[candidate.evaluations.index(evaluation)]
        metric = one.error if cell.column.metric == "top1" else one.top5_error
    return make_result(args, table, cell, setting, metric)
