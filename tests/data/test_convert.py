from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from paperbench.data.cifar_batches import load_batches
from paperbench.data.convert import convert
from paperbench.data.sources import load_dataset
from paperbench.errors import PaperbenchError
from tests.data.batches import publish
from tests.helpers import random_images

CIFAR10_CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
IMAGES, _ = random_images(20)


def write_folder(folder: Path, classes: list[str], test: str = "test") -> Path:
    """One training and one test image a class, `IMAGES[label]` and `IMAGES[10 + label]`."""
    for label, name in enumerate(classes):
        for part, image in (("train", IMAGES[label]), (test, IMAGES[10 + label])):
            (folder / part / name).mkdir(parents=True)
            Image.fromarray(image).save(folder / part / name / "one.png")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "images", CIFAR10_CLASSES)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out" / "cifar10.npz"


def complaint(source: Path, target: Path) -> str:
    with pytest.raises(PaperbenchError) as caught:
        convert(source, target, "cifar10")
    assert not target.exists()
    return str(caught.value)


@pytest.mark.parametrize(
    ("classes", "test"),
    [(CIFAR10_CLASSES, "test"), (CIFAR10_CLASSES, "val"), ([str(label) for label in range(1, 11)], "test")],
    ids=["names", "val", "numbers"],
)
def test_images_of_a_folder_become_an_npz_file(tmp_path: Path, target: Path, classes: list[str], test: str) -> None:
    dataset = convert(write_folder(tmp_path / "images", classes, test), target, "cifar10")
    np.testing.assert_array_equal(dataset.x_train, IMAGES[:10])
    np.testing.assert_array_equal(dataset.x_test, IMAGES[10:])
    assert dataset.y_train.tolist() == dataset.y_test.tolist() == list(range(10))
    assert not dataset.canonical
    assert load_dataset("cifar10", target.parent).fingerprint == dataset.fingerprint
    assert list(target.parent.iterdir()) == [target]


def test_images_come_by_class_and_file_name_and_in_rgb(folder: Path, target: Path) -> None:
    grey = Image.fromarray(IMAGES[0, :, :, 0])
    grey.save(folder / "train" / "bird" / "a.png")
    grey.convert("P").save(folder / "train" / "bird" / "b.png")
    grey.save(folder / "train" / "bird" / "c.JPG")
    (folder / "train" / "bird" / ".DS_Store").touch()
    (folder / "train" / ".cache").mkdir()
    dataset = convert(folder, target, "cifar10")
    assert dataset.y_train.tolist() == [0, 1, 2, 2, 2, 2, *range(3, 10)]
    three_channels = np.repeat(IMAGES[0, :, :, :1], 3, axis=2)
    np.testing.assert_array_equal(dataset.x_train[2], three_channels)
    np.testing.assert_array_equal(dataset.x_train[3], three_channels)
    np.testing.assert_array_equal(dataset.x_train[5], IMAGES[2])


@pytest.mark.parametrize("inner", [True, False])
def test_original_files_become_an_npz_file_of_the_same_fingerprint(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch, inner: bool
) -> None:
    batches = publish(monkeypatch, tmp_path / "original", "cifar10", *random_images(24), "labels")
    dataset = convert(batches if inner else batches.parent, target, "cifar10")
    assert dataset.fingerprint == load_batches("cifar10", batches).fingerprint
    assert (dataset.canonical, dataset.name) == (False, "CIFAR-10 (unverified cifar10.npz)")


def test_files_that_are_no_such_image_are_named(folder: Path, target: Path) -> None:
    dog = folder / "test" / "dog"
    Image.fromarray(IMAGES[0, :1, :1]).save(dog / "small.png")
    Image.fromarray(IMAGES[0]).save(dog / "other.gif")
    (dog / "cut.png").write_bytes((dog / "one.png").read_bytes()[:200])
    (dog / "notes.txt").write_text("a dog")
    os.mkfifo(dog / "pipe.png")
    message = complaint(folder, target)
    assert f"5 of 15 files in {folder / 'test'} cannot be used: {dog / 'cut.png'}: " in message
    for problem in (
        "notes.txt is no PNG or JPEG image",
        "other.gif is no PNG or JPEG image",
        "pipe.png: is no file",
        "small.png: has 1 x 1 pixels, not 32 x 32",
    ):
        assert f"{dog / problem}" in message
    assert message.endswith("Remove or replace them.")
    for number in range(7):
        (folder / "train" / "cat" / f"{number}.png").touch()
    assert complaint(folder, target).endswith("; and 2 more. Remove or replace them.")


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        (Image.fromarray(IMAGES[0, :, :, 0].astype(np.uint16) * 256), "is a 16-bit or floating-point image"),
        (Image.fromarray(IMAGES[0]).convert("RGBA"), "has transparency; flatten it first"),
        (Image.fromarray(IMAGES[0]).convert("LA"), "has transparency; flatten it first"),
        (Image.new("1", (10_000, 10_000)), "has 10000 x 10000 pixels, not 32 x 32"),
    ],
    ids=["16-bit", "RGBA", "LA", "vast"],
)
def test_an_image_that_would_change_is_refused(folder: Path, target: Path, image: Image.Image, problem: str) -> None:
    file = folder / "train" / "cat" / "odd.png"
    image.save(file)
    with warnings.catch_warnings(record=True) as caught:
        assert f"1 of 11 files in {folder / 'train'} cannot be used: {file}: {problem}. " in complaint(folder, target)
    assert not caught


def test_transparency_of_a_palette_is_refused(folder: Path, target: Path) -> None:
    Image.fromarray(IMAGES[0]).convert("P").save(folder / "test" / "cat" / "odd.png", transparency=0)
    assert "odd.png: has transparency" in complaint(folder, target)


def test_more_images_than_a_file_may_hold_are_refused(
    folder: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paperbench.data.convert.MAX_IMAGES", 9)
    assert complaint(folder, target) == f"{folder / 'train'} holds 10 files; at most 9 can be used."


def test_classes_must_be_those_of_the_data_set_in_both_parts(folder: Path, target: Path) -> None:
    (folder / "test" / "dog").rename(folder / "test" / "dgo")
    assert "must have the same 10 folders" in complaint(folder, target)
    assert "They have 10 and 10; only in one of them: dgo, dog." in complaint(folder, target)
    for part in ("train", "test"):
        (folder / part / "extra").mkdir()
    (folder / "test" / "dgo").rename(folder / "test" / "dog")
    assert "They have 11 and 11." in complaint(folder, target)
    for part in ("train", "test"):
        (folder / part / "extra").rmdir()
    for path in (folder / "test").rglob("*.png"):
        path.unlink()
    assert complaint(folder, target) == f"{folder / 'test'} holds no image."


def test_a_folder_of_something_else_is_refused_with_what_it_should_hold(tmp_path: Path, target: Path) -> None:
    assert complaint(tmp_path, target).startswith(f"{tmp_path} has neither a folder cifar-10-batches-py/ with the ")
    assert complaint(tmp_path / "nowhere", target) == f"{tmp_path / 'nowhere'} does not exist."


def test_a_file_that_is_there_is_not_replaced(folder: Path, target: Path) -> None:
    target.parent.mkdir()
    target.write_text("mine")
    with pytest.raises(PaperbenchError, match="is there already"):
        convert(folder, target, "cifar10")
    assert target.read_text() == "mine"


def test_a_place_that_cannot_be_written_is_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be converted to" in complaint(folder, tmp_path / "file" / "cifar10.npz")
