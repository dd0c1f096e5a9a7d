"""The feed of small images."""

from __future__ import annotations

import torch

from paperbench.data.dataset import ImageDataset
from paperbench.data.feed import ImageFeed, make_feed
from paperbench.data.loader import InputTransform, TrainingBatches
from paperbench.specs.recipe import Recipe
from paperbench.training.evaluation import no_interrupt

CPU = torch.device("cpu")


def feed_of(dataset: ImageDataset, recipe: Recipe) -> ImageFeed:
    feed = make_feed(dataset, recipe, 3, CPU, torch.channels_last, no_interrupt, lambda _: None)
    assert isinstance(feed, ImageFeed)
    return feed


def batches(dataset: ImageDataset, recipe: Recipe, size: int, purpose: str) -> TrainingBatches:
    return TrainingBatches(
        dataset,
        InputTransform(dataset.x_train, recipe.input),
        batch_size=size,
        padding=recipe.augmentation.padding,
        flip=recipe.augmentation.flip,
        seed=3,
        device=CPU,
        purpose=purpose,
    )


def test_training_batches_are_those_of_the_loader(small_dataset: ImageDataset, paper_recipe: Recipe) -> None:
    feed = feed_of(small_dataset, paper_recipe)
    loader = batches(small_dataset, paper_recipe, 128, "training")
    for iteration in (0, 5):
        found, expected = feed.make(feed.choices(iteration)), loader.batch(iteration)
        assert torch.equal(found.images, expected.images)
        assert torch.equal(found.labels, expected.labels)


def test_reestimation_shows_whole_groups_of_one_pass_of_its_own(
    small_dataset: ImageDataset, paper_recipe: Recipe
) -> None:
    loader = batches(small_dataset, paper_recipe, 64, "batch-norm")
    for at_once in (1, 3):
        (images,) = feed_of(small_dataset, paper_recipe).reestimation(at_once)  # 64 of 100
        assert torch.equal(images, loader.batch(0).images)


def test_test_shows_each_image_once(small_dataset: ImageDataset, paper_recipe: Recipe) -> None:
    feed = feed_of(small_dataset, paper_recipe)
    mean = torch.from_numpy(small_dataset.x_train.mean(0) / 255)
    expected = (torch.from_numpy(small_dataset.x_test) / 255 - mean).permute(0, 3, 1, 2)
    for size, number in ((7, 6), (40, 1), (100, 1)):
        found = list(feed.test(None, size))
        assert len(found) == number
        assert (torch.cat([batch.images for batch in found]) - expected).abs().max() < 1e-6
        assert torch.cat([batch.labels for batch in found]).tolist() == small_dataset.y_test.tolist()
