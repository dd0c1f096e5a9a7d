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

FOLDER, ARCHIVE = "cifar-100-python", tv.CIFAR100.filename
CONTENTS = {"train": b"training images", "test": b"test images", "meta": b"names"}


def member(name: str, content: bytes = b"evil", kind: bytes = tarfile.REGTYPE, target: str = "") -> Any:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, len(content)
    return info, content


GOOD = [member(f"{FOLDER}/{name}", content) for name, content in CONTENTS.items()]


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
def fetches(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes | Exception], list[Any]]:
    """Makes downloads end with these bytes or this error; returns the list of what is asked for."""
    train, test = ({name: hashlib.md5(CONTENTS[name]).hexdigest()} for name in ("train", "test"))
    monkeypatch.setitem(MD5, "cifar100", (train, test))

    def fetch_instead(result: bytes | Exception) -> list[Any]:
        asked: list[Any] = []

        def fetch(url: str, root: Path, filename: str, md5: str) -> None:
            asked.append((url, root, filename, md5))
            if isinstance(result, Exception):
                raise result
            (root / filename).write_bytes(result)

        monkeypatch.setattr(utils, "download_url", fetch)
        return asked

    return fetch_instead


def complaint(key: str, directory: Path) -> str:
    with pytest.raises(PaperbenchError) as caught:
        download(key, directory)
    return str(caught.value)


def files_under(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize(
    "error", [URLError("no name resolution"), RuntimeError("corrupted."), IncompleteRead(b"", 100)]
)
def test_a_download_that_fails_says_how_to_get_the_data_otherwise(
    directory: Path, fetches: Any, error: Exception
) -> None:
    fetches(error)
    message = complaint("cifar10", directory)
    assert f"CIFAR-10 could not be downloaded ({error})" in message
    assert tv.CIFAR10.url in message
    assert f"unpack it in {directory} (it makes cifar-10-batches-py/ with 6 batch files)" in message


def test_a_download_asks_for_torchvisions_archive_and_unpacks_it_once(directory: Path, fetches: Any) -> None:
    asked = fetches(archive_of([*GOOD, member("not in the folder")]))
    directory = directory / "of" / "images"
    (directory / f"{FOLDER}.tmp" / FOLDER / "of a killed process").mkdir(parents=True)
    for _ in range(2):
        assert download("cifar100", directory) == directory / FOLDER
        assert asked == [(tv.CIFAR100.url, directory, ARCHIVE, tv.CIFAR100.tgz_md5)]
        assert {name: (directory / FOLDER / name).read_bytes() for name in CONTENTS} == CONTENTS
        assert files_under(directory) == {FOLDER, ARCHIVE, *(f"{FOLDER}/{name}" for name in CONTENTS)}


@pytest.mark.parametrize("content", [None, b"other images"])
def test_a_folder_with_other_files_is_left_as_it_is(directory: Path, fetches: Any, content: bytes | None) -> None:
    asked = fetches(archive_of(GOOD))
    (directory / FOLDER).mkdir(parents=True)
    (directory / FOLDER / "train").write_bytes(CONTENTS["train"])
    if content:
        (directory / FOLDER / "test").write_bytes(content)
    before = files_under(directory)
    message = complaint("cifar100", directory)
    assert ("md5 mismatch: test." if content else "test is missing.") in message
    assert "move this folder away and use `paperbench data download cifar100`" in message
    assert (files_under(directory), asked) == (before, [])


@pytest.mark.parametrize(
    "evil",
    [
        member("../evil"),
        member(f"{FOLDER}/evil", b"", tarfile.SYMTYPE, "../../../outside"),
        member(f"{FOLDER}/evil", b"", tarfile.LNKTYPE, "../outside"),
        member(f"{FOLDER}/evil", b"", tarfile.FIFOTYPE),
    ],
    ids=["file", "symlink", "link", "pipe"],
)
def test_an_archive_that_reaches_outside_is_refused(tmp_path: Path, directory: Path, fetches: Any, evil: Any) -> None:
    (tmp_path / "outside").write_bytes(b"untouched")
    fetches(archive_of([*GOOD, evil]))
    assert "CIFAR-100 could not be downloaded (" in complaint("cifar100", directory)
    assert files_under(tmp_path) == {"outside", "data", f"data/{ARCHIVE}"}
    assert (tmp_path / "outside").read_bytes() == b"untouched"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((archive_of(GOOD)[:length], "CIFAR-100 could not be downloaded (") for length in (0, 100)),
        (b"\x1f\x8b\x08" + bytes(40), "CIFAR-100 could not be downloaded ("),
        (archive_of([GOOD[0], member(f"{FOLDER}/test")]), "md5 mismatch: test."),
    ],
    ids=range(4),
)
def test_a_damaged_or_altered_archive_leaves_nothing(
    directory: Path, fetches: Any, content: bytes, message: str
) -> None:
    fetches(content)
    assert message in complaint("cifar100", directory)
    assert files_under(directory) == {ARCHIVE}


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, fetches: Any) -> None:
    asked = fetches(b"")
    (tmp_path / "file").touch()
    assert "cannot be made or read: Not a directory" in complaint("cifar10", tmp_path / "file" / "data")
    assert asked == []
