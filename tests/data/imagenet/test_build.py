from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from PIL import Image

from paperbench.data.imagenet import build
from paperbench.data.imagenet.build import ImagesError, Published, changed_containers, index_images
from paperbench.data.imagenet.index import PhotoDataset
from paperbench.data.imagenet.index_file import FILE_NAME, Index
from paperbench.data.imagenet.synsets import synsets, validation_labels
from paperbench.data.sources import load_dataset, load_index
from paperbench.errors import DataError, PaperbenchError
from tests.data.imagenet.miniature import (
    SYNSETS,
    TRAIN_PER_CLASS,
    Terminal,
    encoded,
    examples,
    known_labels,
    write,
    write_folders,
)
from tests.data.imagenet.test_layout import LAYOUTS
from tests.data.imagenet.test_layout import write as write_files
from tests.helpers import ROOT
from tests.limits import limit_file_size

IMAGES = len(examples())
PARTIAL = FILE_NAME + build.PARTIAL
TINY = encoded(np.random.default_rng(0), size=(8, 8))
ARCHIVES = ("ILSVRC2012_img_val.tar", "ILSVRC2012_img_train.tar")


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    return write_folders(tmp_path / "folders")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


MINIATURE = Published(SYNSETS, train=20, test=10, test_labels=known_labels(), shorter_side=60)
"""What is known of the miniature, as if it were ImageNet."""


def make(root: Path, data: Path, **options: Any) -> Index:
    return index_images(root, data, io.StringIO(), **{"threads": 2, "accepts_subset": True, **options})


def loaded(data: Path) -> PhotoDataset:
    dataset = load_dataset("imagenet", data)
    assert isinstance(dataset, PhotoDataset)
    return dataset


def rows(database: Path, options: str = "") -> set[bytes]:
    """Return the sha256 of all images in a database."""
    with closing(sqlite3.connect(f"{database.as_uri()}?{options}", uri=True)) as connection:
        return {sha256 for (sha256,) in connection.execute("SELECT sha256 FROM image")}


def read_again(folders: Path, data: Path) -> int:
    """Return how many images indexing would read: of a copy whose images are others, but seem to be the same."""
    with TemporaryDirectory() as directory:
        copy, others, changed = shutil.copytree(data, Path(directory, "data")), Path(directory, "images"), set()
        for path in shutil.copytree(folders, others).glob("*/*/*"):
            status = path.stat()
            path.write_bytes(TINY.ljust(status.st_size, b"\0"))
            changed.add(hashlib.sha256(path.read_bytes()).digest())
            os.utime(path, ns=(0, status.st_mtime_ns))
        with suppress(DataError):  # raised at those that were not read
            make(others, copy)
        made = copy / PARTIAL
        return len(changed & rows(made if made.exists() else copy / FILE_NAME))


def test_image_is_read_again_only_if_its_file_has_changed(folders: Path, data: Path) -> None:
    first = make(folders, data)
    assert read_again(folders, data) == 0
    changed = next(folders.glob("train/*/*.JPEG"))
    changed.write_bytes(examples()[5].data)
    moved = folders.rename(folders.with_name("moved"))
    assert read_again(moved, data) == 1
    second = make(moved, data)
    assert second.header.fingerprint != first.header.fingerprint
    assert loaded(data).fingerprint == second.header.fingerprint


def test_damaged_index_is_not_trusted(folders: Path, data: Path) -> None:
    header = make(folders, data).header
    file = data / FILE_NAME
    content = file.read_bytes()
    place = content.index(hashlib.sha256(examples()[0].data).digest())
    file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    assert read_again(folders, data) == IMAGES
    assert make(folders, data).header == header == load_index(data).header


SLOWLY = """
import sys, time
from pathlib import Path
from paperbench.data.imagenet import build, crew

decode = build.decode
build.decode = lambda data: time.sleep(0.02) or decode(data)
crew._AHEAD, build._SECONDS_BETWEEN_COMMITS = 1, 0
build.index_images(Path(sys.argv[1]), Path(sys.argv[2]), sys.stderr, threads=1, accepts_subset=True)
"""


