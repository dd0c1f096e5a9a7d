"""Runs whose numbers stop being finite: kept, with iteration, rate and module where that began."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from paperbench.training.step import TrainingStep
from paperbench.training.trainer import Trainer
from paperbench.training.window import Window
from tests.runs.running import CPU, assert_same, go, planned

Breaking = Callable[[str, int], None]


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> Breaking:
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


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Each step of any trainer so far, and whether it was observed."""
    steps: list[tuple[int, bool]] = []
    step, eagerly, is_observed = Trainer.step, Trainer.stepping_eagerly, False

    def counting(self: Trainer) -> None:
        step(self)
        steps.append((self.iteration, is_observed))

    @contextmanager
    def observing(self: Trainer) -> Iterator[None]:
        nonlocal is_observed
        is_observed = True
        with eagerly(self):
            yield
        is_observed = False

    monkeypatch.setattr(Trainer, "step", counting)
    monkeypatch.setattr(Trainer, "stepping_eagerly", observing)
    return steps


@pytest.mark.parametrize(
    ("phase", "module"), [("forward", "stages.2.0"), ("backward", "stages.1.0.residual.conv1"), ("update", "fc")]
)
@pytest.mark.parametrize(("iteration", "seen_at"), [(1, 5), (10, 10), (14, 15)])
def test_iteration_rate_phase_and_module_are_found(
    run: PlannedRun, tmp_path: Path, breaking: Breaking, phase: str, module: str, iteration: int, seen_at: int
) -> None:
    if phase != "forward" and iteration == 10:
        seen_at = 15  # the loss of an iteration is measured before its update
    breaking(phase, iteration)
    directory, log = go(run, tmp_path)
    rate = 0.01 if iteration <= 4 else 0.1 if iteration <= 12 else pytest.approx(0.01)
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
def test_only_what_no_line_vouches_for_is_observed_of_a_replay_from_the_newest_checkpoint(
    run: PlannedRun,
    tmp_path: Path,
    breaking: Breaking,
    observed: list[tuple[int, bool]],
    checkpoint_every: int,
    searched: list[int],
) -> None:
    breaking("forward", 14)
    monitoring = replace(run.recipe.monitoring, checkpoint_every=checkpoint_every)
    _, log = go(replace(run, recipe=replace(run.recipe, monitoring=monitoring)), tmp_path)
    assert log.record.divergence == Divergence(14, pytest.approx(0.01), "forward", "stages.2.0")
    assert observed[15:] == [(iteration, iteration >= 10) for iteration in searched]
    assert not any(is_observed for _, is_observed in observed[:15])


def test_noise_is_repeated_in_a_replay(run: PlannedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit overflows where it draws what it drew in iteration 13 before: the same iteration must be found."""
    noisy = planned(run.recipe, run.dataset, "resnet110_dropout_shortcut")
    forward, drawn = ResidualUnit.forward, []

    def unlucky(self: ResidualUnit, x: Tensor) -> Tensor:
        y = forward(self, x)
        if self.training:
            drawn.append(float(y.detach().double().sum()))
        return y * math.inf if drawn[-1:] == broken else y

    broken: list[float] = []
    monkeypatch.setattr(ResidualUnit, "forward", unlucky)
    go(noisy, tmp_path / "first", stop_at=13)
    units, groups = 3, 2
    broken.append(drawn[12 * groups * units])  # of the first unit in iteration 13
    drawn.clear()
    _, log = go(noisy, tmp_path / "second")
    assert log.record.divergence == Divergence(13, pytest.approx(0.01), "forward", "stages.0.0")


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


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["graph", "compile"])
def test_a_divergence_on_a_gpu_is_found_whatever_the_engine(hot: PlannedRun, tmp_path: Path, engine: str) -> None:
    _, log = go(hot, tmp_path, device=torch.device("cuda"), engine=engine)
    assert (log.record.status, log.record.iteration) == ("diverged", 5)
    assert log.record.divergence
    assert (log.record.divergence.iteration, log.record.divergence.phase) == (2, "forward")


@pytest.mark.parametrize("stops", [(1,), (4,), (1, 2, 3, 4)])
def test_a_diverging_run_ends_the_same_however_it_was_interrupted(
    hot: PlannedRun, tmp_path: Path, stops: tuple[int, ...]
) -> None:
    """Also if it was paused after its numbers had broken and before anybody looked at them."""
    for stop in stops:
        go(hot, tmp_path / "part", stop_at=stop)
    part, _ = go(hot, tmp_path / "part")
    assert_same(part, go(hot, tmp_path / "whole")[0])


@pytest.mark.parametrize("steps_before_the_signal", [1, 4, 9])
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
    assert log.record.divergence == Divergence(19, pytest.approx(0.01), "forward", "stages.2.0")
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
    add = Window.add
    calls = []

    def once(self: Window, loss: Tensor, wrong: Tensor) -> None:
        calls.append(1)
        add(self, loss + math.inf if len(calls) == 10 else loss, wrong)  # two groups an iteration

    monkeypatch.setattr(Window, "add", once)
    _, log = go(run, tmp_path)
    assert log.record.divergence == Divergence(5, 0.1, None, None)


@pytest.mark.parametrize("kept", [[19, 18, 17, 16, 8], [19, 18, 17, 16], []])
def test_checkpoints_whose_numbers_are_broken_are_passed_over(
    run: PlannedRun, tmp_path: Path, breaking: Breaking, kept: list[int]
) -> None:
    """Paused after its numbers had broken and before anybody looked. Without a sound one, the start will do."""
    breaking("update", 16)
    patient = replace(run, recipe=replace(run.recipe, monitoring=Monitoring(20, 20, 8, 1.0)))
    for stop in (17, 18, 19):
        directory, _ = go(patient, tmp_path, stop_at=stop)
    files = directory.checkpoints.newest_first()
    assert [file.iteration for file in files] == [19, 18, 17, 16, 8]
    for file in files[1:]:
        if kept and file.iteration not in kept:
            file.path.unlink()
        elif not kept:
            file.path.write_bytes(b"damaged")
    _, log = go(patient, tmp_path)
    assert log.record.divergence == Divergence(16, pytest.approx(0.01), "update", "fc")
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
