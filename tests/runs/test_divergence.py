"""Runs whose numbers stop being finite: kept, with iteration, rate and module where that began."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paperbench.models.residual_unit import ResidualUnit
from paperbench.runs.limits import Limits
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Divergence
from paperbench.specs.recipe import Drops, Monitoring, WarmUp
from paperbench.training.engine import EagerEngine
from paperbench.training.optimiser import MomentumSGD
from paperbench.training.snapshot import Snapshot
from paperbench.training.step import TrainingStep
from paperbench.training.trainer import Trainer
from paperbench.training.window import Window
from tests.runs.running import CPU, assert_equal, assert_same, go, planned


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Lets one tensor become infinite in one iteration (counted from 1) of every training."""

    def arrange(phase: str, iteration: int) -> None:
        present = [0]
        step = EagerEngine.step

        def counted(self: EagerEngine, number: int) -> None:
            present[0] = number + 1
            step(self, number)

        monkeypatch.setattr(EagerEngine, "step", counted)
        if phase == "forward":
            forward = ResidualUnit.forward

            def overflowing(self: ResidualUnit, x: Tensor) -> Tensor:
                y = forward(self, x)
                is_place = self.training and x.shape[1] == 32 and y.shape[1] == 64
                return y * math.inf if is_place and present[0] == iteration else y

            monkeypatch.setattr(ResidualUnit, "forward", overflowing)
        if phase == "backward":
            backward = TrainingStep._backward

            def exploding(self: TrainingStep, *images_and_labels: Tensor) -> None:
                backward(self, *images_and_labels)
                if present[0] == iteration:
                    parameters = dict(self._working.module.named_parameters())
                    parameters["stages.1.0.residual.conv1.weight"].grad[0, 0, 0, 0] = math.nan

            monkeypatch.setattr(TrainingStep, "_backward", exploding)
        if phase == "update":
            update = MomentumSGD.step

            def overshooting(self: MomentumSGD, gradients: Sequence[Tensor]) -> None:
                update(self, gradients)
                if present[0] == iteration:
                    with torch.no_grad():
                        self._parameters[-1].fill_(math.inf)  # the classifier's bias

            monkeypatch.setattr(MomentumSGD, "step", overshooting)

    return arrange


@pytest.mark.parametrize(
    ("phase", "module"), [("forward", "stages.2.0"), ("backward", "stages.1.0.residual.conv1"), ("update", "fc")]
)
@pytest.mark.parametrize(("iteration", "seen_at"), [(1, 5), (9, 10), (10, 10), (14, 15)])
def test_iteration_rate_phase_and_module_are_found(
    run: PlannedRun,
    tmp_path: Path,
    breaking: Callable[[str, int], None],
    phase: str,
    module: str,
    iteration: int,
    seen_at: int,
) -> None:
    if phase != "forward" and iteration == 10:
        seen_at = 15  # the loss of an iteration is measured before its update
    breaking(phase, iteration)
    directory, log = go(run, tmp_path)
    rate = 0.01 if iteration <= 4 else 0.1 if iteration <= 12 else pytest.approx(0.01)
    found = log.record.divergence
    assert found == Divergence(iteration, rate, phase, module)
    assert (log.record.status, log.record.iteration, log.record.result) == ("diverged", seen_at, None)
    assert directory.history()[-1].train_loss is None
    assert "NaN" not in directory.history_file.read_text()
    assert log.steps == list(range(1, seen_at + 1)), "the search is not told as progress"
    assert len(directory.checkpoints.newest_first()) == 1


@pytest.fixture
def hot(run: PlannedRun) -> PlannedRun:
    return planned(replace(run.recipe, learning_rate=1e30, warm_up=None), run.dataset)


def test_a_training_that_overflows_ends_as_diverged_and_is_kept(hot: PlannedRun, tmp_path: Path) -> None:
    directory, log = go(hot, tmp_path)
    assert log.record.status == "diverged"
    assert log.record.iteration == 5
    # what torch says by itself: after one update of this size the next forward pass overflows in its first BN
    trainer = Trainer(hot.net, hot.recipe, hot.dataset, 0, "fp32", CPU)
    trainer.step()
    assert all(p.isfinite().all() for p in trainer.model.parameters())
    trainer.step()
    assert math.isnan(trainer.window_metrics().loss)
    assert log.record.divergence
    assert (log.record.divergence.iteration, log.record.divergence.phase) == (2, "forward")
    _, again = go(hot, tmp_path)
    assert again.skips == [(hot.id, "diverged at iteration 5 already")]
    # as after a kill between checkpoint and record, or if somebody deletes a damaged record
    directory.record_file.unlink()
    directory, again = go(hot, tmp_path)
    assert again.steps == []
    assert again.record.divergence == log.record.divergence


