from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from paperbench.errors import PaperbenchError
from paperbench.runs import claim as claim_module
from paperbench.runs.claim import Claim, ClaimLostError, take_any
from paperbench.runs.planning import PlannedRun
from paperbench.runs.store import Store
from tests.runs.running import Log, assert_same, go

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results" / "claims" / "abc-s0"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_module, "LEASE_SECONDS", 1.5)
    monkeypatch.setattr(claim_module, "HEARTBEAT_SECONDS", 0.3)


def end(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
    except (ProcessLookupError, ChildProcessError):
        pass  # it was ended before


@pytest.fixture
def holder(path: Path) -> Iterator[Callable[..., int]]:
    """Starts a process that holds the claim until it is killed, here or on what looks like another machine."""
    children = []

    def start(*, elsewhere: bool = False) -> int:
        ready, told = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                if elsewhere:
                    socket.gethostname = lambda: "another-machine"
                mine = Claim(path)
                os.write(told, b"y" if mine.take() else b"n")
                time.sleep(100)
            finally:
                os._exit(0)
        children.append(child)
        assert os.read(ready, 1) == b"y"
        return child

    yield start
    for child in children:
        end(child)


def test_a_claim_is_held_until_it_is_released(path: Path) -> None:
    for _ in range(2):
        mine = Claim(path)
        assert mine.take()
        with mine.held():
            assert path.exists()
            mine.check()
        assert not path.exists()


def test_a_claim_is_released_whatever_happens(path: Path) -> None:
    mine = Claim(path)
    mine.take()
    with pytest.raises(KeyboardInterrupt), mine.held():
        raise KeyboardInterrupt
    assert not path.exists()


def test_a_living_process_keeps_its_claim_and_a_dead_ones_is_free_at_once(
    path: Path, holder: Callable[..., int]
) -> None:
    process = holder()
    contender = Claim(path)
    assert not contender.take()
    end(process)
    assert contender.take()
    with contender.held():
        pass


@pytest.mark.usefixtures("impatient")
def test_a_claim_on_another_machine_lasts_while_it_beats(path: Path, holder: Callable[..., int]) -> None:
    holder(elsewhere=True)
    claims = {"abc-s0": Claim(path)}
    began = time.monotonic()
    assert take_any(claims, lambda: False) is None
    assert claims == {}, "it showed a sign of life"
    assert time.monotonic() - began < 1.5, "which did not take the whole lease to see"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_claim_on_another_machine_is_taken_once_it_has_not_beaten_for_the_lease(
    path: Path, holder: Callable[..., int], fate: signal.Signals
) -> None:
    os.kill(holder(elsewhere=True), fate)
    contender = Claim(path)
    assert not contender.take()
    began = time.monotonic()
    assert take_any({"abc-s0": contender}, lambda: False) == "abc-s0"
    assert time.monotonic() - began > 1.0
    with contender.held():
        contender.check()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("jump", [-1e9, 1e9])
def test_clocks_that_are_wrong_or_jump_neither_free_nor_prolong_a_claim(
    path: Path, holder: Callable[..., int], jump: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = holder(elsewhere=True)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + jump)
    assert not Claim(path).take()
    assert take_any({"abc-s0": Claim(path)}, lambda: False) is None
    os.kill(process, signal.SIGKILL)
    os.utime(path, (now + jump, now + jump))
    contender = Claim(path)
    assert take_any({"abc-s0": contender}, lambda: False) == "abc-s0"
    with contender.held():
        pass


@pytest.mark.usefixtures("impatient")
def test_a_watch_can_be_cancelled(path: Path, holder: Callable[..., int]) -> None:
    os.kill(holder(elsewhere=True), signal.SIGSTOP)
    claims = {"abc-s0": Claim(path)}
    assert take_any(claims, lambda: True) is None
    assert list(claims) == ["abc-s0"], "nothing is known about it"


@pytest.mark.usefixtures("impatient")
def test_a_run_that_was_taken_over_is_left_to_the_other_process(run: PlannedRun, tmp_path: Path) -> None:
    """This process was suspended for too long; somebody on another machine took its run."""
    claim_file = tmp_path / "part" / "claims" / run.id

    class Robbed(Log):
        def stepped(self, iteration: int) -> None:
            super().stepped(iteration)
            if iteration == 10:
                text = claim_file.read_text()
                claim_file.unlink()
                claim_file.write_text(text.replace("token=", "token=0"))
                self.before = {path.name: path.read_bytes() for path in directory.path.iterdir()}
            if iteration > 10:
                time.sleep(0.3)

    directory = Store(tmp_path / "part").directory(run.id)
    _, log = go(run, tmp_path / "part", log=Robbed())
    ((_, why),) = log.skips
    assert "another process took this run over" in why
    assert len(log.steps) < 20
    claim_file.unlink()
    directory, _ = go(run, tmp_path / "part")
    assert_same(directory, go(run, tmp_path / "whole")[0])


def test_a_lost_claim_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Claim(path)
    monkeypatch.setattr(type(mine._lease), "compromise", "somebody")
    with pytest.raises(ClaimLostError, match="no sign of life for 60 s"):
        mine.check()


def test_a_place_where_no_claim_can_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PaperbenchError, match=r"cannot be written: Not a directory\. Make room or choose another"):
        Claim(tmp_path / "file" / "claims" / "abc-s0").take()
