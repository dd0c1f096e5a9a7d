from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as tv
from PIL import Image

from paperbench.data.dataset import ImageDataset
from paperbench.data.feed import make_feed
from paperbench.data.loader import Batch, ImageFeed, draw_epoch
from paperbench.specs.recipe import Augmentation, ChannelValues, Recipe

CPU = torch.device("cpu")


@pytest.fixture
def recipe(paper_recipe: Recipe) -> Recipe:
    return replace(paper_recipe, batch_size=32, batch_norm=replace(paper_recipe.batch_norm, group=32))


def feed_of(dataset: ImageDataset, recipe: Recipe, device: torch.device = CPU) -> ImageFeed:
    return make_feed(dataset, recipe, 3, device, lambda: None, lambda _: None)


def batch_of(feed: ImageFeed, iteration: int) -> Batch:
    return feed.make(feed.choices(iteration))


def crops_of(order: torch.Tensor, variants: torch.Tensor) -> list[tuple[int, int, int, bool]]:
    """Decode index, dy, dx and mirroring of each image, as `ImageFeed` documents."""
    decoded = []
    for index, variant in zip(order.tolist(), variants.tolist(), strict=True):
        rest, dx = divmod(variant, 9)
        mirrored, dy = divmod(rest, 9)
        decoded.append((index, dy, dx, bool(mirrored)))
    return decoded


def torchvision_batch(dataset: ImageDataset, crops: list[tuple[int, int, int, bool]]) -> torch.Tensor:
    """Subtract the mean, then pad, crop and mirror, one image at a time."""
    mean = torch.from_numpy((dataset.x_train / 255).mean(axis=0).astype(np.float32)).permute(2, 0, 1)
    images = []
    for index, dy, dx, mirrored in crops:
        image = tv.to_tensor(Image.fromarray(dataset.x_train[index])) - mean
        image = tv.crop(tv.pad(image, [4]), dy, dx, 32, 32)
        images.append(tv.hflip(image) if mirrored else image)
    return torch.stack(images)


def test_batch_equals_torchvisions_pad_crop_and_flip_exactly(small_dataset: ImageDataset, recipe: Recipe) -> None:
    feed = feed_of(small_dataset, recipe)
    for iteration in (0, 3, 50):
        crops = crops_of(*feed.choices(iteration))
        batch = batch_of(feed, iteration)
        assert torch.equal(batch.images, torchvision_batch(small_dataset, crops))
        assert batch.images.is_contiguous(memory_format=torch.channels_last)
        assert (batch.images.dtype, batch.labels.dtype) == (torch.float32, torch.int64)
        assert batch.labels.tolist() == [small_dataset.y_train[index] for index, *_ in crops]


def test_schedule_equals_the_choices_of_each_iteration(small_dataset: ImageDataset, recipe: Recipe) -> None:
    feed = feed_of(small_dataset, recipe)  # 100 images: the 9 batches of 32 reach into the third epoch
    order, variant = feed.schedule(9)
    assert (order.shape, order.dtype, variant.dtype) == ((9, 32), torch.int32, torch.int16)
    for iteration in range(9):
        for whole, chosen in zip((order, variant), feed.choices(iteration), strict=True):
            assert torch.equal(whole[iteration].long(), chosen)


def test_epochs_are_different_permutations_and_batches_span_them(small_dataset: ImageDataset, recipe: Recipe) -> None:
    feed = feed_of(small_dataset, recipe)
    stream = torch.cat([feed.choices(i)[0] for i in range(50)]).tolist()  # 16 epochs of 100 in batches of 32
    epochs = [stream[i : i + 100] for i in range(0, 1600, 100)]
    assert all(sorted(epoch) == list(range(100)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 16
    larger = replace(recipe, batch_size=256)
    assert feed_of(small_dataset, larger).choices(0)[0].tolist() == stream[:256]


def test_crops_and_mirroring_are_uniform(small_dataset: ImageDataset, recipe: Recipe) -> None:
    feed = feed_of(small_dataset, replace(recipe, batch_size=2560))
    counts = torch.zeros(162)
    for iteration in range(12):
        counts += torch.bincount(feed.choices(iteration)[1], minlength=162)
    expected = 12 * 2560 / 162
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    assert 100 < chi_square < 240  # 161 degrees of freedom: 0.01 % on either side


def test_iterations_can_be_made_in_any_order(small_dataset: ImageDataset, recipe: Recipe) -> None:
    in_order, fresh = feed_of(small_dataset, recipe), feed_of(small_dataset, recipe)
    expected = [batch_of(in_order, i).images for i in range(12)]
    for i in (11, 0, 7, 3):
        assert torch.equal(batch_of(fresh, i).images, expected[i])


def test_seeds_and_purposes_have_different_streams() -> None:
    streams = [draw_epoch(seed, 100, 162, of, 0) for seed, of in ((0, "training"), (1, "training"), (0, "batch-norm"))]
    assert not any(torch.equal(streams[0][0], other[0]) for other in streams[1:])


@pytest.mark.parametrize("given", [None, ChannelValues((0.1, 0.2, 0.3), (0.5, 0.25, 2.0))])
def test_each_channel_is_normalised(small_dataset: ImageDataset, recipe: Recipe, given: ChannelValues | None) -> None:
    pixels = small_dataset.x_train / 255
    mean, std = (given.mean, given.std) if given else (pixels.mean((0, 1, 2)), pixels.std((0, 1, 2)))
    plain = replace(recipe, input=given or "channel_mean_std", augmentation=Augmentation(padding=0, flip=False))
    feed = feed_of(small_dataset, plain)
    expected = (pixels[feed.choices(0)[0]] - mean) / std
    np.testing.assert_allclose(batch_of(feed, 0).images.permute(0, 2, 3, 1), expected, atol=1e-5)


@pytest.mark.parametrize("batch_size", [7, 40, 100])
def test_evaluation_covers_the_test_set_once_in_order(
    small_dataset: ImageDataset, recipe: Recipe, batch_size: int
) -> None:
    made = list(feed_of(small_dataset, recipe).test(None, batch_size))
    assert [len(batch.labels) for batch in made[:-1]] == [batch_size] * (len(made) - 1)
    images = torch.cat([batch.images for batch in made]).permute(0, 2, 3, 1).numpy()
    expected = small_dataset.x_test / 255 - (small_dataset.x_train / 255).mean(axis=0)
    np.testing.assert_allclose(images, expected, atol=1e-6)
    assert torch.cat([batch.labels for batch in made]).tolist() == small_dataset.y_test.tolist()


def test_reestimation_shows_whole_groups_of_one_pass_of_its_own(small_dataset: ImageDataset, recipe: Recipe) -> None:
    groups = list(feed_of(small_dataset, recipe).reestimation())
    crops = crops_of(*(part[:96] for part in draw_epoch(3, 100, 162, "batch-norm", 0)))  # three groups of 32
    assert torch.equal(torch.stack(groups).flatten(0, 1), torchvision_batch(small_dataset, crops))


@pytest.mark.gpu
def test_batches_are_the_same_on_cpu_and_cuda(small_dataset: ImageDataset, recipe: Recipe) -> None:
    feeds = [feed_of(small_dataset, recipe, torch.device(device)) for device in ("cpu", "cuda")]
    for i in range(5):
        on_cpu, on_gpu = (batch_of(feed, i) for feed in feeds)
        torch.testing.assert_close(on_gpu.images.cpu(), on_cpu.images, rtol=0, atol=1e-7)
        assert torch.equal(on_gpu.labels.cpu(), on_cpu.labels)