@pytest.mark.parametrize("stops", [(1,), (2,), (3,), (4,), (1, 2, 3, 4)])
def test_a_diverging_run_ends_the_same_however_it_was_interrupted(
    hot: PlannedRun, tmp_path: Path, stops: tuple[int, ...]
) -> None:
    """Also if it was paused after its numbers had broken and before anybody looked at them."""
    for stop in stops:
        go(hot, tmp_path / "part", stop_at=stop)
    part, _ = go(hot, tmp_path / "part")
    assert_same(part, go(hot, tmp_path / "whole")[0])


def test_a_signal_during_the_search_loses_nothing(
    hot: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = Limits()
    step = Trainer.step
    steps = []

    def signalled(self: Trainer) -> None:
        step(self)
        steps.append(self.iteration)
        if steps == [1, 2, 3, 4, 5, 1]:
            limits.signal = signal.SIGTERM

    monkeypatch.setattr(Trainer, "step", signalled)
    _, log = go(hot, tmp_path / "part", limits)
    assert (log.record.status, log.record.iteration) == ("partial", 5)
    monkeypatch.undo()
    part, _ = go(hot, tmp_path / "part")
    assert_same(part, go(hot, tmp_path / "whole")[0])


def test_a_net_that_only_its_last_update_breaks_has_diverged_too(run: PlannedRun, tmp_path: Path) -> None:
    broken = planned(
        replace(run.recipe, learning_rate=1e30, warm_up=WarmUp(0.01, 19), drops=Drops((), 0.1)), run.dataset
    )
    _, log = go(broken, tmp_path)
    assert log.lines[-1].train_loss is not None
    assert log.record.status == "diverged"
    assert log.record.result is None
    assert log.record.divergence
    assert (log.record.divergence.iteration, log.record.divergence.phase) == (20, "test")
    assert log.record.divergence.learning_rate == 1e30
    assert log.record.divergence.module


def test_numbers_that_break_once_and_never_again_are_said_not_to_be_found(
    run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As hardware does that computes wrong, or arithmetic that does not repeat itself."""
    add = Window.add
    calls = []

    def once(self: Window, loss: Tensor, wrong: Tensor) -> None:
        calls.append(1)
        add(self, loss + math.inf if len(calls) == 10 else loss, wrong)  # two groups an iteration

    monkeypatch.setattr(Window, "add", once)
    _, log = go(run, tmp_path)
    assert log.record.divergence == Divergence(5, 0.1, None, None)


def test_a_snapshot_does_not_move_with_the_training(run: PlannedRun) -> None:
    trainer = Trainer(run.net, run.recipe, run.dataset, 0, "fp32", CPU)
    snapshot = Snapshot(trainer)
    states = []
    for _ in range(2):
        for _ in range(3):
            trainer.step()
        snapshot.take(trainer)
        states.append(snapshot.state())
        assert_equal(snapshot.state(), trainer.state_dict())
    kept = snapshot.state()
    loaded = snapshot.state()
    trainer.load_state_dict(loaded)
    trainer.step()
    assert_equal(snapshot.state(), kept)
    twin = Trainer(run.net, run.recipe, run.dataset, 0, "fp32", CPU)
    twin.load_state_dict(kept)
    twin.step()
    assert_equal(twin.state_dict(), trainer.state_dict())
    assert states[0]["iteration"] == 3


def test_a_run_that_broke_long_ago_is_located_from_the_last_sound_checkpoint(
    run: PlannedRun, tmp_path: Path, breaking: Callable[[str, int], None]
) -> None:
    """Paused twice after its numbers had broken and before anybody looked: the checkpoints of that prove nothing."""
    breaking("update", 16)
    patient = replace(run, recipe=replace(run.recipe, monitoring=Monitoring(20, 20, 8, 1.0)))
    for stop in (17, 18, 19):
        directory, _ = go(patient, tmp_path, stop_at=stop)
    assert [file.iteration for file in directory.checkpoints.newest_first()] == [19, 18, 17, 16, 8]
    _, log = go(patient, tmp_path)
    assert log.record.divergence == Divergence(16, pytest.approx(0.01), "update", "fc")
    assert [file.iteration for file in directory.checkpoints.newest_first()] == [20]


def test_a_run_without_a_sound_state_not_far_back_is_not_searched_for_hours(
    run: PlannedRun, tmp_path: Path, breaking: Callable[[str, int], None]
) -> None:
    breaking("update", 16)
    often = replace(run, recipe=replace(run.recipe, monitoring=Monitoring(20, 20, 8, 1.0)))
    directory, _ = go(often, tmp_path, stop_at=19)
    for file in directory.checkpoints.newest_first()[1:]:
        file.path.unlink()
    _, log = go(often, tmp_path)
    assert log.record.divergence == Divergence(20, pytest.approx(0.01), None, None)


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
