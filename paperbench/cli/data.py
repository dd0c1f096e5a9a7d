"""paperbench data: what data sets there are, and fetching them."""

from __future__ import annotations

import argparse

from paperbench.cli.arguments import Subparsers, add_data


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("data", help="check data sets, or download them")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = actions.add_parser("check", help="read a data set and say what it is")
    check.add_argument("dataset", help="cifar10, cifar100 or digits")
    add_data(check)
    check.set_defaults(execute=execute_check)
    download = actions.add_parser("download", help="fetch the original files and check them")
    download.add_argument("dataset", help="cifar10 or cifar100")
    add_data(download)
    download.set_defaults(execute=execute_download)


def execute_check(args: argparse.Namespace) -> int:
    from paperbench.data.sources import data_directory, load_dataset

    dataset = load_dataset(_known(args.dataset), data_directory(args.data))
    print(f"{dataset.name}")
    print(f"  origin       {dataset.origin}")
    print(f"  canonical    {'yes' if dataset.canonical else 'no: errors on it are not comparable with the paper'}")
    print(f"  images       {len(dataset.x_train):,} to train on, {len(dataset.x_test):,} to test")
    print(f"  fingerprint  {dataset.fingerprint}")
    return 0


def execute_download(args: argparse.Namespace) -> int:
    from paperbench.data.download import download
    from paperbench.data.sources import data_directory

    print(f"{download(_known(args.dataset), data_directory(args.data))} is complete and checked.")
    return 0


def _known(key: str) -> str:
    from paperbench.catalogue import DATASETS
    from paperbench.errors import PaperbenchError, nearest

    if key not in DATASETS:
        raise PaperbenchError(f"Unknown data set {key!r}. {nearest(key, DATASETS)}")
    return key
