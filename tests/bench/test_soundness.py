from __future__ import annotations

import math

import pytest
import torch

from paperbench.bench.soundness import FirstSteps, Reference, find_reference, first_steps, step_error
from paperbench.training.metrics import TrainingMetrics

FP32 = [2.0, 1.5, 1.0]


def error(losses: list[float], precision: str, *, norm: float = 1.0, rounding: float = 0.0) -> str | None:
    """What is wrong with these losses and update, where rounding shows from the second step on."""
    reference = Reference(FP32, 3.0, [0.0, rounding, rounding])
    return step_error(FirstSteps(losses, 3.0 * norm, 0.0), reference, precision)


def changed(step: int, factor: float) -> list[float]:
    return [loss * (factor if number == step else 1) for number, loss in enumerate(FP32)]


@pytest.mark.parametrize(
    ("precision", "bound"), [("fp32", 1e-3), ("tf32", 1e-2), ("bf16", 5e-2), ("bf16-fp32-stream", 5e-2)]
)
@pytest.mark.parametrize("step", [0, 2])
@pytest.mark.parametrize("direction", [-1, 1])
def test_losses_may_differ_from_float32_as_far_as_the_precision_explains(
    precision: str, bound: float, step: int, direction: int
) -> None:
    assert error(changed(step, 1 + direction * 0.9 * bound), precision) is None
    found = error(changed(step, 1 + direction * 1.1 * bound), precision)
    assert found is not None
    assert found.startswith(f"step {step + 1}:")


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_losses_that_are_not_finite_are_wrong(loss: float) -> None:
    assert error([2.0, loss, 1.0], "bf16") is not None


def test_where_rounding_alone_leads_farther_four_times_that_is_allowed_from_then_on() -> None:
    for step, bound in ((0, 1e-3), (1, 0.04), (2, 0.04)):
        assert error(changed(step, 1 + 0.9 * bound), "fp32", rounding=0.01) is None
        assert error(changed(step, 1 + 1.1 * bound), "fp32", rounding=0.01) is not None
    assert error(changed(2, 1.049), "bf16", rounding=0.01) is None


def test_as_many_losses_are_needed_as_the_reference_has() -> None:
    with pytest.raises(ValueError, match="zip"):
        error(FP32[:2], "fp32")


@pytest.mark.parametrize(
    ("norm", "is_right"), [(0.86, True), (1.14, True), (0.84, False), (1.16, False), (0, False), (math.nan, False)]
)
def test_the_first_updates_must_be_about_as_long_as_in_float32(norm: float, is_right: bool) -> None:
    assert (error(FP32, "fp32", norm=norm) is None) is is_right


class Descent:
    """Training of one parameter; its window holds the mean of all losses since it began."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(3, 1, bias=False)
        with torch.no_grad():
            self.model.weight.copy_(torch.tensor([[2.0, 3.0, 6.0]]))
        self.window: list[float] = []

    def reset_training_metrics(self) -> None:
        self.window = []

    def step(self) -> None:
        with torch.no_grad():
            self.window.append(float(self.model.weight.double().sum()))
            self.model.weight.mul_(0.5)

    def training_metrics(self) -> TrainingMetrics:
        return TrainingMetrics(sum(self.window) / len(self.window), 0.0)


def test_first_steps_are_losses_of_single_steps_and_the_length_of_three_updates() -> None:
    found = first_steps(Descent(), 5)
    assert found.losses == [11.0, 5.5, 2.75, 1.375, 0.6875]
    assert found.update_norm == pytest.approx(7 * 7 / 8)


def test_the_reference_knows_what_a_change_in_the_last_bit_does() -> None:
    reference = find_reference(Descent, 4)
    assert reference.losses == [11.0, 5.5, 2.75, 1.375]
    assert 0 < reference.rounding[-1] <= 2 * torch.finfo(torch.float32).eps
    assert reference.rounding == sorted(reference.rounding)
