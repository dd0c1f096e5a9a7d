"""Damaged archives, shards and lists of ImageNet, and directories of anything."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paperbench.errors import PaperbenchError
from tests.data.imagenet.test_layout import CLASSES, LIST, TRAIN_LABELS, find_layout, tar, with_labels, write
from tests.data.imagenet.test_layout import TRAIN as WHOLE
from tests.fuzz.strategies import damaged, is_refused, times_examples
from tests.limits import limit_seconds

TRAIN = {name: data[: number % 100] for number, (name, data) in enumerate(WHOLE.items(), 20)}
SHARD = tar({f"n01440764/{'long' * 30}.png": b"5", **with_labels(TRAIN, TRAIN_LABELS), **TRAIN}, tarfile.GNU_FORMAT)
ORIGINALS = {
    "train-0.tar": tar(with_labels(TRAIN, TRAIN_LABELS)),
    "val-0.tar": SHARD,
    "ILSVRC2012_img_train.tar": tar({"n01440764.tar": tar(TRAIN), "n02105855.tar": tar(TRAIN)}),
    "ImageSets/CLS-LOC/train_cls.txt": LIST.encode(),
}
TOKENS = (
    *(b"\0" * 512, b"\xff" * 8, b"77777777777\0", b"\x80" + b"\xff" * 11, b"L", b"x", b"S", b"1", b"5", b"ustar  \0"),
    *(b"30 size=9999999999999999999999\n", b"999999999 path=a\n", b"11 size=-1\n", b"6 path=", b"9" * 5000),
    b"12 path=a/..\n",
    *(b"../../etc/passwd", b"\n", b"\r\n", b",", b"n01440764", b"\x1f\x8b", b"\0\0\0\0\0\0\0\0"),
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("imagenet")


def list_images(root: Path) -> None:
    """List all images, and check that they are in their containers."""
    with limit_seconds():
        layout = find_layout(root)
        for image in layout.images():
            assert image.split in ("train", "test")
            assert 0 <= image.label < len(CLASSES)
            assert 0 <= image.offset <= image.offset + image.length <= (root / image.path).stat().st_size
            assert "/" not in image.name
            assert image.name


def resummed(content: bytes) -> bytes:
    """Return a tar file with right checksums in what may be headers, so that the damage is read."""
    blocks = [content[start : start + 512] for start in range(0, len(content), 512)]
    for number, block in enumerate(blocks):
        if block[257:262] == b"ustar" and len(block) == 512:
            total = sum(block[:148]) + 8 * 32 + sum(block[156:])
            blocks[number] = block[:148] + b"%06o\0 " % total + block[156:]
    return b"".join(blocks)


@pytest.mark.parametrize("name", ORIGINALS)
@times_examples(1)
@given(data=st.data())
def test_damaged_file_lists_images_or_is_an_error(name: str, root: Path, data: st.DataObject) -> None:
    content = data.draw(damaged(ORIGINALS[name], TOKENS))
    if ".tar" in name and data.draw(st.booleans()):
        content = resummed(content)
    shutil.rmtree(root)
    write(root, {"train/n01440764/a.png": b""} if ".tar" not in name or name == "val-0.tar" else {"val/.hidden": b""})
    write(root, {name: content})
    is_refused(PaperbenchError, list_images, root)


NAMES = (
    *("train", "val", "validation", "data", "ILSVRC", "Data", "CLS-LOC", "ImageSets", "n01440764", "n03995372"),
    *("n01440764.tar", "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "train-0.tar", "val-0.tar.gz"),
    *("x-train-1.tar", "val-0.parquet", "LOC_train_solution.csv", "train_cls.txt", "a.png"),
    "a\n\x1b\udcff.JPEG",
)
KINDS = ("directory", "directory", "empty file", "pipe", "dangling link", "link to the root", "device", "archive")


@times_examples(2)
@given(entries=st.lists(st.tuples(st.integers(0, 30), st.sampled_from(NAMES), st.sampled_from(KINDS)), max_size=20))
def test_directory_of_anything_lists_images_or_is_an_error(root: Path, entries: list[tuple[int, str, str]]) -> None:
    shutil.rmtree(root)
    root.mkdir()
    directories = [root]
    for parent, name, kind in entries:
        path = directories[parent % len(directories)] / name
        if not os.path.lexists(path):
            match kind:
                case "directory":
                    path.mkdir()
                    directories.append(path)
                case "empty file":
                    path.touch()
                case "pipe":
                    os.mkfifo(path)
                case "archive":
                    path.write_bytes(SHARD)
                case _:
                    path.symlink_to({"device": Path("/dev/zero"), "link to the root": root}.get(kind, root / "none"))
    is_refused(PaperbenchError, list_images, root)
