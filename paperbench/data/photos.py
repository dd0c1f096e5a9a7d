"""Tiles of the two photographs that scikit-learn has, a data set of image files that needs no download.

Its files are found, checked, hashed, decoded and cropped as those of ImageNet. Errors on it are unrelated to the paper.
As the tiles are compressed here, another version of Pillow may give another fingerprint.
"""

from __future__ import annotations

import atexit
import io
import os
import shutil
from functools import cache
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from PIL import Image

from paperbench.catalogue import DATASETS
from paperbench.data.imagenet.index import PhotoDataset
from paperbench.files import report_write_errors

_PHOTOGRAPHS = ("china", "flower")
_THIRDS = ("left", "centre", "right")
CLASSES = tuple(f"{photograph}-{third}" for photograph in _PHOTOGRAPHS for third in _THIRDS)
_ROWS, _COLUMNS, _WIDTH, _HEIGHT = 5, 2, 106, 85
"""Numbers of tiles of a class, and their size in pixels."""
_TEST_TILES = (2, 7)
"""Those of a class that are for testing."""
_KINDS = {3: "L", 12: "L", 25: "CMYK", 37: "PNG", 44: "rotated", 51: "L"}
"""What some of the 60 files are instead of RGB JPEG files: there are such ones in ImageNet."""
_EXIF_ORIENTATION = 0x0112


@cache
def load_photos() -> PhotoDataset:
    """Return 48 images for training and 12 for testing. Their files are in a temporary directory until the exit."""
    from paperbench.data.imagenet.build import Published, index_images

    with report_write_errors(Path(gettempdir()), "TMPDIR"):
        root = Path(mkdtemp(prefix="paperbench-photos-"))
        atexit.register(_delete, root, os.getpid())
        _write_tiles(root)
    info = DATASETS["photos"]
    published = Published(CLASSES, info.train_images, info.test_images, test_labels={}, shorter_side=_HEIGHT)
    images = index_images(root, root, io.StringIO(), threads=1, published=published).images
    return PhotoDataset(
        key="photos",
        name="photograph tiles (embedded)",
        origin="scikit-learn's photographs china.jpg and flower.jpg, cut into tiles",
        canonical=False,
        classes=CLASSES,
        train=images.train,
        test=images.test,
        directory=root,
    )


def _delete(directory: Path, maker: int) -> None:
    """Delete the files when the process that made them exits; forked ones exit, too."""
    if os.getpid() == maker:
        shutil.rmtree(directory, ignore_errors=True)


def _write_tiles(root: Path) -> None:
    """Write the tiles as `train/CLASS/NUMBER.JPEG` and `val/CLASS/NUMBER.JPEG`."""
    from sklearn.datasets import load_sample_image

    photographs = [Image.fromarray(load_sample_image(f"{name}.jpg")) for name in _PHOTOGRAPHS]
    for number in range(len(CLASSES) * _ROWS * _COLUMNS):
        label, tile = divmod(number, _ROWS * _COLUMNS)
        photograph, third = divmod(label, len(_THIRDS))
        row, column = divmod(tile, _COLUMNS)
        left, upper = (third * _COLUMNS + column) * _WIDTH, row * _HEIGHT
        image = photographs[photograph].crop((left, upper, left + _WIDTH, upper + _HEIGHT))
        path = root / ("val" if tile in _TEST_TILES else "train") / CLASSES[label] / f"{number:02}.JPEG"
        path.parent.mkdir(parents=True, exist_ok=True)
        kind, exif = _KINDS.get(number, "RGB"), Image.Exif()
        if kind == "PNG":
            image.save(path, "PNG")
            continue
        if kind == "rotated":
            exif[_EXIF_ORIENTATION] = 6  # to be rotated by 90 degrees
        image.convert(kind if kind in ("L", "CMYK") else "RGB").save(path, "JPEG", quality=90, exif=exif)
