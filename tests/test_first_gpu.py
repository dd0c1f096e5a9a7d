"""`ci/first_gpu.sh`: its flow with a stand-in for Python, and the whole of it with small nets on a CPU."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

FAKE_PYTHON = """#!/usr/bin/env bash
[[ "$*" == "-c "* ]] && exit 0  # it has all dependencies
echo "$*" >> "{calls}"
case "$*" in
*" measure "*) echo figures > "$4" ;;
*" choose "*) echo 3 6 ;;
*" summary "*) echo decided ;;
*pytest*) echo "3 passed in 1.00s" ;;
*" run "*)
    run="$(sed 's/.*--results \\([^ ]*\\).*/\\1/' <<< "$*")"
    mkdir -p "$run/runs/abc-s0" "$run/leases"
    touch "$run"/runs/abc-s0/checkpoint-{{900-a,1000-b}}.safetensors "$run/leases/abc" ;;
esac
{behaviour}
"""
HANGS = """[[ "$*" != *" run "* ]] || { echo hanging; exec sleep 60; }"""


class Script:
    """The script, with commands that do next to nothing."""

    def __init__(self, directory: Path) -> None:
        self.out, self.calls, self._python = directory / "out", directory / "calls", directory / "python"

    def start(self, *arguments: str, behaviour: str = "", **variables: str) -> subprocess.Popen[str]:
        self.calls.write_text("")
        self._python.write_text(FAKE_PYTHON.format(calls=self.calls, behaviour=behaviour))
        self._python.chmod(0o755)
        command = ["bash", str(ROOT / "ci" / "first_gpu.sh"), "--out", str(self.out), *arguments]
        environment = {**os.environ, "PYTHON": str(self._python), **variables}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, *arguments: str, **variables: str) -> tuple[int, str]:
        process = self.start(*arguments, **variables)
        output, _ = process.communicate(timeout=600)
        return process.returncode, output

    def called(self, what: str) -> list[str]:
        return [line for line in self.calls.read_text().splitlines() if f" {what} " in line]

    @property
    def state(self) -> set[str]:
        """Names of the packed files."""
        parts = b"".join(path.read_bytes() for path in sorted(self.out.glob("state.tar.*")))
        listed = subprocess.run(["tar", "t"], input=parts, capture_output=True, check=True).stdout
        return {line for line in listed.decode().split() if not line.endswith("/")}


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


CHECKPOINT = "results/runs/abc-s0/checkpoint-1000-b.safetensors"


def test_measures_trains_tests_and_goes_on(script: Script) -> None:
    code, output = script.run()
    assert code == 0, output
    assert " s left: training, 3 at once, in which 6 runs of ResNet-110 should end.\n" in output
    assert script.calls.read_text().splitlines()[0] == "-m paperbench data check cifar10"
    runs = [line.partition("table2 ")[2].partition("--profile paper")[0].strip() for line in script.called("run")]
    assert runs == ["--cells original/resnet110 preact/resnet110", ""]
    assert all("--precision bf16 --device cuda --at-once 3 --results" in line for line in script.called("run"))
    assert all("test_graph_engine.py" in line and "-m gpu" in line for line in script.called("pytest"))
    assert script.state == {"first.json", "doctor.txt", "tests.txt", CHECKPOINT}  # no lease, the newest checkpoint
    assert (script.out / "summary.txt").read_text() == "decided\nGPU tests: 3 passed in 1.00s\nFailed: nothing\n"
    assert script.run()[0] == 0
    assert len(script.called("run")) == 2
    assert len(script.called("measure")) == 1  # of what is missing
    assert not script.called("pytest")


@pytest.mark.parametrize(
    ("what", "failed"), [("measure", "measurement"), ("pytest", "tests"), ("run", "training"), ("doctor", "")]
)
def test_failing_part_does_not_lose_the_others(script: Script, what: str, failed: str) -> None:
    code, output = script.run(behaviour=f'[[ "$*" != *" {what} "* ]] || {{ echo 1 failed in 2.00s; exit 3; }}')
    assert code == int(bool(failed)), output
    assert f"Failed: {f' {failed}' if failed else 'nothing'}\n" in output
    assert CHECKPOINT in script.state
    # failed training is tried again when the tests have ended
    assert len(script.called("run")) == (4 if what == "run" else 2)
    script.run()
    assert len(script.called("pytest")) == (what == "pytest")


def test_tests_without_time_are_repeated(script: Script) -> None:
    code, output = script.run(behaviour='[[ "$*" != *pytest* ]] || exit 124')
    assert code == 0
    assert "GPU tests: 3 passed in 1.00s\nNot all: the next call repeats them.\n" in output
    script.run()
    assert len(script.called("pytest")) == 1


def test_time_must_be_whole_minutes(script: Script) -> None:
    code, output = script.run("--minutes", "2.5")
    assert (code, script.calls.read_text()) == (2, "")
    assert output == "--minutes takes a whole number, not 2.5.\n"


def test_training_ends_when_its_time_is_up(script: Script) -> None:
    code, _ = script.run(behaviour='[[ "$*" != *" run "* ]] || exit 75')
    assert code == 0
    assert len(script.called("run")) == 1


def test_interrupt_stops_and_packs(script: Script) -> None:
    with script.start(behaviour=HANGS) as process:
        assert process.stdout is not None
        while "hanging" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 130
    assert {"first.json", CHECKPOINT} <= script.state


@pytest.mark.full
def test_rehearsal_on_a_cpu_goes_on_after_an_interrupt(script: Script) -> None:
    real = {"PYTHON": sys.executable, "PAPERBENCH_FIRST_DEVICE": "cpu"}
    with script.start(**real) as process:
        assert process.stdout is not None
        while "test error" not in process.stdout.readline().partition("averages")[0]:
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 130
    code, output = script.run("--minutes", "2", **real)
    assert code == 0, output
    assert "first step" not in output  # it is not measured again
    assert re.search(r"^bf16: [\d,]+ images/s$", output, re.M)
    assert "original_resnet110(depth=14) in bf16, seed 0: finished, 80 of 80 iterations, test error" in output
    assert len(list(script.out.iterdir())) <= 8
