"""Training on photographs: short batches, and every engine. On a CPU, a tape replaces the CUDA graph."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch

from paperbench.data.dataset import Dataset
from paperbench.specs.recipe import Evaluation, Recipe
from paperbench.training.evaluation import evaluate
from paperbench.training.graph import GraphEngine
from paperbench.training.soundness import engine_error
from paperbench.training.trainer import Trainer
from tests.training.trainings import Runs, advance, differences, state_of, through_a_file

CPU = torch.device("cpu")
SHORT = (4, 9, 14)
"""Iterations, counted from 0, with a short batch."""


@pytest.fixture(params=["tape", pytest.param("cuda", marks=pytest.mark.gpu)])
def runs(request: pytest.FixtureRequest, photo_recipe: Recipe, photos: Dataset) -> Runs:
    return Runs(photo_recipe, photos, CPU if request.param == "tape" else torch.device("cuda"))


def test_graph_trains_on_the_images_of_each_iteration(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager steps train on the short batches."""
    replayed = []
    run = GraphEngine._run
    monkeypatch.setattr(GraphEngine, "_run", lambda self, number: replayed.append(number) or run(self, number))
    expected, trainer = runs.eager_states(), runs.new("graph")
    for iteration in range(1, runs.recipe.iterations + 1):
        trainer.step()
        assert differences(state_of(trainer), expected[iteration]) == [], iteration
    assert replayed == [number for number in range(runs.recipe.iterations) if number not in SHORT]


@pytest.mark.parametrize(("first", "second"), [("eager", "eager"), ("graph", "eager"), ("eager", "graph")])
def test_training_resumes_bit_for_bit(runs: Runs, first: str, second: str, full: bool) -> None:
    """Before a short batch, after one, and inside an epoch."""
    expected = runs.eager_states()
    for stop in (4, 5, 12) if full else (4,):
        saved = through_a_file(advance(runs.new(first), stop))
        torch.manual_seed(99)
        resumed = runs.new(second)
        resumed.load_state_dict(saved)
        assert differences(state_of(advance(resumed, stop + 3)), expected[stop + 3]) == [], stop


def test_captured_training_can_go_back_and_forth(runs: Runs) -> None:
    """As after the comparison of engines, and in the search for a divergence."""
    expected, trainer = runs.eager_states(), runs.new("graph")
    saved = {iteration: state_of(advance(trainer, iteration)) for iteration in (0, 3, 10)}
    for start in (10, 0, 3, 0):
        trainer.load_state_dict(saved[start])
        assert differences(state_of(advance(trainer, start + 2)), expected[start + 2]) == [], start


def test_first_steps_are_compared_and_leave_no_trace(runs: Runs) -> None:
    trainer = runs.new("graph")
    before = state_of(trainer)
    assert engine_error(trainer) is None
    assert differences(state_of(trainer), before) == []
    trainer.step()
    loss = trainer.metrics.compute().loss
    assert loss == pytest.approx(float(runs.eager_states()[1]["window.loss"]) / 10, rel=1e-4)


def test_wrong_images_of_a_replay_are_noticed(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here, always those of the first iteration."""
    trainer = runs.new("graph")
    monkeypatch.setattr("paperbench.training.graph._Copies.prepare", lambda *_: None)
    assert "step 2: loss" in (engine_error(trainer) or "")


def test_finished_net_is_tested_in_each_way(photo_recipe: Recipe, photos: Dataset) -> None:
    evaluations = {"first": Evaluation(16, 20), "second": Evaluation(24, 24)}
    trainer = Runs(replace(photo_recipe, evaluations=evaluations), photos, CPU).new("eager")
    found = trainer.finish()
    tests = [evaluate(trainer.model, trainer.feed.test(one, 20), "fp32", CPU) for one in evaluations.values()]
    assert found == tests
    assert found[0] != found[1]


def test_closed_trainer_has_no_threads(photo_recipe: Recipe, photos: Dataset) -> None:
    before = set(threading.enumerate())
    trainer = advance(Runs(photo_recipe, photos, CPU).new("eager"), 1)
    assert set(threading.enumerate()) - before
    trainer.close()
    assert not set(threading.enumerate()) - before


def test_metrics_count_short_batches(runs: Runs) -> None:
    """The mean is over 3 x 10, or 2 x 10 + 8, images, each of which counts once."""
    trainer = runs.new("eager")
    seen: list[tuple[float, int]] = []
    watch(trainer, seen)
    for stop, images in ((3, 30), (6, 28)):
        seen.clear()
        metrics = advance(trainer, stop).metrics.compute()
        assert sum(count for _, count in seen) == images
        assert metrics.loss == pytest.approx(sum(loss for loss, _ in seen) / images, rel=1e-5)
        assert trainer.state_dict()["window.images"] == images
        trainer.metrics.reset()


def watch(trainer: Trainer, seen: list[tuple[float, int]]) -> None:
    """Note the summed loss and the number of images of each pass through the net."""
    labels: list[torch.Tensor] = []
    make = trainer.feed.make

    def made(choices: Any) -> Any:
        batch = make(choices)
        labels[:] = batch.labels.split(list(trainer.recipe.group_sizes(len(batch.labels))))
        return batch

    def note(_module: object, _inputs: object, logits: torch.Tensor) -> None:
        own = labels.pop(0)
        chances = logits.detach().double().softmax(1)
        seen.append((-float(chances.gather(1, own[:, None]).log().sum()), len(own)))

    trainer.feed.make = made  # type: ignore[method-assign]
    trainer.model.register_forward_hook(note)
