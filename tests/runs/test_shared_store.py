"""Several processes, some of them killed, on one results directory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from paperbench.runs.store import Store
from tests.conftest import ROOT
from tests.helpers import copy_of_tiny_specs
from tests.runs.many import divide, make_plan
from tests.runs.running import assert_same

CELLS, RUNS = "*re*/resnet110", 3

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(scope="module")
def specs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped tables, with a profile whose runs take a second each."""
    return copy_of_tiny_specs(
        tmp_path_factory.mktemp("specs"),
        iterations=24,
        warm_up={"learning_rate": 0.01, "iterations": 5},
        drops={"at": [13, 19]},
        monitoring={"log_every": 7, "test_every": 12, "checkpoint_every": 4, "checkpoint_share": 1.0},
    )


@pytest.mark.full
def test_workers_share_runs_and_kills_lose_nothing(specs: Path, tmp_path: Path, stress: bool) -> None:
    kills = 1000 if stress else 40
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.runs.chaos", str(tmp_path), str(specs), CELLS, str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=10_000)
    assert done.returncode == 0, done.stderr

    trained = [int(number) for number in done.stdout.split()]
    assert sum(trained) == RUNS, "no run was trained twice"
    assert min(trained) > 0, "both workers trained"
    undisturbed, *others = (Store(path) for path in sorted(tmp_path.iterdir(), key=lambda path: path.name[0] != "u"))
    expected = undisturbed.directories()
    assert len(expected) == RUNS
    for directory in expected:
        record = directory.read_record()
        assert record
        assert (len(record.sessions), record.status) == (1, "finished")
    assert others
    for store in others:
        assert len(store.directories()) == RUNS
        for directory in expected:
            assert_same(store.directory(directory.path.name), directory)


@pytest.mark.full
def test_many_workers_train_every_run_once(tmp_path: Path) -> None:
    work = make_plan(tmp_path / "r", seeds=6)
    trained = divide(work, workers=16)
    assert trained == Counter(run.id for run in work.runs)
    records, complaints = Store(work.selection.results).records()
    assert ({record.run for record in records}, complaints) == (set(trained), [])
    assert list((work.selection.results / "leases").iterdir()) == []