def start_indexing(root: Path, data: Path, images: int) -> subprocess.Popen[bytes]:
    """Start a process that indexes slowly, and wait until it has stored some images."""
    command = [sys.executable, "-c", SLOWLY, str(root), str(data)]
    process, known = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}), 0
    while process.poll() is None and known < images:
        time.sleep(0.01)
        with suppress(sqlite3.Error):  # it is being made, or written
            known = len(rows(data / PARTIAL, "immutable=1")) if (data / PARTIAL).exists() else 0
    assert process.poll() is None
    return process


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, *(pytest.param(one, marks=pytest.mark.full) for one in (signal.SIGTERM, signal.SIGINT))]
)
def test_indexing_keeps_others_out_and_goes_on_where_it_was_killed(
    number: signal.Signals, folders: Path, data: Path, tmp_path: Path
) -> None:
    process = start_indexing(folders, data, images=5)
    with pytest.raises(PaperbenchError, match="Another process is making"):
        make(folders, data)
    process.send_signal(number)
    process.wait()
    assert not (data / FILE_NAME).exists()
    known = len(rows(data / PARTIAL))
    assert 4 <= known < IMAGES, "the last image may have been stored by half"
    assert read_again(folders, data) == IMAGES - known
    index = make(folders, data)
    assert not (data / PARTIAL).exists()
    assert index.header == make(folders, tmp_path / "undisturbed").header


def test_file_system_without_locks_is_used_without(folders: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    make(folders, data)
    assert len(loaded(data).train) == 20


@pytest.mark.parametrize("content", [b"", b"train 0000 written by an earlier version\n", b"SQLite format 3\0"])
def test_useless_partial_index_is_replaced(content: bytes, folders: Path, data: Path) -> None:
    data.mkdir()
    (data / PARTIAL).write_bytes(content)
    make(folders, data)
    assert len(loaded(data).train) == 20
    assert [path.name for path in data.iterdir()] == [FILE_NAME]


def test_unusable_images_are_named_and_only_they_are_read_again(folders: Path, data: Path) -> None:
    truncated, text, huge, *_ = sorted(folders.glob("train/*/*.JPEG"))
    originals = {path: path.read_bytes() for path in (truncated, text, huge)}
    truncated.write_bytes(originals[truncated][:-400])
    text.write_text("<html>not found</html>")
    os.truncate(huge, 2**27 + 1)
    with pytest.raises(ImagesError) as caught:
        make(folders, data)
    message = str(caught.value)
    assert "\nunusable images (3): " in message
    reasons = (
        (truncated, "truncated"),
        (text, "is no JPEG or PNG image"),
        (huge, "cannot be read: its 134,217,729 bytes"),
    )
    for path, reason in reasons:
        (part,) = (part for part in message.split(", train/") if path.name in part)
        assert reason in part
    assert not (data / FILE_NAME).exists()
    for path, content in originals.items():
        path.write_bytes(content)
    assert read_again(folders, data) == 3
    make(folders, data)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"train/{SYNSETS[0]}/x\npaperbench: error: y.JPEG", r"x\\npaperbench: error: y\.JPEG"),  # in one line
        (
            f"train/{SYNSETS[0]}/images/a.JPEG",
            rf"not ImageNet's \(1\): train/{SYNSETS[0]}/images",
        ),  # as in Tiny ImageNet
    ],
)
def test_files_that_are_no_images_are_named(name: str, message: str, tmp_path: Path, data: Path) -> None:
    write(tmp_path / "images" / name, b"")
    with pytest.raises(ImagesError, match=message):
        make(tmp_path / "images", data)


