"""A finished run as the files that timm loads from a folder or from the Hugging Face Hub: weights and config.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path

from paperbench.catalogue import Net
from paperbench.data.imagenet.index import PhotoDataset
from paperbench.data.imagenet.mean_image import mean_images
from paperbench.data.sources import data_directory
from paperbench.errors import RunError
from paperbench.files import MAX_TENSOR_FILE_BYTES, format_read_error, read_at_most
from paperbench.models.parts import MEAN_IMAGE
from paperbench.models.weights_file import check_weights, net_of
from paperbench.runs.named import images_of
from paperbench.runs.planning import net_and_recipe
from paperbench.runs.record import Record
from paperbench.runs.store import RunDirectory
from paperbench.runs.weights import input_of
from paperbench.streams import Count
from paperbench.tensor_file import read_tensor_file, tensor_file_bytes

_RESTORE = "Restore it, or move the run's directory away and train it again."


def exported_files(
    run: RunDirectory, record: Record, data: Path | None, announce: Callable[[str], None]
) -> dict[str, bytes]:
    """Return the contents of config.json and model.safetensors, by name.

    With timm's transform, the exported net computes what the run's net does in its (first) test. timm subtracts one
    mean per channel. So if the run subtracts a mean image, the exported net does, which keeps it beside its weights,
    and timm's mean is 0.

    Args:
        run, record: A finished run.
        data: Data directory, for the mean image of photographs; by default $PAPERBENCH_DATA, else ./data.
        announce: Called with the progress of a pass over them.
    """
    file = run.weights_file
    net, recipe = net_and_recipe(record.spec, record.evaluations)
    if not isinstance(net, Net):
        raise RunError(f"{record.net} is a function of your own, which timm does not know. Share it with {file}.")
    try:
        contents = read_at_most(file, MAX_TENSOR_FILE_BYTES)
    except OSError as error:
        raise RunError(format_read_error(file, error, _RESTORE)) from error
    if sha256(contents).hexdigest() != record.files.weights_sha256:
        raise RunError(f"{file} does not hold the weights of the run's record: their sha256 differ. {_RESTORE}")
    check_weights(file, net)
    tensors, metadata = read_tensor_file(contents)
    _, arguments = net_of({"architecture": "", **metadata}, file)
    mean, std = input_of(metadata, file)
    has_mean_image, settings = recipe.input == "per_pixel_mean", recipe.photographs
    first = next(iter(record.evaluations), None)
    if first and settings:
        mean = mean.expand(3, first.crop, first.crop)
        images = images_of(run, record, data_directory(data)) if has_mean_image else None
        if isinstance(images, PhotoDataset):
            progress = Count("mean image, computed once", "training images", total=len(images.train))
            told = partial(progress.tell, announce)
            mean = mean_images(images, settings, [first], told)[first].permute(2, 0, 1)
    if has_mean_image:
        tensors[MEAN_IMAGE] = mean
        arguments["mean_image"] = [*mean.shape]
    config = {
        "architecture": metadata["architecture"],
        "num_classes": net.num_classes,
        "model_args": arguments,
        "pretrained_cfg": {
            "num_classes": net.num_classes,
            "first_conv": "stem.conv",
            "classifier": "fc",
            "input_size": [*mean.shape],
            "crop_pct": first.crop / (first.scale + 0.5) if first else 1.0,  # timm rounds crop / crop_pct down
            "interpolation": settings.interpolation.removeprefix("torch_") if settings else "bilinear",
            "mean": [0.0] * 3 if has_mean_image else mean[:, 0, 0].tolist(),
            "std": std[:, 0, 0].tolist(),
        },
    }
    weights = tensor_file_bytes(tensors, metadata)
    return {"config.json": f"{json.dumps(config, indent=2)}\n".encode(), "model.safetensors": weights}
