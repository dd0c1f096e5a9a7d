from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from paperbench.errors import PaperbenchError, RunError
from paperbench.runs.checkpoints import Checkpoints, DamagedCheckpointError


def iterations(checkpoints: Checkpoints) -> list[int]:
    return [file.iteration for file in checkpoints.newest_first()]


def test_a_name_holds_iteration_and_hash(tmp_path: Path) -> None:
    file = Checkpoints(tmp_path).write(64_000, b"state")
    assert file.path.name == f"checkpoint-64000-{hashlib.sha256(b'state').hexdigest()[:16]}.pt"
    assert file.read() == b"state"
    assert Checkpoints(tmp_path).newest_first() == [file]


def test_they_come_by_iteration_and_not_by_name(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for iteration in (900, 1000, 20):
        checkpoints.write(iteration, b"%d" % iteration)
    assert iterations(checkpoints) == [1000, 900, 20]


@pytest.mark.parametrize(("keep_previous", "left"), [(True, [30, 20]), (False, [30])])
def test_pruning_leaves_the_newest_and_perhaps_the_one_before(
    tmp_path: Path, keep_previous: bool, left: list[int]
) -> None:
    checkpoints = Checkpoints(tmp_path)
    for iteration in (10, 20):
        checkpoints.write(iteration, b"")
    checkpoints.write(30, b"of another session")
    newest = checkpoints.write(30, b"")
    (tmp_path / "checkpoint-best.pt").touch()
    checkpoints.prune(newest, keep_previous=keep_previous)
    assert iterations(checkpoints) == left
    assert newest.read() == b""
    assert (tmp_path / "checkpoint-best.pt").exists()


@pytest.mark.parametrize("content", [b"", b"stat", b"State", b"state\n"])
def test_what_does_not_have_its_hash_is_damaged(tmp_path: Path, content: bytes) -> None:
    file = Checkpoints(tmp_path).write(8, b"state")
    file.path.write_bytes(content)
    with pytest.raises(DamagedCheckpointError, match="does not hold what was written: its hash is another"):
        file.read()


def test_what_cannot_be_read_is_not_called_damaged(tmp_path: Path) -> None:
    file = Checkpoints(tmp_path).write(8, b"state")
    file.path.unlink()
    file.path.mkdir()
    with pytest.raises(RunError, match=r"cannot be read: Is a directory\. Mend that") as caught:
        file.read()
    assert not isinstance(caught.value, DamagedCheckpointError)


def test_a_damaged_one_is_set_aside_and_not_looked_for(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(8, b"good")
    aside = checkpoints.set_aside(checkpoints.write(16, b"bad"))
    assert iterations(checkpoints) == [8]
    assert checkpoints.damaged() == [aside]
    assert aside.read_bytes() == b"bad"


def test_other_names_are_no_checkpoints(tmp_path: Path) -> None:
    for name in ("checkpoint.pt", "checkpoint-1-0123.pt", "checkpoint-x-0123456789abcdef.pt", "checkpoint-1.pt.tmp"):
        (tmp_path / name).touch()
    (tmp_path / "checkpoint-8-0123456789abcdef.pt.12.tmp").touch()
    assert Checkpoints(tmp_path).newest_first() == []
    assert Checkpoints(tmp_path / "missing").newest_first() == []


def test_folders_of_two_stores_can_be_copied_over_each_other(tmp_path: Path) -> None:
    """Whichever record wins, the farther checkpoint stays and is gone on from."""
    for store, reached in (("a", 16), ("b", 24)):
        Checkpoints(tmp_path / store).write(reached, store.encode())
    for file in Checkpoints(tmp_path / "a").newest_first():
        file.path.rename(tmp_path / "b" / file.path.name)
    assert iterations(Checkpoints(tmp_path / "b")) == [24, 16]


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PaperbenchError, match="cannot be written"):
        Checkpoints(tmp_path / "file").write(8, b"")
