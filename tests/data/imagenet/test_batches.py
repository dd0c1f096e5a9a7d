from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from paperbench.data.imagenet.batches import BatchPlan, CentralCrops, TrainingCrops
from paperbench.data.imagenet.colours import ColourTransform
from paperbench.data.imagenet.draws import WORDS_PER_IMAGE
from paperbench.data.imagenet.index import ImageFiles
from paperbench.errors import PaperbenchError
from paperbench.specs.recipe import ChannelValues, Evaluation, Recipe
from tests.data.imagenet import reference
from tests.data.imagenet.small_files import DAGGER, SCALE, crops_of, image_files, photographs, settings_of

COUNT = 23


@pytest.fixture(scope="module")
def data() -> list[bytes]:
    return photographs(COUNT)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, data: list[bytes]) -> ImageFiles:
    return image_files(tmp_path_factory.mktemp("photographs"), data)


def crops(files: ImageFiles, recipe: Recipe, *, batch_size: int = 8, seed: int = 1) -> TrainingCrops:
    return TrainingCrops(
        files,
        settings_of(recipe),
        batch_size=batch_size,
        flip=True,
        has_short_batches=recipe.epoch_end is not None,
        seed=seed,
    )


def expected_plan(seed: int, *positions: tuple[int, int], total: int = COUNT) -> BatchPlan:
    """The images and words of positions (epoch, place)."""
    images, rows = [], []
    for epoch, place in positions:
        order = reference.stream(seed, "training", "order", epoch, count=total)
        images.append(sorted(range(total), key=order.__getitem__)[place])
        names = ("training", "augmentation", epoch)
        rows.append(reference.stream(seed, *names, first=place * WORDS_PER_IMAGE, count=WORDS_PER_IMAGE))
    return BatchPlan(np.array(images), np.array(rows, np.uint64))


def assert_plan(found: BatchPlan, expected: BatchPlan) -> None:
    assert np.array_equal(found.images, expected.images)
    assert np.array_equal(found.words, expected.words)


def test_batches_of_scale_span_epochs(files: ImageFiles) -> None:
    source = crops(files, SCALE)
    assert_plan(source.plan(0), expected_plan(1, *((0, place) for place in range(8))))
    assert_plan(source.plan(2), expected_plan(1, *((0, place) for place in range(16, 23)), (1, 0)))
    wide = crops(files, SCALE, batch_size=60)
    assert_plan(wide.plan(1), expected_plan(1, *((at // COUNT, at % COUNT) for at in range(60, 120))))


def test_batches_of_the_dagger_end_with_the_epoch(files: ImageFiles) -> None:
    source = crops(files, DAGGER)
    assert [len(source.plan(number).images) for number in range(6)] == [8, 8, 7, 8, 8, 7]
    assert_plan(source.plan(5), expected_plan(1, *((1, place) for place in range(16, 23))))
    assert len(crops(files, DAGGER, batch_size=23).plan(3).images) == 23, "no empty batch"


def test_imagenet_epoch_of_the_dagger_ends_with_143_images(files: ImageFiles) -> None:
    source = crops(replace(files, labels=np.zeros(1_281_167, np.int64)), DAGGER, batch_size=256)
    for number, size, epoch, place in ((5_004, 143, 0, 5_004 * 256), (5_005, 256, 1, 0)):
        plan = source.plan(number)
        assert plan.images.shape == (size,)
        assert plan.words.shape == (size, WORDS_PER_IMAGE)
        names = ("training", "augmentation", epoch)
        assert plan.words[0].tolist() == reference.stream(1, *names, first=place * 64, count=64)


@pytest.mark.parametrize("recipe", [SCALE, DAGGER], ids=["scale", "dagger"])
def test_input_is_that_of_the_reference(files: ImageFiles, data: list[bytes], recipe: Recipe) -> None:
    """From the file's bytes to the net's input; grey levels are rounded once (dagger) or twice (scale)."""
    source, number = crops(files, recipe), 2
    batch = crops_of(source, number)
    mean: ChannelValues | torch.Tensor = (
        recipe.input if isinstance(recipe.input, ChannelValues) else torch.rand(224, 224, 3)
    )
    dagger = isinstance(mean, ChannelValues)
    convert = ColourTransform(mean, has_jitter=dagger, device=torch.device("cpu"))
    found = convert(batch.pixels, batch.colours).double().numpy()
    plan = source.plan(number)
    assert batch.labels.tolist() == [int(image) % 3 for image in plan.images]
    means, std = (np.array(mean.mean), mean.std) if isinstance(mean, ChannelValues) else (mean.numpy(), (1, 1, 1))
    for image, row, result in zip(plan.images, plan.words.tolist(), found, strict=True):
        pixels = np.asarray(Image.open(io.BytesIO(data[image])).convert("RGB"), np.float64)
        crop = (reference.dagger_crop if dagger else reference.scale_crop)(pixels, row)
        expected = reference.finished(crop.clip(0, 255), row, means, std, jittered=dagger)
        levels = np.abs(result - expected) * 255 * np.array(std)[:, None, None]
        assert levels.max() < (0.51 * 1.4**3 if dagger else 1.2)
        assert levels.mean() < 0.45


def test_central_crops_are_all_images_in_order(files: ImageFiles, data: list[bytes]) -> None:
    source = CentralCrops(files, settings_of(DAGGER), Evaluation(64, 80), batch_size=10)
    batches = [crops_of(source, number) for number in range(3)]
    assert [len(batch.pixels) for batch in batches] == [10, 10, 3]
    assert all(batch.colours is None for batch in batches)
    assert torch.cat([batch.labels for batch in batches]).tolist() == files.labels.tolist()
    for image, found in zip(data, torch.cat([batch.pixels for batch in batches]), strict=True):
        pixels = np.asarray(Image.open(io.BytesIO(image)).convert("RGB"), np.float64)
        expected = reference.test_crop(pixels, 64, 80).clip(0, 255)
        assert np.abs(found.numpy() - expected).max() < 0.501


def test_damaged_image_is_named(tmp_path: Path, data: list[bytes]) -> None:
    files = image_files(tmp_path, [data[0], data[1][:-100]])
    source = CentralCrops(files, settings_of(SCALE), Evaluation(64, 80), batch_size=10)
    with pytest.raises(PaperbenchError, match=r"1.jpg: the image at byte 0 is not a complete JPEG or PNG"):
        crops_of(source, 0)
