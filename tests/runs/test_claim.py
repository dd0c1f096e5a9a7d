from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paperbench.errors import PaperbenchError
from paperbench.runs import claim as claim_module
from paperbench.runs.claim import Claim, ClaimLostError, take_any
from paperbench.runs.planning import PlannedRun
from paperbench.runs.store import Store
from paperbench.training.trainer import Trainer
from tests.runs.running import Log, assert_same, go

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "results" / "claims"


RUN = "abc-s0"


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
def holder(folder: Path) -> Iterator[Callable[..., int]]:
    """Starts a process that holds the claim until it is killed, here or on what looks like another machine."""
    children = []

    def start(*, elsewhere: bool = False) -> int:
        ready, told = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                if elsewhere:
                    claim_module._machine = lambda: "another machine"
                mine = Claim(folder, RUN)
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


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_claim_is_held_until_it_is_released(folder: Path) -> None:
    for _ in range(2):
        mine = Claim(folder, RUN)
        assert mine.take()
        with mine.held():
            assert files(folder) == ["abc-s0.1"]
            mine.check()
        assert files(folder) == []


def test_a_claim_is_released_whatever_happens(folder: Path) -> None:
    mine = Claim(folder, RUN)
    mine.take()
    with pytest.raises(KeyboardInterrupt), mine.held():
        raise KeyboardInterrupt
    assert files(folder) == []


def test_claims_of_other_runs_are_others(folder: Path) -> None:
    claims = [Claim(folder, name) for name in ("abc-s1", "abc-s11", "abc-s1.x")]
    assert all(claim.take() for claim in claims)
    for claim in claims:
        with claim.held():
            claim.check()


def test_a_claim_names_no_machine_and_no_person(folder: Path) -> None:
    mine = Claim(folder, RUN)
    mine.take()
    with mine.held():
        text = (folder / "abc-s0.1").read_text()
    for private in (socket.gethostname(), getpass.getuser(), str(Path.home()), str(folder)):
        assert private not in text


def test_a_living_process_keeps_its_claim_and_a_dead_ones_is_free_at_once(
    folder: Path, holder: Callable[..., int]
) -> None:
    process = holder()
    contender = Claim(folder, RUN)
    assert not contender.take()
    assert contender.shows_life
    os.kill(process, signal.SIGKILL)
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)  # dead, and not fetched by its parent
    assert contender.take()
    with contender.held():
        assert files(folder) == ["abc-s0.2"]


def test_another_process_with_the_number_of_a_dead_one_does_not_hold_its_claim(
    folder: Path, holder: Callable[..., int]
) -> None:
    end(holder())
    (file,) = folder.iterdir()
    value = json.loads(file.read_text())
    file.write_text(json.dumps({**value, "pid": os.getpid()}))
    contender = Claim(folder, RUN)
    assert contender.take()
    with contender.held():
        pass


@pytest.mark.usefixtures("impatient")
def test_a_claim_on_another_machine_lasts_while_it_beats(folder: Path, holder: Callable[..., int]) -> None:
    holder(elsewhere=True)
    claims = {RUN: Claim(folder, RUN)}
    began = time.monotonic()
    assert take_any(claims, lambda: False) is None
    assert claims == {}, "it showed a sign of life"
    assert time.monotonic() - began < 1.5, "which did not take the whole lease to see"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fate", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_claim_on_another_machine_is_taken_once_it_has_not_beaten_for_the_lease(
    folder: Path, holder: Callable[..., int], fate: signal.Signals
) -> None:
    os.kill(holder(elsewhere=True), fate)
    contender = Claim(folder, RUN)
    assert not contender.take()
    assert not contender.shows_life
    began = time.monotonic()
    assert take_any({RUN: contender}, lambda: False) == RUN
    assert time.monotonic() - began > 1.0
    with contender.held():
        contender.check()


@pytest.mark.usefixtures("impatient")
def test_of_many_that_wait_for_a_dead_holder_one_gets_the_claim(folder: Path, holder: Callable[..., int]) -> None:
    end(holder(elsewhere=True))
    contenders = [Claim(folder, RUN) for _ in range(8)]
    assert not any(contender.take() for contender in contenders)
    time.sleep(1.6)
    barrier = threading.Barrier(8)

    def take(contender: Claim) -> bool:
        barrier.wait()
        return contender.take()

    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(take, contenders))
    assert sum(taken) == 1
    with contenders[taken.index(True)].held():
        assert files(folder) == ["abc-s0.2"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b'{"machine": 1}'])
