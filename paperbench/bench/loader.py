"""Images per second that the data of ImageNet's recipes are decoded, cropped and handed to a training."""

from __future__ import annotations

import hashlib
import math
from functools import partial
from itertools import count as naturals
from itertools import cycle
from pathlib import Path

import numpy as np
import torch

from paperbench.bench.figures import LoaderReport, LoaderRow
from paperbench.bench.setup import machine_facts
from paperbench.bench.timing import Rounds, Way, stopwatch
from paperbench.data.imagenet.batches import CropSource, TrainingCrops, require_images
from paperbench.data.imagenet.decode import decode
from paperbench.data.imagenet.index import ImageFiles, PhotoDataset
from paperbench.data.imagenet.stream import AHEAD, CropStream
from paperbench.data.sources import load_index
from paperbench.errors import PaperbenchError, count
from paperbench.files import read_at_most
from paperbench.processors import processors
from paperbench.specs.recipe import Decoder, Recipe
from paperbench.specs.table import find_spec_root, read_table

IMAGES, BATCH_SIZE = 256, 64
_CPU = torch.device("cpu")


_Ways = dict[str, tuple[int | None, Way]]
"""Threads of a stream, and how many seconds some batches take, by name."""


def measure_loader(data: Path | None, rounds: Rounds) -> LoaderReport:
    """Measure decoding alone, plain loops, and streams of 1, 2, 4, ... threads, in interleaved rounds.

    Args:
        data: Data directory with ImageNet's index; if None, the images are two photographs of scikit-learn.
    """
    files, title = sample_photographs() if data is None else sample_images(load_index(data).dataset())
    table = read_table("table5", find_spec_root())
    recipes = {name: recipe for (profile, name), recipe in table.recipes.items() if profile == "paper"}
    encoded = [files.read(number) for number in range(len(files))]
    decoding: _Ways = {"decode, Pillow": _decoding(encoded, "pillow")}
    try:
        decode(encoded[0], "torchcodec")
        decoding["decode, TorchCodec"] = _decoding(encoded, "torchcodec")
    except PaperbenchError as error:
        rounds.log(f"TorchCodec is not measured: {error}")
    cores = processors()
    threads = sorted({min(2**power, cores) for power in range(cores.bit_length() + 1)})
    cropping = {name: _cropping(name, recipe, files, encoded, threads) for name, recipe in recipes.items()}
    all_ways = {name: way for several in (decoding, *cropping.values()) for name, (_, way) in several.items()}
    found = rounds.race(all_ways)

    def rows(several: _Ways) -> tuple[LoaderRow, ...]:
        return tuple(
            LoaderRow(name, threads, tuple(batch / BATCH_SIZE for batch in found[name]))
            for name, (threads, _) in several.items()
        )

    sizes = [math.prod(decode(data).size) for data in encoded]
    return LoaderReport(
        schema=1,
        machine=machine_facts(_CPU),
        images=title,
        pixels=float(np.mean(sizes)),
        bytes=float(np.mean([len(data) for data in encoded])),
        cores=cores,
        decoding=rows(decoding),
        recipes={name: rows(several) for name, several in cropping.items()},
    )


def sample_photographs() -> tuple[ImageFiles, str]:
    """Return two photographs, many times, as image files, and their name."""
    import sklearn.datasets

    root, names = Path(sklearn.datasets.__file__).parent / "images", ("china.jpg", "flower.jpg")
    found = [read_at_most(root / name, 2**20) for name in names]
    chosen = np.arange(IMAGES) % len(names)
    files = ImageFiles(
        root=root,
        labels=chosen,
        hashes=np.array([list(hashlib.sha256(data).digest()) for data in found], np.uint8)[chosen],
        paths=names,
        container=chosen,
        offsets=np.zeros(IMAGES, np.int64),
        lengths=np.array([len(data) for data in found])[chosen],
    )
    return files, "scikit-learn's two photographs"


def sample_images(dataset: PhotoDataset) -> tuple[ImageFiles, str]:
    """Return some training images from all parts of a data set, and their name."""
    require_images(dataset.train)
    numbers = np.linspace(0, len(dataset.train) - 1, IMAGES).astype(np.int64)
    return dataset.train.select(numbers), f"{IMAGES} training images of {dataset.name}"


def _decoding(encoded: list[bytes], decoder: Decoder) -> tuple[None, Way]:
    images = cycle(encoded)
    return None, stopwatch(lambda: [decode(next(images), decoder) for _ in range(BATCH_SIZE)], _CPU)


def _cropping(name: str, recipe: Recipe, files: ImageFiles, encoded: list[bytes], threads: list[int]) -> _Ways:
    settings = recipe.photographs
    assert settings  # noqa: S101
    source = TrainingCrops(
        files, settings, batch_size=BATCH_SIZE, flip=recipe.augmentation.flip, has_short_batches=False, seed=0
    )

    plans = map(source.plan, naturals())

    def crop_batch() -> None:
        plan = next(plans)
        for chosen, words in zip(plan.images, plan.words, strict=True):
            source.cropped(decode(encoded[chosen], settings.decoder), words)

    streams: _Ways = {f"{name}: {count(n, 'thread')}": (n, partial(stream_seconds, source, n)) for n in threads}
    return {f"{name}: plain loop": (None, stopwatch(crop_batch, _CPU)), **streams}


def stream_seconds(source: CropSource, threads: int, batches: int) -> float:
    """Return the seconds that a stream takes for some batches."""
    with CropStream(source, threads=threads) as stream:
        for _ in range(AHEAD + 1):  # until each buffer was used
            next(stream)
        return stopwatch(partial(next, stream), _CPU)(batches)
