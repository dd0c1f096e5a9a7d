from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from paperbench.data.imagenet.crops import View, central_view, random_view, render
from paperbench.data.imagenet.draws import Words, words
from paperbench.specs.recipe import Interpolation
from tests.data.imagenet import reference
from tests.data.imagenet.small_files import DAGGER, SCALE, settings_of

PORTRAIT, LANDSCAPE, SQUARE, TINY, PIXEL = (375, 500), (500, 333), (300, 300), (31, 17), (1, 1)
"""Width and height."""
PANORAMA = (4000, 30)
SIZES = [
    *(PORTRAIT, LANDSCAPE, TINY, PIXEL, (224, 331), (150, 20)),
    *(pytest.param(size, marks=pytest.mark.full) for size in (SQUARE, (480, 480), (481, 479), (600, 30), (8, 200))),
]


@cache
def noise(width: int, height: int) -> npt.NDArray[np.uint8]:
    """The hardest image for any interpolation, with a smooth half."""
    pixels = np.random.default_rng(width + 5000 * height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    ramp = np.linspace(0, 255, width)[:, None] * np.array([1, 0.5, -1]) + np.array([0, 60, 255])
    pixels[: height // 2] = ramp.astype(np.uint8)
    return pixels


def draws(count: int) -> Words:
    return words(4, "training", 0, 0, count)


def rendered(size: tuple[int, int], view: View, crop: int, interpolation: Interpolation) -> npt.NDArray[np.float64]:
    found = render(Image.fromarray(noise(*size)), view, crop, interpolation)
    assert (found.shape, found.dtype) == ((crop, crop, 3), np.uint8)
    return found.astype(np.float64)


def assert_averaged(found: npt.NDArray[np.float64], expected: npt.NDArray[np.float64]) -> None:
    """Pillow rounds to bytes twice: after the rows and after the columns."""
    difference = np.abs(found - expected)
    assert difference.max() < 1.1
    assert (difference > 0.75).mean() < 0.05


def assert_rounded(found: npt.NDArray[np.float64], expected: npt.NDArray[np.float64]) -> None:
    """One rounding to bytes, in float32, and clamping."""
    assert np.abs(found - expected.clip(0, 255)).max() < 0.5 + 1e-3


@pytest.mark.parametrize("size", SIZES)
def test_scale_crop_is_that_of_the_whole_resized_image(size: tuple[int, int], full: bool) -> None:
    settings = settings_of(SCALE)
    drawn = draws(10 if full else 3)
    drawn[0, :3], drawn[1, :3] = 0, 2**64 - 1  # the first and last positions at the smallest and largest scale
    for chosen in drawn:
        view = random_view(settings, chosen, *size)
        expected = reference.scale_crop(noise(*size).astype(np.float64), chosen.tolist())
        assert_averaged(rendered(size, view, 224, "bilinear"), expected)


@pytest.mark.parametrize("size", SIZES)
def test_dagger_crop_is_that_of_torch7(size: tuple[int, int], full: bool) -> None:
    settings = settings_of(DAGGER)
    for chosen in draws(10 if full else 2):
        view = random_view(settings, chosen, *size)
        expected = reference.dagger_crop(noise(*size).astype(np.float64), chosen.tolist())
        assert_rounded(rendered(size, view, 224, "torch_bicubic"), expected)


@pytest.mark.parametrize("size", [PORTRAIT, LANDSCAPE, (1000, 300), (20, 90), PANORAMA, PIXEL])
def test_dagger_boxes_are_those_of_the_released_code(size: tuple[int, int]) -> None:
    settings = settings_of(DAGGER)
    for chosen in draws(1000):
        view, box = random_view(settings, chosen, *size), reference.dagger_box(chosen.tolist(), *size)
        if box is None:
            assert view == central_view("torch_bicubic", 224, 224, *size)
        else:
            x, y, w, h = box
            assert view == View((x, y, x + w, y + h), (224, 224), (0, 0))


def test_image_that_fits_no_box_gets_a_central_crop() -> None:
    """fb.resnet.torch tries ten boxes."""
    view = random_view(settings_of(DAGGER), draws(1)[0], 4000, 30)
    assert view == View((0, 0, 4000, 30), (29_866, 224), (14_821, 0))


def test_window_may_end_where_the_image_does() -> None:
    assert (3 + 8) * (25 / 11) > 25
    view = View((0, 0, 25, 20), (11, 9), (3, 1))
    assert render(Image.fromarray(noise(25, 20)), view, 8, "bilinear").shape == (8, 8, 3)


def test_image_of_the_right_size_is_not_resized() -> None:
    """`Scale` returns such images as they are; height / 224 * 224 is below some heights."""
    for height in range(224, 1000):
        assert central_view("torch_bicubic", 224, 224, 224, height).size == (224, height)
        assert central_view("torch_bicubic", 224, 224, height, 224).size == (height, 224)


@pytest.mark.parametrize("interpolation", ["bilinear", "torch_bicubic"])
@pytest.mark.parametrize(("crop", "scale"), [(224, 256), (320, 320)])
@pytest.mark.parametrize(
    "size",
    [LANDSCAPE, TINY, *(pytest.param(one, marks=pytest.mark.full) for one in (PORTRAIT, (257, 256), (320, 481)))],
)
def test_central_crop_is_that_of_the_released_code(
    interpolation: Interpolation, crop: int, scale: int, size: tuple[int, int]
) -> None:
    """With odd and even margins, rounded up on the left and at the top."""
    pixels = noise(*size).astype(np.float64)
    view = central_view(interpolation, crop, scale, *size)
    found = rendered(size, view, crop, interpolation)
    if interpolation == "torch_bicubic":
        assert_rounded(found, reference.test_crop(pixels, crop, scale))
    else:
        resized = reference.resize_averaging(pixels, *reference.averaging_size(*size, scale))
        assert_averaged(found, reference.centre_crop(resized, crop))


@pytest.mark.parametrize("interpolation", ["bilinear", "torch_bicubic"])
@pytest.mark.parametrize("size", [(320, 500), (500, 320), (320, 323), (323, 320)])
def test_crop_of_320_keeps_every_pixel_of_an_image_of_320(interpolation: Interpolation, size: tuple[int, int]) -> None:
    found = rendered(size, central_view(interpolation, 320, 320, *size), 320, interpolation)
    assert np.array_equal(found, reference.centre_crop(noise(*size), 320))
