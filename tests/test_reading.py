from __future__ import annotations

import os
from pathlib import Path

import pytest

from paperbench.reading import read_at_most


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
