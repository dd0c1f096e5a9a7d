"""The comparison of first steps: what it allows, and what it finds in real trainers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch

from paperbench.data.dataset import ImageDataset
from paperbench.specs.recipe import Drops, Recipe
from paperbench.training import trainer as trainer_module
from paperbench.training.batch_norm import BatchNormAverages, GroupedBatchNorm2d
from paperbench.training.engine import EngineName
from paperbench.training.soundness import (
    NORM_TOLERANCE,
    TOLERANCE,
    FirstSteps,
    Reference,
    bitwise_error,
    engine_error,
    find_reference,
    first_steps,
    step_error,
)
from paperbench.training.trainer import Trainer
from tests.bench.stubs import StubTrainer
from tests.helpers import ROOT
from tests.training.tape import Tape
from tests.training.trainings import Runs, advance, differences, recipe_of, state_of

CPU = torch.device("cpu")
FP32 = [2.0, 1.5, 1.0]


def error(
    losses: list[float], precision: str, *, norm: float = 1.0, rounding: float = 0.0, norm_rounding: float = 0.0
) -> str | None:
    """Compare with `FP32` and a norm of 3; rounding matters from the second step on."""
    reference = Reference("fp32", FP32, {"parameters": 3.0}, [0.0, rounding, rounding], {"parameters": norm_rounding})
    return step_error(FirstSteps(losses, {"parameters": 3.0 * norm}, 0.0), reference, precision)


def changed(step: int, factor: float) -> list[float]:
    return [loss * (factor if number == step else 1) for number, loss in enumerate(FP32)]


@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-3), ("tf32", 1e-2), ("bf16", 5e-2)])
def test_losses_may_differ_within_the_tolerance_of_the_precision(precision: str, bound: float) -> None:
    for step in (0, 2):
        for sign in (-1, 1):
            assert error(changed(step, 1 + sign * 0.9 * bound), precision) is None
            assert str(error(changed(step, 1 + sign * 1.1 * bound), precision)).startswith(f"step {step + 1}:")


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_loss_that_is_not_finite_is_an_error(loss: float) -> None:
    assert error([2.0, loss, 1.0], "bf16") is not None


def test_nothing_is_compared_after_the_reference_has_diverged() -> None:
    reference = Reference("fp32", [2.0, math.nan], {"parameters": math.nan}, [0.0, 0.0], {"parameters": 0.0})
    assert step_error(FirstSteps([2.0, 7.0], {"parameters": 1.0}, 0.0), reference, "fp32") is None
    assert step_error(FirstSteps([2.1, 7.0], {"parameters": 1.0}, 0.0), reference, "fp32") is not None


def test_tolerance_grows_to_ten_times_the_rounding() -> None:
    for step, bound in ((0, 1e-3), (1, 0.1), (2, 0.1)):
        assert error(changed(step, 1 + 0.9 * bound), "fp32", rounding=0.01) is None
        assert error(changed(step, 1 + 1.1 * bound), "fp32", rounding=0.01) is not None
    assert error(changed(2, 1.049), "bf16", rounding=0.004) is None
    assert error([2.0, math.nan, 1.0], "fp32", rounding=math.inf) is None
    assert error(FP32, "fp32", norm=1.3, norm_rounding=0.04) is None


@pytest.mark.parametrize(("precision", "bound"), [("fp32", 0.15), ("tf32", 0.15), ("bf16", 0.3)])
def test_norm_of_the_change_must_be_near(precision: str, bound: float) -> None:
    for sign in (-1, 1):
        assert error(FP32, precision, norm=1 + sign * 0.95 * bound) is None
        assert error(FP32, precision, norm=1 + sign * 1.05 * bound) is not None
    assert error(FP32, precision, norm=0) is not None
    assert error(FP32, precision, norm=math.nan) is not None


def test_bitwise_error_is_the_first_loss_that_differs() -> None:
    assert bitwise_error([*FP32, math.nan], [*FP32, math.nan], "bf16") is None
    assert str(bitwise_error(changed(1, 1 + 2**-52), FP32, "bf16")).startswith("step 2: loss 1.5")


def test_first_steps_are_single_losses_and_the_norm_of_three_updates() -> None:
    found = first_steps(StubTrainer(), 5)
    assert found.losses == [11.0, 5.5, 2.75, 1.375, 0.6875]
    assert found.norms == {"parameters": pytest.approx(7 * 7 / 8)}


@pytest.mark.parametrize(("precision", "rounding"), [("fp32", 2**-20), ("bf16", 2**-8)])
def test_reference_includes_the_effect_of_rounding(precision: str, rounding: float) -> None:
    reference = find_reference(StubTrainer, precision, 4)
    assert reference.losses == [11.0, 5.5, 2.75, 1.375]
    assert rounding / 11 <= reference.rounding[-1] <= 2 * rounding
    assert reference.rounding == sorted(reference.rounding)
    assert 0 < reference.norm_rounding["parameters"] <= 2 * rounding


# Ways in which a step can be wrong


def skip_every_other_step(trainer: Trainer) -> None:
    step, calls = trainer.step, iter(range(1_000_000))

    def step_sometimes() -> None:
        kept = [parameter.detach().clone() for parameter in trainer.model.parameters()]
        step()
        if next(calls) % 2:
            with torch.no_grad():
                for parameter, value in zip(trainer.model.parameters(), kept, strict=True):
                    parameter.copy_(value)

    trainer.step = step_sometimes  # type: ignore[method-assign]


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


Change = Callable[[Trainer], None]


@pytest.fixture
def runs(paper_recipe: Recipe, tiny_dataset: ImageDataset) -> Runs:
    return Runs(replace(recipe_of(paper_recipe, 400), learning_rate=0.01, warm_up=None), tiny_dataset, CPU)


@pytest.mark.parametrize(
    ("precision", "change", "message"),
    [
        ("fp32", skip_every_other_step, "step "),
        ("bf16", halve_gradients, "norm of the change of the parameters in the first 3 steps"),
        ("bf16", drop_momentum, "norm of the change of the parameters in the first 3 steps"),
        ("bf16", freeze_moving_averages, "norm of the change of the BN statistics in the first 3 steps"),
    ],
)
def test_wrong_step_of_a_real_trainer_is_found(runs: Runs, precision: str, change: Change, message: str) -> None:
    steps = 3 if precision == "bf16" else 10  # bf16 losses show less, so only the norm may catch it
    reference = find_reference(lambda: runs.new("eager"), "fp32", steps)
    trainer = replace(runs, precision=precision).new("eager")
    change(trainer)
    assert str(step_error(first_steps(trainer, steps), reference, precision)).startswith(message)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_right_step_of_a_real_trainer_passes(runs: Runs, precision: str) -> None:
    reference = find_reference(lambda: runs.new("eager"), "fp32", 10)
    found = first_steps(replace(runs, precision=precision).new("eager"), 10)
    assert step_error(found, reference, precision) is None
    for name, norm in found.norms.items():
        assert norm / reference.norms[name] == pytest.approx(1, abs=0 if precision == "fp32" else 0.05)


# Engines of a new run


@pytest.fixture
def _on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA graphs become tapes, and compiled units run unchanged."""
    monkeypatch.setattr(trainer_module, "CudaCapture", lambda _: Tape())
    monkeypatch.setattr(trainer_module, "compile_units", lambda module: None)


