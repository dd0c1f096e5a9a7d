from __future__ import annotations

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as tv
from PIL import Image

from paperbench.data.dataset import ImageDataset
from paperbench.data.feed import make_feed
from paperbench.data.loader import InputTransform, TrainingBatches
from paperbench.specs.recipe import ChannelValues, Recipe

CPU = torch.device("cpu")


def batches(dataset: ImageDataset, **kwargs: object) -> TrainingBatches:
    transform = InputTransform(dataset.x_train, kwargs.pop("input", "per_pixel_mean"))
    settings = {"batch_size": 32, "padding": 4, "flip": True, "seed": 3, "device": CPU, **kwargs}
    return TrainingBatches(dataset, transform, **settings)


def crops_of(loader: TrainingBatches, iteration: int) -> list[tuple[int, int, int, bool]]:
    """Decode index, dy, dx and mirroring of each image of a batch, as `epoch` documents."""
    order, variants = loader.choices(iteration)
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


def test_batch_equals_torchvisions_pad_crop_and_flip_exactly(small_dataset: ImageDataset) -> None:
    loader = batches(small_dataset)
    for iteration in (0, 3, 50):
        crops = crops_of(loader, iteration)
        batch = loader.batch(iteration)
        assert torch.equal(batch.images, torchvision_batch(small_dataset, crops))
        assert batch.images.is_contiguous(memory_format=torch.channels_last)
        assert (batch.images.dtype, batch.labels.dtype) == (torch.float32, torch.int64)
        assert batch.labels.tolist() == [small_dataset.y_train[index] for index, *_ in crops]


def test_schedule_equals_the_choices_of_each_iteration(small_dataset: ImageDataset) -> None:
    loader = batches(small_dataset)  # 100 images: the 9 batches of 32 reach into the third epoch
    order, variant = loader.schedule(9)
    assert (order.shape, order.dtype, variant.dtype) == ((9, 32), torch.int32, torch.int16)
    for iteration in range(9):
        chosen = loader.choices(iteration)
        assert torch.equal(order[iteration].long(), chosen.order)
        assert torch.equal(variant[iteration].long(), chosen.variant)


def test_epochs_are_different_permutations_and_batches_span_them(small_dataset: ImageDataset) -> None:
    loader = batches(small_dataset)
    stream = torch.cat([loader.choices(i).order for i in range(50)]).tolist()  # 16 epochs of 100 in batches of 32
    epochs = [stream[i : i + 100] for i in range(0, 1600, 100)]
    assert all(sorted(epoch) == list(range(100)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 16
    assert batches(small_dataset, batch_size=250).choices(0).order.tolist() == stream[:250]


def test_crops_and_mirroring_are_uniform(small_dataset: ImageDataset) -> None:
    loader = batches(small_dataset, batch_size=100)
    counts = torch.zeros(162)
    for epoch in range(300):
        counts += torch.bincount(loader.epoch(epoch).variant, minlength=162)
    expected = 30_000 / 162
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    assert 100 < chi_square < 240  # 161 degrees of freedom: 0.01 % on either side


def test_iterations_can_be_made_in_any_order(small_dataset: ImageDataset) -> None:
    in_order = batches(small_dataset)
    expected = [in_order.batch(i).images for i in range(12)]
    fresh = batches(small_dataset)
    for i in (11, 0, 7, 3):
        assert torch.equal(fresh.batch(i).images, expected[i])


def test_seeds_and_purposes_have_different_streams(small_dataset: ImageDataset) -> None:
    streams = [
        batches(small_dataset, **kwargs).epoch(0).order.tolist()
        for kwargs in ({"seed": 0}, {"seed": 1}, {"seed": 0, "purpose": "batch-norm"})
    ]
    assert streams[0] != streams[1]
    assert streams[0] != streams[2]


@pytest.mark.parametrize("given", [None, ChannelValues((0.1, 0.2, 0.3), (0.5, 0.25, 2.0))])
def test_each_channel_is_normalised(small_dataset: ImageDataset, given: ChannelValues | None) -> None:
    pixels = small_dataset.x_train / 255
    mean, std = (given.mean, given.std) if given else (pixels.mean((0, 1, 2)), pixels.std((0, 1, 2)))
    loader = batches(small_dataset, input=given or "channel_mean_std", padding=0, flip=False, batch_size=100)
    expected = (pixels[loader.choices(0).order] - mean) / std
    np.testing.assert_allclose(loader.batch(0).images.permute(0, 2, 3, 1), expected, atol=1e-5)


@pytest.mark.parametrize("batch_size", [7, 40, 100])
def test_evaluation_covers_the_test_set_once_in_order(
    small_dataset: ImageDataset, paper_recipe: Recipe, batch_size: int
) -> None:
    feed = make_feed(small_dataset, paper_recipe, 3, CPU, lambda: None, lambda _: None)
    made = list(feed.test(None, batch_size))
    assert [len(batch.labels) for batch in made[:-1]] == [batch_size] * (len(made) - 1)
    images = torch.cat([batch.images for batch in made]).permute(0, 2, 3, 1).numpy()
    expected = small_dataset.x_test / 255 - (small_dataset.x_train / 255).mean(axis=0)
    np.testing.assert_allclose(images, expected, atol=1e-6)
    assert torch.cat([batch.labels for batch in made]).tolist() == small_dataset.y_test.tolist()


def test_reestimation_shows_whole_groups_of_one_pass_of_its_own(
    small_dataset: ImageDataset, paper_recipe: Recipe
) -> None:
    feed = make_feed(small_dataset, paper_recipe, 3, CPU, lambda: None, lambda _: None)
    (images,) = feed.reestimation()  # 64 of 100
    assert torch.equal(images, batches(small_dataset, batch_size=64, purpose="batch-norm").batch(0).images)


@pytest.mark.gpu
def test_batches_are_the_same_on_cpu_and_cuda(small_dataset: ImageDataset) -> None:
    on_gpu = batches(small_dataset, device=torch.device("cuda"))
    on_cpu = batches(small_dataset)
    for i in range(5):
        torch.testing.assert_close(on_gpu.batch(i).images.cpu(), on_cpu.batch(i).images, rtol=0, atol=1e-7)
        assert torch.equal(on_gpu.batch(i).labels.cpu(), on_cpu.batch(i).labels)
