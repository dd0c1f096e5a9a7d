"""Fetching CIFAR on request, with torchvision's addresses and checksums."""

from __future__ import annotations

import shutil
import tarfile
import zlib
from http.client import HTTPException
from pathlib import Path

from paperbench.catalogue import DATASETS
from paperbench.data.cifar_batches import FOLDERS, MD5, read_verified
from paperbench.errors import PaperbenchError, nearest
from paperbench.files import TEMPORARY


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
        remedy = "It comes with scikit-learn." if key == "digits" else "Its owners hand it out at image-net.org."
        raise PaperbenchError(f"There is nothing to download for {DATASETS[key].title}. {remedy}")
    from torchvision.datasets import CIFAR10, CIFAR100, utils

    source = CIFAR10 if key == "cifar10" else CIFAR100
    folder = directory / FOLDERS[key]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        is_there = folder.exists()
    except OSError as error:
        raise PaperbenchError(
            f"{directory} cannot be made or read: {error.strerror}. Choose another folder (`--data DIR`)."
        ) from error
    if is_there:
        read_verified(key, folder)
        return folder
    try:
        utils.download_url(source.url, directory, source.filename, source.tgz_md5)
        _unpack(key, directory / source.filename, folder)
    except (OSError, RuntimeError, HTTPException, tarfile.TarError, EOFError, zlib.error) as error:
        files = sum(map(len, MD5[key]))
        raise PaperbenchError(
            f"{DATASETS[key].title} could not be downloaded ({error}). Try again later, or get {source.url} some other "
            f"way and unpack it in {directory} (it makes {folder.name}/ with {files} batch files)."
        ) from error
    return folder


def _unpack(key: str, archive: Path, folder: Path) -> None:
    """Make the folder from the archive that holds it, at once and with nothing but the original files.

    Raises:
        PaperbenchError: The archive lacks some of them.
        OSError, tarfile.TarError, EOFError, zlib.error: The archive is damaged or the disk full.
    """
    unpacked = folder.with_name(folder.name + TEMPORARY)
    shutil.rmtree(unpacked, ignore_errors=True)  # a process was killed here
    try:
        with tarfile.open(archive, "r:gz") as members:
            members.extractall(unpacked, filter="data")
        read_verified(key, unpacked / folder.name)
        (unpacked / folder.name).rename(folder)
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)
