"""The recipes of ImageNet, and a few photographs in files, without an index."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

from paperbench.data.imagenet.batches import Crops, CropSource
from paperbench.data.imagenet.index import ImageFiles
from paperbench.specs.recipe import Photographs, Recipe
from paperbench.specs.yaml_file import read_yaml
from tests.helpers import ROOT

SCALE, DAGGER = (
    read_yaml(ROOT / "experiments" / "recipes" / f"{name}.yaml").parse(Recipe)
    for name in ("imagenet", "imagenet_torch")
)


def settings_of(recipe: Recipe) -> Photographs:
    assert recipe.photographs
    return recipe.photographs


def photographs(count: int, *, sides: tuple[int, int] = (30, 90)) -> list[bytes]:
    """JPEG files of tiles of scikit-learn's photographs, of various sizes."""
    drawn, files = np.random.default_rng(0), []
    images = load_sample_images().images
    for number in range(count):
        height, width = drawn.integers(*sides, 2)
        y, x = drawn.integers(0, 300, 2)
        stream = io.BytesIO()
        Image.fromarray(images[number % 2][y : y + height, x : x + width]).save(stream, "JPEG")
        files.append(stream.getvalue())
    return files


def image_files(directory: Path, data: list[bytes]) -> ImageFiles:
    """The images in files 0.jpg, 1.jpg, ..., labelled 0, 1, 2, 0, 1, ..."""
    numbers = np.arange(len(data))
    for number, one in enumerate(data):
        (directory / f"{number}.jpg").write_bytes(one)
    return ImageFiles(
        root=directory,
        labels=numbers % 3,
        hashes=np.array([list(hashlib.sha256(one).digest()) for one in data], np.uint8),
        paths=[f"{number}.jpg" for number in numbers],
        container=numbers,
        offsets=np.zeros(len(data), np.int64),
        lengths=np.array([len(one) for one in data]),
    )


def crops_of(source: CropSource, number: int) -> Crops:
    """A batch, made crop by crop."""
    plan = source.plan(number)
    pixels = np.empty((len(plan.images), source.crop, source.crop, 3), np.uint8)
    for row in range(len(pixels)):
        source.render(plan, row, pixels[row])
    return source.assemble(plan, torch.from_numpy(pixels))
