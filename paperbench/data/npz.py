"""CIFAR as one NumPy file: cifar10.npz or cifar100.npz."""

from __future__ import annotations

import math
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np
from numpy.lib.format import MAGIC_PREFIX, read_array_header_1_0, read_magic

from paperbench.catalogue import DATASETS
from paperbench.data.dataset import ImageDataset, Labels, Pixels
from paperbench.errors import PaperbenchError
from paperbench.reading import check_size

_MOST_IMAGES = 200_000
"""In one part; CIFAR has 50,000. A small archive can unpack to any size."""


def load_npz(key: str, path: Path, name: str | None, origin: str | None) -> ImageDataset:
    """Read `x_train` (N, 32, 32, 3) uint8, `y_train` (N,), `x_test` and `y_test`; other arrays are left alone.

    Such a file cannot prove that its pixels are the original ones, so its data set is never canonical.

    Args:
        key: "cifar10" or "cifar100".
        path: The file.
        name, origin: What to call the data, if the user has said.

    Raises:
        PaperbenchError: The file is damaged or its arrays are not as described.
    """
    try:
        check_size(path, 2 * _MOST_IMAGES * 4096)
        with open(path, "rb") as stream:
            if stream.read(len(MAGIC_PREFIX)) == MAGIC_PREFIX:
                raise PaperbenchError(f"{path} holds a single array; write all four with numpy.savez.")
        with ZipFile(path) as archive:
            names = set(archive.namelist())
            missing = [k for k in ("x_train", "y_train", "x_test", "y_test") if f"{k}.npy" not in names]
            if missing:
                raise PaperbenchError(f"{path} lacks the array{'s'[: len(missing) > 1]} {', '.join(missing)}.")
            x_train, y_train = _part(key, path, archive, "train")
            x_test, y_test = _part(key, path, archive, "test")
    except PaperbenchError:
        raise
    except Exception as error:  # a damaged archive can raise nearly anything
        reason = str(error) or type(error).__name__
        raise PaperbenchError(f"{path} is damaged or no .npz file ({reason:.300}). Copy or make it again.") from error
    title = DATASETS[key].title
    return ImageDataset(
        key=key,
        name=name or f"{title} (unverified {path.name})",
        origin=origin or "unknown; a .npz file",
        canonical=False,
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
    )


def _part(key: str, path: Path, archive: ZipFile, part: str) -> tuple[Pixels, Labels]:
    info = DATASETS[key]
    with _Member(archive, f"x_{part}") as images:
        shape = (info.size, info.size, 3)
        if images.dtype != np.uint8 or images.shape[1:] != shape or not 0 < images.shape[0] <= _MOST_IMAGES:
            raise PaperbenchError(
                f"{path}: x_{part} must be uint8 of shape (N, {info.size}, {info.size}, 3) with N from 1 to "
                f"{_MOST_IMAGES:,}, not {images.described}."
            )
        x = images.read()
    with _Member(archive, f"y_{part}") as labels:
        if labels.shape != (len(x),) or labels.dtype.kind not in "iu":
            raise PaperbenchError(
                f"{path}: y_{part} must be whole numbers of shape ({len(x)},), one for each image, "
                f"not {labels.described}."
            )
        y = labels.read()
    if y.min() < 0 or y.max() >= info.num_classes:
        raise PaperbenchError(
            f"{path}: labels of {info.title} are 0 to {info.num_classes - 1}, y_{part} has {y.min()} to {y.max()}."
        )
    return x, y.astype(np.int64)


class _Member:
    """An array in the archive, of which the header is read first: what it announces may be more than memory holds."""

    def __init__(self, archive: ZipFile, name: str) -> None:
        info = archive.getinfo(f"{name}.npy")
        if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):  # others are unpacked whatever their size
            raise ValueError(f"{name} is compressed in a way that numpy never uses")
        self._stream = archive.open(info)
        version = read_magic(self._stream)
        if version != (1, 0):  # others may have headers of any length
            raise ValueError(f"{name} has version {version} of the format, made for arrays of many fields")
        self.shape, self._is_fortran, self.dtype = read_array_header_1_0(self._stream)

    def __enter__(self) -> _Member:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    @property
    def described(self) -> str:
        return f"{self.dtype!s:.100} of shape {self.shape!s:.100}"

    def read(self) -> np.ndarray:
        """The values, now that their number is known to be reasonable."""
        size = math.prod(self.shape) * self.dtype.itemsize
        content = bytearray(self._stream.read(size + 1))
        if len(content) != size:
            raise ValueError(f"the array of shape {self.shape} has too few or too many values")
        return np.ndarray(self.shape, self.dtype, content, order="F" if self._is_fortran else "C")
