"""Several processes, some of which die, on one results directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paperbench.runs.store import Store
from tests.conftest import ROOT
from tests.helpers import copy_of_specs
from tests.runs.running import assert_same, without_times

SPECS = """
schema: 1
profiles:
  paper: {title: exact}
  smoke:
    title: tiny
    depth: {basic: 8, bottleneck: 11}
    dataset: digits
    seeds: 1
    recipe:
      batch_size: 8
      iterations: 40
      warm_up: {learning_rate: 0.01, iterations: 5}
      drops: {at: [21, 33]}
      augmentation: {padding: 4, flip: false}
      batch_norm: {group: 8, at_test: moving_average}
      monitoring: {log_every: 7, test_every: 20, checkpoint_every: 5, checkpoint_share: 1.0}
"""

CELLS, RUNS = "*/resnet110", 5

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped tables with a profile of runs that take a second each."""
    folder = copy_of_specs(tmp_path_factory.mktemp("specs"))
    (folder / "experiments" / "profiles.yaml").write_text(SPECS)
    return folder


def chaos(results: Path, specs: Path, *, kills: int, workers: int, seed: int, lease: float = 0) -> tuple[int, int]:
    """How many workers were killed, and how many ended by themselves before the last one."""
    arguments = [str(value) for value in (results, specs, CELLS, kills, workers, seed, lease)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.runs.chaos", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=900)
    assert done.returncode == 0, done.stderr
    killed, ended = done.stdout.split()
    return int(killed), int(ended)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, specs: Path) -> Path:
    results = tmp_path_factory.mktemp("undisturbed")
    chaos(results, specs, kills=0, workers=1, seed=0)
    return results


def test_kills_at_random_moments_lose_nothing(undisturbed: Path, specs: Path, tmp_path: Path, full: bool) -> None:
    """Two workers at a time, in a folder whose name has blanks and other letters; in every second round they see each
    other as processes on other machines, whose death shows by their silence only.
    """
    expected = Store(undisturbed).directories()
    assert len(expected) == RUNS
    left, rounds = 100 if full else 8, 0
    while left > 0:
        results = tmp_path / f"Ergebnisse für alle, 結果 {rounds}"
        killed, _ = chaos(results, specs, kills=min(left, 4), workers=2, seed=rounds, lease=2 * (rounds % 2))
        left -= killed
        rounds += 1
        store = Store(results)
        for directory in expected:
            assert_same(store.directory(directory.path.name), directory)
        assert len(store.directories()) == RUNS


def test_processes_with_the_same_command_divide_the_work(undisturbed: Path, specs: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "paperbench", "run", "table2", "--profile", "smoke", "--tables", str(specs)]
    command += ["--results", str(tmp_path / "results"), "--device", "cpu", "--cells", CELLS]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    told = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told
    records = Store(tmp_path / "results").records()[0]
    assert len(records) == RUNS
    assert {(len(record.sessions), record.status) for record in records} == {(1, "finished")}
    trained = [errors.count(": to iteration 40") for _, errors in told]
    assert sum(trained) == RUNS, "no run was done twice"
    assert min(trained) > 0, "the work was shared"
    for directory in Store(undisturbed).directories():
        assert without_times(Store(tmp_path / "results").directory(directory.path.name)) == without_times(directory)
