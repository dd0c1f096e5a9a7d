"""One set of images gives one fingerprint and the same batches, in whatever form its files come."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from paperbench.data.imagenet.batches import CentralCrops, CropSource, TrainingCrops
from paperbench.data.imagenet.build import Published, index_images
from paperbench.data.imagenet.index import ImageFiles, PhotoDataset
from paperbench.data.imagenet.pack import pack
from paperbench.specs.recipe import Evaluation, Photographs
from tests.data.imagenet.miniature import SYNSETS, known_labels, of, write_folders, write_parquet
from tests.data.imagenet.small_files import crops_of
from tests.data.imagenet.test_layout import LAYOUTS, write

SCALE = Photographs(decoder="pillow", interpolation="bilinear", crop=48, shorter_side=(53, 100), mean_image_scale=53)
AREA = Photographs(
    decoder="pillow", interpolation="torch_bicubic", crop=48, area=(0.08, 1.0), aspect_ratio=(0.75, 1.25), jitter=0.4
)


def write_packed(root: Path) -> Path:
    pack(write_parquet(root / "parquet"), root / "shards", SYNSETS, io.StringIO())
    return root / "shards"


NEEDS_PYARROW = pytest.mark.skipif(find_spec("pyarrow") is None, reason="needs pyarrow")
FORMS = (
    *(partial(write, files=LAYOUTS[form]) for form in ("folders", "Kaggle", "archives", "shards")),
    pytest.param(write_packed, marks=NEEDS_PYARROW),
)


def indexed(write: Callable[[Path], Path], directory: Path) -> PhotoDataset:
    published = Published(SYNSETS, train=20, test=10, test_labels=known_labels(), shorter_side=0)
    root = write(directory / "images")
    return index_images(root, directory / "data", io.StringIO(), threads=1, published=published).dataset()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> PhotoDataset:
    return indexed(write_folders, tmp_path_factory.mktemp("folders"))


@pytest.fixture(params=FORMS)
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> PhotoDataset:
    return indexed(request.param, tmp_path)


def batches(dataset: PhotoDataset) -> Iterator[tuple[bytes, list[int], bytes]]:
    """Yield pixels, labels and colours of the batches of two epochs and of a test."""
    sources: list[CropSource] = [
        TrainingCrops(dataset.train, settings, batch_size=8, flip=True, has_short_batches=short, seed=3)
        for settings, short in ((SCALE, False), (AREA, True))
    ]
    sources += [CentralCrops(part, SCALE, Evaluation(48, 53), batch_size=8) for part in (dataset.train, dataset.test)]
    for source in sources:
        for number in range(-(-len(source.files) // 8) if isinstance(source, CentralCrops) else 6):
            pixels, labels, colours = crops_of(source, number)
            chosen = b"".join(choice.numpy().tobytes() for choice in colours or ())
            yield pixels.numpy().tobytes(), labels.tolist(), chosen


def test_images_are_in_the_order_of_label_and_hash(dataset: PhotoDataset) -> None:
    def keys(part: ImageFiles) -> list[tuple[int, str]]:
        return [(int(label), digest.tobytes().hex()) for label, digest in zip(part.labels, part.hashes, strict=True)]

    for split, part in (("train", dataset.train), ("test", dataset.test)):
        assert keys(part) == sorted((image.label, hashlib.sha256(image.data).hexdigest()) for image in of(split))
        assert [part.read(number) for number in range(len(part))] == [
            image.data
            for image in sorted(of(split), key=lambda image: (image.label, hashlib.sha256(image.data).digest()))
        ]


def test_all_forms_give_one_fingerprint_and_the_same_batches(dataset: PhotoDataset, folders: PhotoDataset) -> None:
    assert dataset.fingerprint == folders.fingerprint
    for batch, expected in zip(batches(dataset), batches(folders), strict=True):
        assert batch == expected
