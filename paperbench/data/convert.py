"""Conversion of a directory of images, or of the original batches, to one `.npz` file."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from paperbench.catalogue import DATASETS
from paperbench.data.cifar_batches import DIRECTORIES, load_batches
from paperbench.data.dataset import ImageDataset, Labels, Pixels
from paperbench.data.npz import MAX_IMAGES, load_npz, save_npz
from paperbench.errors import PaperbenchError
from paperbench.files import open_regular

_MAX_BYTES = 2**24
"""Maximum size of an image file; without metadata, 32 x 32 pixels have a few kilobytes."""
_MODES = ("1", "L", "P", "RGB", "CMYK", "YCbCr")
"""Pillow's modes that convert to RGB without loss. Pillow turns modes of more than 8 bits white, without an error."""


def convert(source: Path, target: Path, key: str) -> ImageDataset:
    """Write CIFAR-10 or CIFAR-100 as one `.npz` file, and return the data set as it is loaded from there.

    Args:
        source: The original files in torchvision's layout, or a directory of images for `load_images`.
    """
    if not source.exists():
        raise PaperbenchError(f"{source}: no such directory. Check the path.")
    if target.exists():
        raise PaperbenchError(f"{target} already exists. Remove it or choose another name.")
    try:
        batches = source if source.name == DIRECTORIES[key] else source / DIRECTORIES[key]
        dataset = load_batches(key, batches) if batches.is_dir() else load_images(key, source)
        dataset.require_all_classes()
        save_npz(dataset, target)
    except OSError as error:
        raise PaperbenchError(f"Cannot convert {source}: {error}. Check the path.") from error
    return load_npz(key, target)


def load_images(key: str, directory: Path) -> ImageDataset:
    """Load the images of `train/<class>/` and `test/<class>/` (or `val/<class>/`), as torchvision's `ImageFolder` does.

    The names of the class directories give the labels: numerical order if all are numbers, else alphabetical order,
    which is also CIFAR's. Images are sorted by class, then by file name.

    Args:
        directory: Directory of PNG or JPEG files of 32 x 32 pixels. Grey, palette and CMYK images are converted to RGB;
            names that begin with a dot are ignored.

    Raises:
        OSError: A directory cannot be read.
    """
    train, test = directory / "train", directory / "test"
    if not test.is_dir():
        test = directory / "val"
    if not train.is_dir() or not test.is_dir():
        raise PaperbenchError(
            f"{directory}: no data found. Expected {DIRECTORIES[key]}/ with the original files, or train/ and test/ "
            "with one directory of images per class."
        )
    classes, test_classes = _class_names(train), _class_names(test)
    if len(classes) != DATASETS[key].num_classes or classes != test_classes:
        differing = ", ".join(sorted(set(classes) ^ set(test_classes)))
        unmatched = f"; only in one of them: {differing:.200}" if differing else ""
        raise PaperbenchError(
            f"{train} and {test} must each have {DATASETS[key].num_classes} directories with the same names, one per "
            f"class of {DATASETS[key].title}. They have {len(classes)} and {len(test_classes)}{unmatched}."
        )
    name, size = f"{DATASETS[key].title} (images in {directory.name})", DATASETS[key].size
    images = (*_read_part(train, classes, size), *_read_part(test, classes, size))
    return ImageDataset(key, name, "unknown; a directory of images", *images, canonical=False)


def _class_names(part: Path) -> list[str]:
    names = [path.name for path in _visible(part) if path.is_dir()]
    return sorted(names, key=int) if all(name.isdecimal() for name in names) else names


def _visible(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if not path.name.startswith("."))


def _read_part(part: Path, classes: list[str], size: int) -> tuple[Pixels, Labels]:
    files = [(label, path) for label, name in enumerate(classes) for path in _visible(part / name)]
    if not files:
        raise PaperbenchError(f"{part}: no images found. Add one directory of images per class.")
    if len(files) > MAX_IMAGES:
        raise PaperbenchError(f"{part}: {len(files):,} files; at most {MAX_IMAGES:,} are allowed.")
    images = np.empty((len(files), size, size, 3), np.uint8)
    problems = []
    for row, (_, path) in enumerate(files):
        try:
            images[row] = _read_image(path, size)
        except UnidentifiedImageError:
            problems.append(f"{path}: not a PNG or JPEG image")
        except Exception as error:  # a damaged image can raise nearly anything
            problems.append(f"{path}: {getattr(error, 'strerror', None) or error}")
    if problems:
        more = "" if len(problems) <= 5 else f"; and {len(problems) - 5:,} more"
        raise PaperbenchError(
            f"{part}: {len(problems):,} of {len(files):,} files cannot be used: {'; '.join(problems[:5])}{more}. "
            "Remove or replace them."
        )
    return images, np.array([label for label, _ in files], dtype=np.int64)


def _read_image(path: Path, size: int) -> np.ndarray:
    with open_regular(path, _MAX_BYTES) as stream, warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the size is checked below
        image = Image.open(stream, formats=("PNG", "JPEG"))
        if image.size != (size, size):  # known before decoding
            raise ValueError(f"{image.width} x {image.height} pixels, not {size} x {size}")
        if image.has_transparency_data:
            raise ValueError("transparent; flatten it first")
        if image.mode not in _MODES:
            raise ValueError("16-bit or floating-point pixels")
        return np.asarray(image.convert("RGB"))
