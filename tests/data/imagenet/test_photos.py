"""The embedded photographs, which go where ImageNet goes."""

from __future__ import annotations

import io
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

from paperbench.catalogue import DATASETS
from paperbench.cli.main import main
from paperbench.data.imagenet.index import PhotoDataset
from paperbench.data.sources import load_dataset
from tests.helpers import ROOT

LOAD = """
import os, sys
from pathlib import Path
from paperbench.data.sources import load_dataset
photos = load_dataset("photos", Path())
if not os.fork():
    sys.exit()
os.wait()
print(photos.fingerprint, photos.train.root, photos.train.root.is_dir(), "torch" in sys.modules)
"""


@pytest.fixture(scope="module")
def photos() -> PhotoDataset:
    dataset = load_dataset("photos", Path("nowhere"))
    assert isinstance(dataset, PhotoDataset)
    return dataset


def files(photos: PhotoDataset) -> list[tuple[str, Image.Image]]:
    """Return the class and the image of each file."""
    parts = (photos.train, photos.test)
    return [
        (photos.classes[part.labels[number]], Image.open(io.BytesIO(part.read(number))))
        for part in parts
        for number in range(len(part))
    ]


def test_classes_are_of_equal_size(photos: PhotoDataset) -> None:
    assert (len(photos.classes), len(photos.test)) == (DATASETS["photos"].num_classes, DATASETS["photos"].test_images)
    assert Counter(photos.train.labels.tolist()) == dict.fromkeys(range(6), 8)
    assert Counter(photos.test.labels.tolist()) == dict.fromkeys(range(6), 2)
    assert (photos.name, photos.canonical, photos.unverified) == ("photograph tiles (embedded)", False, False)


def test_each_tile_is_another_part_of_its_third(photos: PhotoDataset) -> None:
    photographs = {
        name: np.asarray(Image.fromarray(load_sample_image(f"{name}.jpg")).convert("L"), int)
        for name in ("china", "flower")
    }
    places = {
        (name, x, y): pixels[y : y + 85, x : x + 106]
        for name, pixels in photographs.items()
        for x in range(0, 535, 106)
        for y in range(0, 341, 85)
    }
    found = []
    for label, image in files(photos):
        tile = np.asarray(image.convert("L"), int)
        found.append(min(places, key=lambda place: float(np.abs(tile - places[place]).mean())))
        name, x, _ = found[-1]
        assert label == f"{name}-{('left', 'centre', 'right')[x // 212]}"
    assert len(set(found)) == len(found) == 60


def test_some_files_are_odd_as_in_imagenet(photos: PhotoDataset) -> None:
    kinds = Counter((image.format, image.mode, image.getexif().get(0x0112)) for _, image in files(photos))
    assert kinds == {
        ("JPEG", "RGB", None): 54,
        ("JPEG", "L", None): 3,
        ("JPEG", "CMYK", None): 1,
        ("PNG", "RGB", None): 1,
        ("JPEG", "RGB", 6): 1,
    }


@pytest.mark.full
def test_other_process_has_the_same_fingerprint_and_cleans_up(photos: PhotoDataset) -> None:
    said = subprocess.run(
        [sys.executable, "-c", LOAD], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    fingerprint, root, is_there, has_torch = said.stdout.split()
    assert (fingerprint, is_there, has_torch) == (photos.fingerprint, "True", "False")
    assert not Path(root).exists()


def test_check_says_what_the_photos_are(capsys: pytest.CaptureFixture[str], photos: PhotoDataset) -> None:
    assert main(["data", "check", "photos"]) == 0
    said = capsys.readouterr().out
    assert "48 to train on, 12 to test, 6 of 6 classes" in said
    assert photos.fingerprint in said
