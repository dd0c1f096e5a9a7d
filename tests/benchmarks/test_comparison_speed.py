"""Time to compare 1,000 finished runs with histories of 640 lines, Python's start included.

    python -m pytest tests/benchmarks/test_comparison_speed.py

`paperbench compare` is to take less than 1.5 s on two idle cores. Files are read from the system's cache, as they were
written just before. The first read from a slow disk takes longer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from paperbench.runs.history import HistoryLine, history_bytes
from paperbench.runs.planning import run_spec
from paperbench.runs.record import DataFacts, Files, Record, Result
from paperbench.runs.store import Store
from paperbench.specs.table import Table
from tests.helpers import a_record, paperbench_process

RUNS, ITERATIONS, LOG_EVERY, TEST_EVERY = 1_000, 64_000, 100, 1_000
DATA = DataFacts("CIFAR-10", "the original files, md5 as published", True, "f" * 64)


def history(rng: random.Random) -> list[HistoryLine]:
    """As many lines, with as many digits, as a run of the paper's experiment leaves."""
    lines = []
    for iteration in range(LOG_EVERY, ITERATIONS + 1, LOG_EVERY):
        is_tested = iteration % TEST_EVERY == 0
        test_loss, test_error = (rng.random(), 100 * rng.random()) if is_tested else (None, None)
        rate, loss, error = 0.1 if iteration < 32_000 else 0.01, rng.random(), 100 * rng.random()
        epoch, seconds = iteration * 128 / 50_000, iteration * 0.1 + rng.random()
        lines.append(HistoryLine(iteration, epoch, rate, loss, error, test_loss, test_error, seconds))
    return lines


def finished_runs(table: Table) -> Iterator[tuple[Record, bytes]]:
    """Runs of all cells of a table in the paper's profile, with their histories."""
    rng, paper, cells = random.Random(0), table.profiles.named("paper"), table.cells()
    for number in range(RUNS):
        cell, seed = cells[number % len(cells)], number // len(cells)
        net, recipe = cell.net_in(paper), table.recipe_in(paper, cell.recipe)
        spec, lines = run_spec(net, recipe, DATA.fingerprint, "paper", "fp32"), history(rng)
        data, last = history_bytes(lines), lines[-1]
        assert last.test_error is not None
        assert last.test_loss is not None
        record = a_record(
            spec=spec,
            seed=seed,
            net=str(cell.reference_in(paper)),
            iteration=ITERATIONS,
            result=Result((cell.number or 6.0) + rng.gauss(0, 0.15), 0.3, last.test_error, last.test_loss, 5.0),
            data=DATA,
        )
        files = Files(len(lines), sha256(data).hexdigest(), record.files.checkpoint, "0" * 64)
        yield replace(record, files=files), data


@pytest.fixture(scope="module")
def results(table2: Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("results")
    for record, data in finished_runs(table2):
        directory = Store(root).directory(record.run)
        directory.path.mkdir(parents=True)
        directory.record_file.write_text(record.to_json(), encoding="utf-8")  # unsynced: this is no run
        directory.history_file.write_bytes(data)
    return root


def test_reading_records_and_hashing_their_histories(benchmark: BenchmarkFixture, results: Path) -> None:
    records, complaints = benchmark.pedantic(Store(results).records, rounds=5, warmup_rounds=1)
    assert (len(records), complaints) == (RUNS, [])


def test_training_means(benchmark: BenchmarkFixture, results: Path) -> None:
    store = Store(results)
    records, _ = store.records()

    def means() -> list[float | None]:
        return [store.training_mean(record, "train_error", 2_000, 4_000) for record in records]

    assert None not in benchmark.pedantic(means, rounds=5, warmup_rounds=1)


def test_compare_command(benchmark: BenchmarkFixture, results: Path) -> None:
    command = ("compare", "table2", "--results", str(results))
    done = benchmark.pedantic(paperbench_process, args=command, rounds=5, warmup_rounds=1)
    assert done.returncode in (0, 1), done.stderr  # 1: a cell of random errors can be worse by chance
    assert "left out" not in done.stderr
