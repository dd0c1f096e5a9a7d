"""Download of CIFAR, with torchvision's URLs and checksums."""

from __future__ import annotations

import shutil
import tarfile
import zlib
from http.client import HTTPException
from pathlib import Path

from paperbench.catalogue import DATASETS
from paperbench.data.cifar_batches import DIRECTORIES, MD5, read_verified
from paperbench.errors import PaperbenchError, nearest
from paperbench.files import TEMPORARY, report_write_errors


def download(key: str, directory: Path) -> Path:
    """Download, verify and unpack the original archive, with a progress bar; if its files exist, only verify them.

    Returns:
        The directory of the batch files.
    """
    if key not in DATASETS:
        raise PaperbenchError(f"Unknown data set {key!r}. {nearest(key, DIRECTORIES)}")
    if key not in DIRECTORIES:
        remedy = "Request access at image-net.org." if key == "imagenet" else "It comes with scikit-learn."
        raise PaperbenchError(f"There is nothing to download for {DATASETS[key].title}. {remedy}")
    from torchvision.datasets import CIFAR10, CIFAR100, utils

    source = CIFAR10 if key == "cifar10" else CIFAR100
    target = directory / DIRECTORIES[key]
    with report_write_errors(directory, "--data DIR"):
        directory.mkdir(parents=True, exist_ok=True)
        exists = target.exists()
    if exists:
        read_verified(key, target)
        return target
    try:
        utils.download_url(source.url, directory, source.filename, source.tgz_md5)
        _unpack(key, directory / source.filename, target)
    except (OSError, RuntimeError, HTTPException, tarfile.TarError, EOFError, zlib.error) as error:
        files = sum(map(len, MD5[key]))
        raise PaperbenchError(
            f"Download of {DATASETS[key].title} failed ({error}). Try again later, or download {source.url} by other "
            f"means and unpack it in {directory} (this creates {target.name}/ with {files} batch files)."
        ) from error
    return target


def _unpack(key: str, archive: Path, target: Path) -> None:
    """Extract and verify the batch files, then move their directory into place in one step.

    Raises:
        OSError, tarfile.TarError, EOFError, zlib.error: The archive is damaged or the disk is full.
    """
    unpacked = target.with_name(target.name + TEMPORARY)
    shutil.rmtree(unpacked, ignore_errors=True)  # left by a killed process
    try:
        with tarfile.open(archive, "r:gz") as members:
            members.extractall(unpacked, filter="data")
        read_verified(key, unpacked / target.name)
        (unpacked / target.name).rename(target)
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)
