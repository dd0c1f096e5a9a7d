"""`ci/first_gpu.sh`: its flow with a stand-in for Python, and the whole of it with small nets on a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

FAKE_PYTHON = """#!/usr/bin/env bash
[[ "$*" == "-c "* ]] && exit 0                          # it has all dependencies
[[ "$*" == *decisions* ]] && echo "keep all" && exit 0
echo "$*" >> "{calls}"
[[ "$*" == *"{fails}"* ]] && exit 3
for ((i = 1; i < $#; i++)); do
    [ "${{!i}}" != --json ] || {{ i=$((i + 1)); echo figures > "${{!i}}"; }}
    if [ "${{!i}}" = --results ]; then
        i=$((i + 1))
        run="${{!i}}/runs/abc-s0"
        mkdir -p "$run" "${{!i}}/leases"
        touch "$run/checkpoint-900-a.safetensors" "$run/checkpoint-1000-b.safetensors" "${{!i}}/leases/abc"
    fi
done
[[ "$*" != *"{hangs}"* ]] || {{ echo hanging; exec sleep 60; }}
"""


class Script:
    """The script, with stages that do next to nothing."""

    def __init__(self, directory: Path, fails: str = "nothing", hangs: str = "nothing", gpus: int = 1) -> None:
        self.gpus = gpus
        self.out, self.calls = directory / "out", directory / "calls"
        self.python = directory / "python"
        self.python.write_text(FAKE_PYTHON.format(calls=self.calls, fails=fails, hangs=hangs))
        self.python.chmod(0o755)

    def run(
        self, *arguments: str, device: str = "cuda", python: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        (self.python.parent / "nvidia-smi").write_text(f"#!/bin/sh\nseq {self.gpus}\n")
        (self.python.parent / "nvidia-smi").chmod(0o755)
        path = f"{self.python.parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "PAPERBENCH_FIRST_DEVICE": device}
        environment["PYTHON"] = str(python or self.python)
        command = ["bash", str(ROOT / "ci" / "first_gpu.sh"), "--out", str(self.out), *arguments]
        self.calls.write_text("")
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)

    @property
    def called(self) -> list[str]:
        return self.calls.read_text().splitlines()

    @property
    def state(self) -> set[str]:
        """Names of the packed files."""
        parts = b"".join(path.read_bytes() for path in sorted(self.out.glob("state.tar.*")))
        listed = subprocess.run(["tar", "t"], input=parts, capture_output=True, check=True).stdout
        return {line for line in listed.decode().split() if not line.endswith("/")}


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


def test_list_says_what_each_stage_does_and_decides(script: Script) -> None:
    lines = script.run("--list").stdout.splitlines()
    names = [line.split()[0] for line in lines[::2]]
    assert {"doctor", "tests", "batch-norm", "breakdown-110-fp32", "bench-1001", "repetitions", "runs"} <= set(names)
    assert all(" min: " in line for line in lines[::2])
    assert all(line.startswith("    -> ") for line in lines[1::2])
    assert not script.out.exists()


def test_all_stages_run_once_and_paper_runs_go_on(script: Script) -> None:
    done = script.run()
    assert done.returncode == 0, done.stderr
    assert len(script.called) == 16
    assert "keep all" in done.stdout
    assert "Left for the next call: runs" in done.stdout
    assert {"bench-110.json", "breakdown-1001-bf16.json", "doctor.exit"} <= script.state
    assert "runs.exit" not in script.state
    assert not any("table5" in name and "checkpoint" in name for name in script.state)  # too large to be sent
    assert len(list(script.out.iterdir())) <= 8
    assert script.run().returncode == 0
    assert [line.split()[2:4] for line in script.called] == [["run", "table2"]]


def test_one_run_is_shared_if_there_are_two_gpus(tmp_path: Path) -> None:
    script = Script(tmp_path, gpus=2)
    assert script.run("scaling").returncode == 0
    (call,) = script.called
    assert "--nproc-per-node 2 -m paperbench bench --scaling --device cuda --engines graph --models" in call
    assert "scaling.json" in script.state


def test_packed_runs_have_no_leases_and_one_checkpoint(script: Script) -> None:
    script.run("runs")
    assert script.state == {"results/runs/abc-s0/checkpoint-1000-b.safetensors"}


def test_failed_stage_is_reported_and_repeated_if_named(tmp_path: Path) -> None:
    script = Script(tmp_path, fails="pytest")
    done = script.run("tests", "doctor")
    assert done.returncode == 1
    assert "Failed: tests" in done.stdout
    assert len(script.called) == 2
    script.run()
    assert not any("pytest" in line for line in script.called)
    script.run("tests", "doctor")
    assert len(script.called) == 1


def test_stages_without_enough_time_are_left(tmp_path: Path) -> None:
    script = Script(tmp_path)
    done = script.run("--minutes", "2", "doctor", "tests")
    assert "Left for the next call: tests" in done.stdout
    assert len(script.called) == 1


def test_unknown_stage_is_refused_before_any_runs(script: Script) -> None:
    done = script.run("doctor", "breakdwn")
    assert done.returncode == 2
    assert "There is no stage breakdwn" in done.stderr
    assert script.called == []


def test_interrupt_stops_a_stage_and_keeps_its_runs(tmp_path: Path) -> None:
    script = Script(tmp_path, hangs="table2")
    environment = {**os.environ, "PYTHON": str(script.python)}
    command = ["bash", str(ROOT / "ci" / "first_gpu.sh"), "--out", str(script.out), "doctor", "runs"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while "hanging" not in process.stdout.readline():
            pass
        process.terminate()
        assert process.wait(timeout=20) == 130
    assert script.state == {"doctor.exit", "results/runs/abc-s0/checkpoint-1000-b.safetensors"}


@pytest.mark.full
def test_rehearsal_on_a_cpu_gives_a_summary(script: Script) -> None:
    done = script.run("batch-norm", "repetitions", "scaling", "runs", device="cpu", python=Path(sys.executable))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Left" not in done.stdout
    summary = (script.out / "summary.txt").read_text()
    for expected in (
        "batch norm, contiguous",
        "eager bf16, trained twice",
        "2 processes: ",
        "finished, 80 of 80 iterations",
    ):
        assert expected in " ".join(summary.split())
    assert len(list(script.out.iterdir())) <= 8
