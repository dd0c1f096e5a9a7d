from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable
from http.client import IncompleteRead
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torchvision.datasets as tv
from torchvision.datasets import utils

from paperbench.data.cifar_batches import MD5
from paperbench.data.download import download
from paperbench.errors import PaperbenchError

BATCHES, ARCHIVE = "cifar-100-python", tv.CIFAR100.filename
CONTENTS = {"train": b"training images", "test": b"test images", "meta": b"names"}


def member(name: str, content: bytes = b"evil", kind: bytes = tarfile.REGTYPE, target: str = "") -> Any:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, len(content)
    return info, content


GOOD = [member(f"{BATCHES}/{name}", content) for name, content in CONTENTS.items()]


def archive_of(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def fake_download(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes | Exception], list[Any]]:
    """Return a function that makes downloads yield these bytes or this error, and returns the list of requests."""
    train, test = ({name: hashlib.md5(CONTENTS[name]).hexdigest()} for name in ("train", "test"))
    monkeypatch.setitem(MD5, "cifar100", (train, test))

    def replace_download(result: bytes | Exception) -> list[Any]:
        requests: list[Any] = []

        def fetch(url: str, root: Path, filename: str, md5: str) -> None:
            requests.append((url, root, filename, md5))
            if isinstance(result, Exception):
                raise result
            (root / filename).write_bytes(result)

        monkeypatch.setattr(utils, "download_url", fetch)
        return requests

    return replace_download


def error_message(key: str, directory: Path) -> str:
    with pytest.raises(PaperbenchError) as caught:
        download(key, directory)
    return str(caught.value)


def files_under(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


@pytest.mark.parametrize("error", [URLError("no name resolution"), IncompleteRead(b"", 100)])
def test_failed_download_explains_the_manual_way(directory: Path, fake_download: Any, error: Exception) -> None:
    fake_download(error)
    message = error_message("cifar10", directory)
    assert f"Download of CIFAR-10 failed ({error})" in message
    assert tv.CIFAR10.url in message
    assert f"unpack it in {directory} (this creates cifar-10-batches-py/ with 6 batch files)" in message


def test_torchvisions_archive_is_downloaded_and_unpacked_once(directory: Path, fake_download: Any) -> None:
    requests = fake_download(archive_of([*GOOD, member("outside the directory")]))
    directory = directory / "of" / "images"
    (directory / f"{BATCHES}.tmp" / BATCHES / "left by a killed process").mkdir(parents=True)
    for _ in range(2):
        assert download("cifar100", directory) == directory / BATCHES
        assert requests == [(tv.CIFAR100.url, directory, ARCHIVE, tv.CIFAR100.tgz_md5)]
        assert {name: (directory / BATCHES / name).read_bytes() for name in CONTENTS} == CONTENTS
        assert files_under(directory) == {BATCHES, ARCHIVE, *(f"{BATCHES}/{name}" for name in CONTENTS)}


@pytest.mark.parametrize("content", [None, b"other images"])
def test_directory_with_wrong_files_is_unchanged(directory: Path, fake_download: Any, content: bytes | None) -> None:
    requests = fake_download(archive_of(GOOD))
    (directory / BATCHES).mkdir(parents=True)
    (directory / BATCHES / "train").write_bytes(CONTENTS["train"])
    if content:
        (directory / BATCHES / "test").write_bytes(content)
    before = files_under(directory)
    message = error_message("cifar100", directory)
    assert ("md5 mismatch: test." if content else "test is missing.") in message
    assert "Move this directory away, then run `paperbench data download cifar100`" in message
    assert (files_under(directory), requests) == (before, [])


FAILED = "Download of CIFAR-100 failed ("


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (archive_of([*GOOD, member("../evil")]), FAILED),
        (archive_of([*GOOD, member(f"{BATCHES}/evil", b"", tarfile.SYMTYPE, "../../../outside")]), FAILED),
        (archive_of(GOOD)[:100], FAILED),
        (archive_of([GOOD[0], member(f"{BATCHES}/test")]), "md5 mismatch: test."),
    ],
    ids=["file outside", "symlink to the outside", "cut", "other images"],
)
def test_unsafe_or_damaged_archive_leaves_no_files(
    tmp_path: Path, directory: Path, fake_download: Any, content: bytes, message: str
) -> None:
    (tmp_path / "outside").write_bytes(b"untouched")
    fake_download(content)
    assert message in error_message("cifar100", directory)
    assert files_under(tmp_path) == {"outside", "data", f"data/{ARCHIVE}"}
    assert (tmp_path / "outside").read_bytes() == b"untouched"


@pytest.mark.parametrize(
    ("key", "advice"),
    [("digits", "scikit-learn"), ("photos", "scikit-learn"), ("imagenet", "image-net.org"), ("cifar", "Did you mean")],
)
def test_other_data_sets_are_no_download(directory: Path, key: str, advice: str) -> None:
    with pytest.raises(PaperbenchError, match=advice):
        download(key, directory)