def test_an_unreadable_claim_is_no_dead_end(folder: Path, content: bytes) -> None:
    """Left by a power cut, or a kill between opening and writing."""
    folder.mkdir(parents=True)
    (folder / "abc-s0.7").write_bytes(content)
    contender = Claim(folder, RUN)
    assert not contender.take()
    assert take_any({RUN: contender}, lambda: False) == RUN
    with contender.held():
        assert files(folder) == ["abc-s0.8"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("jump", [-1e9, 1e9])
def test_clocks_that_are_wrong_or_jump_neither_free_nor_prolong_a_claim(
    folder: Path, holder: Callable[..., int], jump: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = holder(elsewhere=True)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + jump)
    assert not Claim(folder, RUN).take()
    assert take_any({RUN: Claim(folder, RUN)}, lambda: False) is None
    os.kill(process, signal.SIGKILL)
    os.utime(folder / "abc-s0.1", (now + jump, now + jump))
    contender = Claim(folder, RUN)
    assert take_any({RUN: contender}, lambda: False) == RUN
    with contender.held():
        pass


@pytest.mark.usefixtures("impatient")
def test_a_watch_can_be_cancelled(folder: Path, holder: Callable[..., int]) -> None:
    os.kill(holder(elsewhere=True), signal.SIGSTOP)
    claims = {RUN: Claim(folder, RUN)}
    assert take_any(claims, lambda: True) is None
    assert list(claims) == [RUN], "nothing is known about it"


@pytest.mark.usefixtures("impatient")
def test_a_removed_claim_is_made_again_unless_another_was_faster(folder: Path) -> None:
    mine = Claim(folder, RUN)
    mine.take()
    with mine.held():
        shutil.rmtree(folder)
        mine.check()
        assert files(folder) == ["abc-s0.1"]
        (folder / "abc-s0.1").write_text("another's")
        with pytest.raises(ClaimLostError, match=r"took this run over, as this one gave no sign of life for 1\.5 s"):
            mine.check()
    assert files(folder) == ["abc-s0.1"], "what is another's is not released"


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("woken_at", [10, 20])
def test_a_woken_process_leaves_its_run_to_the_one_that_took_it_over(
    run: PlannedRun, tmp_path: Path, woken_at: int
) -> None:
    """It was suspended at the iteration; meanwhile somebody on another machine has finished its run."""
    store = Store(tmp_path / "part")
    directory = store.directory(run.id)
    finished: dict[str, bytes] = {}

    class Suspended(Log):
        def stepped(self, iteration: int) -> None:
            super().stepped(iteration)
            if iteration == woken_at:
                (store.root / "claims" / f"{run.id}.1").unlink()
                go(run, store.root)
                (store.root / "claims" / f"{run.id}.2").write_text("the other's")
                finished.update({path.name: path.read_bytes() for path in directory.path.iterdir()})

    _, log = go(run, store.root, log=Suspended())
    ((_, why),) = log.skips
    assert "another process took this run over" in why
    assert {path.name: path.read_bytes() for path in directory.path.glob("*.json")}.items() <= finished.items()
    assert {path.name for path in directory.path.iterdir()} == set(finished)
    assert_same(directory, go(run, tmp_path / "whole")[0])


def test_a_run_session_checks_its_claim_before_the_result_is_written(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = Trainer.finish

    def robbed(self: Trainer, *arguments: object) -> object:
        (tmp_path / "claims" / f"{run.id}.2").write_text("another's")
        return finish(self, *arguments)

    monkeypatch.setattr(Trainer, "finish", robbed)
    directory, log = go(run, tmp_path)
    assert "another process took this run over" in log.skips[0][1]
    record = directory.read_record()
    assert record
    assert record.status == "partial"


def test_a_place_where_no_claim_can_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PaperbenchError, match=r"cannot be written: Not a directory\. Make room or choose another"):
        Claim(tmp_path / "file" / "claims", RUN).take()
