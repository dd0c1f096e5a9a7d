"""paperbench data: check, download or convert a data set."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from paperbench.cli.arguments import add_shared
from paperbench.errors import PaperbenchError

if TYPE_CHECKING:
    from paperbench.data.dataset import ImageDataset


SUMMARY = "check, download or convert a data set"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add_action(name: str, summary: str) -> argparse.ArgumentParser:
        return actions.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")

    check = add_action("check", "load a data set and print its size and origin")
    check.add_argument("dataset", metavar="DATASET", help="cifar10, cifar100 or digits")
    add_shared(check, "--data")
    download = add_action("download", "download the original files and verify them")
    download.add_argument("dataset", metavar="DATASET", help="cifar10 or cifar100")
    add_shared(download, "--data")
    convert = add_action("convert", "make a .npz file from a directory of images or from the original files")
    convert.add_argument(
        "source", metavar="SOURCE", type=Path, help="directory with train/CLASS/*.png and test/CLASS/*.png (or *.jpg)"
    )
    convert.add_argument("target", type=Path, metavar="OUT.npz", help="file to create, such as data/cifar10.npz")
    convert.add_argument("--dataset", metavar="D", help="cifar10 or cifar100 (default: from the name of OUT.npz)")


def execute(args: argparse.Namespace) -> int:
    from paperbench.data.cifar_batches import DIRECTORIES
    from paperbench.data.convert import convert
    from paperbench.data.download import download
    from paperbench.data.sources import data_directory, load_dataset

    if args.action == "check":
        print(_describe(load_dataset(args.dataset, data_directory(args.data))))
    elif args.action == "download":
        print(f"{download(args.dataset, data_directory(args.data))} is complete; all files verified.")
    else:
        key = args.dataset or args.target.stem
        if key not in DIRECTORIES or args.target.suffix != ".npz":
            raise PaperbenchError(
                "Name the new file cifar10.npz or cifar100.npz; under another name ending in .npz, add `--dataset "
                "cifar10` or `--dataset cifar100`."
            )
        print(_describe(convert(args.source, args.target, key)))
    return 0


def _describe(dataset: ImageDataset) -> str:
    from paperbench.data.cifar_batches import DIRECTORIES
    from paperbench.report.grid import paragraph

    comparable = (
        "yes: the original files, by their md5"
        if dataset.canonical
        else "no: errors on it are not comparable with the paper"
    )
    if not dataset.canonical and dataset.key in DIRECTORIES:
        comparable += f"; `paperbench data download {dataset.key}` gets the original files"
    return (
        f"{paragraph(dataset.name)}\n"
        f"{paragraph(f'  origin       {dataset.origin}', ' ' * 15)}\n"
        f"{paragraph(f'  canonical    {comparable}', ' ' * 15)}\n"
        f"  images       {len(dataset.x_train):,} to train on, {len(dataset.x_test):,} to test\n"
        f"  fingerprint  {dataset.fingerprint}"
    )
