"""CIFAR as one NumPy file: cifar10.npz or cifar100.npz."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

import numpy as np
from numpy.lib.format import read_array_header_1_0, read_magic

from paperbench.catalogue import DATASETS
from paperbench.data.dataset import ImageDataset, Labels, Pixels
from paperbench.errors import PaperbenchError
from paperbench.files import UNGUARDED, open_regular

MAX_IMAGES = 200_000
"""Maximum number of training or test images, as a small archive can unpack to any size; CIFAR has 50,000."""


def load_npz(key: str, path: Path, name: str | None = None, origin: str | None = None) -> ImageDataset:
    """Load `x_train` (N, 32, 32, 3) uint8, `y_train` (N,), `x_test` and `y_test`; ignore other arrays.

    The data set is never canonical, as the file does not prove that its pixels are the original ones.

    Args:
        name, origin: The user's description of the data, if any.
    """
    try:
        with open_regular(path, 2 * MAX_IMAGES * 4096) as stream, ZipFile(stream) as archive:
            names = set(archive.namelist())
            missing = [k for k in ("x_train", "y_train", "x_test", "y_test") if f"{k}.npy" not in names]
            if missing:
                raise PaperbenchError(f"{path}: missing arrays: {', '.join(missing)}. Add them with numpy.savez.")
            arrays = (*_part(key, archive, "train"), *_part(key, archive, "test"))
    except PaperbenchError:
        raise
    except Exception as error:  # a damaged archive can raise nearly anything
        reason = str(error) or type(error).__name__
        raise PaperbenchError(
            f"{path}: damaged or not a .npz file ({reason:.300}). Copy it again, or make it with numpy.savez or "
            "`paperbench data convert`."
        ) from error
    name = name or f"{DATASETS[key].title} (unverified {path.name})"
    return ImageDataset(key, name, origin or "unknown; a .npz file", *arrays, canonical=False)


def save_npz(dataset: ImageDataset, path: Path) -> None:
    """Write a data set to a `.npz` file, atomically."""
    content = io.BytesIO()
    arrays = {key: getattr(dataset, key) for key in ("x_train", "y_train", "x_test", "y_test")}
    np.savez(content, allow_pickle=False, **arrays)
    UNGUARDED.write(path, content.getvalue(), "OUT.npz")


def _part(key: str, archive: ZipFile, part: str) -> tuple[Pixels, Labels]:
    info = DATASETS[key]
    x: Pixels = _array(
        archive,
        f"x_{part}",
        f"uint8 of shape (N, {info.size}, {info.size}, 3) with N from 1 to {MAX_IMAGES:,}",
        lambda shape, dtype: (
            dtype == np.uint8 and shape[1:] == (info.size, info.size, 3) and 0 < shape[0] <= MAX_IMAGES
        ),
    )
    y = _array(
        archive,
        f"y_{part}",
        f"integers of shape ({len(x)},), one per image",
        lambda shape, dtype: shape == (len(x),) and dtype.kind in "iu",
    )
    if y.min() < 0 or y.max() >= info.num_classes:
        raise PaperbenchError(
            f"{archive.filename}: y_{part} has labels {y.min()} to {y.max()}; {info.title} has 0 to "
            f"{info.num_classes - 1}."
        )
    return x, y.astype(np.int64)


def _array(archive: ZipFile, name: str, wanted: str, fits: Callable[[tuple[int, ...], np.dtype], bool]) -> np.ndarray:
    """Read an array of the archive, but only if the shape and type in its header fit, as it could claim any size."""
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):  # zipfile would decompress others without a limit
        raise ValueError(f"{name} is compressed with a method that numpy does not use")
    with archive.open(info) as stream:
        version = read_magic(stream)
        if version != (1, 0):  # other versions allow headers of any length
            raise ValueError(f"{name} has format version {version} instead of (1, 0)")
        shape, is_fortran, dtype = read_array_header_1_0(stream)
        if not fits(shape, dtype):
            raise PaperbenchError(
                f"{archive.filename}: {name} must be {wanted}, not {dtype!s:.100} of shape {shape!s:.100}."
            )
        size = math.prod(shape) * dtype.itemsize
        content = bytearray(stream.read(size + 1))  # reading to the end verifies the checksum
    if len(content) != size:
        raise ValueError(f"{name} has too few or too many values for its shape {shape}")
    return np.ndarray(shape, dtype, content, order="F" if is_fortran else "C")
