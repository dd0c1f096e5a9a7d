"""What is measured in every unit, against explicit matrices, autograd's Jacobians, finite differences, closed forms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paperbench.analysis.linear import pull, push
from paperbench.analysis.walk import Measurements, Subject, measure
from paperbench.catalogue import FAMILIES, PLACEMENTS, SHORTCUTS, Net, resolve
from paperbench.models import ResidualNet
from paperbench.models.residual_unit import ResidualUnit
from paperbench.models.shortcuts import GatedAddition
from tests.analysis import matrices
from tests.models import test_against_reference

LABELS = torch.tensor([3, 7])
SEED = 11
NAMES = {
    "basic": ("original_resnet110", 8),
    "bottleneck": ("original_resnet164", 11),
    "one_layer": ("original_resnet110_1layer", 8),
}
LONGEST = {"preact_resnet164": 29, "original_resnet110": 26}


def images_for(net: Net) -> Tensor:
    """Two images, not square and with odd sides where possible, so that mixed-up positions show."""
    height, width = (48, 36) if FAMILIES[net.family].pools_early else (7, 5)
    return torch.randn(2, 3, height, width, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def randomised(net: Net) -> ResidualNet:
    """The net in float32, as it is trained."""
    return test_against_reference.randomised(net).float()


def measured(model: ResidualNet, *, by_batch: bool = True, device: str = "cpu") -> Measurements:
    return measure(subject(model.to(device), by_batch=by_batch, device=device))


def subject(model: ResidualNet, *, by_batch: bool = True, side: int | None = None, device: str = "cpu") -> Subject:
    images, labels = images_for(model.net)[:, :, :side, :side].to(device), LABELS.to(device)
    return Subject(model, images, labels, by_batch=by_batch, dtype=torch.float64, seed=SEED)


def column(found: Measurements, name: str) -> list[Any]:
    return [row[name] for row in found.rows]


def combinations() -> Iterator[Any]:
    """All shortcuts in all placements, with the options of each; most of them run with --full."""
    for family, (name, depth) in NAMES.items():
        for shortcut, placement in itertools.product(SHORTCUTS, PLACEMENTS):
            options = ("A",) if shortcut == "conv" else ("A", "B")  # which convolutions ignore
            readings = ("activated", "raw") if "preact" in placement and family != "one_layer" else ("activated",)
            for option, reads, by_batch in itertools.product(options, readings, (True, False)):
                arguments = {"depth": depth, "shortcut": shortcut, "placement": placement}
                arguments |= {"shortcut_option": option} if shortcut != "conv" else {}
                arguments |= {"transition_shortcut": reads} if reads == "raw" else {}
                is_quick = family == "basic" and (option, reads, by_batch) == ("A", "activated", True)
                is_quick |= (family, shortcut, option, reads) == ("bottleneck", "identity", "B", "activated")
                marks = () if is_quick else pytest.mark.full
                yield pytest.param(name, arguments, by_batch, id=f"{name}-{arguments}-{by_batch}", marks=marks)
    for by_batch in (True, False):
        dropout = {"depth": 8, "shortcut": "dropout", "inverted": True}
        yield pytest.param("original_resnet110", dropout, by_batch, id=f"inverted dropout-{by_batch}")
        both = {**dropout, "placement": "preact", "residual_dropout": 0.3}
        yield pytest.param("original_resnet110", both, by_batch, id=f"both dropouts-{by_batch}")
    for name in ("original_resnet18", "preact_resnet18"):
        yield pytest.param(name, {}, True, id=name, marks=pytest.mark.full)
    for name, depth in LONGEST.items():  # several segments
        yield pytest.param(name, {"depth": depth}, True, id=f"{name}, depth {depth}")


@pytest.mark.parametrize(("name", "arguments", "by_batch"), list(combinations()))
def test_every_value_is_that_of_explicit_matrices(name: str, arguments: dict[str, Any], by_batch: bool) -> None:
    model = randomised(resolve(name, **arguments))
    found = measured(model, by_batch=by_batch)
    walked = matrices.walk(model, images_for(model.net), LABELS, by_batch=by_batch, seed=SEED)
    expected = list(matrices.columns(walked))
    assert len(found.rows) == len(expected)
    for unit, (ours, theirs) in enumerate(zip(found.rows, expected, strict=True)):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            close = None if value is None else pytest.approx(value, rel=1e-9, abs=1e-12)
            assert ours[key] == close, (unit, key)
    assert found.loss == pytest.approx(walked.loss.item(), rel=1e-12)
    assert found.output == pytest.approx(matrices.described(matrices.flat(walked.output)), rel=1e-12)
    (gradient,) = torch.autograd.grad(walked.loss, walked.output)
    assert found.output_gradient == pytest.approx(gradient.norm().item(), rel=1e-9)
    for channels, at in zip(found.channels, walked.units, strict=True):
        assert channels == pytest.approx([*at.x.detach().numpy().std((0, 2, 3))], rel=1e-9)


@pytest.mark.full
def test_first_unit_receives_what_the_stem_for_photographs_gives() -> None:
    model = randomised(resolve("preact_resnet18"))
    walked = matrices.walk(model, images_for(model.net), LABELS, by_batch=True, seed=SEED)
    torch.testing.assert_close(subject(model).enter(), walked.units[0].x.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["preact_resnet20", "original_resnet20"])
def test_gpu_finds_the_values_of_the_cpu(name: str) -> None:
    model = randomised(resolve(name, depth=14))
    for unit, (ours, theirs) in enumerate(
        zip(*(measured(model, device=at).rows for at in ("cuda", "cpu")), strict=True)
    ):
        for key, value in theirs.items():
            assert ours[key] == (None if value is None else pytest.approx(value, rel=1e-9, abs=1e-12)), (unit, key)


@pytest.mark.parametrize("name", ["preact_resnet20", "original_resnet20"])
def test_products_are_those_of_jacobians(name: str) -> None:
    model = randomised(resolve(name, depth=8))
    for unit in subject(model, side=3).forward():
        small = torch.randn(unit.x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
        for function in (unit.whole, unit.by_shortcut):
            columns: Any = torch.autograd.functional.jacobian(function, unit.x, vectorize=True)
            jacobian = columns.reshape(unit.output.numel(), -1)
            pushed = push(function, unit.x, small).flatten()
            torch.testing.assert_close(pushed, jacobian @ small.flatten(), rtol=1e-9, atol=1e-9)
            cotangent = torch.linspace(-1, 1, unit.output.numel(), dtype=torch.float64)
            pulled = pull(function, unit.x, cotangent.view_as(unit.output)).flatten()
            torch.testing.assert_close(pulled, cotangent @ jacobian, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "side", "by_batch"),
    [("original_resnet20", 2, False), pytest.param("preact_resnet20", 4, True, marks=pytest.mark.full)],
)
def test_gradient_norm_is_that_of_finite_differences(name: str, side: int, by_batch: bool) -> None:
    at = subject(randomised(resolve(name, depth=8)), side=side, by_batch=by_batch)
    *_, last = at.forward()

    def loss(x: Tensor) -> float:
        (unit,) = at.forward(x, 2)
        return at.loss(unit.output).item()

    step, differences = 1e-6, []
    for place in range(last.x.numel()):
        change = torch.zeros(last.x.numel(), dtype=torch.float64)
        change[place] = step
        there = [loss(last.x + sign * change.view_as(last.x)) for sign in (1, -1)]
        differences.append((there[0] - there[1]) / (2 * step))
    assert measure(at).rows[2]["gradient_norm"] == pytest.approx(math.hypot(*differences), rel=1e-6)


IDENTITIES = ["original", "relu_before_addition", "relu_only_preact", "preact"]


@pytest.mark.parametrize("placement", IDENTITIES)
def test_identity_shortcuts_without_residual_functions_are_exact(placement: str) -> None:
    found = measured(randomised(resolve("original_resnet110", depth=14, placement=placement)))
    errors = column(found, "identity_error")
    assert errors[1::2] == [0.0] * 3
    # The first unit of each stage may share its pre-activation, but a second ReLU changes nothing.
    changed = {"relu_only_preact": [0], "preact": [0, 2, 4]}.get(placement, [])
    assert [unit for unit, error in enumerate(errors) if error] == changed


def test_bn_after_addition_is_no_identity() -> None:
    found = measured(randomised(resolve("original_resnet110", depth=8, placement="bn_after_addition")))
    assert min(column(found, "identity_error")) > 0.01


def test_constant_scaling_multiplies_by_powers_of_its_factor() -> None:
    net = resolve(
        "original_resnet110",
        depth=14,
        placement="relu_before_addition",
        shortcut="constant_scaling",
        shortcut_scale=0.25,
    )
    found = measured(randomised(net))
    powers = [0.25**n for n in range(1, 7)]
    assert column(found, "identity_kept") == powers
    assert column(found, "predicted") == powers[::-1]
    assert column(found, "measured") == powers[::-1]


@pytest.mark.parametrize("shortcut", ["exclusive_gating", "shortcut_only_gating"])
def test_gates_without_weights_multiply_by_powers_of_what_they_leave(shortcut: str) -> None:
    model = randomised(resolve("original_resnet110", depth=14, placement="relu_before_addition", shortcut=shortcut))
    for module in model.modules():
        if isinstance(module, GatedAddition):
            nn.init.zeros_(module.gate.weight)
            nn.init.constant_(module.get_parameter("gate.bias"), -3)
    found = measured(model)
    powers = [(1 - 1 / (1 + math.exp(3))) ** n for n in range(1, 7)]
    for name, expected in (("identity_kept", powers), ("predicted", powers[::-1]), ("measured", powers[::-1])):
        assert column(found, name) == pytest.approx(expected, rel=1e-12), name


def test_dropout_keeps_half() -> None:
    model = randomised(resolve("original_resnet110", depth=14, placement="relu_before_addition", shortcut="dropout"))
    values = [unit.output.numel() for unit in subject(model).forward()]
    factors = column(measured(model), "factor")
    for factor, number in zip(factors, values, strict=True):
        assert abs(factor - 0.5) < 4 * 0.5 / math.sqrt(number)  # deviations of a binomial distribution
    assert len(set(factors)) == len(factors)  # each unit has noise of its own
    assert column(measured(model, by_batch=False), "predicted") == [0.5**n for n in range(6, 0, -1)]


def test_noise_is_held_fixed_and_torchs_own_is_left() -> None:
    at = subject(randomised(resolve("original_resnet110", depth=8, shortcut="dropout")))
    before = torch.get_rng_state()
    assert measure(at) == measure(at)
    assert torch.equal(torch.get_rng_state(), before)


def without_residuals(**arguments: Any) -> ResidualNet:
    """A net whose last weights in F are zero."""
    model = randomised(resolve("preact_resnet110", depth=14, **arguments))
    for module in model.modules():
        if isinstance(module, ResidualUnit):
            nn.init.zeros_(module.get_parameter("residual.conv2.weight"))
    return model


def test_gradient_arrives_however_small_the_weights_are() -> None:  # Sec. 2, after Eq. (5)
    found = measured(without_residuals())
    assert column(found, "gradient_norm")[-1] == found.output_gradient > 0  # the last stage has one more unit
    assert column(found, "through_norm")[-1] == 0.0
    assert column(found, "cosine")[-1] is None
    assert column(found, "direct_share")[-1] == 1.0


def test_first_term_passes_identities_unchanged() -> None:  # Eq. (5)
    found = measured(randomised(resolve("preact_resnet20")))
    assert column(found, "direct_norm")[-2:] == [found.output_gradient] * 2
    assert all(norm > 0 for norm in column(found, "through_norm")[-2:])


def test_gradient_of_a_plain_net_does_not() -> None:
    found = measured(without_residuals(shortcut="constant_scaling", shortcut_scale=0.0))
    assert column(found, "gradient_norm") == [0.0] * 6
    assert column(found, "direct_share") == [0.0] * 6


def test_relu_before_addition_never_decreases_the_signal() -> None:  # Sec. 4.1
    units = subject(randomised(resolve("original_resnet110", depth=14, placement="relu_before_addition"))).forward()
    assert all(bool((unit.output >= unit.x).all()) for unit in itertools.islice(units, 1, None, 2))


def test_signal_of_the_original_unit_is_never_negative() -> None:
    units = list(subject(randomised(resolve("original_resnet110", depth=14))).forward())
    assert all(bool((unit.x >= 0).all()) for unit in units)
    assert all(
        0 < row["cut"] == row["negative"] < 1
        for row in measured(randomised(resolve("original_resnet110", depth=14))).rows
    )


def test_preactivation_is_asymmetric_activation_after_addition() -> None:  # Fig. 5
    model = randomised(resolve("preact_resnet110", depth=14)).double()
    at = subject(model)
    units = [unit for _, unit in at.units]
    y = at.enter()
    activated = units[0].preactivation(y)
    for index, unit in enumerate(units):
        y = unit.shortcut(activated if unit.shares_preactivation else y) + unit.residual(activated)
        activated = (units[index + 1].preactivation if index < 5 else at.model.tail)(y)
    *_, last = at.forward()
    torch.testing.assert_close(last.output, y, rtol=0, atol=0)
    torch.testing.assert_close(at.model.tail(last.output), activated, rtol=0, atol=0)
