"""Mean images of the training images' central crops, computed once and kept in files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from paperbench.data.imagenet.batches import CentralCrops, read_and_decode
from paperbench.data.imagenet.crew import in_threads
from paperbench.data.imagenet.draws import NO_WORDS
from paperbench.data.imagenet.index import PhotoDataset
from paperbench.errors import PaperbenchError
from paperbench.files import UNGUARDED, format_read_error, read_at_most, report_write_errors
from paperbench.processors import processors
from paperbench.specs.recipe import Evaluation, Photographs
from paperbench.tensor_file import TensorFileError, check_fit, read_tensor_file, tensor_file_bytes

_MAX_BYTES = 2**28
"""Maximum size of a file; crops of 4,096 pixels have 0.2 GB."""
_NAME = "mean_image"
_AT_ONCE = 8
"""Images that a thread adds up before it shares the sum: up to 257, the sums of bytes have 16 bits."""


def mean_images(
    dataset: PhotoDataset,
    settings: Photographs,
    evaluations: Sequence[Evaluation],
    between_images: Callable[[int], None],
) -> dict[Evaluation, Tensor]:
    """Return the mean of each evaluation's crops of all training images, (crop, crop, 3) float32 in [0, 1].

    Those without a file, or with a damaged one, are computed in one pass. Their sums are integers, so that they do not
    depend on the order of the images.

    Args:
        between_images: Called every few images with the number of those done; may raise to abort.
    """
    means, lacking = {}, dict[Path, CentralCrops]()
    for one in dict.fromkeys(evaluations):
        kind = f"{one.crop}-of-{one.scale}-{settings.interpolation}-{settings.decoder}"
        path = dataset.directory / f"mean-{dataset.fingerprint}-{kind}.safetensors"
        mean = _load(path, one.crop)
        if mean is None:
            lacking[path] = CentralCrops(dataset.train, settings, one, batch_size=1)
            with report_write_errors(path, "--data DIR"):
                path.touch()  # if that is impossible, it is better known before all images are read
        else:
            means[one] = mean
    if lacking:
        for (path, crops), mean in zip(lacking.items(), _compute([*lacking.values()], between_images), strict=True):
            UNGUARDED.write(path, tensor_file_bytes({_NAME: mean}, {"sha256": _sha256(mean)}), "--data DIR")
            means[Evaluation(crops.crop, crops.scale)] = mean
    return means


def _compute(kinds: Sequence[CentralCrops], between_images: Callable[[int], None]) -> list[Tensor]:
    """Return the mean of each kind of crops of the same images."""
    total_images = len(kinds[0].files)
    sums, lock = [np.zeros((crops.crop, crops.crop, 3), np.int64) for crops in kinds], Lock()

    def add(first: int) -> int:
        images = range(first, min(first + _AT_ONCE, total_images))
        parts = [np.zeros(total.shape, np.uint16) for total in sums]
        for number in images:
            image = read_and_decode(kinds[0].files, number, kinds[0].settings.decoder)
            for part, crops in zip(parts, kinds, strict=True):
                part += crops.cropped(image, NO_WORDS)
            del image  # or it would be kept beside the next one
        with lock:
            for total, part in zip(sums, parts, strict=True):
                total += part
        return len(images)

    for done in accumulate(in_threads(add, range(0, total_images, _AT_ONCE), processors())):
        between_images(done)
    return [torch.from_numpy((total / (255 * total_images)).astype(np.float32)) for total in sums]


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
