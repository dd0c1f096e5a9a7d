"""Runs that diverge: their values stop being finite at some iteration, learning rate and module."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paperbench.errors import RunError
from paperbench.models.residual_unit import ResidualUnit
from paperbench.runs import session
from paperbench.runs.checkpoints import CheckpointFile
from paperbench.runs.limits import Limits
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Divergence
from paperbench.specs.recipe import Drops, Monitoring, WarmUp
from paperbench.training.engine import EagerEngine
from paperbench.training.metrics import MetricAccumulator
from paperbench.training.optimiser import MomentumSGD
from paperbench.training.step import TrainingStep
from paperbench.training.trainer import Trainer
from paperbench.training.tree_sum import TreeSum
from tests.runs.running import assert_same, plan_run, train

AFTER_THE_DROP = 0.1 * 0.1

Breaking = Callable[[str, int], None]


def break_output(unit: ResidualUnit, output: Tensor) -> None:
    if unit.training and output.shape[1] == 64:
        output.data.fill_(math.inf)


def break_gradients(step: TrainingStep, _: None) -> None:
    """Break two gradients; the backward pass computes the second one first."""
    parameters = dict(step._workings[0].module.named_parameters())
    for name in ("stem.conv.weight", "stages.1.0.residual.conv1.weight"):
        parameters[name].grad[0, 0, 0, 0] = math.nan


def break_parameter(optimiser: MomentumSGD, _: None) -> None:
    optimiser._parameters[-1].data.fill_(math.inf)  # the classifier's bias


def break_first_group(sums: TreeSum, _: None) -> None:
    """Break a gradient of the first batch-norm group only."""
    groups, gradients = sums._parts[-1]
    if groups == 1:
        gradients[-1][0] = math.nan


BREAKS: dict[str, tuple[Any, str, Callable[..., None]]] = {
    "forward": (ResidualUnit, "forward", break_output),
    "backward": (TrainingStep, "_backward", break_gradients),
    "backward of the first group": (TreeSum, "add", break_first_group),
    "update": (MomentumSGD, "step", break_parameter),
}


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> Breaking:
    """Makes a tensor infinite in one iteration (counted from 1) of every training."""

    def arrange(phase: str, iteration: int) -> None:
        owner, name, damage = BREAKS[phase]
        original, step, present = getattr(owner, name), EagerEngine.step, 0

        def counted(self: EagerEngine, number: int) -> None:
            nonlocal present
            present = number + 1
            step(self, number)

        def damaged(self: Any, *arguments: Any) -> Any:
            result = original(self, *arguments)
            if present == iteration:
                damage(self, result)
            return result

        monkeypatch.setattr(EagerEngine, "step", counted)
        monkeypatch.setattr(owner, name, damaged)

    return arrange


@pytest.mark.parametrize(
    ("phase", "module", "iteration", "rate", "seen_at"),
    [
        ("forward", "stages.2.0", 4, 0.01, 5),  # the last of the warm-up
        ("forward", "stages.2.0", 10, 0.1, 10),
        ("backward", "stages.1.0.residual.conv1", 14, AFTER_THE_DROP, 15),
        ("backward of the first group", "fc", 10, 0.1, 15),
        ("update", "fc", 10, 0.1, 15),  # the loss is measured before the update
    ],
)
def test_divergence_is_located(
    run: PlannedRun,
    tmp_path: Path,
    breaking: Breaking,
    phase: str,
    module: str,
    iteration: int,
    rate: float,
    seen_at: int,
) -> None:
    breaking(phase, iteration)
    directory, log = train(run, tmp_path)
    assert log.record.divergence == Divergence(iteration, rate, phase.split()[0], module)  # type: ignore[arg-type]
    assert (log.record.status, log.record.iteration, log.record.result) == ("diverged", seen_at, None)
    assert directory.history()[-1].train_loss is None
    assert "NaN" not in directory.history_file.read_text()
    assert log.steps == list(range(1, seen_at + 1)), "the replay does not count as progress"
    assert "replaying to find the first such value" in log.warnings[0]
    assert len(directory.checkpoints.newest_first()) == 1


@pytest.mark.parametrize(
    ("checkpoint_every", "searched"),
    [
        (8, [*range(9, 15)]),  # from the checkpoint before the last line, of iteration 10
        (13, [14]),  # from a checkpoint behind it
    ],
)
def test_replay_starts_at_newest_checkpoint(
    run: PlannedRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    breaking: Breaking,
    checkpoint_every: int,
    searched: list[int],
) -> None:
    breaking("forward", 14)
    step, steps = Trainer.step, []

    def counting(self: Trainer) -> None:
        step(self)
        steps.append(self.iteration)

    monkeypatch.setattr(Trainer, "step", counting)
    monitoring = replace(run.recipe.monitoring, checkpoint_every=checkpoint_every)
    _, log = train(replace(run, recipe=replace(run.recipe, monitoring=monitoring)), tmp_path)
    assert log.record.divergence == Divergence(14, AFTER_THE_DROP, "forward", "stages.2.0")
    assert steps[15:] == searched


@pytest.fixture
def hot(run: PlannedRun) -> PlannedRun:
    return plan_run(replace(run.recipe, learning_rate=1e30, warm_up=None), run.dataset)


def test_overflowing_run_ends_as_diverged(hot: PlannedRun, tmp_path: Path) -> None:
    directory, log = train(hot, tmp_path)
    assert (log.record.status, log.record.iteration) == ("diverged", 5)
    assert log.record.divergence
    # after one update of this size, the next forward pass overflows in its first BN
    assert (log.record.divergence.iteration, log.record.divergence.phase) == (2, "forward")
    _, again = train(hot, tmp_path)
    assert again.skips == [(hot.id, "diverged at iteration 5 already")]
    # after a kill between checkpoint and record, or if the user deletes a damaged record
    directory.record_file.unlink()
    directory, again = train(hot, tmp_path)
    assert again.steps == []
    assert again.record.divergence == log.record.divergence


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["graph", "compile"])
def test_divergence_on_gpu_is_located_with_any_engine(hot: PlannedRun, tmp_path: Path, engine: str) -> None:
    _, log = train(hot, tmp_path, device=torch.device("cuda"), engine=engine)
    assert (log.record.status, log.record.iteration) == ("diverged", 5)
    assert log.record.divergence
    assert (log.record.divergence.iteration, log.record.divergence.phase) == (2, "forward")


def test_paused_run_diverges_like_uninterrupted_one(hot: PlannedRun, tmp_path: Path) -> None:
    """Even if it was paused after it diverged and before a line was logged."""
    for stop in (1, 2, 3, 4):
        train(hot, tmp_path / "part", stop_at=stop)
    part, _ = train(hot, tmp_path / "part")
    assert_same(part, train(hot, tmp_path / "uninterrupted")[0])


@pytest.mark.parametrize("steps_before_the_signal", [1, pytest.param(9, marks=pytest.mark.full)])
def test_signal_during_replay_loses_nothing(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaking: Breaking, steps_before_the_signal: int
) -> None:
    """The replay from 5 to 20 is interrupted before or after the last line, at 10; the next session repeats it."""
    breaking("forward", 19)
    rare = replace(run, recipe=replace(run.recipe, monitoring=Monitoring(10, 10, 20, 1.0)))
    uninterrupted, expected = train(rare, tmp_path / "uninterrupted")
    train(rare, tmp_path / "part", stop_at=5)
    limits, step, steps = Limits(), Trainer.step, []

    def signalled(self: Trainer) -> None:
        step(self)
        steps.append(self.iteration)
        if len(steps) == 15 + steps_before_the_signal:
            limits.signal = signal.SIGTERM

    monkeypatch.setattr(Trainer, "step", signalled)
    _, log = train(rare, tmp_path / "part", limits)
    assert (log.record.status, log.record.iteration) == ("partial", 20)
    assert len(steps) == 15 + steps_before_the_signal
    part, log = train(rare, tmp_path / "part")
    assert log.record.divergence == expected.record.divergence
    assert log.record.divergence == Divergence(19, AFTER_THE_DROP, "forward", "stages.2.0")
    assert_same(part, uninterrupted)


def test_divergence_in_last_update_is_found_by_final_test(run: PlannedRun, tmp_path: Path) -> None:
    broken = plan_run(
        replace(run.recipe, learning_rate=1e30, warm_up=WarmUp(0.01, 19), drops=Drops((), 0.1)), run.dataset
    )
    _, log = train(broken, tmp_path)
    assert log.lines[-1].train_loss is not None
    assert (log.record.status, log.record.result) == ("diverged", None)
    found = log.record.divergence
    assert found
    assert (found.iteration, found.learning_rate, found.phase) == (20, 1e30, "test")
    assert found.module


def test_divergence_that_does_not_repeat_is_not_located(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Caused by faulty hardware or nondeterministic arithmetic."""
    add = MetricAccumulator.add
    calls = []

    def once(self: MetricAccumulator, loss: Tensor, wrong: Tensor) -> None:
        calls.append(1)
        add(self, loss + math.inf if len(calls) == 10 else loss, wrong)  # two groups an iteration

    monkeypatch.setattr(MetricAccumulator, "add", once)
    _, log = train(run, tmp_path)
    assert log.record.divergence == Divergence(5, 0.1, None, None)


