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

FOLDER = "cifar-100-python"
CONTENTS = {"train": b"training images", "test": b"test images", "meta": b"names"}
SUMS = {name: hashlib.md5(content).hexdigest() for name, content in CONTENTS.items()}


def plain(name: str, content: bytes = b"evil") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    return info, content


def special(name: str, kind: bytes, target: str = "") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


FOLDER_ITSELF = special(FOLDER, tarfile.DIRTYPE)
GOOD = [FOLDER_ITSELF, *(plain(f"{FOLDER}/{name}", content) for name, content in CONTENTS.items())]


def archive_of(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], list[Any]]:
    """Makes the archive that a download fetches, of the three small files; returns the list of what is asked for."""

    def fetch_instead(content: bytes) -> list[Any]:
        asked: list[Any] = []

        def fetch(url: str, root: Path, filename: str, md5: str) -> None:
            asked.append((url, root, filename, md5))
            (root / filename).write_bytes(content)

        monkeypatch.setattr(utils, "download_url", fetch)
        monkeypatch.setitem(MD5, "cifar100", ({"train": SUMS["train"]}, {"test": SUMS["test"]}))
        return asked

    return fetch_instead


def complaint(key: str, directory: Path) -> str:
    with pytest.raises(PaperbenchError) as caught:
        download(key, directory)
    return str(caught.value)


def files_under(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def failing(error: Exception) -> Any:
    def fetch(*_: Any) -> None:
        raise error

    return fetch


@pytest.mark.parametrize(
    "error",
    [
        URLError("Temporary failure in name resolution"),
        RuntimeError("File not found or corrupted."),
        TimeoutError("timed out"),
        IncompleteRead(b"", 100),
    ],
)
def test_a_download_that_fails_says_how_to_get_the_data_otherwise(
    directory: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(utils, "download_url", failing(error))
    told = complaint("cifar10", directory)
    assert f"CIFAR-10 could not be downloaded ({error})" in told
    assert tv.CIFAR10.url in told
    assert f"unpack it in {directory} (it makes cifar-10-batches-py/ with 6 batch files)" in told


def test_a_download_asks_for_torchvisions_archive_and_unpacks_it(directory: Path, fetches: Any) -> None:
    asked = fetches(archive_of(GOOD))
    directory = directory / "of" / "images"
    assert download("cifar100", directory) == directory / FOLDER
    assert asked == [(tv.CIFAR100.url, directory, tv.CIFAR100.filename, tv.CIFAR100.tgz_md5)]
    assert {name: (directory / FOLDER / name).read_bytes() for name in CONTENTS} == CONTENTS
    assert files_under(directory) == {FOLDER, tv.CIFAR100.filename, *(f"{FOLDER}/{name}" for name in CONTENTS)}


def test_nothing_is_fetched_if_the_files_are_there(directory: Path, fetches: Any) -> None:
    asked = fetches(archive_of(GOOD))
    download("cifar100", directory)
    (directory / FOLDER / "meta").unlink()  # holds no images
    assert download("cifar100", directory) == directory / FOLDER
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "test is missing"), (b"other images", "by their md5 sums, these are other files: test")],
)
def test_a_folder_with_other_files_is_left_as_it_is(
    directory: Path, fetches: Any, content: bytes | None, problem: str
) -> None:
    asked = fetches(archive_of(GOOD))
    (directory / FOLDER).mkdir(parents=True)
    (directory / FOLDER / "train").write_bytes(CONTENTS["train"])
    if content:
        (directory / FOLDER / "test").write_bytes(content)
    before = files_under(directory)
    told = complaint("cifar100", directory)
    assert f"{directory / FOLDER} does not hold the original CIFAR-100: {problem}." in told
    assert "move this folder away and use `paperbench data download cifar100`" in told
    assert (files_under(directory), asked) == (before, [])


@pytest.mark.parametrize(
    "member",
    [
        plain("../evil"),
        special(f"{FOLDER}/evil", tarfile.SYMTYPE, "../../../outside"),
        special(f"{FOLDER}/evil", tarfile.LNKTYPE, "../outside"),
        special(f"{FOLDER}/evil", tarfile.FIFOTYPE),
    ],
    ids=lambda member: member[0].type.decode(),
)
@pytest.mark.parametrize("is_first", [True, False])
def test_an_archive_that_reaches_outside_is_refused_and_leaves_nothing(
    tmp_path: Path, directory: Path, fetches: Any, member: Any, is_first: bool
) -> None:
    (tmp_path / "outside").write_bytes(b"untouched")
    fetches(archive_of([member, *GOOD] if is_first else [*GOOD, member]))
    assert "CIFAR-100 could not be downloaded (" in complaint("cifar100", directory)
    assert files_under(tmp_path) == {"outside", "data", f"data/{tv.CIFAR100.filename}"}
    assert (tmp_path / "outside").read_bytes() == b"untouched"


def test_what_an_archive_holds_beside_the_folder_is_left_out(directory: Path, fetches: Any) -> None:
    fetches(archive_of([plain("evil"), *GOOD]))
    download("cifar100", directory)
    assert files_under(directory) == {FOLDER, tv.CIFAR100.filename, *(f"{FOLDER}/{name}" for name in CONTENTS)}


@pytest.mark.parametrize(
    "content",
    [*(archive_of(GOOD)[:length] for length in (0, 20, 100)), b"<html>not found</html>", b"\x1f\x8b\x08" + bytes(40)],
    ids=range(5),
)
def test_a_damaged_archive_is_refused_and_leaves_nothing(directory: Path, fetches: Any, content: bytes) -> None:
    fetches(content)
    assert "CIFAR-100 could not be downloaded (" in complaint("cifar100", directory)
    assert files_under(directory) == {tv.CIFAR100.filename}


def test_an_archive_with_other_images_is_refused(directory: Path, fetches: Any) -> None:
    fetches(archive_of([FOLDER_ITSELF, plain(f"{FOLDER}/train", CONTENTS["train"]), plain(f"{FOLDER}/test")]))
    assert "by their md5 sums, these are other files: test" in complaint("cifar100", directory)
    assert files_under(directory) == {tv.CIFAR100.filename}


def test_what_a_killed_process_left_is_in_nobodys_way(directory: Path, fetches: Any) -> None:
    fetches(archive_of(GOOD))
    (directory / f"{FOLDER}.tmp" / FOLDER).mkdir(parents=True)
    (directory / f"{FOLDER}.tmp" / FOLDER / "half").touch()
    download("cifar100", directory)
    assert files_under(directory / FOLDER) == set(CONTENTS)
    assert not (directory / f"{FOLDER}.tmp").exists()


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(utils, "download_url", failing(AssertionError("must not be asked")))
    (tmp_path / "file").touch()
    assert "cannot be made or read: Not a directory" in complaint("cifar10", tmp_path / "file" / "data")


@pytest.mark.parametrize(("key", "message"), [("digits", "nothing to download"), ("cifar", "Did you mean 'cifar10'")])
def test_what_has_no_download_is_refused(tmp_path: Path, key: str, message: str) -> None:
    assert message in complaint(key, tmp_path)
