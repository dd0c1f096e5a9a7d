from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import pytest

from paperbench.atomic import write_atomically
from paperbench.errors import PaperbenchError


def test_a_new_file_is_written_and_nothing_else(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", lambda stream: stream.write(b"new"))
    assert (tmp_path / "a").read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_an_old_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a longer old content")
    write_atomically(tmp_path / "a", lambda stream: stream.write(b"new"))
    assert (tmp_path / "a").read_bytes() == b"new"


@pytest.mark.parametrize("error", [RuntimeError("in the middle"), KeyboardInterrupt()])
def test_a_writer_that_raises_midway_leaves_the_old_file_and_no_other(tmp_path: Path, error: BaseException) -> None:
    (tmp_path / "a").write_bytes(b"old")

    def write(stream: BinaryIO) -> None:
        stream.write(b"half of the n")
        stream.flush()
        raise error

    with pytest.raises(type(error)):
        write_atomically(tmp_path / "a", write)
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_full_disk_is_told_and_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")

    def write(stream: BinaryIO) -> None:
        stream.write(b"half of the n")
        raise OSError(28, os.strerror(28))

    with pytest.raises(PaperbenchError, match=r"a cannot be written: No space left on device\. Make room or choose"):
        write_atomically(tmp_path / "a", write)
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_the_old_file_is_there_until_the_new_one_is_complete(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    seen = []

    def write(stream: BinaryIO) -> None:
        stream.write(b"new")
        stream.flush()
        seen.append((tmp_path / "a").read_bytes())

    write_atomically(tmp_path / "a", write)
    assert seen == [b"old"]


@pytest.mark.parametrize("inside", ["missing/a", "file/a"])
def test_a_folder_that_cannot_hold_the_file_is_told(tmp_path: Path, inside: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PaperbenchError, match=r"a cannot be written: No(t a| such file or) directory\."):
        write_atomically(tmp_path / inside, lambda stream: stream.write(b"new"))