@pytest.mark.parametrize("has_finite_one", [True, False])
def test_replay_skips_checkpoints_that_are_not_finite(
    run: PlannedRun, tmp_path: Path, breaking: Breaking, has_finite_one: bool
) -> None:
    """The run was paused after it diverged. Without a finite checkpoint, the replay starts at iteration 0."""
    breaking("update", 16)
    patient = replace(run, recipe=replace(run.recipe, monitoring=Monitoring(20, 20, 8, 1.0)))
    for stop in (17, 18, 19):
        directory, _ = train(patient, tmp_path, stop_at=stop)
    files = directory.checkpoints.newest_first()
    assert [file.iteration for file in files] == [19, 18, 17, 16, 8]
    if not has_finite_one:
        files[-1].path.unlink()
    _, log = train(patient, tmp_path)
    assert log.record.divergence == Divergence(16, AFTER_THE_DROP, "update", "fc")
    assert 20 in [file.iteration for file in directory.checkpoints.newest_first()]


def test_infinite_moving_average_loss_is_not_divergence(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result uses re-estimated statistics, so only the moving-average loss is missing."""
    test, finish = Trainer.test, Trainer.finish

    def finishing(self: Trainer, *arguments: Any) -> Any:
        monkeypatch.setattr(Trainer, "test", test)
        return finish(self, *arguments)

    monkeypatch.setattr(Trainer, "test", lambda *arguments: replace(test(*arguments), loss=math.inf))
    monkeypatch.setattr(Trainer, "finish", finishing)
    directory, log = train(run, tmp_path)
    assert log.record.status == "finished"
    assert log.record.result
    assert log.record.result.moving_average_test_loss is None
    assert directory.read_record() == log.record


def test_replay_without_memory_still_records_divergence(
    run: PlannedRun, tmp_path: Path, breaking: Breaking, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    breaking("forward", 4)
    monkeypatch.setattr(session, "find_in_training", lacking)
    _, log = train(run, tmp_path)
    assert log.record.divergence == Divergence(5, 0.1, None, None)
    assert log.warnings[-1] == "the memory is not sufficient to find the first such value"


def test_replay_skips_unreadable_checkpoints(
    run: PlannedRun, tmp_path: Path, breaking: Breaking, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(_: object) -> bytes:
        raise RunError("cannot be read")

    breaking("forward", 14)
    monkeypatch.setattr(CheckpointFile, "read", unreadable)
    _, log = train(run, tmp_path)
    assert log.record.divergence == Divergence(14, AFTER_THE_DROP, "forward", "stages.2.0")
