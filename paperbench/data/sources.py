"""Finds and loads data sets: embedded ones, CIFAR in the user's data directory, or ImageNet by its index there."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from paperbench.catalogue import DATASETS
from paperbench.data.cifar_batches import DIRECTORIES, load_batches
from paperbench.data.dataset import ImageDataset
from paperbench.data.digits import load_digits
from paperbench.data.imagenet.index import PhotoDataset
from paperbench.data.imagenet.index_file import FILE_NAME, Index, read_index
from paperbench.data.imagenet.layout import find_layout
from paperbench.data.imagenet.synsets import synsets
from paperbench.data.npz import load_npz
from paperbench.data.photos import load_photos
from paperbench.errors import PaperbenchError, nearest
from paperbench.specs.yaml_file import read_yaml
from paperbench.typed import Line, Problem, typed

ENVIRONMENT_VARIABLE = "PAPERBENCH_DATA"


@typed
class DataDescription:
    """Contents of dataset.yaml, an optional file beside a .npz file that names its data for reports."""

    name: Line
    origin: Line
    canonical: bool = False

    def problems(self) -> Iterator[Problem]:
        if self.canonical:
            message = "cannot be set to true; only the original files are canonical, checked by md5."
            yield Problem(("canonical",), message)


def data_directory(chosen: Path | None = None) -> Path:
    """Return the user's choice, else $PAPERBENCH_DATA, else ./data."""
    return chosen or Path(os.environ.get(ENVIRONMENT_VARIABLE) or "data")


def load_dataset(key: str, directory: Path) -> ImageDataset | PhotoDataset:
    """Load a data set of the catalogue.

    Args:
        key: A key of `catalogue.DATASETS`.
        directory: Data directory, with torchvision's directory of original CIFAR files, one .npz file, or the index of
            ImageNet. Ignored for the digits and the photos.
    """
    if key not in DATASETS:
        raise PaperbenchError(f"Unknown data set {key!r}. {nearest(key, DATASETS)}")
    if key in ("digits", "digits8"):
        return load_digits(key)
    if key == "photos":
        return load_photos()
    if key == "imagenet":
        return load_index(directory).dataset()
    batches, file, description = directory / DIRECTORIES[key], directory / f"{key}.npz", directory / "dataset.yaml"
    try:
        has_batches, has_file = batches.is_dir(), file.exists()
        is_inner = directory.name == DIRECTORIES[key] and directory.is_dir()
    except OSError as error:
        raise PaperbenchError(
            f"{directory}: cannot read: {error.strerror}. Choose another directory with `--data DIR`."
        ) from error
    if has_batches or has_file:
        name_and_origin = _load_description(description) if description.exists() and not has_batches else ()
        dataset = load_batches(key, batches) if has_batches else load_npz(key, file, *name_and_origin)
        dataset.require_all_classes()
        return dataset
    if is_inner:
        raise PaperbenchError(f"{directory}: give the directory that contains {DIRECTORIES[key]}: {directory.parent}")
    raise PaperbenchError(
        f"{DATASETS[key].title} not found in the directory {directory}. Do one of the following:\n"
        f"  - Download the original files: `paperbench data download {key} --data {directory}`\n"
        f"  - Copy the original files, in torchvision's directory {DIRECTORIES[key]}/, to {directory}.\n"
        f"  - Copy {key}.npz (x_train (N,32,32,3) uint8, y_train, x_test, y_test) to {directory}.\n"
        f"  - Convert a directory of images: `paperbench data convert IMAGES {file}`\n"
        f"  - Use another data directory: `--data DIR`, or the environment variable {ENVIRONMENT_VARIABLE}."
    )


def find_dataset(fingerprint: str, keys: Iterable[str], directory: Path) -> ImageDataset | PhotoDataset | None:
    """Return the data set with a fingerprint, if one of these keys has it."""
    for key in keys:
        with suppress(PaperbenchError):  # another may be at hand
            found = load_dataset(key, directory)
            if found.fingerprint == fingerprint:
                return found
    return None


def load_index(directory: Path) -> Index:
    """Read the index of ImageNet in a data directory."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return read_index(directory / FILE_NAME)
    images, option = "DIR", f" --data {shlex.quote(str(directory))}"
    with suppress(PaperbenchError, OSError):
        find_layout(directory, synsets(), {})
        images = shlex.quote(str(directory))
    raise PaperbenchError(
        f"ImageNet has no index in the directory {directory}. Make it with `paperbench data index imagenet "
        f"{images}{option}`{', where DIR holds the images' * (images == 'DIR')}, or name another data directory with "
        f"`--data DIR` or the environment variable {ENVIRONMENT_VARIABLE}."
    )


def _load_description(file: Path) -> tuple[str, str]:
    description = read_yaml(file).parse(DataDescription)
    return description.name, description.origin
