"""Singular values of Jacobians against Jacobians by autograd, closed forms, and a plain Krylov method in NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from paperbench.analysis.cases import analyse, of_net, subject_of
from paperbench.analysis.jacobians import LARGEST, all_values, jacobians, largest, transposed_matrix
from paperbench.analysis.linear import UnitAt
from paperbench.analysis.record import Analysis, Spectrum
from paperbench.analysis.walk import Subject
from paperbench.catalogue import PLACEMENTS, resolve
from paperbench.errors import PaperbenchError
from paperbench.models import ResidualNet
from paperbench.models.residual_unit import ResidualUnit
from paperbench.options import AnalysisOptions
from paperbench.runs.named import resolve_net
from tests.helpers import ROOT

NOISE = 5
SHORTCUTS = ("shortcut_only_gating", "exclusive_gating", "conv", "dropout", "constant_scaling")
NETS = [*((name, "identity") for name in PLACEMENTS), *(("original", name) for name in SHORTCUTS), ("preact", "conv")]
CASES = [
    pytest.param(*net, by_batch, marks=() if by_batch or net == ("preact", "conv") else pytest.mark.full)
    for net, by_batch in itertools.product(NETS, (True, False))
]


def subject(placement: str, shortcut: str, *, by_batch: bool, depth: int = 8) -> Subject:
    """Return a net, with BN that has been used, and three images of 2 x 4 pixels."""
    torch.manual_seed(0)
    kwargs = {"placement": placement, "shortcut": shortcut, "residual_dropout": 0.3 * (shortcut == "dropout")}
    model = ResidualNet(resolve("preact_resnet20", depth=depth, **kwargs))
    with torch.no_grad():
        model(torch.randn(8, 3, 8, 8))
    return Subject(
        model, torch.randn(3, 3, 2, 4), torch.tensor([1, 7, 2]), by_batch=by_batch, dtype=torch.float64, seed=NOISE
    )


def jacobian(of: Subject, first: int, last: int) -> Tensor:
    """Return the Jacobian of the net's own modules, by autograd."""

    def run(x: Tensor, start: int, stop: int) -> Tensor:
        for index in range(start, stop):
            torch.manual_seed(NOISE + index)
            x = of.units[index][1](x)
        return x

    x = run(of.enter(), 0, first)
    found: Any = torch.autograd.functional.jacobian(lambda inputs: run(inputs, first, last + 1), x, vectorize=True)
    return found.reshape(-1, x.numel())


def assert_all_values_are_right(of: Subject, spectra: Iterable[Spectrum]) -> None:
    for one in spectra:
        expected = torch.linalg.svdvals(jacobian(of, one.first, one.last))
        np.testing.assert_allclose(one.values, expected, rtol=1e-5, atol=1e-6 * expected[0])  # six digits are kept


@pytest.mark.parametrize(("placement", "shortcut", "by_batch"), CASES)
def test_all_values_are_those_of_the_jacobian_by_autograd(placement: str, shortcut: str, by_batch: bool) -> None:
    of = subject(placement, shortcut, by_batch=by_batch)
    found = jacobians(of)
    assert_all_values_are_right(of, {*found.units, *found.stages, *found.chains})


@pytest.mark.full
@pytest.mark.parametrize(("placement", "shortcut"), [("original", "dropout"), ("preact", "identity")])
def test_stages_of_several_units_have_the_values_of_the_jacobian_by_autograd(placement: str, shortcut: str) -> None:
    of = subject(placement, shortcut, by_batch=True, depth=14)
    found = jacobians(of)
    assert_all_values_are_right(of, {*found.units, *found.stages, *found.chains})


@pytest.mark.parametrize(("placement", "by_batch"), [("original", True), ("preact", False), ("preact", True)])
def test_values_of_a_matrix_are_precise(placement: str, by_batch: bool) -> None:
    of = subject(placement, "identity", by_batch=by_batch)
    values = all_values(transposed_matrix(list(of.forward())[2]))
    reference = jacobian(of, 2, 2)
    expected = torch.linalg.svdvals(reference)
    np.testing.assert_allclose(values["values"], expected, rtol=1e-9, atol=1e-9)
    assert values["rank"] == int(torch.linalg.matrix_rank(reference))
    np.testing.assert_allclose(values["rms"] ** 2 * reference.shape[1], float(reference.square().sum()), rtol=1e-9)


