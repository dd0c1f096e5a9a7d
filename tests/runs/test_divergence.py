"""Runs that diverge: their training loss, or their final test, is not finite."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from paperbench.runs.history import history_line
from paperbench.runs.planning import PlannedRun
from paperbench.runs.record import Divergence
from paperbench.runs.store import RunDirectory
from paperbench.specs.recipe import Drops, WarmUp
from paperbench.training.evaluation import EvaluationMetrics
from paperbench.training.metrics import TrainingMetrics
from tests.runs.running import assert_same, edit_checkpoint, plan_run, train


@pytest.fixture
def hot(run: PlannedRun) -> PlannedRun:
    """A run whose second forward pass overflows, after an update of this size; a line is logged at iteration 5."""
    return plan_run(replace(run.recipe, learning_rate=1e30, warm_up=None), run.dataset)


def test_overflowing_run_ends_as_diverged(hot: PlannedRun, tmp_path: Path) -> None:
    directory, log = train(hot, tmp_path)
    assert (log.record.status, log.record.iteration, log.record.result) == ("diverged", 5, None)
    assert log.record.divergence == Divergence(5, 1e30)
    assert directory.history()[-1].train_loss is None
    assert "NaN" not in directory.history_file.read_text()
    assert len(directory.checkpoints.newest_first()) == 1
    _, again = train(hot, tmp_path)
    assert again.skips == [(hot.id, "diverged at iteration 5 already")]
    # after a kill between checkpoint and record, or if the user deletes a damaged record
    directory.record_file.unlink()
    directory, again = train(hot, tmp_path)
    assert again.steps == []
    assert again.record.divergence == log.record.divergence


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_run_diverges_on_gpu_with_any_engine(hot: PlannedRun, tmp_path: Path, engine: str) -> None:
    _, log = train(hot, tmp_path, device=torch.device("cuda"), engine=engine)
    assert (log.record.status, log.record.divergence) == ("diverged", Divergence(5, 1e30))


def test_paused_run_diverges_like_uninterrupted_one(hot: PlannedRun, tmp_path: Path) -> None:
    """Even if it was paused after it diverged and before a line was logged."""
    for stop in (1, 2, 3, 4):
        train(hot, tmp_path / "part", stop_at=stop)
    part, _ = train(hot, tmp_path / "part")
    assert_same(part, train(hot, tmp_path / "uninterrupted")[0])


def test_divergence_in_last_update_is_found_by_final_test(run: PlannedRun, tmp_path: Path) -> None:
    broken = plan_run(
        replace(run.recipe, learning_rate=1e30, warm_up=WarmUp(0.01, 19), drops=Drops((), 0.1)), run.dataset
    )
    _, log = train(broken, tmp_path)
    assert log.lines[-1].train_loss is not None
    assert (log.record.status, log.record.result) == ("diverged", None)
    assert log.record.divergence == Divergence(20, 1e30)


def test_infinite_moving_average_loss_is_not_divergence(run: PlannedRun, finished: RunDirectory) -> None:
    """The result uses re-estimated statistics, so only the moving-average loss is missing."""
    window, tested = TrainingMetrics(2.0, 80.0), EvaluationMetrics(math.inf, 50.0, 10.0)
    line = history_line(run.recipe, run.dataset.num_train, 20, window, tested, 1.0)
    edit_checkpoint(finished, lambda found: replace(found, facts=replace(found.facts, history=(line,))))
    finished.record_file.unlink()
    directory, log = train(run, finished.path.parents[1])
    assert log.record.status == "finished"
    assert log.record.result
    assert log.record.result.moving_average_test_error == 50.0
    assert log.record.result.moving_average_test_loss is None
    assert directory.read_record() == log.record
