"""`paperbench run --executor ray`, on a Ray cluster that the command starts on this machine."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from paperbench.runs.store import Store
from tests.cli.conftest import Run
from tests.executors.commands import Command, assert_results

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
