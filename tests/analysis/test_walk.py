"""What is measured in every unit, against explicit matrices, autograd's Jacobians, finite differences, closed forms."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from paperbench.analysis.walk import Measured, Subject, measure
from paperbench.catalogue import FAMILIES, PLACEMENTS, SHORTCUTS, Net, resolve
from paperbench.models import ResidualNet
from paperbench.models.shortcuts import GatedAddition
from tests.analysis import matrices

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
    """A net with random scales, shifts, biases and statistics of BN, since initial values can hide errors."""
    model, source = ResidualNet(net), torch.Generator().manual_seed(1)
    model.init_weights(torch.Generator().manual_seed(1))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, low in ((module.weight, 0.5), (module.bias, -0.5), (module.running_var, 0.5)):
                assert tensor is not None
                tensor.data.uniform_(low, low + 1, generator=source)
            assert module.running_mean is not None
            module.running_mean.uniform_(-0.5, 0.5, generator=source)
        elif isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            module.bias.data.uniform_(-2, 0.5, generator=source)
    return model


def measured(model: ResidualNet, *, by_batch: bool = True) -> Measured:
    return measure(subject(model, by_batch=by_batch))


def subject(model: ResidualNet, *, by_batch: bool = True) -> Subject:
    images = images_for(model.net)
    return Subject(model, images, LABELS, by_batch=by_batch, dtype=torch.float64, seed=SEED)


def column(found: Measured, name: str) -> list[Any]:
    return [row[name] for row in found.rows]


def combinations() -> Iterator[Any]:
    """All shortcuts in all placements, with the options of each; those beside basic units run with --full."""
    for family, (name, depth) in NAMES.items():
        for shortcut in SHORTCUTS:
            for placement in PLACEMENTS:
                for option in ("A", "B"):
                    for reads in ("activated", "raw"):
                        if (family == "one_layer" or "preact" not in placement) and reads == "raw":
                            continue
                        if shortcut == "conv" and option == "B":
                            continue
                        arguments = {"depth": depth, "shortcut": shortcut, "placement": placement}
                        arguments |= {"shortcut_option": option} if shortcut != "conv" else {}
                        arguments |= {"transition_shortcut": reads} if reads == "raw" else {}
                        is_slow = family != "basic" and (shortcut, option) != ("identity", "B")
                        marks = pytest.mark.full if is_slow else ()
                        yield pytest.param(name, arguments, id=f"{name}-{arguments}", marks=marks)
    yield pytest.param("original_resnet110", {"depth": 8, "shortcut": "dropout", "inverted": True}, id="inverted")
    yield pytest.param("preact_resnet18", {}, id="photographs", marks=pytest.mark.full)
    yield pytest.param("original_resnet18", {}, id="photographs, original")
    for name, depth in LONGEST.items():  # several segments
        yield pytest.param(name, {"depth": depth}, id=f"{name}, depth {depth}")


@pytest.mark.parametrize("by_batch", [True, False])
@pytest.mark.parametrize(("name", "arguments"), combinations())
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
    for channels, unit in zip(found.channels, walked.units, strict=True):
        assert channels == pytest.approx([*unit.x.detach().numpy().std((0, 2, 3))], rel=1e-9)
