"""The feed of photographs, against a loop that decodes, crops and transforms one image after another."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from paperbench.data.feed import make_feed
from paperbench.data.imagenet.crops import central_view, random_view, render
from paperbench.data.imagenet.feed import PhotoFeed
from paperbench.data.imagenet.index import ImageFiles, PhotoDataset
from paperbench.errors import DataError, Interrupted, PaperbenchError
from paperbench.specs.recipe import BatchNormSettings, ChannelValues, Evaluation, Recipe
from tests.data.imagenet import reference
from tests.data.imagenet.small_files import DAGGER, SCALE, image_files, photographs, settings_of

TRAIN, TEST, BATCH, GROUP, SEED = 23, 11, 8, 4, 3
EVALUATIONS = {"small": Evaluation(24, 32), "large": Evaluation(40, 40)}


def small(recipe: Recipe) -> Recipe:
    """A recipe of ImageNet on crops of 24 pixels."""
    settings = replace(settings_of(recipe), crop=24)
    if settings.shorter_side:
        settings = replace(settings, shorter_side=(32, 48), mean_image_scale=32)
    batch_norm = BatchNormSettings(GROUP, 1e-5, 0.1, "reestimated")
    return replace(recipe, photographs=settings, batch_size=BATCH, batch_norm=batch_norm, evaluations=EVALUATIONS)


RECIPES = {"scale": small(SCALE), "dagger": small(DAGGER)}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PhotoDataset:
    root = tmp_path_factory.mktemp("photographs")
    (root / "data").mkdir()
    files = image_files(root, photographs(TRAIN + TEST))
    train, test = (files.select(np.arange(first, last)) for first, last in ((0, TRAIN), (TRAIN, TRAIN + TEST)))
    return PhotoDataset("imagenet", "few", "a test", ("a", "b", "c"), train, test, root / "data", canonical=False)


@pytest.fixture(params=RECIPES)
def recipe(request: pytest.FixtureRequest) -> Recipe:
    return RECIPES[request.param]


def feed_of(
    dataset: PhotoDataset, recipe: Recipe, between_batches: Callable[[], None] = lambda: None, seed: int = SEED
) -> PhotoFeed:
    feed = make_feed(dataset, recipe, seed, torch.device("cpu"), between_batches, lambda _: None)
    assert isinstance(feed, PhotoFeed)
    return feed


def opened(files: ImageFiles, number: int) -> Image.Image:
    return Image.open(files.root / files.paths[files.container[number]]).convert("RGB")


def central(recipe: Recipe, files: ImageFiles, number: int, evaluation: Evaluation) -> np.ndarray:
    """The central crop of an image, grey levels."""
    image, interpolation = opened(files, number), settings_of(recipe).interpolation
    view = central_view(interpolation, evaluation.crop, evaluation.scale, *image.size)
    return render(image, view, evaluation.crop, interpolation).astype(np.float64)


def mean_and_std(dataset: PhotoDataset, recipe: Recipe, evaluation: Evaluation) -> tuple[np.ndarray, Sequence[float]]:
    if isinstance(recipe.input, ChannelValues):
        return np.array(recipe.input.mean), recipe.input.std
    crops = [central(recipe, dataset.train, number, evaluation) for number in range(TRAIN)]
    return np.mean(crops, axis=0) / 255, (1, 1, 1)


def training_image(
    dataset: PhotoDataset, recipe: Recipe, purpose: str, epoch: int, place: int
) -> tuple[np.ndarray, int]:
    """The net's input from the image at a place of an epoch, and its label."""
    order = reference.stream(SEED, purpose, "order", epoch, count=TRAIN)
    number = sorted(range(TRAIN), key=order.__getitem__)[place]
    words = reference.stream(SEED, purpose, "augmentation", epoch, first=64 * place, count=64)
    image, settings = opened(dataset.train, number), settings_of(recipe)
    view = random_view(settings, np.array(words, np.uint64), *image.size)
    crop = render(image, view, settings.crop, settings.interpolation).astype(np.float64)
    mean, std = mean_and_std(dataset, recipe, EVALUATIONS["small"])
    return reference.finished(crop, words, mean, std, jittered=bool(settings.jitter)), number % 3


def places(recipe: Recipe, iteration: int) -> list[tuple[int, int]]:
    """The epochs and places of a batch's images."""
    if recipe.epoch_end is None:
        return [divmod(position, TRAIN) for position in range(iteration * BATCH, (iteration + 1) * BATCH)]
    epoch, batch = divmod(iteration, 3)
    return [(epoch, place) for place in range(batch * BATCH, min((batch + 1) * BATCH, TRAIN))]


def assert_input(found: torch.Tensor, expected: list[np.ndarray]) -> None:
    assert (found.dtype, len(found)) == (torch.float32, len(expected))
    assert np.abs(found.numpy() - np.array(expected)).max() < 2e-6


