"""One `.npz` file from a folder of images, or from the original batches."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from paperbench.catalogue import DATASETS
from paperbench.data.cifar_batches import FOLDERS, load_batches
from paperbench.data.dataset import ImageDataset, Labels, Pixels
from paperbench.data.npz import MAX_IMAGES, load_npz, save_npz
from paperbench.errors import PaperbenchError

_MODES = ("1", "L", "P", "RGB", "CMYK", "YCbCr")
"""Pillow's modes that become RGB with nothing lost. Those of more than 8 bits would turn white, without an error."""


def convert(source: Path, target: Path, key: str) -> ImageDataset:
    """Write a data set as one `.npz` file.

    Args:
        source: The original files in torchvision's layout, or a folder of images as `load_images` reads it.
        target: The new file.
        key: "cifar10" or "cifar100".

    Returns:
        The data set as `load_npz` reads it from the file.

    Raises:
        PaperbenchError: The source is neither, or holds files that cannot be used; or the file cannot be written.
    """
    if not source.exists():
        raise PaperbenchError(f"{source} does not exist.")
    if target.exists():
        raise PaperbenchError(f"{target} is there already. Remove it, or choose another name.")
    try:
        if source.name == FOLDERS[key]:
            dataset = load_batches(key, source)
        elif (source / FOLDERS[key]).is_dir():
            dataset = load_batches(key, source / FOLDERS[key])
        else:
            dataset = load_images(key, source)
        save_npz(dataset, target)
    except OSError as error:
        raise PaperbenchError(f"{source} cannot be converted to {target}: {error}.") from error
    return load_npz(key, target)


def load_images(key: str, folder: Path) -> ImageDataset:
    """Read the images of `train/<class>/` and `test/<class>/` (or `val/<class>/`), as in torchvision's `ImageFolder`.

    Labels follow the names of the class folders: by value if all are numbers, else in alphabetical order, which is
    CIFAR's own order of its class names. Images come class by class, each in the order of its file names.

    Args:
        key: "cifar10" or "cifar100".
        folder: Holds PNG or JPEG files of 32 x 32 pixels; grey, palette and CMYK images become RGB. Names that begin
            with a dot are ignored.

    Raises:
        PaperbenchError: A folder is missing, there are too few or too many classes or images, or a file is no such
            image.
        OSError: A folder cannot be read.
    """
    train, test = folder / "train", folder / "test"
    if not test.is_dir():
        test = folder / "val"
    if not train.is_dir() or not test.is_dir():
        raise PaperbenchError(
            f"{folder} has neither a folder {FOLDERS[key]}/ with the original files, nor folders train/ and test/ with "
            "a folder of images for each class."
        )
    classes, test_classes = _class_names(train), _class_names(test)
    if len(classes) != DATASETS[key].num_classes or classes != test_classes:
        differing = ", ".join(sorted(set(classes) ^ set(test_classes)))
        only = f"; only in one of them: {differing:.200}" if differing else ""
        raise PaperbenchError(
            f"{train} and {test} must have the same {DATASETS[key].num_classes} folders, one for each class of "
            f"{DATASETS[key].title}. They have {len(classes)} and {len(test_classes)}{only}."
        )
    size = DATASETS[key].size
    x_train, y_train = _read_part(train, classes, size)
    x_test, y_test = _read_part(test, classes, size)
    return ImageDataset(
        key=key,
        name=f"{DATASETS[key].title} (images in {folder.name})",
        origin="unknown; a folder of images",
        canonical=False,
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
    )


def _class_names(part: Path) -> list[str]:
    names = [path.name for path in _visible(part) if path.is_dir()]
    return sorted(names, key=int) if all(name.isdecimal() for name in names) else names


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _read_part(part: Path, classes: list[str], size: int) -> tuple[Pixels, Labels]:
    files = [(label, path) for label, name in enumerate(classes) for path in _visible(part / name)]
    if not files:
        raise PaperbenchError(f"{part} holds no image.")
    if len(files) > MAX_IMAGES:
        raise PaperbenchError(f"{part} holds {len(files):,} files; at most {MAX_IMAGES:,} can be used.")
    images = np.empty((len(files), size, size, 3), np.uint8)
    problems = []
    for row, (_, path) in enumerate(files):
        try:
            images[row] = _read_image(path, size)
        except UnidentifiedImageError:
            problems.append(f"{path} is no PNG or JPEG image")
        except Exception as error:  # a damaged image can raise nearly anything
            problems.append(f"{path}: {error}")
    if problems:
        more = "" if len(problems) <= 5 else f"; and {len(problems) - 5:,} more"
        raise PaperbenchError(
            f"{len(problems):,} of {len(files):,} files in {part} cannot be used: {'; '.join(problems[:5])}{more}. "
            "Remove or replace them."
        )
    return images, np.array([label for label, _ in files], dtype=np.int64)


def _read_image(path: Path, size: int) -> np.ndarray:
    if not path.is_file():  # a pipe would be waited for
        raise ValueError("is no file")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # such a size is refused below
        image = Image.open(path, formats=("PNG", "JPEG"))
    with image:
        if image.size != (size, size):  # known before any pixel is read
            raise ValueError(f"has {image.width} x {image.height} pixels, not {size} x {size}")
        if image.has_transparency_data:
            raise ValueError("has transparency; flatten it first")
        if image.mode not in _MODES:
            raise ValueError("is a 16-bit or floating-point image")
        return np.asarray(image.convert("RGB"))
