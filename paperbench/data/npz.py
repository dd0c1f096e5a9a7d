"""CIFAR as one NumPy file: cifar10.npz or cifar100.npz."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from paperbench.catalogue import DATASETS
from paperbench.data.dataset import ImageDataset, Labels, Pixels
from paperbench.errors import PaperbenchError


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
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise PaperbenchError(f"{path} holds a single array; write all four with numpy.savez.")
        with loaded as arrays:
            missing = [k for k in ("x_train", "y_train", "x_test", "y_test") if k not in arrays.files]
            if missing:
                raise PaperbenchError(f"{path} lacks the array{'s'[: len(missing) > 1]} {', '.join(missing)}.")
            x_train, y_train = _checked(key, path, "train", arrays["x_train"], arrays["y_train"])
            x_test, y_test = _checked(key, path, "test", arrays["x_test"], arrays["y_test"])
    except PaperbenchError:
        raise
    except Exception as error:  # a damaged archive can raise nearly anything
        reason = str(error) or type(error).__name__
        raise PaperbenchError(f"{path} is damaged or no .npz file ({reason}). Copy or make it again.") from error
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


def _checked(key: str, path: Path, part: str, images: np.ndarray, labels: np.ndarray) -> tuple[Pixels, Labels]:
    info = DATASETS[key]
    shape = (info.size, info.size, 3)
    if images.dtype != np.uint8 or images.shape[1:] != shape or len(images) == 0:
        raise PaperbenchError(
            f"{path}: x_{part} must be uint8 of shape (N, {info.size}, {info.size}, 3) with N > 0, "
            f"not {images.dtype} of shape {images.shape}."
        )
    if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
        raise PaperbenchError(
            f"{path}: y_{part} must be whole numbers of shape ({len(images)},), one for each image, "
            f"not {labels.dtype} of shape {labels.shape}."
        )
    if labels.min() < 0 or labels.max() >= info.num_classes:
        raise PaperbenchError(
            f"{path}: labels of {info.title} are 0 to {info.num_classes - 1}, "
            f"y_{part} has {labels.min()} to {labels.max()}."
        )
    return images, labels.astype(np.int64)
