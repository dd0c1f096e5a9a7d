from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from paperbench.data.imagenet.colours import ColourChoices, ColourTransform, draw_colours
from paperbench.data.imagenet.draws import words
from paperbench.specs.recipe import ChannelValues
from tests.data.imagenet import reference
from tests.data.imagenet.small_files import DAGGER, SCALE, settings_of

RECIPES = {"imagenet": SCALE, "imagenet_torch": DAGGER}
SIDE = 24
ULPS = 8 * 2.0**-24
"""Tolerance of float32 values relative to the largest intermediate one, which is about 1 / std."""


@pytest.fixture(scope="module")
def pixels() -> Tensor:
    """Noise, and crops that are nearly black, white and of one colour."""
    images = np.random.default_rng(0).integers(0, 256, (12, SIDE, SIDE, 3), dtype=np.uint8)
    images[1], images[2], images[3] = 0, 255, (250, 5, 130)
    images[4] //= 100
    return torch.from_numpy(images)


@pytest.fixture(scope="module")
def mean_image() -> Tensor:
    return torch.from_numpy(np.random.default_rng(1).random((SIDE, SIDE, 3), dtype=np.float32))


def transform(recipe: str, mean_image: Tensor, device: str = "cpu") -> ColourTransform:
    values = RECIPES[recipe].input
    return ColourTransform(
        values if isinstance(values, ChannelValues) else mean_image,
        has_jitter=settings_of(RECIPES[recipe]).jitter is not None,
        device=torch.device(device),
    )


def norm(recipe: str, mean_image: Tensor) -> tuple[npt.NDArray[np.float64], tuple[float, float, float]]:
    if recipe == "imagenet":
        return mean_image.double().numpy(), (1, 1, 1)
    return np.array((0.485, 0.456, 0.406)), (0.229, 0.224, 0.225)


@pytest.mark.parametrize("recipe", list(RECIPES))
def test_training_input_is_that_of_the_reference(recipe: str, pixels: Tensor, mean_image: Tensor) -> None:
    drawn = words(3, "training", 0, 0, len(pixels))
    found = transform(recipe, mean_image)(pixels, draw_colours(settings_of(RECIPES[recipe]), drawn, flip=True))
    assert (found.shape, found.dtype) == ((len(pixels), 3, SIDE, SIDE), torch.float32)
    mean, std = norm(recipe, mean_image)
    mirrored = [reference.share(row[57]) < 0.5 for row in drawn.tolist()]
    assert 0 < sum(mirrored) < len(mirrored)
    for image, crop, row in zip(found, pixels, drawn.tolist(), strict=True):
        expected = reference.finished(crop.double().numpy(), row, mean, std, jittered=recipe == "imagenet_torch")
        np.testing.assert_allclose(image.numpy(), expected, rtol=0, atol=ULPS / min(std))


@pytest.mark.parametrize("recipe", list(RECIPES))
def test_test_input_is_only_normalised(recipe: str, pixels: Tensor, mean_image: Tensor) -> None:
    found = transform(recipe, mean_image)(pixels)
    mean, std = norm(recipe, mean_image)
    expected = ((pixels.double().numpy() / 255 - mean) / std).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=ULPS / min(std))
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_jitter_is_that_of_any_order(order: tuple[int, int, int], pixels: Tensor) -> None:
    """The released code draws the order of the three changes; unclamped, each order gives the same image."""
    drawn = draw_colours(settings_of(DAGGER), words(5, "training", 0, 0, len(pixels)), flip=False)
    choices = drawn._replace(lighting=torch.zeros_like(drawn.lighting))
    plain = ColourTransform(ChannelValues((0, 0, 0), (1, 1, 1)), has_jitter=True, device=torch.device("cpu"))(
        pixels, choices
    )
    for image, crop, factors in zip(plain, pixels, drawn.factors.double().tolist(), strict=True):
        expected = reference.jitter(crop.double().numpy() / 255, factors, order).transpose(2, 0, 1)
        np.testing.assert_allclose(image.numpy(), expected, rtol=0, atol=2 * ULPS)
    assert plain.max() > 1.2, "values are not clamped"


def test_mean_image_is_mirrored_with_the_image(pixels: Tensor, mean_image: Tensor) -> None:
    def choices(*, mirrored: bool) -> ColourChoices:
        size = len(pixels)
        return ColourChoices(torch.zeros(size, 3), torch.ones(size, 3), torch.full((size,), mirrored))

    convert = transform("imagenet", mean_image)
    assert torch.equal(convert(pixels, choices(mirrored=True)), convert(pixels, choices(mirrored=False)).flip(3))
    assert torch.equal(convert(pixels, choices(mirrored=False)), convert(pixels))


def test_recipe_without_noise_changes_no_colours() -> None:
    plain = replace(settings_of(DAGGER), jitter=None, lighting=None)
    lighting, factors, mirrored = draw_colours(plain, words(0, "training", 0, 0, 9), flip=False)
    assert torch.equal(lighting, torch.zeros(9, 3))
    assert torch.equal(factors, torch.ones(9, 3))
    assert not mirrored.any()


@pytest.mark.full
@pytest.mark.parametrize("recipe", list(RECIPES))
def test_transform_never_reads_a_value_back(recipe: str, pixels: Tensor, mean_image: Tensor) -> None:
    """As CUDA graphs require; the device "meta" has no values."""
    convert = transform(recipe, mean_image, device="meta")
    choices = draw_colours(settings_of(RECIPES[recipe]), words(3, "training", 0, 0, len(pixels)), flip=True)
    found = convert(pixels.to("meta"), ColourChoices(*(choice.to("meta") for choice in choices)))
    assert found.shape == (len(pixels), 3, SIDE, SIDE)
