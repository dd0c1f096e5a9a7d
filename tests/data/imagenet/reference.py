"""An independent implementation of both ImageNet recipes in float64, written from the paper and fb.resnet.torch.

Random123's Philox in Python; Pillow's triangle filter over the whole image; Torch7's `image.scale` and the transforms
of fb.resnet.torch as loops. Images are arrays (H, W, 3) of float64, grey levels from 0 to 255 unless said otherwise.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.float64]
TWO64 = 2**64


def philox(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Philox-4x64-10 (Salmon et al., 2011)."""
    (c0, c1, c2, c3), (k0, k1) = counter, key
    for _ in range(10):
        left, right = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
        c0, c1, c2, c3 = right // TWO64 ^ c1 ^ k0, right % TWO64, left // TWO64 ^ c3 ^ k1, left % TWO64
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) % TWO64, (k1 + 0xBB67AE8584CAA73B) % TWO64
    return [c0, c1, c2, c3]


def stream(seed: int, *names: object, first: int = 0, count: int) -> list[int]:
    """Words of a named stream; its first block has counter 1."""
    digest = hashlib.sha256("/".join(map(str, (seed, *names))).encode()).digest()
    key = int.from_bytes(digest[:8], "big") // 2
    blocks = [philox((1 + block, 0, 0, 0), (key, 0)) for block in range(first // 4, (first + count + 3) // 4)]
    return [word for block in blocks for word in block][first % 4 :][:count]


def share(word: int) -> float:
    """A number in [0, 1)."""
    return (word // 2**11) / 2**53


def pick(word: int, count: int) -> int:
    """A whole number below `count`."""
    return (word // 2**32) * count // 2**32


def resize_averaging(pixels: Image, width: int, height: int) -> Image:
    """Pillow's bilinear filter: triangles as wide as the pixels of the smaller image."""
    for axis, target in ((0, height), (1, width)):
        source = pixels.shape[axis]
        step = source / target
        reach = max(step, 1.0)
        centres = (np.arange(target)[:, None] + 0.5) * step
        weights = np.maximum(0, 1 - np.abs(np.arange(source) + 0.5 - centres) / reach)
        weights /= weights.sum(1, keepdims=True)
        pixels = np.moveaxis(np.tensordot(weights, pixels, (1, axis)), 0, axis)
    return pixels


def torch_scale_line(line: Image, target: int) -> Image:
    """`scaleCubic_rowcol` of github.com/torch/image along the first axis."""
    source = len(line)
    if target == source:
        return line.copy()
    out = np.empty((target, *line.shape[1:]))
    for d in range(target - 1):
        if source == 1:
            out[d] = line[0]
            continue
        place = d * (source - 1) / (target - 1)
        i = int(place)
        x = place - i
        p1, p2 = line[i], line[i + 1]
        p0 = line[i - 1] if i > 0 else 2 * p1 - p2
        p3 = line[i + 2] if i + 2 < source else 2 * p2 - p1
        a1, a2, a3 = p2 - p0, 2 * p0 - 5 * p1 + 4 * p2 - p3, 3 * (p1 - p2) + p3 - p0
        out[d] = p1 + 0.5 * x * (a1 + x * (a2 + x * a3))
    out[-1] = line[-1]
    return out


def torch_scale(pixels: Image, width: float, height: float) -> Image:
    """`image.scale(src, width, height, "bicubic")`: a tensor's sizes lose their fractions."""
    rows = torch_scale_line(pixels.swapaxes(0, 1), int(width)).swapaxes(0, 1)
    return torch_scale_line(rows, int(height))


def centre_crop(pixels: Image, size: int) -> Image:
    top, left = (math.ceil((side - size) / 2) for side in pixels.shape[:2])
    return pixels[top : top + size, left : left + size]


def test_crop(pixels: Image, crop: int, scale: int) -> Image:
    """`Scale(scale)` and `CenterCrop(crop)` of fb.resnet.torch."""
    height, width = pixels.shape[:2]
    if (width <= height and width == scale) or (height <= width and height == scale):
        return centre_crop(pixels, crop)
    if width < height:
        return centre_crop(torch_scale(pixels, scale, height / width * scale), crop)
    return centre_crop(torch_scale(pixels, width / height * scale, scale), crop)


test_crop.__test__ = False  # type: ignore[attr-defined]


def averaging_size(width: int, height: int, side: int) -> tuple[int, int]:
    """Width and height after resizing the shorter side to `side`; the longer is rounded, halves up."""
    if width < height:
        return side, (2 * height * side + width) // (2 * width)
    return (2 * width * side + height) // (2 * height), side


def scale_crop(pixels: Image, words: Sequence[int], crop: int = 224) -> Image:
    """The paper's scale augmentation: the whole image is resized, then cropped."""
    height, width = pixels.shape[:2]
    width, height = averaging_size(width, height, 256 + pick(words[0], 480 - 256 + 1))
    x, y = pick(words[1], width - crop + 1), pick(words[2], height - crop + 1)
    return resize_averaging(pixels, width, height)[y : y + crop, x : x + crop]


def dagger_box(words: Sequence[int], width: int, height: int) -> tuple[int, int, int, int] | None:
    """Left, top, width and height of `RandomSizedCrop`; None after ten tries."""
    for attempt in range(10):
        area, ratio, swap, x, y = words[5 * attempt : 5 * attempt + 5]
        target_area = (0.08 + share(area) * (1.0 - 0.08)) * width * height
        aspect_ratio = 3 / 4 + share(ratio) * (4 / 3 - 3 / 4)
        w = math.floor(math.sqrt(target_area * aspect_ratio) + 0.5)
        h = math.floor(math.sqrt(target_area / aspect_ratio) + 0.5)
        if share(swap) < 0.5:
            w, h = h, w
        if 0 < h <= height and 0 < w <= width:
            return pick(x, width - w + 1), pick(y, height - h + 1), w, h
    return None


def dagger_crop(pixels: Image, words: Sequence[int], crop: int = 224) -> Image:
    """`RandomSizedCrop(crop)` of fb.resnet.torch."""
    height, width = pixels.shape[:2]
    box = dagger_box(words, width, height)
    if box is None:
        return test_crop(pixels, crop, crop)
    x, y, w, h = box
    return torch_scale(pixels[y : y + h, x : x + w], crop, crop)


def grey_of(pixels: Image) -> Image:
    return np.repeat(0.299 * pixels[..., :1] + 0.587 * pixels[..., 1:2] + 0.114 * pixels[..., 2:], 3, axis=2)


def jitter(pixels: Image, factors: Sequence[float], order: Sequence[int]) -> Image:
    """`ColorJitter` with these factors of brightness (0), contrast (1) and saturation (2), in this order."""
    for kind in order:
        if kind == 0:
            other = np.zeros_like(pixels)
        elif kind == 1:
            other = np.full_like(pixels, grey_of(pixels)[..., 0].mean())
        else:
            other = grey_of(pixels)
        pixels = factors[kind] * pixels + (1 - factors[kind]) * other
    return pixels


EIGENVALUES = (0.2175, 0.0188, 0.0045)
EIGENVECTORS = ((-0.5675, 0.7192, 0.4009), (-0.5808, -0.0045, -0.8140), (-0.5836, -0.6948, 0.4203))


def lighting(alphas: Sequence[float]) -> list[float]:
    """What `Lighting` adds to red, green and blue in [0, 1]."""
    return [sum(EIGENVECTORS[c][i] * alphas[i] * EIGENVALUES[i] for i in range(3)) for c in range(3)]


def normals(words: Sequence[int]) -> list[float]:
    """Three standard normal numbers of four words."""
    (u0, v0), (u1, v1) = ((share(words[i]), share(words[i + 1])) for i in (0, 2))
    far, near = math.sqrt(-2 * math.log(1 - u0)), math.sqrt(-2 * math.log(1 - u1))
    return [far * math.cos(2 * math.pi * v0), near * math.cos(2 * math.pi * v1), far * math.sin(2 * math.pi * v0)]


def finished(crop: Image, words: Sequence[int], mean: Image, std: Sequence[float], *, jittered: bool) -> Image:
    """A training crop after colours, normalisation and mirroring, from grey levels; (3, H, W)."""
    x = crop / 255
    if jittered:
        x = jitter(x, [1 + (2 * share(word) - 1) * 0.4 for word in words[54:57]], (2, 0, 1))
    x = x + lighting([0.1 * normal for normal in normals(words[50:54])])
    x = (x - mean) / np.array(std)
    if share(words[57]) < 0.5:
        x = x[:, ::-1]
    return x.transpose(2, 0, 1)
