"""The comparison of first steps: what it allows, and what it finds in real trainers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from paperbench.data.dataset import ImageDataset
from paperbench.specs.recipe import Drops, Recipe
from paperbench.training.soundness import bitwise_error, engine_error, first_steps, rounding_error
from paperbench.training.trainer import Trainer
from tests.bench.stubs import StubTrainer
from tests.training.tape import Tape
from tests.training.trainings import Runs, advance, differences, recipe_of, state_of

CPU = torch.device("cpu")
LOSSES = [2.0, 1.5, 1.0]


def test_bitwise_error_is_the_first_loss_that_differs() -> None:
    assert bitwise_error([*LOSSES, math.nan], [*LOSSES, math.nan], "bf16") is None
    assert str(bitwise_error([2.0, 1.5 + 2**-52, 1.0], LOSSES, "bf16")).startswith("step 2: loss 1.5")


def test_first_steps_are_single_losses_and_the_norm_of_three_updates() -> None:
    found = first_steps(StubTrainer(), 5)
    assert found.losses == [11.0, 5.5, 2.75, 1.375, 0.6875]
    assert found.norms == {"parameters": pytest.approx(7 * 7 / 8)}


# Ways in which a step can be wrong


def halve_gradients(trainer: Trainer) -> None:
    step = trainer._optimiser.step
    trainer._optimiser.step = lambda found: step([g / 2 for g in found])  # type: ignore[method-assign]


def drop_momentum(trainer: Trainer) -> None:
    step = trainer._optimiser.step

    def step_without(found: Sequence[torch.Tensor]) -> None:
        for buffer in trainer._optimiser.momentum:
            buffer.zero_()
        step(found)

    trainer._optimiser.step = step_without  # type: ignore[method-assign]


def freeze_moving_averages(trainer: Trainer) -> None:
    for layer in trainer.model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = 0.0


def scale_logits(trainer: Trainer) -> None:
    trainer.model.fc.register_forward_hook(lambda _module, _inputs, logits: 30 * logits)


@pytest.fixture
def runs(paper_recipe: Recipe, tiny_dataset: ImageDataset) -> Runs:
    return Runs(replace(recipe_of(paper_recipe, 400), learning_rate=0.01, warm_up=None), tiny_dataset, CPU)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (scale_logits, "first loss"),
        (halve_gradients, "change of the parameters in the first 3 steps"),
        (drop_momentum, "change of the parameters in the first 3 steps"),
        (freeze_moving_averages, "change of the BN statistics in the first 3 steps"),
    ],
)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_more_than_rounding_is_found(
    runs: Runs, precision: str, change: Callable[[Trainer], object], message: str
) -> None:
    """bf16 rounds more than another machine would."""
    eager, trainer = first_steps(runs.new("eager"), 3), replace(runs, precision=precision).new("eager")
    assert rounding_error(first_steps(trainer, 3), eager, precision) is None
    trainer = replace(runs, precision=precision).new("eager")
    change(trainer)
    assert str(rounding_error(first_steps(trainer, 3), eager, precision)).startswith(message)


NETS = ["preact_resnet20", "resnet110_exclusive_gating", "resnet110_bn_after_addition"]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("net", [NETS[0], *(pytest.param(net, marks=pytest.mark.full) for net in NETS[1:])])
def test_sound_engine_passes_and_the_training_begins_anew(runs: Runs, net: str, precision: str) -> None:
    runs = replace(runs, net=net, precision=precision)
    expected = state_of(advance(runs.new("graph"), 3))
    trainer = runs.new("graph")
    assert engine_error(trainer) is None
    assert trainer.iteration == 0
    assert differences(state_of(advance(trainer, 3)), expected) == []


def test_engine_with_noise_is_compared(runs: Runs) -> None:
    assert engine_error(replace(runs, net="resnet110_dropout_shortcut").new("graph")) is None


@pytest.mark.parametrize("iterations", [1, 2, 4])
def test_shortest_trainings_are_compared(runs: Runs, iterations: int) -> None:
    recipe = replace(runs.recipe, iterations=iterations, drops=Drops((), 0.1))
    assert engine_error(replace(runs, recipe=recipe).new("graph")) is None


def test_one_changed_bit_of_a_buffer_is_found(runs: Runs) -> None:
    """No loss of these steps depends on it."""

    class Wrong(Tape):
        def record(self, body: Callable[[], None]) -> Callable[[], None]:
            replay = super().record(body)
            statistics = trainer.model.get_buffer("tail.bn.running_var")
            return lambda: (replay(), statistics[0].mul_(1 + 2**-23))

    trainer = replace(runs, capture=lambda _: Wrong()).new("graph")
    assert "running_var differs from eager's" in str(engine_error(trainer))
