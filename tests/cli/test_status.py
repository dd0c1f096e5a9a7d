from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paperbench.executors import name_of_store
from paperbench.runs.store import Store
from tests.cli.conftest import ONE_CELL, Run, validated
from tests.compare.judging import a_table, record
from tests.golden import assert_golden
from tests.helpers import ROOT, a_session, write_record

CELLS = ("--cells", "preact/resnet110", "original/resnet110")


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two finished runs and one that failed; a third, which has begun, is not held."""
    from paperbench.errors import RunError

    store, table = Store(tmp_path / "some"), a_table("table2")
    for seed, error in enumerate((6.4, 6.5, None)):
        sessions = (a_session(32_000 if error is None else 64_000, seconds=3_200.0),)
        write_record(store, record(table, "preact/resnet110", error, seed=seed, iteration=32_000, sessions=sessions))
    failed = record(table, "original/resnet110", None)
    store.directory(failed.run).write_failure(RunError("A file is damaged."), failed.spec)
    return store.root


def test_status_shows_what_is_done_running_and_failed(run: Run, results: Path) -> None:
    one = record(a_table("table2"), "preact/resnet110", None, seed=2)
    lease = Store(results).lease(one.run, one.spec)
    assert lease.acquire()
    status = ("status", "table2", "--results", results, *CELLS, "--seeds", 3)
    try:
        code, out, err = run(*status)
        found = validated("status", run(*status, "--format", "json")[1])
    finally:
        lease.release()
    assert (code, err) == (0, "")
    states = [one["state"] for one in found["tables"][0]["cells"]["preact/resnet110"]]
    assert states == ["done", "done", "running"]
    assert_golden("status", out)


def test_exit_code_says_whether_work_is_left(run: Run, results: Path) -> None:
    def code(*arguments: object) -> int:
        return run("status", "table2", "--results", results, "--exit-code", *arguments)[0]

    assert code("--seeds", 2, "--cells", "preact/resnet110") == 0
    assert code("--seeds", 3, "--cells", "preact/resnet110") == 3
    assert code() == 2


def test_without_a_table_all_with_runs_are_shown(run: Run, results: Path) -> None:
    write_record(Store(results), record(a_table("table5"), "preact_resnet152/top1", None, profile="smoke"))
    code, out, err = run("status", "--results", results)
    assert (code, err) == (0, "")
    titles = [line.split(" (")[0] for line in out.splitlines() if line.startswith("Table")]
    assert titles == [*(f"Table {number}, profile paper" for number in (1, 2, 3, 4)), "Table 5, profile smoke"]
    code, out, _ = run("status", "--results", results, "--profile", "shallow")
    assert (code, out) == (0, f"{results} has no such runs. Train some: `paperbench run table2`.\n")


def test_other_profiles_are_named(run: Run, results: Path) -> None:
    code, out, err = run("status", "table2", "--results", results, "--profile", "smoke")
    assert code == 0
    assert out.startswith("Table 2, profile smoke: 0 of 10 runs done, 10 waiting.\n")
    assert err == f"paperbench: {results} has runs of other profiles: --profile paper shows them.\n"


def test_trained_run_is_done(run: Run, trained: Path, quick_specs: Path) -> None:
    arguments = ("status", "table2", "--results", trained, "--tables", quick_specs, "--exit-code")
    code, out, _ = run(*arguments, *ONE_CELL[:4])
    assert code == 0
    assert "1 of 1 run done." in out


def test_without_tables_there_are_no_runs(run: Run, results: Path, tmp_path: Path) -> None:
    for folder in ("experiments", "expected"):
        (tmp_path / "own" / folder).mkdir(parents=True)
    code, out, _ = run("status", "--results", results, "--profile", "smoke", "--tables", tmp_path / "own")
    assert code == 0
    assert "has no such runs" in out


def test_jobs_in_the_queue_are_listed(run: Run, results: Path, tmp_path: Path) -> None:
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text(f"#!/bin/sh\necho '1|{name_of_store(results)}-1a2b3c4d|RUNNING|None'\n")
    squeue.chmod(0o755)
    assert "Slurm" not in run("status", "--results", results)[1], "no job was ever submitted"
    (results / "slurm").mkdir()
    out = run("status", "--results", results)[1]
    assert out.endswith("\n\nSlurm: 1 job of yours on this results directory: 1 running.\n")
    squeue.write_text("#!/bin/sh\nexit 1\n")
    assert run("status", "--results", results)[1].endswith("\n\nSlurm: squeue did not answer.\n")


def test_watching_on_a_terminal_redraws_until_ctrl_c(results: Path) -> None:
    shown, terminal = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "paperbench", "status", "--results", str(results), "--watch", "0.1", "--exit-code"]
    process = subprocess.Popen(command, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    text, deadline = b"", time.monotonic() + 60
    try:
        while text.count(b"\x1b[H\x1b[2J") < 3 and time.monotonic() < deadline:
            if select.select([shown], [], [], 1.0)[0]:
                text += os.read(shown, 65_536)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 2, "a run failed"
    finally:
        process.kill()
        process.wait(60)
        os.close(shown)
    assert text.count(b"every 0.1 seconds; Ctrl-C ends it") >= 2
    assert b"Traceback" not in text
    assert b"interrupted" not in text
