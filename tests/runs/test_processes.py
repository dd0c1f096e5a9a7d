"""Runs that several processes share: what is on the disk, and how a run stops and goes on."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from paperbench.data.dataset import ImageDataset
from paperbench.errors import PaperbenchError
from paperbench.runs import environment as environment_module
from paperbench.runs.checkpoints import CheckpointFile, Checkpoints
from paperbench.runs.environment import code_facts, environment_facts
from paperbench.runs.limits import Limits
from paperbench.runs.observer import Observer
from paperbench.runs.planning import PlannedRun
from paperbench.runs.session import SessionSetting
from paperbench.runs.store import RunDirectory, Store
from paperbench.runs.worker import Worker
from paperbench.specs.recipe import BatchNormSettings, Recipe
from paperbench.training.engine import EagerEngine
from paperbench.training.processes import Processes
from paperbench.training.step import TrainingStep
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


class Outcome(NamedTuple):
    """What process 0 reports, and the exit statuses and errors of the others."""

    failed: list[str]
    failures: list[tuple[str, str]]
    warnings: list[str]
    skips: list[tuple[str, str]]
    steps: list[int]
    error: str
    followers: list[Any]


def share(
    count: int,
    runs: list[PlannedRun],
    root: Path,
    *,
    fault: Fault = lambda *_: None,
    status: int = 0,
    others_runs: list[PlannedRun] | None = None,
    **values: Any,
) -> Outcome:
    """Train the runs in several processes, of which only the first may open the results directory.

    Args:
        others_runs: What the other processes have planned, if not the same.
    """

    def work(processes: Processes) -> Any:
        limits = Limits() if processes.rank else Limits(**values)  # those of process 0 hold for all
        processes.limits = limits
        fault(processes.rank, limits)
        log, failed, error = Log(), list[PlannedRun](), ""
        observer = Observer() if processes.rank else log
        worker = Worker(Store(root), SessionSetting(CPU, limits, observer, processes=processes))
        if processes.rank:
            opened: list[str] = []
            sys.addaudithook(lambda event, arguments: opened.append(f"{event} {arguments}"))
            try:
                result: Any = worker.assist(others_runs or runs)
            except PaperbenchError as error:
                result = str(error)
            assert not [event for event in opened if str(root) in event]
            return result
        try:
            failed = worker.run_all(runs)
        except PaperbenchError as caught:
            error = str(caught)
        processes.end(status)
        return [run.id for run in failed], log.failures, log.warnings, log.skips, log.steps, error

    first, *others = together(count, work)
    return Outcome(*first, others)


@pytest.mark.parametrize("count", [pytest.param(2, marks=pytest.mark.full), 4])
def test_shared_run_leaves_what_one_process_leaves(
    count: int, run: PlannedRun, expected: RunDirectory, tmp_path: Path
) -> None:
    share(count, [run], tmp_path)
    shared = Store(tmp_path).directory(run.id)
    assert_same(shared, expected)
    record = shared.read_record()
    assert record
    assert [session.processes for session in record.sessions] == [count]


@pytest.mark.full
def test_shared_run_goes_on_with_fewer_processes(run: PlannedRun, expected: RunDirectory, tmp_path: Path) -> None:
    """From four to two, to one, and to two for the rest."""
    for count, stop_at in ((4, 7), (2, 11), (1, 15), (2, None)):
        share(count, [run], tmp_path, stop_at=stop_at)
    shared = Store(tmp_path).directory(run.id)
    assert_same(shared, expected)
    record = shared.read_record()
    assert record
    assert [(one.last, one.processes) for one in record.sessions] == [(7, 4), (11, 2), (15, None), (20, 2)]


@pytest.mark.full
def test_runs_follow_one_another_and_finished_ones_are_skipped(
    run: PlannedRun, expected: RunDirectory, tmp_path: Path
) -> None:
    others = [replace(run, seed=seed) for seed in (1, 2)]
    share(2, others[:1], tmp_path, stop_at=3)
    share(2, [run], tmp_path)
    outcome = share(2, [*others, run], tmp_path, status=7)
    assert outcome.steps == [*range(4, 21), *range(1, 21)]
    assert outcome.followers == [7], "the status that process 0 gives"
    assert_same(Store(tmp_path).directory(run.id), expected)


def in_step(iteration: int, work: Callable[[], object]) -> None:
    """Arrange for some work in the middle of an iteration, counted from 1, of this process: once."""
    step, compute, present = EagerEngine.step, TrainingStep.compute, 0

    def counted(self: EagerEngine, number: int) -> None:
        nonlocal present
        present = number + 1
        step(self, number)

    def disturbed(self: TrainingStep, *arguments: Any) -> None:
        nonlocal iteration
        if present == iteration:
            iteration = 0
            work()
        compute(self, *arguments)

    EagerEngine.step, TrainingStep.compute = counted, disturbed  # type: ignore[method-assign]


def fault_of(rank: int, iteration: int, work: Callable[[Limits], object]) -> Fault:
    """A fault in one process in the middle of an iteration."""
    return lambda this, limits: in_step(iteration, lambda: work(limits)) if this == rank else None


def out_of_memory(_: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.full), 1])
def test_memory_that_runs_out_in_one_process_is_saved_in_all(
    run: PlannedRun, expected: RunDirectory, tmp_path: Path, rank: int
) -> None:
    outcome = share(2, [run], tmp_path, fault=fault_of(rank, 10, out_of_memory))
    (warning,) = outcome.warnings
    assert "recomputes the residual units" in warning
    assert outcome.steps == [*range(1, 10), *range(9, 21)], "from the checkpoint of iteration 8"
    assert_same(Store(tmp_path).directory(run.id), expected)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.full), 1])
def test_signal_in_one_process_stops_all_after_the_iteration(
    run: PlannedRun, expected: RunDirectory, tmp_path: Path, rank: int
) -> None:
    outcome = share(2, [run], tmp_path, fault=fault_of(rank, 6, lambda limits: setattr(limits, "signal", 15)))
    record = Store(tmp_path).directory(run.id).read_record()
    assert record
    assert outcome.steps[-1] == record.iteration
    assert record.iteration in (6, 7)
    share(2, [run], tmp_path)
    assert_same(Store(tmp_path).directory(run.id), expected)


def test_other_images_in_one_process_are_an_error_before_training(run: PlannedRun, tmp_path: Path) -> None:
    other = replace(run.dataset, x_train=run.dataset.x_train[::-1].copy())  # type: ignore[union-attr, type-var]
    outcome = share(2, [run], tmp_path, status=2, others_runs=[plan_run(run.recipe, other)])
    assert "Process 1: its images or options are not those of process 0" in outcome.error
    assert (outcome.steps, outcome.followers) == ([], [2])
    assert not Store(tmp_path).directory(run.id).checkpoints.newest_first()


def in_process_1(factor: float = 1.0, code: Any = None, machine: Any = None) -> Fault:
    """Let process 1 make other gradients, have other code, or another machine."""

    def change(rank: int, _: Limits) -> None:
        backward = TrainingStep._backward
        if rank:
            TrainingStep._backward = lambda *known: backward(*known[:-1], factor * known[-1])  # type: ignore[method-assign]
            changed = replace(code_facts(), **code or {}), replace(environment_facts(CPU), **machine or {})
            environment_module.code_facts = lambda: changed[0]
            environment_module.environment_facts = lambda _: changed[1]

    return change


STEPS = "the first steps in 2 processes are not those of one ("
REFUSED = [
    (in_process_1(code={"source": "0123"}), "Process 1: it has source 0123 (process 0: "),
    (in_process_1(1 + 2**-20), STEPS),
    (in_process_1(0.1, machine={"threads": 64}), STEPS),
    (in_process_1(code={"numerics": 0}), "it has numerics 0 (process 0: "),
    *((in_process_1(machine={name: "0"}), f"it has {name} 0") for name in ("torch", "timm", "numpy", "cuda")),
]


@pytest.mark.parametrize("stop_at", [None, 7])
@pytest.mark.parametrize(
    ("fault", "told"), [*REFUSED[:1], *(pytest.param(*o, marks=pytest.mark.full) for o in REFUSED[1:])]
)
def test_process_that_would_compute_otherwise_is_refused(
    run: PlannedRun, tmp_path: Path, fault: Fault, told: str, stop_at: int | None
) -> None:
    if stop_at:
        train(run, tmp_path, stop_at=stop_at)
    outcome = share(2, [run], tmp_path, fault=fault, status=2)
    assert told in f"{outcome.error} {outcome.failures}"
    assert (outcome.steps, outcome.followers) == ([], [2])


@pytest.mark.full
def test_other_machine_may_round_otherwise_and_the_record_says_so(run: PlannedRun, tmp_path: Path) -> None:
    outcome = share(2, [run], tmp_path, fault=in_process_1(1 + 2**-20, machine={"threads": 64}))
    record = Store(tmp_path).readable_record(run.id)
    assert record
    assert outcome.warnings == [record.sessions[0].fallback]
    assert outcome.warnings[0].startswith(STEPS)


def test_write_that_fails_ends_all_and_loses_nothing(run: PlannedRun, expected: RunDirectory, tmp_path: Path) -> None:
    """Process 0 alone writes; the others learn of it, and receive the exit status."""

    def without_space(rank: int, _: Limits) -> None:
        write = Checkpoints.write

        def fail(self: Checkpoints, iteration: int, data: bytes) -> CheckpointFile:
            assert rank == 0
            if iteration == 16:
                raise PaperbenchError("no space")
            return write(self, iteration, data)

        Checkpoints.write = fail  # type: ignore[method-assign]

    outcome = share(2, [run], tmp_path, fault=without_space, status=2)
    assert (outcome.error, outcome.followers, outcome.steps[-1]) == ("no space", [2], 16)
    share(2, [run], tmp_path)
    assert_same(Store(tmp_path).directory(run.id), expected)


@pytest.mark.full
def test_lost_lease_leaves_the_run_and_starts_the_next(run: PlannedRun, expected: RunDirectory, tmp_path: Path) -> None:
    first = replace(run, seed=1)

    def take_over(_: Limits) -> None:
        (file,) = Store(tmp_path).lease(first.id).directory.iterdir()
        file.rename(file.with_suffix(".9"))

    outcome = share(2, [first, run], tmp_path, fault=fault_of(0, 5, take_over))
    assert "lost its lease" in outcome.skips[0][1]
    assert_same(Store(tmp_path).directory(run.id), expected)


@pytest.mark.full
def test_divergence_is_recorded_as_by_one_process(run: PlannedRun, tmp_path: Path) -> None:
    wild = plan_run(replace(run.recipe, learning_rate=1e30, warm_up=None), run.dataset)  # type: ignore[arg-type]
    for count in (1, 2):
        share(count, [wild], tmp_path / str(count))
    alone, shared = (Store(tmp_path / str(count)).directory(wild.id) for count in (1, 2))
    record = shared.read_record()
    assert record
    assert record.divergence
    assert_same(shared, alone)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.full)])
def test_nothing_is_written_after_a_process_is_lost(
    run: PlannedRun, expected: RunDirectory, tmp_path: Path, rank: int
) -> None:
    kept, directory = tmp_path / "kept", Store(tmp_path / "r").directory(run.id).path

    def die(_: Limits) -> None:
        shutil.copytree(directory, kept)
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(AssertionError, match="ended without a result"):
        share(2, [run], tmp_path / "r", fault=fault_of(rank, 14, die))
    assert contents(directory) == contents(kept)
    share(1, [run], tmp_path / "r")
    assert_same(Store(tmp_path / "r").directory(run.id), expected)


def kill(_: Limits) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop(limits: Limits) -> None:
    limits.signal = signal.SIGTERM


def suspend(_: Limits) -> None:
    """Suspend this process for a moment."""
    subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.full
def test_random_faults_of_processes_lose_nothing(
    run: PlannedRun, expected: RunDirectory, tmp_path: Path, stress: bool
) -> None:
    """One fault of one process after another; a run that ends is checked, and another one begins."""
    rng, finished = random.Random(0), 0
    for _ in range(50 if stress else 6):
        store, count = Store(tmp_path / str(finished)), rng.choice((2, 4))
        record = store.readable_record(run.id)
        iteration = rng.randint(record.iteration if record else 0, 20) + 1
        work, rank = rng.choice((kill, stop, suspend)), rng.randrange(count)
        with suppress(AssertionError) if work is kill else nullcontext():  # `together` misses the result of the killed
            share(count, [run], store.root, fault=fault_of(rank, iteration, work))
        record = store.directory(run.id).read_record()
        if record and record.status == "finished":
            assert_same(store.directory(run.id), expected)
            finished += 1
    store = Store(tmp_path / str(finished))
    share(1, [run], store.root)
    assert_same(store.directory(run.id), expected)
