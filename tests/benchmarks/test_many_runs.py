"""64 processes that divide 10,000 runs, and what the results directory can be asked then.

    python -m pytest tests/benchmarks/test_many_runs.py

The runs are not trained, so the processes take leases and save records all the time; real ones do so once in hours.
"""

from __future__ import annotations

from collections import Counter

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from paperbench.api import Plan
from tests.helpers import paperbench_process
from tests.runs.many import divide, make_plan

SEEDS, WORKERS = 1_000, 64


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return make_plan(tmp_path_factory.mktemp("many") / "r", SEEDS)


def test_processes_train_every_run_once(benchmark: BenchmarkFixture, work: Plan) -> None:
    trained = benchmark.pedantic(divide, args=(work, WORKERS), rounds=1)
    assert trained == Counter(run.id for run in work.runs)


@pytest.mark.parametrize("command", ["status", "compare"])
def test_command(benchmark: BenchmarkFixture, work: Plan, command: str) -> None:
    options = ("table2", "--profile", "smoke", "--seeds", str(SEEDS), "--results", str(work.selection.results))
    done = benchmark.pedantic(paperbench_process, args=(command, *options), rounds=3, warmup_rounds=1)
    assert done.returncode == 0, done.stderr
