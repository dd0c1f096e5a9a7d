from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from paperbench.data.cifar_batches import load_batches
from paperbench.data.convert import convert
from paperbench.data.sources import load_dataset
from paperbench.errors import PaperbenchError
from tests.data.batches import write_batches
from tests.helpers import random_images

CIFAR10_CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
IMAGES, _ = random_images(20)


def write_images(directory: Path, classes: list[str], test: str = "test") -> Path:
    """Write one training and one test image per class: `IMAGES[label]` and `IMAGES[10 + label]`."""
    for label, name in enumerate(classes):
        for part, image in (("train", IMAGES[label]), (test, IMAGES[10 + label])):
            (directory / part / name).mkdir(parents=True)
            Image.fromarray(image).save(directory / part / name / "one.png")
    return directory


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_images(tmp_path / "images", CIFAR10_CLASSES)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "out" / "cifar10.npz"


def transparent_palette() -> Image.Image:
    image = Image.fromarray(IMAGES[0]).convert("P")
    image.info["transparency"] = 0
    return image


def error_message(source: Path, target: Path) -> str:
    with pytest.raises(PaperbenchError) as caught:
        convert(source, target, "cifar10")
    assert not target.exists()
    return str(caught.value)


@pytest.mark.parametrize(
    ("classes", "test"),
    [(CIFAR10_CLASSES, "test"), (CIFAR10_CLASSES, "val"), ([str(label) for label in range(1, 11)], "test")],
    ids=["names", "val", "numbers"],
)
def test_directory_of_images_becomes_an_npz_file(tmp_path: Path, target: Path, classes: list[str], test: str) -> None:
    dataset = convert(write_images(tmp_path / "images", classes, test), target, "cifar10")
    np.testing.assert_array_equal(dataset.x_train, IMAGES[:10])
    np.testing.assert_array_equal(dataset.x_test, IMAGES[10:])
    assert dataset.y_train.tolist() == dataset.y_test.tolist() == list(range(10))
    assert not dataset.canonical
    assert load_dataset("cifar10", target.parent).fingerprint == dataset.fingerprint
    assert list(target.parent.iterdir()) == [target]


def test_images_are_sorted_by_class_and_name_and_converted_to_rgb(directory: Path, target: Path) -> None:
    grey = Image.fromarray(IMAGES[0, :, :, 0])
    grey.save(directory / "train" / "bird" / "a.png")
    grey.convert("P").save(directory / "train" / "bird" / "b.png")
    grey.save(directory / "train" / "bird" / "c.JPG")
    (directory / "train" / "bird" / ".DS_Store").touch()
    (directory / "train" / ".cache").mkdir()
    dataset = convert(directory, target, "cifar10")
    assert dataset.y_train.tolist() == [0, 1, 2, 2, 2, 2, *range(3, 10)]
    three_channels = np.repeat(IMAGES[0, :, :, :1], 3, axis=2)
    np.testing.assert_array_equal(dataset.x_train[2], three_channels)
    np.testing.assert_array_equal(dataset.x_train[3], three_channels)
    np.testing.assert_array_equal(dataset.x_train[5], IMAGES[2])


def test_converted_original_files_keep_their_fingerprint(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = random_images(60)[0], np.arange(60) % 10
    batches = write_batches(monkeypatch, tmp_path / "original", "cifar10", images, labels, "labels")
    for source in (batches, batches.parent):
        target.unlink(missing_ok=True)
        dataset = convert(source, target, "cifar10")
        assert dataset.fingerprint == load_batches("cifar10", batches).fingerprint
    assert (dataset.canonical, dataset.name) == (False, "CIFAR-10 (unverified cifar10.npz)")


def test_error_names_unusable_files(directory: Path, target: Path) -> None:
    dog = directory / "test" / "dog"
    Image.fromarray(IMAGES[0, :1, :1]).save(dog / "small.png")
    Image.fromarray(IMAGES[0]).save(dog / "other.gif")
    (dog / "cut.png").write_bytes((dog / "one.png").read_bytes()[:200])
    (dog / "notes.txt").write_text("a dog")
    os.mkfifo(dog / "pipe.png")
    message = error_message(directory, target)
    assert f"{directory / 'test'}: 5 of 15 files cannot be used: {dog / 'cut.png'}: " in message
    for problem in (
        "notes.txt: not a PNG or JPEG image",
        "other.gif: not a PNG or JPEG image",
        "pipe.png: it is not a regular file",
        "small.png: 1 x 1 pixels, not 32 x 32",
    ):
        assert f"{dog / problem}" in message
    assert message.endswith("Remove or replace them.")
    for number in range(7):
        (directory / "train" / "cat" / f"{number}.png").touch()
    assert error_message(directory, target).endswith("; and 2 more. Remove or replace them.")


@pytest.mark.parametrize(
    ("image", "problem"),
    [
        (Image.fromarray(IMAGES[0, :, :, 0].astype(np.uint16) * 256), "16-bit or floating-point pixels"),
        (Image.fromarray(IMAGES[0]).convert("RGBA"), "transparent; flatten it first"),
        (transparent_palette(), "transparent; flatten it first"),
        (Image.new("1", (10_000, 10_000)), "10000 x 10000 pixels, not 32 x 32"),
    ],
    ids=["16-bit", "RGBA", "palette", "huge"],
)
def test_image_without_lossless_rgb_conversion_is_an_error(
    directory: Path, target: Path, image: Image.Image, problem: str
) -> None:
    file = directory / "train" / "cat" / "odd.png"
    image.save(file)
    with warnings.catch_warnings(record=True) as caught:
        assert f"{directory / 'train'}: 1 of 11 files cannot be used: {file}: {problem}. " in error_message(
            directory, target
        )
    assert not caught


def test_too_many_images_are_an_error(directory: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paperbench.data.convert.MAX_IMAGES", 9)
    assert error_message(directory, target) == f"{directory / 'train'}: 10 files; at most 9 are allowed."


def test_sources_without_the_images_of_all_classes_are_errors(directory: Path, target: Path, tmp_path: Path) -> None:
    def change(*moves: tuple[str, str]) -> str:
        for name, other in moves:
            (directory / name).rename(directory / other) if other else shutil.rmtree(directory / name)
        return error_message(directory, target)

    (directory / "test" / "dog" / "one.png").rename(tmp_path / "one.png")
    message = change()
    assert message == "CIFAR-10 (images in images) has classes without test images (1): 5. Add images."
    message = change(("test/dog", "test/dgo"))
    assert "must each have 10 directories with the same names" in message
    assert "They have 10 and 10; only in one of them: dgo, dog." in message
    assert "They have 9 and 9." in change(("train/dog", ""), ("test/dgo", ""))
    for name in CIFAR10_CLASSES:
        shutil.rmtree(directory / "test" / name, ignore_errors=True)
        for part in ("train", "test"):
            (directory / part / name).mkdir(exist_ok=True)
    assert change().startswith(f"{directory / 'test'}: no images found.")
    assert error_message(tmp_path, target).startswith(f"{tmp_path}: no data found. Expected cifar-10-batches-py/")
    assert error_message(tmp_path / "nowhere", target).startswith(f"{tmp_path / 'nowhere'}: no such directory.")


def test_existing_target_is_kept(directory: Path, target: Path) -> None:
    target.parent.mkdir()
    target.write_text("mine")
    with pytest.raises(PaperbenchError, match="already exists"):
        convert(directory, target, "cifar10")
    assert target.read_text() == "mine"
