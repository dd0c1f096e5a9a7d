"""Runs on photographs that are killed and continued, or lose their images."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paperbench.data.imagenet.index_file import FILE_NAME
from paperbench.data.sources import ENVIRONMENT_VARIABLE
from paperbench.runs.store import RunDirectory, Store
from tests.helpers import ROOT, change_yaml, copy_of_specs
from tests.runs.running import assert_same

ITERATIONS = 200
KILLS = (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGTERM, signal.SIGKILL)
RECIPE = {
    "batch_size": 8,
    "iterations": ITERATIONS,
    "learning_rate": 0.01,
    "drops": {"at": [100, 150]},
    "batch_norm": {"group": 2},
    "monitoring": {"log_every": 5, "test_every": 100, "checkpoint_every": 5, "checkpoint_share": 0.05},
}


def start(specs: Path, data: Path, results: Path) -> subprocess.Popen[bytes]:
    """Start or continue the training of ResNet-50 on one thread."""
    command = ["run", "table5", "--profile", "shallow", "--cells", "original_resnet152", "--device", "cpu"]
    places = ["--tables", str(specs), "--data", str(data), "--results", str(results)]
    return subprocess.Popen(
        [sys.executable, "-m", "paperbench", *command, *places],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    )


def the_run(results: Path) -> RunDirectory | None:
    """Return the only run of a results directory, once it exists."""
    found = list((results / "runs").glob("*"))
    return Store(results).directory(found[0].name) if found else None


def wait_for(iteration: int, results: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until the history has a line of that iteration or a later one, and then up to the time between two lines."""
    while process.poll() is None:
        run = the_run(results)
        lines = run.history() if run else []
        if lines and lines[-1].iteration >= iteration:
            time.sleep(random.uniform(0, lines[-1].seconds / len(lines)))
            return
        time.sleep(0.2)


@pytest.mark.stress
def test_resnet50_killed_and_continued_five_times_is_bit_equal(tmp_path: Path) -> None:
    """At full crop, on the images of the index in the folder that the environment variable names."""
    data = Path(os.environ.get(ENVIRONMENT_VARIABLE, ""))
    if not (data / FILE_NAME).is_file():
        pytest.skip(f"needs an index of ImageNet, or of a subset, in the folder that {ENVIRONMENT_VARIABLE} names")
    specs = copy_of_specs(tmp_path / "specs")
    substitute = {"imagenet": {"replaces": ["imagenet"], "recipe": RECIPE}}
    change_yaml(specs / "experiments" / "profiles.yaml", (("profiles", "shallow", "datasets"), substitute))
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    other = start(specs, data, undisturbed)
    try:
        for number, iteration in zip(KILLS, sorted(random.sample(range(5, ITERATIONS - 10), len(KILLS))), strict=True):
            process = start(specs, data, disturbed)
            wait_for(iteration, disturbed, process)
            process.send_signal(number)
            assert process.wait() == (-number if number == signal.SIGKILL else 128 + number)
        assert start(specs, data, disturbed).wait() == 0
        assert other.wait() == 0
    finally:
        other.kill()
    one, two = the_run(undisturbed), the_run(disturbed)
    assert one
    assert two
    assert_same(one, two)
    record = two.read_record()
    assert record
    print(record.files.weights_sha256, [session.last for session in record.sessions])
    assert len(record.sessions) > KILLS.count(signal.SIGTERM)
