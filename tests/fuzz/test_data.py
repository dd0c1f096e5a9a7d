from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from paperbench.data.convert import load_images
from paperbench.data.dataset import ImageDataset
from paperbench.data.npz import load_npz
from paperbench.errors import PaperbenchError
from tests.fuzz.strategies import damaged, is_refused, times_examples
from tests.helpers import random_images

(IMAGES, LABELS) = random_images(3, classes=100)
ARRAYS = {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES[:1], "y_test": LABELS[:1]}


def npz(**members: bytes | np.ndarray) -> bytes:
    """Return an archive of arrays; bytes replace an array."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in members.items():
            if isinstance(member, np.ndarray):
                buffer = io.BytesIO()
                np.save(buffer, member, allow_pickle=True)
                member = buffer.getvalue()
            archive.writestr(f"{name}.npy", member)
    return stream.getvalue()


def header(text: str, version: tuple[int, int] = (1, 0)) -> bytes:
    encoded = text.encode("utf-8", "replace")
    length = len(encoded).to_bytes(2 if version == (1, 0) else 4, "little")
    return np.lib.format.magic(*version) + length + encoded


def load(directory: Path) -> None:
    check(load_npz("cifar100", directory / "cifar100.npz"))


def check(dataset: ImageDataset) -> None:
    """Check the invariants of a loaded data set."""
    for x, y in ((dataset.x_train, dataset.y_train), (dataset.x_test, dataset.y_test)):
        assert (x.dtype, x.shape[1:], y.dtype, y.shape) == (np.uint8, (32, 32, 3), np.int64, (len(x),))
        assert y.min() >= 0
        assert y.max() < 100
    assert len(dataset.fingerprint) == 64


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("npz") / "cifar100.npz"


HEADER = b"{'descr': '|u1', 'fortran_order': False, 'shape': (3, 32, 32, 3), }"
HEADER_TOKENS = (
    *b"'|O' '<i8' '>u8' '<f4' '|b1' '<U9' '<M8[ns]' 'V3072' '|u99' '|u1,|u1' True None L 1e9 () (3,) (3.0,) '".split(),
    *(b"[('a', '|O')]", b"[('a', '|u1', (9999999, 9999999))]", b"('|u1', (2**9,))", b"__import__('os').system('x')"),
    *(b"(-1, 32, 32, 3)", b"(99999999, 32, 32, 3)", b"(%d, 32, 32, 3)" % 10**30, b"", b"\0", b"\n"),
    *(b"(" * 500, b"-" * 5000, b"[" * 5000, b"9" * 5000),
)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@times_examples(1)
@given(data=st.data())
def test_damaged_npz_file_loads_or_is_an_error(archive: Path, save: Any, data: st.DataObject) -> None:
    stream = io.BytesIO()
    save(stream, **ARRAYS)
    archive.write_bytes(data.draw(damaged(stream.getvalue(), (b"PK\x01\x02", b"PK\x05\x06", b"\xff" * 8, b"x_train"))))
    is_refused(PaperbenchError, load, archive.parent)


@pytest.mark.filterwarnings("ignore:Reading .* required additional header parsing")
@times_examples(2)
@given(
    name=st.sampled_from(list(ARRAYS)),
    text=damaged(HEADER, HEADER_TOKENS),
    version=st.sampled_from([(1, 0), (1, 0), (2, 0), (3, 0), (9, 9)]),
    values=st.sampled_from([b"", bytes(3), bytes(3 * 3072), bytes(4 * 3072)]),
)
def test_damaged_array_header_loads_or_is_an_error(
    archive: Path, name: str, text: bytes, version: tuple[int, int], values: bytes
) -> None:
    member = header(text.decode("latin-1"), version) + values
    archive.write_bytes(npz(**{**ARRAYS, name: member}))
    is_refused(PaperbenchError, load, archive.parent)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an image in a directory with one per class."""
    directory = tmp_path_factory.mktemp("images")
    for part in ("train", "test"):
        for label in range(10):
            (directory / part / str(label)).mkdir(parents=True)
            Image.fromarray(IMAGES[0]).save(directory / part / str(label) / "a.png")
    return directory / "test" / "7" / "a.png"


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
@times_examples(1)
@given(data=st.data())
def test_damaged_image_loads_or_is_an_error(image: Path, kind: str, data: st.DataObject) -> None:
    stream = io.BytesIO()
    Image.fromarray(IMAGES[1]).save(stream, kind)
    tokens = (b"IHDR", b"IEND", b"tEXt", b"\xff\xc0", b"\xff\xd9", b"\xff" * 8, bytes(8), b"\x00\x01\x00\x00")
    image.write_bytes(data.draw(damaged(stream.getvalue(), tokens)))

    def load_directory() -> None:
        check(load_images("cifar10", image.parents[2]))

    is_refused(PaperbenchError, load_directory)
