"""Fetching CIFAR on request, with torchvision's addresses and checksums."""

from __future__ import annotations

from http.client import HTTPException
from pathlib import Path
from tarfile import TarError

from paperbench.catalogue import DATASETS
from paperbench.data.cifar_batches import FOLDERS, MD5
from paperbench.errors import PaperbenchError, nearest


def download(key: str, directory: Path) -> Path:
    """Fetch the original archive, check it, and unpack it, with a progress bar. Does nothing if the files are there.

    Returns:
        The folder with the batch files.

    Raises:
        PaperbenchError: The data set has no download, the network or the disk fails, or a checksum does not fit.
    """
    if key not in DATASETS:
        raise PaperbenchError(f"Unknown data set {key!r}. {nearest(key, FOLDERS)}")
    if key not in FOLDERS:
        raise PaperbenchError(f"{DATASETS[key].title} come with scikit-learn; there is nothing to download.")
    import torchvision.datasets as tv

    folder = directory / FOLDERS[key]
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PaperbenchError(
            f"{directory} cannot be made: {error.strerror}. Choose another folder (`--data DIR`)."
        ) from error
    try:
        (tv.CIFAR10 if key == "cifar10" else tv.CIFAR100)(directory, download=True)
    except (OSError, RuntimeError, HTTPException, TarError) as error:
        files = sum(map(len, MD5[key]))
        raise PaperbenchError(
            f"{DATASETS[key].title} could not be downloaded ({error}). Try again later, or get "
            f"{tv.CIFAR10.url if key == 'cifar10' else tv.CIFAR100.url} some other way and unpack it in {directory} "
            f"(it makes {folder.name}/ with {files} batch files)."
        ) from error
    return folder