@pytest.mark.parametrize(
    ("placement", "shortcut", "by_batch"), [("original", "identity", True), ("preact", "conv", False)]
)
@pytest.mark.parametrize("first", [1, 2])
def test_products_with_vectors_find_the_largest_values(
    placement: str, shortcut: str, by_batch: bool, first: int
) -> None:
    of = subject(placement, shortcut, by_batch=by_batch)
    found = largest(list(of.forward())[first:], steps=30)
    expected = torch.linalg.svdvals(jacobian(of, first, 2))[:LARGEST]
    np.testing.assert_allclose(found["largest"], expected, rtol=1e-6)
    assert found["residual"] < 1e-3


def test_few_steps_find_what_a_krylov_space_holds() -> None:
    of, steps = subject("preact", "identity", by_batch=True), 3
    found = largest(list(of.forward())[1:], steps)
    matrix = jacobian(of, 1, 2).numpy()
    start = torch.randn(matrix.shape[1], LARGEST, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    blocks = [np.linalg.qr(start.numpy())[0]]
    for _ in range(steps - 1):
        blocks.append(np.linalg.qr(matrix.T @ (matrix @ blocks[-1]))[0])
    basis = np.linalg.qr(np.hstack(blocks))[0]
    _, values, rows = np.linalg.svd(matrix @ basis)
    vectors = basis @ rows[:LARGEST].T
    errors = matrix.T @ (matrix @ vectors) - vectors * values[:LARGEST] ** 2
    np.testing.assert_allclose(found["largest"], values[:LARGEST], rtol=1e-9)
    np.testing.assert_allclose(
        found["residual"], (np.linalg.norm(errors, axis=0) / values[:LARGEST] ** 2).max(), rtol=1e-6
    )
    np.testing.assert_allclose(found["rms"], np.linalg.norm(matrix @ blocks[0]) / LARGEST**0.5, rtol=1e-9)


def test_residual_bounds_the_distance_from_a_singular_value() -> None:
    of = subject("original", "identity", by_batch=True)
    expected = torch.linalg.svdvals(jacobian(of, 1, 2)).numpy()
    found = largest(list(of.forward())[1:], steps=4)
    for place, value in enumerate(found["largest"]):
        assert value <= expected[place]
        assert np.abs(expected**2 - value**2).min() <= found["residual"] * value**2


def linear_units(diagonals: list[Tensor], side: int) -> list[UnitAt]:
    """Return units without residuals, whose 1x1 convolutions multiply each channel by a number, at a random input."""
    torch.manual_seed(0)
    net = resolve("preact_resnet20", shortcut="conv")
    model = ResidualNet(net).double().eval().requires_grad_(False)
    modules = [one for one in model.stages.modules() if isinstance(one, ResidualUnit)][1 : 1 + len(diagonals)]
    x, units = torch.randn(2, 16, side, side, dtype=torch.float64), []
    for module, diagonal in zip(modules, diagonals, strict=True):
        module.residual.requires_grad_(False)
        for parameter in module.residual.parameters():
            parameter.zero_()
        module.shortcut.get_submodule("conv").get_parameter("weight").copy_(diagonal.double().diag()[:, :, None, None])
        units.append(UnitAt(module, x, noise=0))
        x = units[-1].output
    return units


def test_linear_units_have_the_values_of_their_convolutions() -> None:
    first, second = torch.arange(1, 17) / 4, torch.arange(16, 0, -1) / 8
    units = linear_units([first, second], side=3)
    both = all_values(transposed_matrix(units[0]) @ transposed_matrix(units[1]))
    expected = (first * second).repeat_interleave(2 * 3 * 3).double().sort(descending=True).values
    np.testing.assert_allclose(both["values"], expected, rtol=1e-12)
    np.testing.assert_allclose(both["condition"], expected[0] / expected[-1], rtol=1e-12)
    np.testing.assert_allclose(both["rms"], expected.square().mean().sqrt(), rtol=1e-12)


def test_repeated_values_are_found_as_often_as_they_occur() -> None:
    units = linear_units([torch.tensor([3.0, 2.0, *[1.0] * 14])], side=1)  # each twice, for two images
    np.testing.assert_allclose(largest(units, steps=6)["largest"], [3, 3, 2, 2], rtol=1e-10)


@pytest.mark.parametrize("value", [0.0, 2.0])
def test_after_one_step_nothing_may_be_left(value: float) -> None:  # what remains of a block is then zero
    found = largest(linear_units([torch.full((16,), value)], side=1), steps=8)
    np.testing.assert_allclose(found["largest"], [value] * 4, rtol=1e-12)
    assert found["residual"] < 1e-12


def test_more_steps_than_the_space_has_room_for_change_nothing() -> None:
    units = linear_units([torch.arange(16, 0, -1)], side=1)
    found = largest(units, steps=100)
    np.testing.assert_allclose(found["largest"], [16, 16, 15, 15], rtol=1e-10)
    assert found["residual"] < 1e-10


def test_a_lost_channel_lowers_the_rank_and_leaves_no_condition_number() -> None:
    found = all_values(transposed_matrix(linear_units([torch.arange(16)], side=2)[0]))
    assert (found["rank"], len(found["values"]), found["condition"]) == (15 * 8, 16 * 8, None)


@pytest.mark.parametrize(("shortcut", "value"), [("identity", 1.0), ("constant_scaling", 0.5)])
def test_shortcuts_alone_multiply_by_the_product_of_their_factors(shortcut: str, value: float) -> None:
    of = subject("preact", shortcut, by_batch=True, depth=20)
    for _, module in of.units:
        for parameter in module.residual.parameters():
            parameter.zero_()
    found = jacobians(of, steps=1, small=200).chains[1]
    assert (found.first, found.last, found.rank, found.condition) == (7, 8, 192, 1.0)
    assert set(found.values) == {value**2}


def test_chains_grow_from_the_last_unit_to_all() -> None:
    found = jacobians(subject("preact", "identity", by_batch=True, depth=20), steps=1, small=0)

    def spans(of: tuple[Spectrum, ...]) -> list[tuple[int, int]]:
        return [(one.first, one.last) for one in of]

    assert spans(found.units) == [(index, index) for index in range(9)]
    assert spans(found.stages) == [(0, 2), (3, 5), (6, 8)]
    assert spans(found.chains) == [(8, 8), (7, 8), (5, 8), (1, 8), (0, 8)]


def test_only_chains_of_small_signals_have_all_values() -> None:
    found = jacobians(subject("preact", "identity", by_batch=True), steps=1, small=200)  # signals: 384, 192, 192 values
    assert [(one.last, len(one.values)) for one in found.units] == [(0, 0), (1, 0), (2, 192)]
    assert [bool(one.values) for one in found.chains] == [True, False, False]
    assert [one.residual is None for one in found.chains] == [True, False, False]


def test_equal_subjects_give_equal_bits() -> None:
    one, two = (jacobians(subject("original", "dropout", by_batch=True), steps=2, small=300) for _ in range(2))
    assert one == two


def test_smaller_images_are_means_of_regions() -> None:
    (case,) = of_net(resolve_net("preact_resnet20", {"depth": 8}, Path(), "digits"), ROOT)
    own, smaller = (subject_of(case, AnalysisOptions(images=2, size=size), torch.device("cpu")) for size in (None, 8))
    expected = own.images.numpy().reshape(2, 3, 8, 4, 8, 4).mean((3, 5))
    np.testing.assert_allclose(smaller.images.numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("size", [7, 32])
def test_sizes_that_images_cannot_have_are_refused(size: int) -> None:
    (case,) = of_net(resolve_net("preact_resnet20", {"depth": 8}, Path(), "digits"), ROOT)
    with pytest.raises(PaperbenchError, match="32 pixels can be made smaller, down to 8"):
        subject_of(case, AnalysisOptions(images=2, size=size), torch.device("cpu"))


@pytest.mark.full
def test_an_analysis_keeps_its_jacobians() -> None:
    (case,) = of_net(resolve_net("preact_resnet20", {"depth": 8}, Path(), "digits"), ROOT)
    found = analyse(case, AnalysisOptions(images=1, size=8, measures=("jacobians",)), torch.device("cpu"))
    assert found.jacobians is not None
    assert [len(one.values) for one in found.jacobians.units] == [1024, 512, 256]
    assert Analysis.from_json(found.to_json()) == found