def test_incomplete_images_are_refused_unless_subset(folders: Path, data: Path) -> None:
    shutil.rmtree(folders / "train" / SYNSETS[1])
    lost = next((folders / "val" / SYNSETS[2]).iterdir())
    lost.unlink()
    (folders / "train" / SYNSETS[0] / "notes.txt").write_text("mine")
    with pytest.raises(ImagesError) as caught:
        make(folders, data, published=MINIATURE, accepts_subset=False)
    lines = str(caught.value).splitlines()
    assert "it has 16 + 9 images; ImageNet has 20 to train on and 10 to test" in lines
    assert f"classes without training images (1): {SYNSETS[1]}" in lines
    assert f"classes without 2 test images (1): {SYNSETS[2]} has 1" in lines
    assert f"missing images (1): {lost.stem}" in lines
    assert f"files that are not ImageNet's (1): train/{SYNSETS[0]}/notes.txt" in lines
    assert lines[-1].endswith("Accept what is there, as a subset, with `--subset`.")
    shutil.rmtree(folders / "val" / SYNSETS[1])
    stream = io.StringIO()
    index_images(folders, data, stream, published=MINIATURE, accepts_subset=True, threads=1)
    assert "notes.txt" in stream.getvalue()
    assert facts(data) == ("ImageNet (subset: 16 + 7 images)", False, False)


def test_files_that_are_no_images_are_but_noted(folders: Path, data: Path) -> None:
    names = ("val/valprep.sh", "train/Thumbs.db", f"train/{SYNSETS[0]}/desktop.ini", "val/@eaDir/a.JPEG/THUMB_M.jpg")
    for name in names:
        write(folders / name, b"#")
    index_images(folders, data, stream := io.StringIO(), published=MINIATURE, threads=1)
    assert facts(data) == ("ImageNet (ILSVRC 2012)", False, True)
    assert "files that are not ImageNet's (4): train/Thumbs.db, train/n" in stream.getvalue()


@pytest.mark.parametrize(
    ("lost", "lacking"),
    [
        (f"train/{SYNSETS[1]}", rf"training images \(1\): {SYNSETS[1]}\n.* index a directory without training images"),
        (f"val/{SYNSETS[1]}", rf"test images \(1\): {SYNSETS[1]}"),
        ("val", r"test images \(5\)"),
    ],
)
def test_class_that_only_one_part_has_is_refused_even_in_a_subset(
    lost: str, lacking: str, folders: Path, data: Path
) -> None:
    shutil.rmtree(folders / lost)
    with pytest.raises(ImagesError, match=f"classes without {lacking}"):
        make(folders, data)


def test_subset_may_have_test_images_alone(folders: Path, data: Path) -> None:
    shutil.rmtree(folders / "train")
    assert (len(make(folders, data).images.train), len(loaded(data).test)) == (0, 10)


@pytest.mark.parametrize("reduced", ["train", "val"])
def test_reduced_images_are_no_complete_data_set(reduced: str, folders: Path, data: Path) -> None:
    for path in folders.glob(f"{reduced}/*/*"):
        Image.open(path).convert("RGB").resize((50, 80)).save(path, "JPEG", quality=100)
    name = {"train": "training", "val": "test"}[reduced]
    message = f"half of the {name} images have a shorter side of 50 pixels or fewer"
    with pytest.raises(ImagesError, match=message) as caught:
        make(folders, data, published=MINIATURE, accepts_subset=False)
    assert str(caught.value).count("half of") == 1
    stream = io.StringIO()
    index_images(folders, data, stream, published=MINIATURE, accepts_subset=True, threads=1)
    assert message in stream.getvalue()
    assert facts(data) == ("ImageNet (subset: 20 + 10 images)", False, False)


def test_images_resized_to_256_are_no_complete_data_set(tmp_path: Path, data: Path) -> None:
    for part in ("train", "val"):
        (tmp_path / part / SYNSETS[0]).mkdir(parents=True)
        Image.new("RGB", (341, 256)).save(tmp_path / part / SYNSETS[0] / "a.JPEG")
    with pytest.raises(ImagesError, match="a shorter side of 256 pixels or fewer"):
        make(tmp_path, data, accepts_subset=False)


@pytest.fixture
def archives(tmp_path: Path) -> Path:
    return write_files(tmp_path / "archives", LAYOUTS["archives"])


@pytest.fixture
def proving(archives: Path) -> dict[str, Any]:
    """The options that prove the miniature."""
    md5 = {name: hashlib.md5((archives / name).read_bytes()).hexdigest() for name in ARCHIVES}
    return {"archives": archives, "accepts_subset": False, "published": replace(MINIATURE, md5=md5)}


