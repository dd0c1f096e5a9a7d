"""The mean image of the training images' central crops, computed once and kept in a file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paperbench.data.imagenet.batches import CentralCrops, Crops
from paperbench.errors import PaperbenchError
from paperbench.files import UNGUARDED, format_read_error, read_at_most
from paperbench.tensor_file import TensorFileError, check_fit, read_tensor_file, tensor_file_bytes

_MAX_BYTES = 2**28
"""Maximum size of a file; crops of 4,096 pixels have 0.2 GB."""
_NAME = "mean_image"


def mean_image(
    crops: CentralCrops, fingerprint: str, directory: Path, batches: Callable[[CentralCrops], Iterable[Crops]]
) -> Tensor:
    """Return the mean of all crops, (crop, crop, 3) float32 in [0, 1].

    The sums are integers, so that the mean does not depend on the order and size of the batches. A file that is damaged
    is replaced.

    Args:
        crops: Those of the training images.
        fingerprint: Of the data set.
        directory: Where the mean is kept, in a file named by all that it depends on.
        batches: Makes the batches, in any order, if there is no file.

    Raises:
        PaperbenchError: An image cannot be read, or the file can be neither read nor written.
    """
    settings = crops.settings
    name = f"mean-{fingerprint}-{crops.crop}-of-{crops.scale}-{settings.interpolation}-{settings.decoder}.safetensors"
    path = directory / name
    mean = _load(path, crops.crop)
    if mean is None:
        mean = _compute(crops, batches(crops))
        UNGUARDED.write(path, tensor_file_bytes({_NAME: mean}, {"sha256": _sha256(mean)}))
    return mean


def _compute(crops: CentralCrops, batches: Iterable[Crops]) -> Tensor:
    sums, done, total = np.zeros((crops.crop, crops.crop, 3), np.int64), 0, len(crops.files)
    for batch in batches:
        sums += batch.pixels.numpy().sum(0, dtype=np.int64)
        done += len(batch.pixels)
    if done != total:
        raise ValueError(f"the mean image needs {total:,} images, not {done:,}")
    return torch.from_numpy((sums / (255 * total)).astype(np.float32))


def _load(path: Path, crop: int) -> Tensor | None:
    """Return the mean image of a file; None if it does not exist or is damaged."""
    try:
        tensors, metadata = read_tensor_file(read_at_most(path, _MAX_BYTES))
        check_fit(tensors, {_NAME: torch.empty(crop, crop, 3)})
    except (FileNotFoundError, TensorFileError, ValueError):
        return None
    except OSError as error:
        raise PaperbenchError(format_read_error(path, error, "Remove it, or check its permissions.")) from error
    mean = tensors[_NAME]
    return mean if metadata.get("sha256") == _sha256(mean) else None


def _sha256(mean: Tensor) -> str:
    return hashlib.sha256(mean.numpy().tobytes()).hexdigest()
