"""Vector residual units: NumPy against torch, differences and closed forms; true gradients against simulated ones."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from examples.lab.vector_units import (
    TorchUnit,
    VectorUnit,
    gradients,
    normalise,
    norms,
    relu,
    signals,
    stack,
    toy_gradients,
)
from paperbench.errors import PaperbenchError

Array = NDArray[Any]
KINDS = list(product(("original", "preact"), ("batch", "features", "none")))
NORMALISED = ("batch", "features")
DIM = 6


def draw(*shape: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def close(a: Array, b: Any, tolerance: float = 1e-12) -> bool:
    """Whether two arrays differ by no more than a part of the largest value."""
    expected = np.asarray(b)
    return bool(np.abs(a - expected).max() <= tolerance * np.abs(expected).max())


@pytest.mark.parametrize(("placement", "normalised"), KINDS)
def test_numpy_and_torch_compute_the_same_signals_and_gradients(placement: Any, normalised: Any) -> None:
    x, gradient = draw(2, 8, DIM)
    units = stack(20, DIM, 9, placement=placement, normalised=normalised, factor=0.9)
    modules, leaf = [TorchUnit(unit) for unit in units], torch.tensor(x, requires_grad=True)
    expected = [leaf]
    for module in modules:
        expected.append(module(expected[-1]))
        expected[-1].retain_grad()
    expected[-1].backward(torch.tensor(gradient))
    passes = signals(units, x)
    assert all(close(one.output, signal.detach()) for one, signal in zip(passes, expected[1:], strict=True))
    whole, _ = gradients(passes, gradient)
    assert all(close(one, signal.grad) for one, signal in zip(whole, expected, strict=True))
    first = passes[0].backward(whole[1])
    assert close(first.w1.T, modules[0].w1.weight.grad)
    assert close(first.w2.T, modules[0].w2.weight.grad)


@pytest.mark.parametrize(("placement", "normalised"), KINDS)
def test_gradient_is_the_complex_step_derivative_of_the_stack(placement: Any, normalised: Any) -> None:
    x, gradient, direction = draw(3, 5, DIM)
    units = stack(4, DIM, placement=placement, normalised=normalised, factor=1.1)
    derivative = (signals(units, x + 1e-30j * direction)[-1].output.imag * gradient).sum() / 1e-30
    whole, _ = gradients(signals(units, x), gradient)
    assert (whole[0] * direction).sum() == pytest.approx(derivative, rel=1e-10)


def test_relu_lets_no_gradient_pass_at_zero_as_in_torch() -> None:
    _, back = relu(np.array([-1.0, 0.0, 1.0]))
    assert back(np.ones(3)).tolist() == [0, 0, 1]


@pytest.mark.parametrize("normalised", NORMALISED)
def test_normalised_values_have_mean_0_and_variance_1_where_it_says(normalised: Any) -> None:
    z, _ = normalise(3 * draw(9, DIM) + 2, normalised, eps=0.0)
    axis = NORMALISED.index(normalised)
    assert np.allclose(z.mean(axis), 0, atol=1e-14)
    assert np.allclose(z.var(axis), 1, atol=1e-14)


def test_normalisation_over_batch_and_features_differ() -> None:
    x = np.array([[0.0, 10.0], [2.0, 16.0]])
    assert np.allclose(normalise(x, "batch", 0.0)[0], [[-1, -1], [1, 1]])
    assert np.allclose(normalise(x, "features", 0.0)[0], [[-1, 1], [-1, 1]])


def test_normalisation_over_batch_and_features_agree_if_rows_and_columns_hold_the_same_values() -> None:
    x = np.array([np.roll(draw(DIM), shift) for shift in range(DIM)])
    assert close(normalise(x, "batch", 1e-5)[0], normalise(x, "features", 1e-5)[0])


@pytest.mark.parametrize(("normalised", "mixes"), [("batch", True), ("features", False), ("none", False)])
def test_only_normalisation_over_the_batch_lets_a_vector_depend_on_others(normalised: Any, mixes: bool) -> None:
    x = draw(7, DIM)
    gradient = np.zeros_like(x)
    gradient[0] = 1
    whole, _ = gradients(signals(stack(3, DIM, normalised=normalised), x), gradient)
    assert bool(np.any(whole[0][1:])) == mixes


@pytest.mark.parametrize(("placement", "normalised"), KINDS)
def test_output_is_the_sum_of_eqs_4_and_7(placement: Any, normalised: Any) -> None:
    x, factor, depth = np.abs(draw(8, DIM)), 0.8, 5
    passes = signals(stack(depth, DIM, placement=placement, normalised=normalised, factor=factor), x)
    total = factor**depth * x + sum(factor ** (depth - 1 - i) * one.residual for i, one in enumerate(passes))
    # ReLU after the addition, which Eq. (4) leaves out, adds what it cuts.
    cut = sum(factor ** (depth - 1 - i) * np.maximum(-one.y, 0) for i, one in enumerate(passes))
    assert close(passes[-1].output, total + (cut if placement == "original" else 0))


@pytest.mark.parametrize(("placement", "normalised"), KINDS)
def test_first_term_is_what_arrives_with_residuals_held_fixed(placement: Any, normalised: Any) -> None:
    x, gradient = draw(2, 8, DIM)
    units = stack(6, DIM, placement=placement, normalised=normalised, factor=0.9)
    passes = signals(units, x)
    leaf = signal = torch.tensor(x, requires_grad=True)
    for unit, one in zip(units, passes, strict=True):
        signal = unit.factor * signal + torch.tensor(one.residual)
        signal = torch.relu(signal) if placement == "original" else signal
    signal.backward(torch.tensor(gradient))
    _, direct = gradients(passes, gradient)
    assert close(direct[0], leaf.grad)


def test_without_weights_a_preactivation_unit_passes_the_gradient_as_it_is() -> None:
    x, gradient = draw(2, 8, DIM)
    zeros = np.zeros((DIM, DIM))
    whole, _ = gradients(signals([VectorUnit(zeros, zeros)] * 100, x), gradient)
    assert np.array_equal(whole[0], gradient)


def test_without_weights_an_original_unit_passes_the_gradient_where_its_input_is_positive() -> None:
    x, gradient = draw(2, 8, DIM)
    zeros = np.zeros((DIM, DIM))
    whole, _ = gradients(signals([VectorUnit(zeros, zeros, "original")] * 100, x), gradient)
    assert np.array_equal(whole[0], gradient * (x > 0))


def test_first_term_is_the_product_of_factors_of_eq_8() -> None:
    x, gradient = draw(2, 8, DIM)
    _, direct = gradients(signals(stack(54, DIM, factor=0.5), x), gradient)
    assert close(direct[0], 0.5**54 * gradient)


def test_gradient_vanishes_where_the_residual_cancels_the_shortcut() -> None:
    x, gradient = np.abs(draw(8, DIM)), draw(8, DIM, seed=2)
    unit = VectorUnit(np.eye(DIM), -np.eye(DIM), normalised="none")
    whole, direct = gradients(signals([unit], x), gradient)
    assert not np.any(whole[0])
    assert np.array_equal(direct[0], gradient)


@pytest.mark.parametrize("normalised", NORMALISED)
def test_gradient_shrinks_below_its_first_term_in_normalised_preactivation_units(normalised: Any) -> None:
    x, gradient = draw(2, 64, DIM)
    unit = VectorUnit(np.eye(DIM), -0.2 * np.eye(DIM), normalised=normalised)
    found = norms([unit], x, gradient)
    assert found["true"][0] < 0.95
    assert found["first term"][0] == 1


def test_gradient_shrinks_in_an_original_unit_at_initialisation() -> None:
    x, gradient = draw(2, 64, 32)
    true = norms(stack(30, 32, placement="original", normalised="features"), x, gradient)["true"]
    assert true[0] > true.min() < 0.95


def test_batch_norm_before_the_weights_keeps_the_mean_gradient_of_a_batch() -> None:
    x, gradient = draw(2, 8, DIM)
    whole, _ = gradients(signals(stack(100, DIM), x), gradient)
    assert np.allclose([one.mean(0) for one in whole], gradient.mean(0), rtol=0, atol=1e-11)


def test_layer_norm_before_the_weights_keeps_the_mean_gradient_of_each_vector() -> None:
    x, gradient = draw(2, 8, DIM)
    whole, _ = gradients(signals(stack(100, DIM, normalised="features"), x), gradient)
    assert np.allclose([one.mean(1) for one in whole], gradient.mean(1), rtol=0, atol=1e-11)


@pytest.mark.parametrize("normalised", NORMALISED)
def test_scale_of_weights_does_not_matter_in_normalised_original_units(normalised: Any) -> None:
    x, gradient = draw(2, 8, DIM)
    units = [replace(one, eps=0.0) for one in stack(3, DIM, placement="original", normalised=normalised)]
    small = [replace(one, w1=1e-3 * one.w1, w2=1e-3 * one.w2) for one in units]
    expected, _ = gradients(signals(units, x), gradient)
    whole, _ = gradients(signals(small, x), gradient)
    assert close(whole[0], expected[0], 1e-10)


def test_gradient_of_the_first_weights_vanishes_with_the_second() -> None:
    x, gradient = draw(2, 8, DIM)
    found = replace(stack(1, DIM)[0], w2=np.zeros((DIM, DIM))).forward(x).backward(gradient)
    assert np.array_equal(found.direct + found.through, gradient)
    assert not np.any(found.w1)
    assert np.any(found.w2)


def test_gradient_of_batch_normalised_units_grows_as_wide_nets_predict() -> None:
    depth, dim, length = 10, 128, 512
    x, gradient = draw(2, length, dim)
    true = norms(stack(depth, dim), x, gradient)["true"]
    # Per unit, the mean of ReLU(N(0, 1)) aside, whose variance is v: F adds 2v to each value's variance, and of the
    # squared gradient 1 / 2v comes through F, over the variance of x_l.
    v = 1 / 2 - 1 / (2 * np.pi)
    growth = np.prod([1 + 1 / (2 * v) / (1 + 2 * v * i) for i in range(depth)])
    assert true[0] == pytest.approx(np.sqrt(growth), rel=0.06)


def test_weights_have_the_variance_of_he_by_what_leaves_a_layer() -> None:
    (unit,) = stack(1, 400, 100)
    assert unit.w1.std() == pytest.approx(np.sqrt(2 / 100), rel=0.02)
    assert unit.w2.std() == pytest.approx(np.sqrt(2 / 400), rel=0.02)


def test_random_factors_are_independent_of_weights_and_drawn_by_seed() -> None:
    gradient = draw(8, DIM)
    one, other = stack(50, DIM, seed=0), stack(50, DIM, seed=1)
    first = toy_gradients(one, gradient)["random factors"]
    assert np.array_equal(first, toy_gradients(other, gradient)["random factors"])
    assert not np.array_equal(first, toy_gradients(one, gradient, seed=1)["random factors"])


def test_norms_of_random_factors_are_drawn_by_seed() -> None:
    x, gradient = draw(2, 8, DIM)
    units = stack(5, DIM)
    found = [norms(units, x, gradient, seed=seed) for seed in (1, 1, 2)]
    first, again, other = (one["random factors"] for one in found)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_random_factors_have_the_spread_that_is_asked_for() -> None:
    gradient = np.ones((1000, 100))
    (factors, _) = toy_gradients(stack(1, 100, factor=0.7), gradient, spread=0.2)["random factors"]
    assert factors.mean() == pytest.approx(0.7, abs=0.005)
    assert factors.std() == pytest.approx(0.2, rel=0.02)


def test_random_factors_drop_half_of_the_values_in_an_original_unit() -> None:
    gradient = np.ones((1000, 100))
    (factors, _) = toy_gradients(stack(1, 100, placement="original"), gradient)["random factors"]
    assert (factors == 0).mean() == pytest.approx(0.5, abs=0.01)


def test_weights_alone_are_the_truth_of_a_linear_unit() -> None:
    """Without normalisation, if every ReLU lets its value pass."""
    x, gradient = np.abs(draw(8, DIM)), draw(8, DIM, seed=2)
    units = [replace(one, w1=np.abs(one.w1), w2=np.abs(one.w2)) for one in stack(5, DIM, normalised="none", factor=0.9)]
    found = norms(units, x, gradient)
    assert np.allclose(found["weights alone"], found["true"], rtol=1e-12)


def test_unit_with_an_unknown_name_or_weights_that_do_not_fit_is_refused() -> None:
    weights = np.zeros((4, 6))
    with pytest.raises(PaperbenchError, match="original, preact"):
        VectorUnit(weights, weights.T, "pre")  # type: ignore[arg-type]
    with pytest.raises(PaperbenchError, match=r"\(D, H\)"):
        VectorUnit(weights, weights)
