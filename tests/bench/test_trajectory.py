from __future__ import annotations

import math

import pytest

from paperbench.bench.trajectory import compared_steps, complaint, drift, lameness, next_loss
from paperbench.training.window import WindowMetrics

FP32 = [2.0, 1.5, 1.0]
NONE = [0.0, 0.0, 0.0]


def changed(step: int, factor: float) -> list[float]:
    return [loss * (factor if number == step else 1) for number, loss in enumerate(FP32)]


@pytest.mark.parametrize(
    ("precision", "bound"), [("fp32", 1e-3), ("tf32", 1e-2), ("bf16", 5e-2), ("bf16-fp32-stream", 5e-2)]
)
@pytest.mark.parametrize("step", [0, 2])
def test_losses_may_differ_from_float32_as_far_as_the_precision_explains(
    precision: str, bound: float, step: int
) -> None:
    for direction in (-1, 1):
        assert complaint(changed(step, 1 + direction * 0.9 * bound), FP32, None, precision, NONE) is None
        found = complaint(changed(step, 1 + direction * 1.1 * bound), FP32, None, precision, NONE)
        assert found is not None
        assert found.startswith(f"step {step + 1}:")


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_losses_that_are_not_finite_are_wrong(loss: float) -> None:
    assert complaint([2.0, loss, 1.0], FP32, None, "bf16", NONE) is not None


def test_where_rounding_alone_leads_farther_four_times_that_is_allowed_from_then_on() -> None:
    rounding = drift([2.0, 1.5 * 1.01, 1.0], FP32)
    assert rounding == pytest.approx([0.0, 0.01, 0.01])
    for step, bound in ((0, 1e-3), (1, 0.04), (2, 0.04)):
        assert complaint(changed(step, 1 + 0.9 * bound), FP32, None, "fp32", rounding) is None
        assert complaint(changed(step, 1 + 1.1 * bound), FP32, None, "fp32", rounding) is not None
    assert complaint(changed(2, 1.049), FP32, None, "bf16", rounding) is None


def test_where_bits_must_be_equal_the_last_one_counts() -> None:
    eager = changed(1, 1.001)
    assert complaint(list(eager), FP32, eager, "bf16", NONE) is None
    found = complaint([eager[0], math.nextafter(eager[1], 9), eager[2]], FP32, eager, "bf16", NONE)
    assert found is not None
    assert "must be equal" in found


def test_a_trajectory_must_be_as_long_as_the_reference() -> None:
    with pytest.raises(ValueError, match="zip"):
        complaint(FP32[:2], FP32, None, "fp32", NONE)


@pytest.mark.parametrize(("moved", "is_right"), [(0.86, True), (1.14, True), (0.84, False), (1.16, False), (0, False)])
def test_parameters_must_move_about_as_far_as_in_float32(moved: float, is_right: bool) -> None:
    assert (lameness(2.0 * moved, 2.0) is None) is is_right
    assert lameness(math.nan, 2.0) is not None


def test_fewer_steps_of_deep_nets_are_compared() -> None:
    assert (compared_steps(164), compared_steps(1001)) == (20, 8)


def test_a_loss_is_of_one_step_alone() -> None:
    class Trainer:
        """Its windows hold the mean of all steps since they began."""

        def __init__(self) -> None:
            self.losses = iter([3.0, 2.0, 1.0])
            self.window: list[float] = []

        def begin_window(self) -> None:
            self.window = []

        def step(self) -> None:
            self.window.append(next(self.losses))

        def window_metrics(self) -> WindowMetrics:
            return WindowMetrics(sum(self.window) / len(self.window), 0.0)

    trainer = Trainer()
    assert [next_loss(trainer) for _ in range(3)] == [3.0, 2.0, 1.0]
