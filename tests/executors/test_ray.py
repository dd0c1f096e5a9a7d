"""`paperbench run --executor ray`, on a Ray cluster that the command starts on this machine."""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from paperbench.executors import Workers
from paperbench.executors import ray as executor
from paperbench.launch import TIME_WAS_UP
from paperbench.runs.store import Store
from tests.cli.conftest import Run
from tests.executors.commands import Command, StandIn, assert_results

pytestmark = pytest.mark.usefixtures("heeded_signals")

ON_RAY = ("--executor", "ray", "--workers", "2")


def test_missing_ray_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, err = run("run", "table2", "--profile", "smoke", "--device", "cpu", *ON_RAY)
    assert code == 2
    assert "--executor ray needs Ray: `pip install 'paperbench-resnets[ray]'`." in err


@pytest.mark.full
def test_workers_whose_process_or_task_is_killed_are_restarted(specs: Path, expected: Store, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    command = Command(specs, tmp_path / "r", *ON_RAY)
    command.wait_for(lambda: command.has_saved(2) and len(command.workers()) == 2)
    one, other = command.workers()
    task = int(Path(f"/proc/{other}/stat").read_text().rpartition(")")[2].split()[1])  # the parent
    os.kill(one, signal.SIGKILL)
    os.kill(task, signal.SIGKILL)
    assert command.status() == 0, command.output
    assert command.output.count("so the task will be retried") == 2, command.output
    assert_results(tmp_path / "r", expected)


@pytest.mark.full
def test_interrupted_tasks_save(specs: Path, expected: Store, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    command = Command(specs, tmp_path / "r", *ON_RAY)
    command.wait_for(lambda: command.has_saved(2))
    command.process.send_signal(signal.SIGINT)
    assert command.status() == 128 + signal.SIGINT, command.output
    assert command.workers() == []
    records, _ = Store(tmp_path / "r").records()
    assert "partial" in {record.status for record in records}
    assert {len(record.sessions) for record in records} == {1}
    again = Command(specs, tmp_path / "r", *ON_RAY)
    assert again.status() == 0, again.output
    assert_results(tmp_path / "r", expected)


def test_retried_task_gets_the_rest_of_the_time(tmp_path: Path, stand_in: StandIn, capfd: Any) -> None:
    stand_in.does('echo "$@" >&2; exit 2')
    work = Workers(("run", "table2"), tmp_path, 1, 0, stand_in.imports), 1
    assert executor.work(*work, end=math.inf) == 2
    assert capfd.readouterr().err == "1: run table2\n"
    assert executor.work(*work, end=time.time() + 50) == 2
    assert 0 < float(capfd.readouterr().err.rpartition(" --max-seconds ")[2]) <= 50
    assert executor.work(*work, end=time.time()) == TIME_WAS_UP
    assert capfd.readouterr().err == ""
