"""`paperbench run` under launchers of several processes, which are stopped, killed or suspended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from paperbench.runs.store import RunDirectory, Store
from tests.conftest import ROOT
from tests.helpers import copy_of_tiny_specs
from tests.runs.running import assert_same
from tests.training.together import free_port

TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")
SECONDS = 150.0

pytestmark = [pytest.mark.full, pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")]


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped tables, with a profile whose run takes some seconds, in two batch-norm groups."""
    return copy_of_tiny_specs(
        tmp_path_factory.mktemp("specs"),
        batch_size=16,
        iterations=120,
        warm_up={"learning_rate": 0.01, "iterations": 5},
        drops={"at": [60, 90]},
        batch_norm={"group": 8, "at_test": "reestimated"},
        monitoring={"log_every": 7, "test_every": 60, "checkpoint_every": 10, "checkpoint_share": 1.0},
    )


class Command:
    """`paperbench run` of one cell, with a results directory.

    Args:
        module: How Python starts it.
        environment: Additional variables.
    """

    def __init__(self, specs: Path, results: Path, *module: str, **environment: str) -> None:
        self.results, self._log = results, results.with_name(f"{results.name} {time.monotonic_ns()}.log")
        options = ("--tables", specs, "--profile", "smoke", "--cells", "preact/resnet110", "--device", "cpu")
        arguments = [*module, "paperbench", "run", "table2", *map(str, options), "--results", str(results)]
        of_process = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments], stdout=log, stderr=log, env=of_process, start_new_session=True
            )

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def status(self) -> int:
        return self.process.wait(SECONDS)

    def workers(self) -> dict[int, int]:
        """Return the process ids of torchrun's workers by rank."""
        found = {}
        for child in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            variables = dict(
                pair.partition("=")[::2] for pair in Path(f"/proc/{child}/environ").read_text().split("\0") if pair
            )
            if "RANK" in variables:
                found[int(variables["RANK"])] = int(child)
        return found

    def wait_for(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + SECONDS
        while not condition():
            assert self.process.poll() is None, self.output
            assert time.monotonic() < end, self.output
            time.sleep(0.02)

    def has_saved(self, iteration: int) -> bool:
        files = (re.match(r"checkpoint-(\d+)-", path.name) for path in self.results.glob("runs/*/checkpoint*"))
        return any(int(match[1]) >= iteration for match in files if match)


@pytest.fixture(scope="module")
def expected(specs: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """The results of one process."""
    command = Command(specs, tmp_path_factory.mktemp("alone") / "r")
    assert command.status() == 0, command.output
    (directory,) = Store(command.results).directories()
    return directory


def assert_completed(specs: Path, results: Path, expected: RunDirectory) -> None:
    """Assert that the same command, under torchrun, makes the results of one process."""
    command = Command(specs, results, *TORCHRUN)
    assert command.status() == 0, command.output
    assert_same(Store(results).directory(expected.path.name), expected)


@pytest.mark.parametrize(
    ("whom", "number"),
    [("launcher", signal.SIGTERM), ("group", signal.SIGINT), ("rank 0", signal.SIGINT), ("rank 1", signal.SIGTERM)],
)
def test_signal_stops_all_processes_and_loses_nothing(
    specs: Path, expected: RunDirectory, tmp_path: Path, whom: str, number: int
) -> None:
    command = Command(specs, tmp_path / "r", *TORCHRUN)
    command.wait_for(lambda: command.has_saved(10))
    if whom == "group":
        os.killpg(command.process.pid, number)
    else:
        os.kill(command.process.pid if whom == "launcher" else command.workers()[int(whom[-1])], number)
    assert command.status() != 0
    record = Store(command.results).directory(expected.path.name).read_record()
    assert record
    assert (len(record.sessions), record.status) == (1, "partial")
    assert "1 run to do" in command.output, "process 0 could end as usual"
    assert_completed(specs, command.results, expected)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.stress), 1])
def test_kill_of_a_process_ends_all_and_loses_little(
    specs: Path, expected: RunDirectory, tmp_path: Path, rank: int
) -> None:
    command = Command(specs, tmp_path / "r", *TORCHRUN)
    command.wait_for(lambda: command.has_saved(10))
    os.kill(command.workers()[rank], signal.SIGKILL)
    assert command.status() == 1  # torchrun may stop the other before it can say why
    assert_completed(specs, command.results, expected)


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.stress)])
def test_suspended_process_ends_the_run(specs: Path, expected: RunDirectory, tmp_path: Path, rank: int) -> None:
    command = Command(specs, tmp_path / "r", *TORCHRUN)
    command.wait_for(lambda: command.has_saved(10))
    os.kill(command.workers()[rank], signal.SIGSTOP)
    assert command.status() == 1
    assert f"process {1 - rank} ends: process {rank} has not answered for about 60 seconds" in command.output
    assert_completed(specs, command.results, expected)


def test_restarts_by_torchrun_are_refused(specs: Path, tmp_path: Path) -> None:
    command = Command(specs, tmp_path / "r", TORCHRUN[0], "--max-restarts", "1", *TORCHRUN[1:])
    assert command.status() == 1
    assert "torchrun's --max-restarts is not supported" in command.output
    assert not command.results.exists()


def slurm(rank: int, port: int) -> dict[str, str]:
    """What `srun -n 2` says to a process."""
    of_step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost", "SLURM_JOB_ID": "7"}
    of_task = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_STEP_ID": "0", "MASTER_PORT": str(port)}
    return of_step | of_task


def test_processes_that_srun_starts_find_one_another(specs: Path, expected: RunDirectory, tmp_path: Path) -> None:
    port = free_port()
    first, second = (Command(specs, tmp_path / "r", **slurm(rank, port)) for rank in range(2))
    assert (first.status(), second.status()) == (0, 0), first.output + second.output
    assert second.output == "", "only process 0 speaks"
    assert_same(Store(tmp_path / "r").directory(expected.path.name), expected)


def test_suspended_process_0_of_srun_ends_the_others(specs: Path, expected: RunDirectory, tmp_path: Path) -> None:
    """It serves their signs of life, too."""
    port = free_port()
    first, second = (Command(specs, tmp_path / "r", **slurm(rank, port)) for rank in range(2))
    first.wait_for(lambda: first.has_saved(10))
    os.kill(first.process.pid, signal.SIGSTOP)
    suspended = time.monotonic()
    assert second.status() == 1
    assert time.monotonic() - suspended < 150, "60, and some for a busy machine"
    assert "has not answered" in second.output
    os.kill(first.process.pid, signal.SIGCONT)
    assert first.status() == 2
    assert "The last checkpoint is kept; the same command resumes from it." in first.output
    assert_completed(specs, tmp_path / "r", expected)
