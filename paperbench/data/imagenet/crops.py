"""Which part of an image a crop shows, and its pixels."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from paperbench.data.dataset import Pixels
from paperbench.data.imagenet.draws import Words, below, uniform
from paperbench.specs.recipe import Interpolation, Photographs

_TRIES = 10
"""Tries of a crop of random area, before a central one is taken (fb.resnet.torch)."""
_WORDS_PER_TRY = 5
CROP_WORDS = slice(0, _TRIES * _WORDS_PER_TRY)
"""The words of an image that choose its crop."""


class View(NamedTuple):
    """A square window of a resized part of an image.

    Attributes:
        box: The part: left, upper, right and lower edge, in pixels of the image.
        size: Width and height to which the part is resized.
        corner: Left and upper edge of the window in the resized part.
    """

    box: tuple[int, int, int, int]
    size: tuple[int, int]
    corner: tuple[int, int]


def random_view(settings: Photographs, words: Words, width: int, height: int) -> View:
    """Return the view of a training crop.

    Args:
        words: The image's words, (WORDS_PER_IMAGE,).
        width, height: Of the image, in pixels.
    """
    if settings.shorter_side:
        return _scaled_view(settings.shorter_side, settings.crop, words, width, height)
    areas, ratios = settings.area or (1.0, 1.0), settings.aspect_ratio or (1.0, 1.0)
    for tried in words[CROP_WORDS].reshape(_TRIES, _WORDS_PER_TRY):
        if box := _random_box(areas, ratios, tried, width, height):
            return View(box, (settings.crop, settings.crop), (0, 0))
    return central_view(settings.interpolation, settings.crop, settings.crop, width, height)


def central_view(interpolation: Interpolation, crop: int, scale: int, width: int, height: int) -> View:
    """Return the view of the central crop of an image whose shorter side is resized to `scale` pixels."""
    size = _resized(interpolation, scale, width, height)
    left, upper = (math.ceil((side - crop) / 2) for side in size)  # rounded as in fb.resnet.torch
    return View((0, 0, width, height), size, (left, upper))


def render(image: Image.Image, view: View, crop: int, interpolation: Interpolation) -> Pixels:
    """Return the pixels of a view, (crop, crop, 3), rounded to bytes."""
    if interpolation == "torch_bicubic":
        return _render_torch_bicubic(image, view, crop)
    (left, upper, right, lower), (width, height), (x, y) = view
    over_x, over_y = (right - left) / width, (lower - upper) / height
    # Resizing the window alone costs a fraction of resizing the whole image, and differs by two grey levels at most.
    # The box may end 1e-14 pixels beyond the part: Pillow rounds it to single precision.
    box = (left + x * over_x, upper + y * over_y, left + (x + crop) * over_x, upper + (y + crop) * over_y)
    return np.asarray(image.resize((crop, crop), Image.Resampling.BILINEAR, box))


def _resized(interpolation: Interpolation, scale: int, width: int, height: int) -> tuple[int, int]:
    """Return width and height after resizing the shorter side to `scale`.

    The longer side is rounded to the nearest pixel, or cut off as in Torch7 (image.scale).
    """
    if min(width, height) == scale:
        return width, height  # in floating point, height / width * width may be less than height
    to_whole = int if interpolation == "torch_bicubic" else lambda length: math.floor(length + 0.5)
    if width < height:
        return scale, to_whole(height / width * scale)
    return to_whole(width / height * scale), scale


def _scaled_view(bounds: tuple[int, int], crop: int, words: Words, width: int, height: int) -> View:
    scale = bounds[0] + int(below(words[0], bounds[1] - bounds[0] + 1))
    size = _resized("bilinear", scale, width, height)
    corner = int(below(words[1], size[0] - crop + 1)), int(below(words[2], size[1] - crop + 1))
    return View((0, 0, width, height), size, corner)


def _random_box(
    areas: tuple[float, float], ratios: tuple[float, float], words: Words, width: int, height: int
) -> tuple[int, int, int, int] | None:
    """Return a box of random area and aspect ratio; None if it does not fit into the image."""
    in_area, in_ratio, swap = uniform(words[:3]).tolist()
    area = (areas[0] + (areas[1] - areas[0]) * in_area) * width * height
    ratio = ratios[0] + (ratios[1] - ratios[0]) * in_ratio
    w, h = (math.floor(math.sqrt(side) + 0.5) for side in (area * ratio, area / ratio))
    if swap < 0.5:
        w, h = h, w
    if not (0 < w <= width and 0 < h <= height):
        return None
    x, y = int(below(words[3], width - w + 1)), int(below(words[4], height - h + 1))
    return x, y, x + w, y + h


def _render_torch_bicubic(image: Image.Image, view: View, crop: int) -> Pixels:
    pixels = np.asarray(image.crop(view.box))
    rows = _resize_first_axis(pixels, view.size[1], view.corner[1], crop)
    columns = _resize_first_axis(rows.transpose(1, 2, 0), view.size[0], view.corner[0], crop)
    np.rint(columns.clip(0, 255, out=columns), out=columns)
    return columns.astype(np.uint8).transpose(2, 0, 1)


def _resize_first_axis(pixels: npt.NDArray[Any], target: int, first: int, count: int) -> npt.NDArray[np.float32]:
    """Return the pixels `first` to `first + count - 1` along the first axis, which is resized to `target` pixels."""
    rows = pixels.reshape(len(pixels), -1)  # copied if transposed: taking whole rows is several times as fast
    taps, weights = _cubic_taps(len(pixels), target, first, count)
    parts = rows.take(taps, 0)
    # One operation: after every one, threads may have to wait for each other.
    resized: npt.NDArray[np.float32] = np.einsum("ktw,kt->tw", parts, weights, dtype=np.float32, casting="unsafe")
    return resized.reshape(count, *pixels.shape[1:])


@lru_cache(1024)  # some hundred lengths of sides are common; computing them would hold Python's lock
def _cubic_taps(
    source: int, target: int, first: int, count: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Return the pixels that Torch7's image.scale combines along one side, and their weights, (4, count) each.

    The first pixel of the target is the first of the source, and the last the last. Between them Catmull and Rom's
    cubic interpolates, with the source continued linearly beyond its ends.

    Args:
        source, target: Length of the side before and after.
        first, count: The pixels of the target.
    """
    position = np.arange(first, first + count) * ((source - 1) / max(target - 1, 1))
    start = np.minimum(position.astype(np.int64), max(source - 2, 0))
    t = position - start
    weights = np.stack(
        [
            0.5 * t * (-1 + t * (2 - t)),
            1 + 0.5 * t * t * (3 * t - 5),
            0.5 * t * (1 + t * (4 - 3 * t)),
            0.5 * t * t * (t - 1),
        ]
    )
    before, after = start == 0, start + 2 >= source
    for outside, near, far, lost in ((before, 1, 2, 0), (after, 2, 1, 3)):  # lost = 2 near - far
        weights[near] += np.where(outside, 2 * weights[lost], 0)
        weights[far] -= np.where(outside, weights[lost], 0)
        weights[lost] = np.where(outside, 0, weights[lost])
    taps = np.clip(start + np.arange(-1, 3)[:, None], 0, source - 1)
    return taps, weights.astype(np.float32)