def test_training_batches_are_those_of_the_loop_after_any_jump(dataset: PhotoDataset, recipe: Recipe) -> None:
    feed = feed_of(dataset, recipe)
    for iteration in (0, 1, 2, 2, 3, 8, 0, 5):  # the third batch ends an epoch, or is the first of two
        batch = feed.make(feed.choices(iteration))
        images, labels = zip(
            *(training_image(dataset, recipe, "training", *place) for place in places(recipe, iteration)), strict=True
        )
        assert_input(batch.images, images)
        assert batch.labels.tolist() == list(labels)
    feed.close()


@pytest.mark.parametrize("evaluation", EVALUATIONS.values(), ids=str)
def test_test_shows_each_image_once_less_the_mean_of_its_crops(
    dataset: PhotoDataset, recipe: Recipe, evaluation: Evaluation
) -> None:
    mean, std = mean_and_std(dataset, recipe, evaluation)
    crops = [central(recipe, dataset.test, number, evaluation) / 255 for number in range(TEST)]
    expected = [((crop - mean) / np.array(std)).transpose(2, 0, 1) for crop in crops]
    feed = feed_of(dataset, recipe)
    for size in (1, 4, TEST, 50):
        batches = [(batch.images.clone(), batch.labels) for batch in feed.test(evaluation, size)]
        assert [len(images) for images, _ in batches] == [min(size, TEST - first) for first in range(0, TEST, size)]
        assert_input(torch.cat([images for images, _ in batches]), expected)
        assert torch.cat([labels for _, labels in batches]).tolist() == dataset.test.labels.tolist()


def test_evaluation_that_the_recipe_lacks_has_its_own_mean_image(dataset: PhotoDataset) -> None:
    recipe, evaluation = RECIPES["scale"], Evaluation(20, 36)
    mean, _ = mean_and_std(dataset, recipe, evaluation)
    (batch,) = feed_of(dataset, recipe).test(evaluation, TEST)
    crops = [central(recipe, dataset.test, number, evaluation) / 255 for number in range(TEST)]
    assert_input(batch.images, [(crop - mean).transpose(2, 0, 1) for crop in crops])


def test_reestimation_shows_whole_groups_of_one_pass_of_its_own(dataset: PhotoDataset, recipe: Recipe) -> None:
    whole = TRAIN // GROUP * GROUP
    expected = [training_image(dataset, recipe, "batch-norm", 0, place)[0] for place in range(whole)]
    feed = feed_of(dataset, recipe)
    groups = [images.clone() for images in feed.reestimation()]
    assert {len(images) for images in groups} == {GROUP}
    assert_input(torch.cat(groups), expected)


def crop_threads() -> int:
    return sum(thread.name.startswith("crew ") for thread in threading.enumerate())


def test_closed_feed_has_no_threads_and_can_go_on(dataset: PhotoDataset, recipe: Recipe) -> None:
    gc.collect()  # the feeds of other tests
    before = crop_threads()
    feed = feed_of(dataset, recipe)
    feed.choices(0)
    expected = [part.clone() for part in feed.choices(1)]
    assert crop_threads() == before + 1
    feed.close()
    assert crop_threads() == before
    assert all(map(torch.equal, feed.choices(1), expected))
    feed.close()


def test_feed_that_nobody_uses_has_no_threads(dataset: PhotoDataset, recipe: Recipe) -> None:
    feed = feed_of(dataset, recipe)
    feed.choices(0)
    del feed
    gc.collect()
    assert crop_threads() == 0


def test_interrupted_pass_leaves_no_threads(dataset: PhotoDataset, recipe: Recipe) -> None:
    limit = iter(range(3))

    def interrupt() -> None:
        if next(limit, None) is None:
            raise Interrupted

    feed_of(dataset, recipe).close()  # the mean images are in files now
    feed = feed_of(dataset, recipe, interrupt)
    for batches in (feed.test(EVALUATIONS["small"], 1), feed.reestimation()):
        with pytest.raises(Interrupted):
            list(batches)
        assert crop_threads() == 0


def lost_from(feed: PhotoFeed, iteration: int) -> int:
    """Return the first iteration from this one on whose images cannot be read."""
    try:
        feed.choices(iteration)
    except DataError:
        return iteration
    return lost_from(feed, iteration + 1)


def test_images_are_read_once_and_lost_ones_once_they_are_back(dataset: PhotoDataset, recipe: Recipe) -> None:
    other, feed = feed_of(dataset, recipe), feed_of(dataset, recipe)
    first = feed.choices(0)
    root, away = dataset.train.root, dataset.train.root.with_name("away")
    root.rename(away)
    assert all(map(torch.equal, feed.choices(0), first))
    lost = lost_from(feed, 1)  # the next ones may have been made
    assert lost_from(feed, lost) == lost
    away.rename(root)
    assert all(map(torch.equal, feed.choices(lost), other.choices(lost)))
    feed.close()
    other.close()


@pytest.mark.parametrize("part", ["train", "test"])
def test_data_without_training_or_test_images_are_refused_at_once(
    dataset: PhotoDataset, recipe: Recipe, part: str
) -> None:
    none = dataset.train.select(np.arange(0))
    with pytest.raises(PaperbenchError, match="lacks all training or all test images"):
        feed_of(replace(dataset, **{part: none}), recipe).choices(0)