def facts(data: Path) -> tuple[str, bool, bool]:
    dataset = loaded(data)
    return dataset.name, dataset.canonical, dataset.unverified


def test_complete_images_are_canonical_once_proven(
    folders: Path, data: Path, tmp_path: Path, proving: dict[str, Any]
) -> None:
    unproven = {**proving, "archives": None}
    make(folders, data, **unproven)
    assert facts(data) == ("ImageNet (ILSVRC 2012)", False, True)
    make(folders, data, **proving)
    assert facts(data) == ("ImageNet (ILSVRC 2012)", True, False)
    assert [path.name for path in data.iterdir()] == [FILE_NAME]
    for part in ("train", "val"):
        shutil.rmtree(folders / part / SYNSETS[0])
    make(folders, data)
    assert facts(data)[1:] == (False, False)
    make(write_files(tmp_path / "shards", LAYOUTS["shards"]), data, **unproven)
    assert facts(data)[1:] == (True, False), "the fingerprint was proven"


def test_archives_themselves_are_read_once(archives: Path, data: Path, proving: dict[str, Any]) -> None:
    write_folders(archives)
    index_images(archives, data, stream := Terminal(), threads=1, **proving)
    assert stream.getvalue().count(" 1 of 30 images") == 1
    assert facts(data)[1:] == (True, False)
    assert loaded(data).test.read(0) in {example.data for example in examples()}


def test_images_that_differ_from_the_archives_are_named(folders: Path, data: Path, proving: dict[str, Any]) -> None:
    (folders / "train" / SYNSETS[0] / examples()[0].name).write_bytes(examples()[-1].data)
    message = f"images that differ from those of the archives \\(1\\): train/{SYNSETS[0]}/{examples()[0].name}"
    with pytest.raises(ImagesError, match=message) as caught:
        make(folders, data, **proving)
    assert "The index is kept" in str(caught.value)
    assert facts(data)[1:] == (False, True)


def test_archives_must_be_there_and_have_their_md5(folders: Path, data: Path, proving: dict[str, Any]) -> None:
    archive = proving["archives"] / ARCHIVES[1]
    content = archive.read_bytes()
    archive.write_bytes(content + bytes(512))
    with pytest.raises(ImagesError, match=rf"{ARCHIVES[1]} is not the original archive: its md5 is"):
        make(folders, data, **proving)
    archive.unlink()
    with pytest.raises(PaperbenchError, match=f"lacks {ARCHIVES[1]}"):
        make(folders, data, **proving)
    with pytest.raises(PaperbenchError, match="without `--subset`"):
        make(folders, data, **{**proving, "accepts_subset": True})


@pytest.mark.full  # importing torchvision takes seconds
def test_original_archives_are_known_by_their_published_md5() -> None:
    from torchvision.datasets.imagenet import ARCHIVE_META

    assert dict(Published().md5).items() <= dict(ARCHIVE_META.values()).items()


def test_validation_labels_are_those_of_the_published_list() -> None:
    """The digest is that of tensorflow-datasets' file, which has a synset a line in the order of the images."""
    lines = "".join(f"{synsets()[label]}\n" for label in validation_labels().values())
    digest = hashlib.sha256(lines.encode()).hexdigest()
    assert digest == "313fc3f23c864dde9183c9a368809065765dd1b657a6904fded44e3e46d34604"


@pytest.mark.parametrize("size", [1_000, 10_000])
def test_full_disk_loses_nothing(size: int, folders: Path, data: Path, tmp_path: Path) -> None:
    make(write_files(tmp_path / "shards", LAYOUTS["shards"]), data)
    old = (data / FILE_NAME).read_bytes()
    with limit_file_size(size), pytest.raises(PaperbenchError, match="cannot be written: d"):
        make(folders, data)
    assert (data / FILE_NAME).read_bytes() == old
    make(folders, data)
    assert [path.name for path in data.iterdir()] == [FILE_NAME]


