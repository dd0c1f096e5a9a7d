"""Where a data set comes from: embedded, a folder of the user's, or a download that the user asks for."""

from __future__ import annotations

import os
from pathlib import Path

from paperbench.catalogue import DATASETS
from paperbench.data.cifar_batches import FOLDERS, load_batches
from paperbench.data.dataset import ImageDataset
from paperbench.data.digits import load_digits
from paperbench.data.npz import load_npz
from paperbench.errors import PaperbenchError, nearest
from paperbench.specs.yaml_file import read_yaml
from paperbench.typed import Problem, Text, raise_problems, typed

ENVIRONMENT_VARIABLE = "PAPERBENCH_DATA"
DEFAULT_FOLDER = Path("data")


@typed
class DataDescription:
    """An optional file dataset.yaml beside data that are not the original: what to call them in reports."""

    name: Text
    origin: Text
    canonical: bool = False

    def __post_init__(self) -> None:
        if self.canonical:
            message = "cannot be declared true; only the original files are canonical, known by their md5."
            raise_problems([Problem(("canonical",), message)])


def data_directory(chosen: Path | None = None) -> Path:
    """The folder to look in: the user's choice, else $PAPERBENCH_DATA, else ./data."""
    return chosen or Path(os.environ.get(ENVIRONMENT_VARIABLE) or DEFAULT_FOLDER)


def load_dataset(key: str, directory: Path) -> ImageDataset:
    """A data set of the catalogue.

    Args:
        key: A key of `catalogue.DATASETS`.
        directory: Holds CIFAR as torchvision's folder of original files or as one .npz file. The digits need none.

    Raises:
        PaperbenchError: The data are not there, or damaged; the message says how to get them.
    """
    if key not in DATASETS:
        raise PaperbenchError(f"Unknown data set {key!r}. {nearest(key, DATASETS)}")
    if key == "digits":
        return load_digits()
    if key not in FOLDERS:
        raise PaperbenchError(
            f"paperbench cannot train or test on {DATASETS[key].title} yet: it has no loader for it. Its nets can be "
            "built (`paperbench models`), and its tables shown."
        )
    folder, file, description = directory / FOLDERS[key], directory / f"{key}.npz", directory / "dataset.yaml"
    try:
        has_folder, has_file = folder.is_dir(), file.exists()
        is_inner = directory.name == FOLDERS[key] and directory.is_dir()
    except OSError as error:
        raise PaperbenchError(
            f"{directory} cannot be searched: {error.strerror}. Choose another folder (`--data DIR`)."
        ) from error
    if has_folder:
        return load_batches(key, folder)
    if has_file:
        return load_npz(key, file, *(_described(description) if description.exists() else ()))
    if is_inner:
        raise PaperbenchError(f"Name the folder around {FOLDERS[key]}/, not that folder itself: {directory.parent}")
    raise PaperbenchError(
        f"{DATASETS[key].title} is not in {directory}. Any one of these will do:\n"
        f"  - `paperbench data download {key} --data {directory}` fetches and checks the original files;\n"
        f"  - put torchvision's folder {FOLDERS[key]}/ with the original files there;\n"
        f"  - put {key}.npz there (x_train (N,32,32,3) uint8, y_train, x_test, y_test);\n"
        f"  - `paperbench data convert FOLDER {file}` makes that of a folder of images.\n"
        f"Another folder: `--data DIR`, or the environment variable {ENVIRONMENT_VARIABLE}."
    )


def _described(file: Path) -> tuple[str, str]:
    described = read_yaml(file).parse(DataDescription)
    return described.name, described.origin
