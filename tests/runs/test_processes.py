"""Runs that several processes share: what is on the disk, and how a run stops and goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from paperbench.data.dataset import ImageDataset
from paperbench.errors import PaperbenchError
from paperbench.runs import follow as follow_module
from paperbench.runs.executor import Executor
from paperbench.runs.follow import follow
from paperbench.runs.limits import Limits
from paperbench.runs.planning import PlannedRun
from paperbench.runs.store import RunDirectory, Store
from paperbench.specs.recipe import BatchNormSettings, Recipe
from paperbench.training.processes import Processes
from tests.runs.running import CPU, Log, assert_same, plan_run, tiny_recipe, train
from tests.training.together import together

Fault = Callable[[int, Limits], object]
"""Prepares a fault in a process, given its number."""


@pytest.fixture(scope="module")
def run(paper_recipe: Recipe, small_dataset: ImageDataset) -> PlannedRun:
    """20 batches of 16 images in four groups."""
    return plan_run(tiny_recipe(paper_recipe, batch_norm=BatchNormSettings(4, 1e-5, 0.1, "reestimated")), small_dataset)


@pytest.fixture(scope="module")
def expected(run: PlannedRun, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """The results of one process."""
    return train(run, tmp_path_factory.mktemp("alone"))[0]


@pytest.fixture(autouse=True)
def _data(monkeypatch: pytest.MonkeyPatch, run: PlannedRun) -> None:
    """Processes that do not lead load the data by name."""
    monkeypatch.setattr(follow_module, "load_dataset", lambda *_: run.dataset)


class Outcome(NamedTuple):
    """What process 0 reports, and the exit statuses and errors of the others."""

    failed: list[str]
    failures: list[tuple[str, str]]
    warnings: list[str]
    steps: list[int]
    error: str
    followers: list[Any]


def share(
    count: int, runs: list[PlannedRun], root: Path, *, fault: Fault = lambda *_: None, status: int = 0, **values: Any
) -> Outcome:
    """Train the runs in several processes, of which only the first may open the results directory."""

    def work(processes: Processes) -> Any:
        limits = Limits(**values)
        processes.limits = limits
        fault(processes.rank, limits)
        if processes.rank:
            opened: list[str] = []
            sys.addaudithook(lambda event, arguments: opened.append(f"{event} {arguments}"))
            try:
                result: Any = follow(processes, CPU, root / "no data", limits)
            except PaperbenchError as error:
                result = str(error)
            assert not [event for event in opened if str(root) in event]
            return result
        log, failed, error = Log(), [], ""
        try:
            failed = Executor(Store(root), CPU, limits, log, processes=processes).run_all(runs)
        except PaperbenchError as caught:
            error = str(caught)
        processes.end(status)
        return [run.id for run in failed], log.failures, log.warnings, log.steps, error

    first, *others = together(count, work)
    return Outcome(*first, others)


@pytest.mark.parametrize("count", [2, 4])
def test_shared_run_leaves_what_one_process_leaves(
    count: int, run: PlannedRun, expected: RunDirectory, tmp_path: Path
) -> None:
    share(count, [run], tmp_path)
    shared = Store(tmp_path).directory(run.id)
    assert_same(shared, expected)
    record = shared.read_record()
    assert record
    assert [session.processes for session in record.sessions] == [count]
