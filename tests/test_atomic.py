from __future__ import annotations

import os
from pathlib import Path

import pytest

from paperbench import atomic
from paperbench.atomic import write_atomically
from paperbench.errors import PaperbenchError
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

    monkeypatch.setattr(atomic, "open", lambda *of: HalfWritten(open(*of), fail), raising=False)  # noqa: SIM115


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
