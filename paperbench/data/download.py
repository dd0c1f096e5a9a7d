"""Fetching CIFAR on request, with torchvision's addresses and checksums."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import zlib
from http.client import HTTPException
from pathlib import Path, PurePosixPath

from paperbench.atomic import TEMPORARY
from paperbench.catalogue import DATASETS
from paperbench.data.cifar_batches import FOLDERS, MD5
from paperbench.errors import PaperbenchError, nearest

_MOST_BYTES = 2**29
"""Unpacked; the original archives make 186 million."""


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
        wrong = _altered_file(key, folder)
    except OSError as error:
        raise PaperbenchError(
            f"{directory} cannot be made or read: {error.strerror}. Choose another folder (`--data DIR`)."
        ) from error
    if wrong is None:
        return folder
    if folder.exists():
        raise PaperbenchError(
            f"{folder} is there, but {wrong} in it is missing or not the original. Move that folder away and give the "
            "same command again, or choose another one (`--data DIR`)."
        )
    try:
        utils.download_url(source.url, directory, source.filename, source.tgz_md5)
        _unpack(key, directory / source.filename, folder)
    except (OSError, RuntimeError, HTTPException, tarfile.TarError, EOFError, ValueError, zlib.error) as error:
        files = sum(map(len, MD5[key]))
        raise PaperbenchError(
            f"{DATASETS[key].title} could not be downloaded ({error}). Try again later, or get {source.url} some other "
            f"way and unpack it in {directory} (it makes {folder.name}/ with {files} batch files)."
        ) from error
    return folder


def _altered_file(key: str, folder: Path) -> str | None:
    """Name of the first batch file that is missing or not the original; None if all are as published."""
    for name, md5 in (*MD5[key][0].items(), *MD5[key][1].items()):
        try:
            with open(folder / name, "rb") as stream:
                if hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest() != md5:
                    return name
        except FileNotFoundError:
            return name
    return None


def _unpack(key: str, archive: Path, folder: Path) -> None:
    """Make the folder from the archive that holds it: at once, and nothing outside it.

    Raises:
        ValueError: The archive holds anything but the folder's files, or these are not the original ones.
        OSError, tarfile.TarError, EOFError, zlib.error: The archive is damaged or the disk full.
    """
    unpacked = folder.with_name(folder.name + TEMPORARY)
    if unpacked.exists():  # a process was killed here
        shutil.rmtree(unpacked)
    try:
        with tarfile.open(archive, "r:gz") as members:
            size = 0
            for member in members:
                place = PurePosixPath(member.name)
                if member.isdir() and place == PurePosixPath(folder.name):
                    continue
                is_inside = place.parts == (folder.name, place.name) and place.name != ".."
                if not member.isreg() or member.issparse() or not is_inside:
                    raise ValueError(f"{archive.name} holds {member.name!r:.100}, no plain file of {folder.name}/")
                size += member.size
                if size > _MOST_BYTES:
                    raise ValueError(f"{archive.name} unpacks to more than {_MOST_BYTES:,} bytes")
                members.extract(member, unpacked, filter="data")
        wrong = _altered_file(key, unpacked / folder.name)
        if wrong is not None:
            raise ValueError(f"{archive.name} holds another {wrong} than the original, or none")
        (unpacked / folder.name).rename(folder)
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)
