from __future__ import annotations

import io
import math
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from paperbench.data.imagenet.batches import CentralCrops
from paperbench.data.imagenet.index import ImageFiles, PhotoDataset
from paperbench.data.imagenet.mean_image import mean_images
from paperbench.errors import DataError, Interrupted, PaperbenchError
from paperbench.specs.recipe import Evaluation, Photographs
from tests.data.imagenet.small_files import crops_of, image_files, photographs

COUNT = 11
SETTINGS = Photographs("pillow", "bilinear", 24, shorter_side=(32, 48), mean_image_scale=32)
SMALL, LARGE = Evaluation(24, 32), Evaluation(40, 40)


@dataclass(frozen=True)
class CountedFiles(ImageFiles):
    """Image files that keep the numbers of those that are read."""

    numbers: list[int] = field(default_factory=list)

    def read(self, number: int) -> bytes:
        self.numbers.append(number)
        return super().read(number)


@pytest.fixture
def dataset(tmp_path: Path) -> PhotoDataset:
    (tmp_path / "data").mkdir()
    files = CountedFiles(**vars(image_files(tmp_path, photographs(COUNT))))
    return PhotoDataset("imagenet", "few", "a test", ("a", "b", "c"), files, files, tmp_path / "data", canonical=False)


@pytest.fixture
def decoded(dataset: PhotoDataset) -> list[int]:
    """The numbers of the images that are read."""
    assert isinstance(dataset.train, CountedFiles)
    return dataset.train.numbers


def means(
    dataset: PhotoDataset,
    *evaluations: Evaluation,
    settings: Photographs = SETTINGS,
    between_images: Callable[[int], None] = lambda _: None,
) -> list[torch.Tensor]:
    wanted = evaluations or (SMALL,)
    found = mean_images(dataset, settings, wanted, between_images)
    return [found[one] for one in wanted]


def test_mean_images_are_exact(dataset: PhotoDataset) -> None:
    for evaluation, found in zip((SMALL, LARGE), means(dataset, SMALL, LARGE), strict=True):
        crops = crops_of(CentralCrops(dataset.train, SETTINGS, evaluation, batch_size=COUNT), 0).pixels.tolist()
        assert (found.shape, found.dtype) == ((evaluation.crop, evaluation.crop, 3), torch.float32)
        for y, x, channel in ((0, 0, 0), (23, 23, 2), (7, 11, 1)):
            exact = math.fsum(crop[y][x][channel] for crop in crops) / (255 * COUNT)
            assert found[y, x, channel].item() == np.float32(exact)


def test_white_images_have_a_white_mean(dataset: PhotoDataset, tmp_path: Path) -> None:
    Image.new("RGB", (40, 40), "white").save(stream := io.BytesIO(), "PNG")
    white = image_files(tmp_path, [stream.getvalue()])
    many = replace(dataset, train=white.select(np.zeros(2**16 // 255 + 1, np.int64)))
    assert means(many)[0].eq(1).all()


def test_images_are_read_once_for_all_sizes(dataset: PhotoDataset, decoded: list[int]) -> None:
    both = means(dataset, SMALL, LARGE, SMALL)
    assert sorted(decoded) == [*range(COUNT)]
    assert all(map(torch.equal, means(dataset, SMALL, LARGE, SMALL), both))
    assert len(decoded) == COUNT, "the second time, they are in files"
    for path in dataset.directory.iterdir():
        path.unlink()
    assert all(map(torch.equal, (*means(dataset, LARGE), *means(dataset, SMALL)), (both[1], both[0])))


def test_other_crops_have_another_mean_image(dataset: PhotoDataset, decoded: list[int]) -> None:
    means(dataset)
    others: list[tuple[Photographs, Evaluation]] = [
        (SETTINGS, Evaluation(20, 32)),
        (SETTINGS, Evaluation(24, 40)),
        (replace(SETTINGS, interpolation="torch_bicubic"), SMALL),
    ]
    for number, (settings, evaluation) in enumerate(others, 1):
        means(dataset, evaluation, settings=settings)
        assert len(decoded) == (1 + number) * COUNT
    fewer = replace(dataset, train=dataset.train.select(np.arange(5)))
    means(fewer)
    assert len(decoded) == 4 * COUNT + 5


@pytest.mark.parametrize("error", [Interrupted, DataError])
def test_interrupted_pass_ends_its_threads_and_is_repeated(
    error: type[Exception], dataset: PhotoDataset, decoded: list[int]
) -> None:
    def interrupt(_: int) -> None:
        raise error

    before = threading.active_count()
    with pytest.raises(error):
        means(dataset, between_images=interrupt)
    assert threading.active_count() == before
    decoded.clear()
    means(dataset)
    assert len(decoded) == COUNT


def test_lost_image_is_named(dataset: PhotoDataset) -> None:
    (dataset.train.root / "4.jpg").unlink()
    with pytest.raises(DataError, match=r"4\.jpg cannot be read: No such file"):
        means(dataset)


def test_directory_that_cannot_be_written_is_known_before_images_are_read(
    dataset: PhotoDataset, decoded: list[int]
) -> None:
    shutil.rmtree(dataset.directory)  # which stops root, too
    with pytest.raises(PaperbenchError, match=r"cannot be written: .* Choose another directory \(`--data DIR`\)"):
        means(dataset)
    assert decoded == []


def test_two_processes_may_compute_it_at_once(dataset: PhotoDataset) -> None:
    found: list[torch.Tensor] = []
    others = [threading.Thread(target=lambda: found.extend(means(dataset))) for _ in range(2)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert torch.equal(*found)
    assert [path.suffix for path in dataset.directory.iterdir()] == [".safetensors"]


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_bit,
        lambda path: path.write_bytes(path.read_bytes()[:-8]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(bytes(100)),
        lambda path: path.write_bytes(path.read_bytes().replace(b"[24, 24, 3]", b"[24,72,1,1]")),
        lambda path: path.write_bytes(path.read_bytes().replace(b'"sha256"', b'"sha257"')),
    ],
)
def test_damaged_file_is_replaced(damage: Callable[[Path], object], dataset: PhotoDataset) -> None:
    found = means(dataset)[0]
    (path,) = dataset.directory.iterdir()
    good = path.read_bytes()
    damage(path)
    assert path.read_bytes() != good
    assert torch.equal(means(dataset)[0], found)
    assert path.read_bytes() == good


@pytest.mark.parametrize("obstacle", [os.mkfifo, os.mkdir])
def test_obstacle_is_an_error_before_any_image_is_read(
    obstacle: Callable[[Path], None], dataset: PhotoDataset, decoded: list[int]
) -> None:
    means(dataset)
    (path,) = dataset.directory.iterdir()
    path.unlink()
    obstacle(path)
    decoded.clear()
    with pytest.raises(PaperbenchError, match=r"cannot be read: .* Remove it, or check its permissions\."):
        means(dataset)
    assert decoded == []
