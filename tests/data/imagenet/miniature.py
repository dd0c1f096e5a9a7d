"""A tiny ImageNet, in each of the forms in which people have it."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

SYNSETS = ("n01440764", "n02105855", "n03000684", "n03995372", "n15075141")
"""Five synsets of ImageNet in alphabetical order."""
TEST_NUMBERS = ((293, 2138), (3, 180), (537, 4034), (589, 1559), (1079, 2663))
"""Numbers of their first validation images."""
TRAIN_PER_CLASS, TEST_PER_CLASS = 4, 2


class Example(NamedTuple):
    """An image of the miniature.

    Attributes:
        split: "train" or "test".
        label: Index in `SYNSETS`.
        name: Of its file in the original archives.
        data: Of its file.
    """

    split: str
    label: int
    name: str
    data: bytes

    @property
    def synset(self) -> str:
        return SYNSETS[self.label]


@cache
def examples() -> tuple[Example, ...]:
    """Return all images: those for training by class, those for testing in the order of their names, not by class."""
    rng = np.random.default_rng(17)
    kinds = ["RGB"] * (TRAIN_PER_CLASS + TEST_PER_CLASS) * len(SYNSETS)
    kinds[1], kinds[6], kinds[9], kinds[14], kinds[21], kinds[26] = "L", "CMYK", "PNG", "rotated", "CMYK", "L"
    images = iter(encoded(rng, kind) for kind in kinds)
    train = [
        Example("train", label, f"{synset}_{10 + 7 * number}.JPEG", next(images))
        for label, synset in enumerate(SYNSETS)
        for number in range(TRAIN_PER_CLASS)
    ]
    numbered = sorted((number, label) for label, numbers in enumerate(TEST_NUMBERS) for number in numbers)
    test = [Example("test", label, f"ILSVRC2012_val_{number:08}.JPEG", next(images)) for number, label in numbered]
    return (*train, *test)


def encoded(rng: np.random.Generator, kind: str = "RGB", size: tuple[int, int] | None = None) -> bytes:
    """Return the file of a random image: a JPEG file in Pillow's mode `kind`, one with EXIF rotation, or a PNG file."""
    width, height = size or (int(side) for side in rng.integers(70, 140, 2))
    coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    image = coarse.resize((width, height), Image.Resampling.BICUBIC)
    stream, exif = io.BytesIO(), Image.Exif()
    if kind == "PNG":
        image.save(stream, "PNG")
        return stream.getvalue()
    if kind == "rotated":
        exif[0x0112] = 6  # orientation: rotate by 90 degrees to display
        kind = "RGB"
    image.convert(kind).save(stream, "JPEG", quality=90, exif=exif)
    return stream.getvalue()


def known_labels() -> dict[str, int]:
    """Return the labels of the test images as the layouts need them."""
    return {example.name.removesuffix(".JPEG"): example.label for example in of("test")}


def of(split: str) -> list[Example]:
    return [example for example in examples() if example.split == split]


def write_folders(root: Path) -> Path:
    """Write `train/SYNSET/*.JPEG` and `val/SYNSET/*.JPEG`."""
    for example in examples():
        part = "train" if example.split == "train" else "val"
        write(root / part / example.synset / example.name, example.data)
    return root


def write_parquet(root: Path, *, rows_per_group: int = 3) -> Path:
    """Write the files of Hugging Face's data set, with labels that are indices in `SYNSETS`."""
    train, test = of("train"), of("test")
    hidden = [Example("hidden", -1, "ILSVRC2012_test_00000001.JPEG", train[0].data)]
    for name, shard in (
        ("train-00000-of-00002", train[::2]),
        ("train-00001-of-00002", train[1::2]),
        ("validation-00000-of-00001", test),
        ("test-00000-of-00001", hidden),
    ):
        rows = [(example.data, hugging_face_path(example), example.label) for example in shard]
        write_parquet_file(root / "data" / f"{name}.parquet", rows, rows_per_group=rows_per_group)
    return root


def hugging_face_path(example: Example) -> str:
    """Return the path of an image in Hugging Face's data set, whose names end with the synset."""
    return example.name if example.label < 0 else example.name.replace(".", f"_{example.synset}.")


def write_parquet_file(path: Path, rows: Sequence[tuple[bytes | None, str | None, int | None]], **options: Any) -> None:
    """Write a file of the columns `image` and `label`.

    Args:
        rows: Bytes, path and label of each image.
        options: `rows_per_group`, and options of pyarrow's `write_table`.
    """
    import pyarrow as pa
    from pyarrow.parquet import write_table

    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = pa.array([{"bytes": data, "path": name} for data, name, _ in rows], image)
    table = pa.table({"image": images, "label": pa.array([label for _, _, label in rows], pa.int64())})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(table, path, row_group_size=options.pop("rows_per_group", 3), **options)


def write(path: Path, data: bytes) -> None:
    """Write a file, and its directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def tar(
    files: Iterable[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT, others: Iterable[tarfile.TarInfo] = ()
) -> bytes:
    """Return a tar file. In the PAX format, the fractional time makes an extended header for every file."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as archive:
        for other in others:
            archive.addfile(other, io.BytesIO(bytes(other.size)) if other.isreg() else None)
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1.5
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


class Terminal(io.StringIO):
    """A stream that shows every change of a status line."""

    def isatty(self) -> bool:
        return True
