"""paperbench data: check, download, convert, pack or index a data set."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from paperbench.cli.arguments import add_shared, tell
from paperbench.errors import PaperbenchError
from paperbench.options import positive_int

if TYPE_CHECKING:
    from paperbench.data.dataset import ImageDataset
    from paperbench.data.imagenet.index import PhotoDataset


SUMMARY = "check, download, convert, pack or index a data set"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def add_action(name: str, summary: str, more: str = "") -> argparse.ArgumentParser:
        return actions.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}. {more}")

    status = "Exit status: 1 if images of ImageNet are missing or have changed."
    check = add_action("check", "load a data set and print its size and origin", status)
    check.add_argument("dataset", metavar="DATASET", help="cifar10, cifar100, imagenet, photos, digits or digits8")
    add_shared(check, "--data")
    download = add_action("download", "download the original files and verify them")
    download.add_argument("dataset", metavar="DATASET", help="cifar10 or cifar100")
    add_shared(download, "--data")
    pack = add_action("pack", "pack Hugging Face's parquet files into tar files, which can be indexed")
    pack.add_argument("dataset", metavar="DATASET", choices=["imagenet"], help="imagenet")
    pack.add_argument(
        "source", metavar="SOURCE", type=Path, help="directory with train-*-of-*.parquet, or data/ of them"
    )
    pack.add_argument("target", metavar="OUT", type=Path, help="directory of the tar files; continued where it ended")
    convert = add_action("convert", "make a .npz file from a directory of images or from the original files")
    convert.add_argument(
        "source", metavar="SOURCE", type=Path, help="directory with train/CLASS/*.png and test/CLASS/*.png (or *.jpg)"
    )
    convert.add_argument("target", type=Path, metavar="OUT.npz", help="file to create, such as data/cifar10.npz")
    convert.add_argument("--dataset", metavar="D", help="cifar10 or cifar100 (default: from the name of OUT.npz)")
    index = add_action(
        "index",
        "find, check and hash the images of ImageNet",
        "They stay where they are; the data directory gets an index of them. The same command goes on where it was "
        "stopped. Exit status: 1 if images are missing, cannot be used, or are not those of the archives.",
    )
    index.add_argument("dataset", metavar="DATASET", choices=["imagenet"], help="imagenet")
    help_ = "directory of the images: the original archives, class folders, Kaggle's directories or tar shards"
    index.add_argument("source", metavar="DIR", type=Path, help=help_)
    index.add_argument(
        "--archives", metavar="A", type=Path, help="directory of the original archives, to compare the images with"
    )
    index.add_argument("--subset", action="store_true", help="accept that images are missing")
    help_ = "images read at once (default: one for each processor it may use)"
    index.add_argument("--threads", metavar="N", type=positive_int, help=help_)
    add_shared(index, "--data")


def execute(args: argparse.Namespace) -> int:
    from paperbench.data.cifar_batches import DIRECTORIES
    from paperbench.data.convert import convert
    from paperbench.data.download import download
    from paperbench.data.sources import data_directory, load_dataset

    if args.action == "index":
        return _index(args, data_directory(args.data))
    if args.action == "check" and args.dataset == "imagenet":
        return _check_index(data_directory(args.data))
    if args.action == "check":
        print(_describe(load_dataset(args.dataset, data_directory(args.data))))
    elif args.action == "download":
        print(f"{download(args.dataset, data_directory(args.data))} is complete; all files verified.")
    elif args.action == "pack":
        _pack(args.source, args.target)
    else:
        key = args.dataset or args.target.stem
        if key not in DIRECTORIES or args.target.suffix != ".npz":
            raise PaperbenchError(
                "Name the new file cifar10.npz or cifar100.npz; under another name ending in .npz, add `--dataset "
                "cifar10` or `--dataset cifar100`."
            )
        print(_describe(convert(args.source, args.target, key)))
    return 0


def _pack(source: Path, target: Path) -> None:
    from paperbench.data.imagenet.pack import pack
    from paperbench.data.imagenet.synsets import synsets

    train, test = pack(source, target, synsets(), sys.stderr)
    print(
        f"{target} has {train:,} images to train on, and {test:,} to test, with their bytes unchanged.\n"
        f"Next: paperbench data index imagenet {shlex.quote(str(target))}"
    )


def _index(args: argparse.Namespace, data: Path) -> int:
    from paperbench.data.imagenet.build import ImagesError, index_images
    from paperbench.processors import processors

    how = {"threads": args.threads or processors(), "archives": args.archives, "accepts_subset": args.subset}
    try:
        index = index_images(args.source, data, sys.stderr, **how)
    except ImagesError as error:
        tell(str(error))
        return 1
    print(_describe(index.dataset()))
    return 0


def _check_index(data: Path) -> int:
    from paperbench.data.imagenet.build import changed_containers, listed
    from paperbench.data.sources import load_index

    index = load_index(data)
    print(_describe(index.dataset()))
    print(f"  directory    {index.images.files.root}")
    changed = changed_containers(index, sys.stderr)
    for line in listed("missing or changed files", changed):
        tell(f"{line}. Restore them, or index the images where they are now: `paperbench data index imagenet DIR`.")
    return int(bool(changed))


def _describe(dataset: ImageDataset | PhotoDataset) -> str:
    from paperbench.data.cifar_batches import DIRECTORIES
    from paperbench.data.imagenet.index import PhotoDataset
    from paperbench.report.grid import paragraph

    comparable = "no: errors on it are not comparable with the paper"
    if dataset.canonical:
        comparable = "yes: the original files, by their md5"
    elif dataset.unverified:
        comparable = (
            "perhaps: the numbers are right, but the images are unverified; `paperbench data index imagenet DIR "
            "--archives A` compares them with the original archives"
        )
    classes = ""
    if isinstance(dataset, PhotoDataset):
        classes = f", {len(set(dataset.train.labels.tolist())):,} of {len(dataset.classes):,} classes"
    if not dataset.canonical and dataset.key in DIRECTORIES:
        comparable += f"; `paperbench data download {dataset.key}` gets the original files"
    return (
        f"{paragraph(dataset.name)}\n"
        f"{paragraph(f'  origin       {dataset.origin}', ' ' * 15)}\n"
        f"{paragraph(f'  canonical    {comparable}', ' ' * 15)}\n"
        f"  images       {dataset.num_train:,} to train on, {dataset.num_test:,} to test{classes}\n"
        f"  fingerprint  {dataset.fingerprint}"
    )