@pytest.mark.parametrize(
    "obstruct",
    [
        os.mkfifo,
        os.mkdir,
        lambda path: path.symlink_to("../other"),
        lambda path: os.truncate(path.open("w").name, 2**40),
        lambda path: (path.parent.rmdir(), path.parent.write_text("mine")),
    ],
    ids=["pipe", "directory", "link", "terabyte", "file in place of the data directory"],
)
def test_what_is_no_partial_index_is_left_alone(obstruct: Callable[[Path], object], folders: Path, data: Path) -> None:
    data.mkdir()
    (data.parent / "other").write_text("mine")
    obstruct(data / PARTIAL)
    with pytest.raises(PaperbenchError, match=r"cannot be written: .*Choose another directory \(`--data DIR`\)"):
        make(folders, data)
    assert (data.parent / "other").read_text() == "mine"


def test_directory_that_is_none_is_an_error(tmp_path: Path, data: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("missing", "file"):
        with pytest.raises(PaperbenchError, match=f"{name} is not a directory"):
            make(tmp_path / name, data)


def test_directory_may_be_beside_the_target_of_a_link(folders: Path, data: Path, tmp_path: Path) -> None:
    (folders.parent / "elsewhere").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "link").symlink_to(folders.parent / "elsewhere")
    make(tmp_path / "other" / "link" / ".." / folders.name, data)
    assert loaded(data).train.read(0)


def test_images_in_the_data_directory_move_with_it(folders: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    make(folders.rename(data / "images"), data)
    dataset = loaded(data.rename(tmp_path / "moved"))
    assert hashlib.sha256(dataset.train.read(0)).digest() == dataset.train.hashes[0].tobytes()


def test_changed_or_missing_files_are_found_and_not_read(folders: Path, data: Path) -> None:
    make(folders, data)
    assert changed_containers(load_index(data), io.StringIO()) == []
    dataset = loaded(data)
    gone, changed, touched = (dataset.train.paths[dataset.train.container[i]] for i in (0, 1, 2))
    (folders / gone).unlink()
    (folders / changed).write_bytes(examples()[-1].data)
    os.utime(folders / touched, (0, 0))
    assert sorted(changed_containers(load_index(data), io.StringIO())) == sorted(
        [f"{gone}: No such file or directory", f"{changed} has changed", f"{touched} has changed"]
    )
    with pytest.raises(PaperbenchError, match="cannot be read: No such file"):
        dataset.train.read(0)
    folders.rename(folders.with_name("moved"))
    assert changed_containers(load_index(data), io.StringIO()) == [f"{folders}, the directory of all images"]
    folders.with_name("moved").rename(folders)
    with pytest.raises(PaperbenchError, match="has changed since it was indexed"):
        dataset.train.read(1)


def test_copy_with_times_in_whole_seconds_is_not_read_again(folders: Path, data: Path) -> None:
    """As tar and some file systems keep them."""
    make(folders, data)
    for path in folders.glob("*/*/*"):
        os.utime(path, ns=(0, path.stat().st_mtime_ns // 10**9 * 10**9))
    assert read_again(folders, data) == 0


def test_image_changed_at_equal_time_is_read_again_once_touched(folders: Path, data: Path) -> None:
    make(folders, data)
    train = loaded(data).train
    path = folders / train.paths[train.container[0]]
    time_of_change = path.stat().st_mtime_ns
    data_of_image = bytearray(path.read_bytes())
    data_of_image[15] ^= 1  # its resolution
    path.write_bytes(data_of_image)
    os.utime(path, ns=(0, time_of_change))
    for read in (lambda: train.read(0), lambda: make(folders, data)):
        with pytest.raises(PaperbenchError, match="`touch` it"):
            read()
    os.utime(path, ns=(0, time_of_change + 10**9))
    make(folders, data)
    assert bytes(data_of_image) in [loaded(data).train.read(number) for number in range(TRAIN_PER_CLASS)]


def test_progress_shows_the_number_of_all_images(folders: Path, data: Path) -> None:
    index_images(folders, data, stream := Terminal(), threads=1, published=MINIATURE)
    assert stream.getvalue().startswith("\rindexing class folders: 1 of 30 images, about ")
