"""Runs whose numbers stop being finite: kept, with iteration, rate and module where that began."""

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
from tests.runs.running import CPU, assert_same, go, planned

AFTER_THE_DROP = 0.1 * 0.1

Breaking = Callable[[str, int], None]


def break_output(unit: ResidualUnit, output: Tensor) -> None:
    if unit.training and output.shape[1] == 64:
        output.data.fill_(math.inf)


def break_gradients(step: TrainingStep, _: None) -> None:
    """Of which the second is computed first."""
    parameters = dict(step._working.module.named_parameters())
    for name in ("stem.conv.weight", "stages.1.0.residual.conv1.weight"):
        parameters[name].grad[0, 0, 0, 0] = math.nan


def break_parameter(optimiser: MomentumSGD, _: None) -> None:
    optimiser._parameters[-1].data.fill_(math.inf)  # the classifier's bias


BREAKS: dict[str, tuple[Any, str, Callable[..., None]]] = {
    "forward": (ResidualUnit, "forward", break_output),
    "backward": (TrainingStep, "_backward", break_gradients),
    "update": (MomentumSGD, "step", break_parameter),
}


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> Breaking:
    """Lets a tensor become infinite in one iteration (counted from 1) of every training."""

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
        ("update", "fc", 10, 0.1, 15),  # the loss of an iteration is measured before its update
    ],
)
def test_iteration_rate_phase_and_module_are_found(
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
    directory, log = go(run, tmp_path)
    assert log.record.divergence == Divergence(iteration, rate, phase, module)
    assert (log.record.status, log.record.iteration, log.record.result) == ("diverged", seen_at, None)
    assert directory.history()[-1].train_loss is None
    assert "NaN" not in directory.history_file.read_text()
    assert log.steps == list(range(1, seen_at + 1)), "the search is no progress"
    assert "replaying to find where that began" in log.warnings[0]
    assert len(directory.checkpoints.newest_first()) == 1


@pytest.mark.parametrize(
    ("checkpoint_every", "searched"),
    [
        (8, [*range(9, 15)]),  # from the checkpoint before the last line, of iteration 10
        (13, [14]),  # from a checkpoint behind it
        (20, [*range(1, 15)]),  # from the start, as there is no checkpoint
    ],
)
def test_a_replay_begins_at_the_newest_checkpoint(
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
    _, log = go(replace(run, recipe=replace(run.recipe, monitoring=monitoring)), tmp_path)
    assert log.record.divergence == Divergence(14, AFTER_THE_DROP, "forward", "stages.2.0")
    assert steps[15:] == searched


@pytest.fixture
def hot(run: PlannedRun) -> PlannedRun:
    return planned(replace(run.recipe, learning_rate=1e30, warm_up=None), run.dataset)


def test_a_training_that_overflows_ends_as_diverged_and_is_kept(hot: PlannedRun, tmp_path: Path) -> None:
    directory, log = go(hot, tmp_path)
    assert (log.record.status, log.record.iteration) == ("diverged", 5)
    # what torch says by itself: after one update of this size the next forward pass overflows in its first BN
    trainer = Trainer(hot.net, hot.recipe, hot.dataset, 0, "fp32", CPU)
    trainer.step()
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    trainer.step()
    assert math.isnan(trainer.training_metrics().loss)
    assert log.record.divergence
    assert (log.record.divergence.iteration, log.record.divergence.phase) == (2, "forward")
    _, again = go(hot, tmp_path)
    assert again.skips == [(hot.id, "diverged at iteration 5 already")]
    # as after a kill between checkpoint and record, or if somebody deletes a damaged record
    directory.record_file.unlink()
    directory, again = go(hot, tmp_path)
    assert again.steps == []
    assert again.record.divergence == log.record.divergence


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["graph", "compile"])
def test_a_divergence_on_a_gpu_is_found_whatever_the_engine(hot: PlannedRun, tmp_path: Path, engine: str) -> None:
    _, log = go(hot, tmp_path, device=torch.device("cuda"), engine=engine)
    assert (log.record.status, log.record.iteration) == ("diverged", 5)
    assert log.record.divergence
    assert (log.record.divergence.iteration, log.record.divergence.phase) == (2, "forward")


@pytest.mark.parametrize("stops", [(4,), (1, 2, 3, 4)])
def test_a_diverging_run_ends_the_same_however_it_was_interrupted(
    hot: PlannedRun, tmp_path: Path, stops: tuple[int, ...]
) -> None:
    """Also if it was paused after its numbers had broken and before anybody looked at them."""
    for stop in stops:
        go(hot, tmp_path / "part", stop_at=stop)
    part, _ = go(hot, tmp_path / "part")
    assert_same(part, go(hot, tmp_path / "whole")[0])


@pytest.mark.parametrize("steps_before_the_signal", [1, 9])
def test_a_signal_in_the_replay_loses_nothing(
    run: PlannedRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    breaking: Breaking,
    steps_before_the_signal: int,
) -> None:
    """The replay from 5 to 20 is stopped before and after the last line, at 10; the next session searches again."""
    breaking("forward", 19)
    rare = replace(run, recipe=replace(run.recipe, monitoring=Monitoring(10, 10, 20, 1.0)))
    whole, expected = go(rare, tmp_path / "whole")
    go(rare, tmp_path / "part", stop_at=5)
    limits, step, steps = Limits(), Trainer.step, []

    def signalled(self: Trainer) -> None:
        step(self)
        steps.append(self.iteration)
        if len(steps) == 15 + steps_before_the_signal:
            limits.signal = signal.SIGTERM

    monkeypatch.setattr(Trainer, "step", signalled)
    _, log = go(rare, tmp_path / "part", limits)
    assert (log.record.status, log.record.iteration) == ("partial", 20)
    assert len(steps) == 15 + steps_before_the_signal
    part, log = go(rare, tmp_path / "part")
    assert log.record.divergence == expected.record.divergence
    assert log.record.divergence == Divergence(19, AFTER_THE_DROP, "forward", "stages.2.0")
    assert_same(part, whole)


def test_a_net_that_only_its_last_update_breaks_has_diverged_too(run: PlannedRun, tmp_path: Path) -> None:
    broken = planned(
        replace(run.recipe, learning_rate=1e30, warm_up=WarmUp(0.01, 19), drops=Drops((), 0.1)), run.dataset
    )
    _, log = go(broken, tmp_path)
    assert log.lines[-1].train_loss is not None
    assert (log.record.status, log.record.result) == ("diverged", None)
    assert log.record.divergence
    assert (log.record.divergence.iteration, log.record.divergence.phase) == (20, "test")
    assert log.record.divergence.learning_rate == 1e30
    assert log.record.divergence.module


def test_numbers_that_break_once_and_never_again_are_said_not_to_be_found(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As hardware does that computes wrong, or arithmetic that does not repeat itself."""
    add = MetricAccumulator.add
    calls = []

    def once(self: MetricAccumulator, loss: Tensor, wrong: Tensor) -> None:
        calls.append(1)
        add(self, loss + math.inf if len(calls) == 10 else loss, wrong)  # two groups an iteration

    monkeypatch.setattr(MetricAccumulator, "add", once)
    _, log = go(run, tmp_path)
    assert log.record.divergence == Divergence(5, 0.1, None, None)


@pytest.mark.parametrize("has_sound_one", [True, False])
def test_checkpoints_whose_numbers_are_broken_are_passed_over(
    run: PlannedRun, tmp_path: Path, breaking: Breaking, has_sound_one: bool
) -> None:
    """Paused after its numbers had broken and before anybody looked. Without a sound one, the start will do."""
    breaking("update", 16)
    patient = replace(run, recipe=replace(run.recipe, monitoring=Monitoring(20, 20, 8, 1.0)))
    for stop in (17, 18, 19):
        directory, _ = go(patient, tmp_path, stop_at=stop)
    files = directory.checkpoints.newest_first()
    assert [file.iteration for file in files] == [19, 18, 17, 16, 8]
    if not has_sound_one:
        files[-1].path.unlink()
    _, log = go(patient, tmp_path)
    assert log.record.divergence == Divergence(16, AFTER_THE_DROP, "update", "fc")
    assert 20 in [file.iteration for file in directory.checkpoints.newest_first()]


def test_moving_averages_that_overflow_spoil_no_result(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reported statistics are averaged anew: only the moving-average loss has no number."""
    finish = Trainer.finish

    def overflowing(self: Trainer, *arguments: Any) -> Any:
        final = finish(self, *arguments)
        return replace(final, moving_average=replace(final.moving_average, loss=math.inf))

    monkeypatch.setattr(Trainer, "finish", overflowing)
    directory, log = go(run, tmp_path)
    assert log.record.status == "finished"
    assert log.record.result
    assert log.record.result.moving_average_test_loss is None
    assert directory.read_record() == log.record


def test_a_search_that_lacks_memory_ends_the_run_as_diverged_all_the_same(
    run: PlannedRun, tmp_path: Path, breaking: Breaking, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    breaking("forward", 4)
    monkeypatch.setattr(session, "find_in_training", lacking)
    _, log = go(run, tmp_path)
    assert log.record.divergence == Divergence(5, 0.1, None, None)
    assert log.warnings[-1] == "there is not enough memory to find where that began"


def test_a_checkpoint_that_cannot_be_read_is_passed_over(
    run: PlannedRun, tmp_path: Path, breaking: Breaking, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(_: object) -> bytes:
        raise RunError("cannot be read")

    breaking("forward", 14)
    monkeypatch.setattr(CheckpointFile, "read", unreadable)
    _, log = go(run, tmp_path)
    assert log.record.divergence == Divergence(14, AFTER_THE_DROP, "forward", "stages.2.0")