NETS = ["preact_resnet20", "resnet110_exclusive_gating", "resnet110_bn_after_addition"]


@pytest.mark.usefixtures("_on_a_cpu")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("net", [NETS[0], *(pytest.param(net, marks=pytest.mark.full) for net in NETS[1:])])
@pytest.mark.parametrize("engine", ["graph", "streams", "compile"])
def test_sound_engine_passes_and_the_training_begins_anew(
    runs: Runs, engine: EngineName, net: str, precision: str
) -> None:
    runs = replace(runs, net=net, precision=precision)
    expected = state_of(advance(runs.new(engine), 3))
    trainer = runs.new(engine)
    assert engine_error(trainer, engine) is None
    assert trainer.iteration == 0
    assert differences(state_of(advance(trainer, 3)), expected) == []


@pytest.mark.usefixtures("_on_a_cpu")
def test_engine_with_noise_that_promises_eager_bits_is_compared(runs: Runs) -> None:
    assert engine_error(replace(runs, net="resnet110_dropout_shortcut").new("graph"), "graph") is None


@pytest.mark.usefixtures("_on_a_cpu")
@pytest.mark.parametrize("iterations", [1, 2, 4])
def test_shortest_trainings_are_compared(runs: Runs, iterations: int) -> None:
    recipe = replace(runs.recipe, iterations=iterations, drops=Drops((), 0.1))
    assert engine_error(replace(runs, recipe=recipe).new("graph"), "graph") is None


@pytest.mark.usefixtures("_on_a_cpu")
def test_one_changed_bit_of_a_buffer_is_found(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """No loss of these steps depends on it."""
    trainer = runs.new("graph")
    replaying = trainer._engine.step

    def step(iteration: int) -> None:
        replaying(iteration)
        trainer.model.get_buffer("tail.bn.running_var")[0] *= 1 + 2**-23

    monkeypatch.setattr(trainer._engine, "step", step)
    assert "running_var differs from eager's" in str(engine_error(trainer, "graph"))


def is_grouped(averages: BatchNormAverages) -> bool:
    return isinstance(averages._layers[0], GroupedBatchNorm2d)


@pytest.mark.usefixtures("_on_a_cpu")
def test_wrong_compiled_step_is_found(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = runs.new("compile")
    move = BatchNormAverages.move
    monkeypatch.setattr(BatchNormAverages, "move", lambda self, row: is_grouped(self) or move(self, row))
    assert "BN statistics" in str(engine_error(trainer, "compile"))


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_bounds_are_those_of_the_documentation(precision: str) -> None:
    lines = (ROOT / "docs/speed.md").read_text().splitlines()
    (row,) = [line for line in lines if line.startswith("|") and f"`{precision}`" in line and "%" in line]
    loss, norm = (float(found) / 100 for found in re.findall(r"([\d.]+) %", row))
    assert (loss, norm) == (TOLERANCE[precision], NORM_TOLERANCE[precision])
