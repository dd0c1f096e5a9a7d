from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch

from paperbench.bench import setup
from paperbench.bench.setup import Training, bench_training
from paperbench.catalogue import resolve
from paperbench.training.soundness import (
    FirstSteps,
    Reference,
    bitwise_error,
    find_reference,
    first_steps,
    step_error,
)
from paperbench.training.trainer import Trainer
from tests.bench.stubs import StubTrainer

FP32 = [2.0, 1.5, 1.0]


def error(losses: list[float], precision: str, *, norm: float = 1.0, rounding: float = 0.0) -> str | None:
    """Compare with `FP32` and an update norm of 1; rounding matters from the second step on."""
    reference = Reference(FP32, 3.0, [0.0, rounding, rounding])
    return step_error(FirstSteps(losses, 3.0 * norm, 0.0), reference, precision)


def changed(step: int, factor: float) -> list[float]:
    return [loss * (factor if number == step else 1) for number, loss in enumerate(FP32)]


@pytest.mark.parametrize(
    ("precision", "bound"), [("fp32", 1e-3), ("tf32", 1e-2), ("bf16", 5e-2), ("bf16-fp32-stream", 5e-2)]
)
def test_losses_may_differ_within_the_tolerance_of_the_precision(precision: str, bound: float) -> None:
    for step in (0, 2):
        for sign in (-1, 1):
            assert error(changed(step, 1 + sign * 0.9 * bound), precision) is None
            assert str(error(changed(step, 1 + sign * 1.1 * bound), precision)).startswith(f"step {step + 1}:")


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_loss_that_is_not_finite_is_an_error(loss: float) -> None:
    assert error([2.0, loss, 1.0], "bf16") is not None


def test_tolerance_grows_to_four_times_the_rounding() -> None:
    for step, bound in ((0, 1e-3), (1, 0.04), (2, 0.04)):
        assert error(changed(step, 1 + 0.9 * bound), "fp32", rounding=0.01) is None
        assert error(changed(step, 1 + 1.1 * bound), "fp32", rounding=0.01) is not None
    assert error(changed(2, 1.049), "bf16", rounding=0.01) is None


@pytest.mark.parametrize(
    ("norm", "is_right"), [(0.86, True), (1.14, True), (0.84, False), (1.16, False), (0, False), (math.nan, False)]
)
def test_update_norm_must_be_near_float32s(norm: float, is_right: bool) -> None:
    assert (error(FP32, "fp32", norm=norm) is None) is is_right


def test_bitwise_error_is_the_first_loss_that_differs() -> None:
    assert bitwise_error(FP32, FP32, "bf16") is None
    assert str(bitwise_error(changed(1, 1 + 2**-52), FP32, "bf16")).startswith("step 2: loss 1.5")


def test_first_steps_are_single_losses_and_the_norm_of_three_updates() -> None:
    found = first_steps(StubTrainer(), 5)
    assert found.losses == [11.0, 5.5, 2.75, 1.375, 0.6875]
    assert found.update_norm == pytest.approx(7 * 7 / 8)


def test_reference_includes_the_effect_of_changed_last_bits() -> None:
    reference = find_reference(StubTrainer, 4)
    assert reference.losses == [11.0, 5.5, 2.75, 1.375]
    assert 0 < reference.rounding[-1] <= 2 * torch.finfo(torch.float32).eps
    assert reference.rounding == sorted(reference.rounding)


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


@pytest.fixture(scope="module")
def trained() -> tuple[Training, Reference]:
    """A real training, and its first 10 steps as the reference."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setup, "resolve", lambda name: resolve(name, depth=8))
        patch.setitem(setup.IMAGES, "cpu", 64)
        training = bench_training("preact_resnet20", 16, torch.device("cpu"))
    return training, find_reference(lambda: training.trainer("eager", "fp32"), 10)


Change = Callable[[Trainer], None]


@pytest.mark.parametrize(
    ("precision", "change", "message"),
    [
        ("fp32", skip_every_other_step, "step "),
        ("bf16", halve_gradients, "norm of the first 3 updates"),
        ("bf16", drop_momentum, "norm of the first 3 updates"),
    ],
)
def test_wrong_step_of_a_real_trainer_is_found(
    trained: tuple[Training, Reference], precision: str, change: Change, message: str
) -> None:
    training, reference = trained
    trainer = training.trainer("eager", precision)
    change(trainer)
    steps = 3 if precision == "bf16" else 10  # bf16 losses show less, so only the norm may catch it
    cut = Reference(reference.losses[:steps], reference.update_norm, reference.rounding[:steps])
    assert str(step_error(first_steps(trainer, steps), cut, precision)).startswith(message)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-fp32-stream"])
def test_right_step_of_a_real_trainer_passes(trained: tuple[Training, Reference], precision: str) -> None:
    training, reference = trained
    found = first_steps(training.trainer("eager", precision), 10)
    assert step_error(found, reference, precision) is None
    assert found.update_norm / reference.update_norm == pytest.approx(1, abs=0 if precision == "fp32" else 0.05)
