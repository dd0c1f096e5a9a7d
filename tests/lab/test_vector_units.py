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
    norms,
    signals,
    stack,
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
