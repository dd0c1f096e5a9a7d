from __future__ import annotations

import os
from pathlib import Path

import pytest

from paperbench import files
from paperbench.errors import PaperbenchError
from paperbench.files import read_at_most, write_atomically
from tests.helpers import HalfWritten


def test_a_new_file_is_written_and_nothing_else(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    write_atomically(tmp_path / "b" / "c" / "a", b"new")
    assert (tmp_path / "b" / "c" / "a").read_bytes() == b"new"


def break_writes(monkeypatch: pytest.MonkeyPatch, error: BaseException | None) -> None:
    """Let half of every write reach the disk; then comes the error or, without one, a lie."""

    def fail() -> bool:
        if error:
            raise error
        return False

    monkeypatch.setattr(files, "open", lambda *of: HalfWritten(open(*of), fail), raising=False)  # noqa: SIM115


@pytest.mark.parametrize("error", [RuntimeError("in the middle"), KeyboardInterrupt()])
def test_an_error_in_the_middle_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    (tmp_path / "a").write_bytes(b"old")
    break_writes(monkeypatch, error)
    with pytest.raises(type(error)):
        write_atomically(tmp_path / "a", b"something new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, os.strerror(28)), r"a cannot be written: No space left on device\. Make room or choose"),
        (None, r"a cannot be written: what was written does not read back the same\. Choose"),
    ],
    ids=["full disk", "silent loss"],
)
def test_a_write_that_fails_is_told_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError | None, message: str
) -> None:
    (tmp_path / "a").write_bytes(b"old")
    break_writes(monkeypatch, error)
    with pytest.raises(PaperbenchError, match=message):
        write_atomically(tmp_path / "a", b"something new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_the_old_file_is_there_until_the_new_one_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"old")
    seen = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (seen.append((tmp_path / "a").read_bytes()), fsync(fd)))
    write_atomically(tmp_path / "a", b"new")
    assert seen == [b"old", b"new"], "the file before it is renamed, its folder after"


def test_a_folder_that_cannot_hold_the_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PaperbenchError, match=r"a cannot be written: (Not a directory|File exists)\."):
        write_atomically(tmp_path / "file" / "a", b"new")


def test_a_file_of_the_largest_size_is_read_and_one_byte_more_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1234")
    assert read_at_most(tmp_path / "file", 4) == b"1234"
    with pytest.raises(OSError, match="its 4 bytes are more than the 3 of any such file"):
        read_at_most(tmp_path / "file", 3)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is no ordinary file"):
        read_at_most(tmp_path / "pipe", 100)


def test_a_device_that_never_ends_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="it is no ordinary file"):
        read_at_most(tmp_path / "link", 100)


@pytest.mark.parametrize(("name", "error"), [("", IsADirectoryError), ("nowhere", FileNotFoundError)])
def test_what_cannot_be_read_is_told_as_ever(tmp_path: Path, name: str, error: type[OSError]) -> None:
    with pytest.raises(error):
        read_at_most(tmp_path / name, 100)
