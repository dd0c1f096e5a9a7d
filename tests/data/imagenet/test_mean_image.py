from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from paperbench.data.imagenet.batches import CentralCrops, Crops
from paperbench.data.imagenet.index import ImageFiles
from paperbench.data.imagenet.mean_image import mean_image
from paperbench.data.imagenet.stream import CropStream
from paperbench.errors import PaperbenchError
from paperbench.specs.recipe import Evaluation, Photographs
from tests.data.imagenet.small_files import image_files, photographs

COUNT = 11
SETTINGS = Photographs("pillow", "bilinear", 24, shorter_side=(32, 48), mean_image_scale=32)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ImageFiles:
    return image_files(tmp_path_factory.mktemp("photographs"), photographs(COUNT))


def central(
    files: ImageFiles, settings: Photographs = SETTINGS, *, crop: int = 24, scale: int = 32, batch_size: int = 4
) -> CentralCrops:
    return CentralCrops(files, settings, Evaluation(crop, scale), batch_size=batch_size)


def unused(_: CentralCrops) -> Iterable[Crops]:
    raise AssertionError("the images are not needed")


def forwards(crops: CentralCrops) -> Iterable[Crops]:
    return map(crops.crops, range(len(crops)))


def backwards(crops: CentralCrops) -> Iterable[Crops]:
    return [crops.crops(number) for number in reversed(range(len(crops)))]


def test_mean_image_is_exact(files: ImageFiles, tmp_path: Path) -> None:
    crops = central(files, batch_size=COUNT).crops(0).pixels.tolist()
    found = mean_image(central(files), "f", tmp_path, forwards)
    assert (found.shape, found.dtype) == ((24, 24, 3), torch.float32)
    for y, x, channel in ((0, 0, 0), (23, 23, 2), (7, 11, 1)):
        exact = math.fsum(crop[y][x][channel] for crop in crops) / (255 * COUNT)
        assert found[y, x, channel].item() == np.float32(exact)


def test_large_batch_of_white_images_has_a_white_mean(files: ImageFiles, tmp_path: Path) -> None:
    number = 2**16 // 255 + 1
    white = Crops(torch.full((number, 24, 24, 3), 255, dtype=torch.uint8), torch.zeros(number), None)
    crops = central(replace(files, labels=np.zeros(number, np.int64)))
    assert mean_image(crops, "f", tmp_path, lambda _: [white]).eq(1).all()


def test_mean_image_does_not_depend_on_order_and_batches(files: ImageFiles, tmp_path: Path) -> None:
    found = mean_image(central(files), "f", tmp_path / "one", forwards)
    again = mean_image(central(files, batch_size=3), "f", tmp_path / "two", backwards)
    assert torch.equal(found, again)
    (one,), (two,) = (list((tmp_path / name).iterdir()) for name in ("one", "two"))
    assert (one.name, one.read_bytes()) == (two.name, two.read_bytes())


def test_stream_can_make_the_batches(files: ImageFiles, tmp_path: Path) -> None:
    before = threading.active_count()
    found = mean_image(central(files), "f", tmp_path / "one", lambda crops: CropStream(crops, threads=2))
    assert torch.equal(found, mean_image(central(files), "f", tmp_path / "two", forwards))
    assert threading.active_count() == before


def test_mean_image_is_computed_once(files: ImageFiles, tmp_path: Path) -> None:
    found = mean_image(central(files), "f", tmp_path, forwards)
    assert torch.equal(mean_image(central(files), "f", tmp_path, unused), found)


def test_other_crops_have_another_mean_image(files: ImageFiles, tmp_path: Path) -> None:
    torch_like = replace(SETTINGS, interpolation="torch_bicubic")
    mean_image(central(files), "f", tmp_path, forwards)
    others: list[tuple[CentralCrops, str]] = [
        (central(files), "g"),
        (central(files, crop=20), "f"),
        (central(files, scale=40), "f"),
        (central(files, torch_like), "f"),
        (central(files, replace(SETTINGS, decoder="torchcodec")), "f"),
    ]
    for crops, fingerprint in others:
        with pytest.raises(AssertionError, match="not needed"):
            mean_image(crops, fingerprint, tmp_path, unused)


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
def test_damaged_file_is_replaced(damage: Callable[[Path], object], files: ImageFiles, tmp_path: Path) -> None:
    found = mean_image(central(files), "f", tmp_path, forwards)
    (path,) = tmp_path.iterdir()
    good = path.read_bytes()
    damage(path)
    assert path.read_bytes() != good
    assert torch.equal(mean_image(central(files), "f", tmp_path, forwards), found)
    assert path.read_bytes() == good


@pytest.mark.parametrize("obstacle", [os.mkfifo, os.mkdir])
def test_obstacle_is_an_error_before_any_image_is_read(
    obstacle: Callable[[Path], None], files: ImageFiles, tmp_path: Path
) -> None:
    mean_image(central(files), "f", tmp_path, forwards)
    (path,) = tmp_path.iterdir()
    path.unlink()
    obstacle(path)
    with pytest.raises(PaperbenchError, match=r"cannot be read: .* Remove it, or check its permissions\."):
        mean_image(central(files), "f", tmp_path, unused)


def test_missing_batches_give_no_file(files: ImageFiles, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs 11 images, not 7"):
        mean_image(central(files), "f", tmp_path, lambda crops: backwards(crops)[:2])  # type: ignore[index]
    assert not list(tmp_path.iterdir())
