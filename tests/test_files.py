from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from paperbench.errors import PaperbenchError
from paperbench.files import UNGUARDED, Writer, read_at_most, report_write_errors, write_named
from tests.limits import limit_file_size


def test_new_file_and_its_directory_are_created(tmp_path: Path) -> None:
    UNGUARDED.write(tmp_path / "b" / "c" / "a", b"new")
    (file,) = (tmp_path / "b" / "c").iterdir()
    assert (file.name, file.read_bytes()) == ("a", b"new")


@pytest.mark.parametrize("error", [RuntimeError("in the middle"), KeyboardInterrupt("Ctrl-C")])
def test_write_that_is_cut_short_keeps_the_old_file(tmp_path: Path, error: BaseException) -> None:
    def parts() -> Iterator[bytes]:
        yield b"something"
        raise error

    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(type(error), match=str(error)):
        UNGUARDED.write(tmp_path / "a", parts())
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"old"}


def test_write_that_does_not_fit_keeps_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with limit_file_size(5), pytest.raises(PaperbenchError, match=r"a cannot be written: File too large\. Raise the"):
        UNGUARDED.write(tmp_path / "a", b"something new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"old"}


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "No space left on device. Free some space or choose another directory (`--results DIR`), and"),
        (errno.EDQUOT, "Disk quota exceeded. Free some space or choose another directory (`--results DIR`), and run"),
        (errno.EMFILE, "Too many open files. Raise the limit (see `ulimit -a`), and run the same command again."),
        (errno.EACCES, "Permission denied. Choose another directory (`--results DIR`), and run the same command again"),
    ],
)
def test_error_of_a_write_says_what_to_do(number: int, advice: str) -> None:
    expected = pytest.raises(PaperbenchError, match=re.escape(f"a cannot be written: {advice}"))
    with expected, report_write_errors(Path("a")):
        raise OSError(number, os.strerror(number))


def test_loss_of_what_was_written_is_noticed_before_the_old_file_goes(tmp_path: Path) -> None:
    """The second part finds the file with the first part, and cuts it short as a failing disk would."""

    def parts() -> Iterator[bytes]:
        yield b"x" * 100_000  # more than a buffer
        (temporary,) = tmp_path.glob("*.tmp")
        os.truncate(temporary, 50_000)
        yield b"new"

    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(PaperbenchError, match=r"a cannot be written: the file does not read back as written\."):
        UNGUARDED.write(tmp_path / "a", parts())
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"old"}


def test_old_file_stays_until_new_one_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"old")
    contents = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (contents.append((tmp_path / "a").read_bytes()), fsync(fd)))
    UNGUARDED.write(tmp_path / "a", b"new")
    assert contents == [b"old", b"new"], "the file is synced before it is renamed, its directory after"


class LostError(PaperbenchError):
    """Another process has taken over."""


def lost_after(checks: int) -> Writer:
    """Return a writer whose guard permits only the given number of checks."""
    left = iter([None] * checks)

    def guard() -> None:
        if next(left, LostError) is LostError:
            raise LostError

    return Writer(guard)


@pytest.mark.parametrize("checks", [0, 1])
@pytest.mark.parametrize("name", ["file", "directory"])
def test_rename_that_comes_too_late_is_undone(tmp_path: Path, name: str, checks: int) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_bytes(b"finished")
    with pytest.raises(LostError):
        lost_after(checks).rename(tmp_path / name, tmp_path / "aside")
    with pytest.raises(LostError):
        lost_after(0).remove(tmp_path / "file")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "directory"}


def test_undoing_a_change_keeps_what_was_written_since(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"damaged")
    checks = iter([lambda: None, lambda: (tmp_path / "a").write_bytes(b"new")])

    def guard() -> None:
        if next(checks)():
            raise LostError

    with pytest.raises(LostError):
        Writer(guard).set_aside(tmp_path / "a")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"new", "a.damaged": b"damaged"}


def test_missing_file_is_removed_already(tmp_path: Path) -> None:
    UNGUARDED.remove(tmp_path / "a")


def test_file_in_place_of_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PaperbenchError, match=r"a cannot be written: (Not a directory|File exists)\."):
        UNGUARDED.write(tmp_path / "file" / "a", b"new")


def test_size_limit_is_inclusive(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1234")
    assert read_at_most(tmp_path / "file", 4) == b"1234"
    with pytest.raises(OSError, match="its 4 bytes are more than the 3 allowed"):
        read_at_most(tmp_path / "file", 3)


def test_pipes_and_devices_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for name in ("pipe", "link"):
        with pytest.raises(OSError, match="it is not a regular file"):
            read_at_most(tmp_path / name, 100)


@pytest.mark.parametrize("kind", ["pipe", "link to a device", "link to a file", "directory"])
def test_a_named_file_never_replaces_a_link_or_device(tmp_path: Path, kind: str) -> None:
    path, target = tmp_path / "out.svg", {"link to a device": Path("/dev/null")}.get(kind, tmp_path / "mine")
    (tmp_path / "mine").write_bytes(b"old")
    make = {"pipe": os.mkfifo, "directory": Path.mkdir}.get(kind, lambda one: one.symlink_to(target))
    make(path)
    before = path.lstat()
    with pytest.raises(PaperbenchError, match=r"svg cannot be written: it is not a regular file\. .*`--out FILE`"):
        write_named(path, b"new", "--out FILE")
    assert path.lstat().st_ino == before.st_ino
    assert (tmp_path / "mine").read_bytes() == b"old"


@pytest.mark.parametrize(("name", "error"), [("", IsADirectoryError), ("missing", FileNotFoundError)])
def test_other_read_errors_are_unchanged(tmp_path: Path, name: str, error: type[OSError]) -> None:
    with pytest.raises(error):
        read_at_most(tmp_path / name, 100)
