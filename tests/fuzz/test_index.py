from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paperbench.data.imagenet.build import index_images
from paperbench.data.imagenet.index import PhotoDataset
from paperbench.data.imagenet.index_file import FILE_NAME
from paperbench.data.sources import load_dataset
from paperbench.errors import PaperbenchError
from tests.data.imagenet.miniature import write_folders
from tests.fuzz.strategies import damaged, is_refused, share_of_examples

TOKENS = (
    *(b"train", b"test ", b"\n", b" ", b"%", b"%00", b"../", b"/", b"\0", b"\xff", b"9" * 18, b"-1", b"0000", b"1000"),
    *(b"{", b"}", b"null", b"true", b'"proven":', b"sha256 ", b"1e9", b"a" * 64, b"[" * 5_000, b"x" * 5_000),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("data")
    index_images(write_folders(data / "images"), data, io.StringIO(), threads=1, accepts_subset=True)
    return data


@pytest.fixture(scope="module")
def original(data: Path) -> bytes:
    return (data / FILE_NAME).read_bytes()


def check(data: Path) -> None:
    """Load the index, and check what batches rely on."""
    dataset = load_dataset("imagenet", data)
    assert isinstance(dataset, PhotoDataset)
    for files in (dataset.train, dataset.test):
        assert all(0 <= label < 1_000 for label in files.labels)
        assert all(0 <= container < len(files.paths) for container in files.container)
        assert (files.offsets >= 0).all()
        assert (files.lengths > 0).all()
        for number in range(min(len(files), 3)):
            is_refused(PaperbenchError, files.read, number)


@pytest.mark.parametrize("has_checksum", [False, True], ids=["as it is", "with its checksum"])
@given(draw=st.data())
def test_damaged_index_loads_or_is_an_error(
    has_checksum: bool, data: Path, original: bytes, draw: st.DataObject
) -> None:
    text, checksum = original[:-72], original[-72:]
    text = draw.draw(damaged(text if has_checksum else original, TOKENS))
    if has_checksum:
        text += checksum[:7] + hashlib.sha256(text).hexdigest().encode() + b"\n"
    (data / FILE_NAME).write_bytes(text)
    is_refused(PaperbenchError, check, data)


@share_of_examples(4)
@given(draw=st.data())
def test_damaged_lines_never_make_a_wrong_index(data: Path, original: bytes, draw: st.DataObject) -> None:
    (data / FILE_NAME).unlink(missing_ok=True)
    lines = original[original.index(b"\n") + 1 :]
    (data / f"{FILE_NAME}.partial").write_bytes(draw.draw(damaged(lines, TOKENS)))
    try:
        index_images(data / "images", data, io.StringIO(), threads=1, accepts_subset=True)
        dataset = load_dataset("imagenet", data)
    finally:
        (data / f"{FILE_NAME}.partial").unlink(missing_ok=True)
    assert isinstance(dataset, PhotoDataset)
    assert (len(dataset.train), len(dataset.test)) == (20, 10)
