"""Where a data set comes from: embedded, a folder of the user's, or a download that the user asks for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from paperbench.catalogue import DATASETS
from paperbench.data.cifar_batches import FOLDERS, load_batches
from paperbench.data.dataset import ImageDataset
from paperbench.data.digits import load_digits
from paperbench.data.npz import load_npz
from paperbench.errors import PaperbenchError, nearest
from paperbench.specs.strict_yaml import FieldError, bind, read_mapping

ENVIRONMENT_VARIABLE = "PAPERBENCH_DATA"
DEFAULT_FOLDER = Path("data")


@dataclass(frozen=True)
class DataDescription:
    """An optional file dataset.yaml beside data that are not the original: what to call them in reports."""

    name: str
    origin: str
    canonical: bool = False

    def __post_init__(self) -> None:
        if self.canonical:
            message = "`canonical: true` cannot be declared; only the original files are canonical, known by their md5."
            raise FieldError("canonical", message)


def data_directory(chosen: Path | None = None) -> Path:
    """The folder to look in: the user's choice, else $PAPERBENCH_DATA, else ./data."""
    return chosen or Path(os.environ.get(ENVIRONMENT_VARIABLE) or DEFAULT_FOLDER)


def load_dataset(key: str, directory: Path) -> ImageDataset:
    """A data set of the catalogue.

    Args:
        key: A key of `catalogue.DATASETS`.
        directory: Holds CIFAR as torchvision's folder or as one .npz file. The digits need none.

    Raises:
        PaperbenchError: The data are not there, or damaged; the message says how to get them.
    """
    if key not in DATASETS:
        raise PaperbenchError(f"Unknown data set {key!r}. {nearest(key, DATASETS)}")
    if key == "digits":
        return load_digits()
    folder, file = directory / FOLDERS[key], directory / f"{key}.npz"
    name, origin = _described(directory)
    if folder.is_dir():
        return load_batches(key, folder, name, origin)
    if file.exists():
        return load_npz(key, file, name, origin)
    if directory.name == FOLDERS[key] and directory.is_dir():
        raise PaperbenchError(f"Name the folder around {FOLDERS[key]}/, not that folder itself: {directory.parent}")
    raise PaperbenchError(
        f"{DATASETS[key].title} is not in {directory}. Any one of these will do:\n"
        f"  - `paperbench data download {key} --data {directory}` fetches and checks the original files;\n"
        f"  - put torchvision's folder {FOLDERS[key]}/ there;\n"
        f"  - put {key}.npz there (x_train (N,32,32,3) uint8, y_train, x_test, y_test).\n"
        f"Another folder: `--data DIR`, or the environment variable {ENVIRONMENT_VARIABLE}."
    )


def _described(directory: Path) -> tuple[str | None, str | None]:
    path = directory / "dataset.yaml"
    if not path.exists():
        return None, None
    described = bind(read_mapping(path), DataDescription)
    return described.name, described.origin
