"""Facts against independent references: the nets of tests/reference.py, the paper's numbers, crops by numpy."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paperbench.catalogue import resolve
from paperbench.models import ResidualNet
from paperbench.specs.recipe import Recipe
from paperbench.training.facts import facts_of, law_of, pin, uniform
from tests import reference


def summary(*tensors: Tensor) -> list[float]:
    """Root mean square, and projection."""
    vector = torch.cat([one.detach().flatten() for one in tensors]).numpy()
    return [float(np.mean(vector**2) ** 0.5), float(vector @ uniform(len(vector), "direction") / len(vector) ** 0.5)]


@pytest.mark.parametrize(
    "name",
    [
        "original_resnet110",
        "preact_resnet110",
        "resnet110_exclusive_gating",
        "resnet110_relu_only_preact",
        pytest.param("resnet110_bn_after_addition", marks=pytest.mark.full),
        pytest.param("resnet110_constant_scaling", marks=pytest.mark.full),
        pytest.param("resnet110_conv_shortcut", marks=pytest.mark.full),
        pytest.param("resnet110_relu_before_addition", marks=pytest.mark.full),
        pytest.param("resnet110_shortcut_only_gating", marks=pytest.mark.full),
    ],
)
def test_outputs_and_gradients_are_those_of_an_independent_net(name: str, paper_recipe: Recipe) -> None:
    """With the same weights. Training has two groups of two images, and a loss averaged over all four."""
    net = resolve(name, depth=8)
    values = dict(facts_of(net, paper_recipe).values)
    model = ResidualNet(net).double()
    pin(model)
    state = {
        key: one.detach().requires_grad_(key in dict(model.named_parameters()))
        for key, one in model.state_dict().items()
    }
    images = torch.from_numpy(uniform(4 * 3 * 32 * 32, "images")).view(4, 3, 32, 32)
    outputs = reference.forward(net, state, images, training=False)
    assert values["outputs"] == pytest.approx(outputs.flatten().tolist(), rel=1e-8)
    labels = torch.tensor([0, 3, 6, 9])
    for part in range(2):
        own = slice(2 * part, 2 * part + 2)
        loss = (
            F.cross_entropy(reference.forward(net, state, images[own], training=True), labels[own], reduction="sum") / 4
        )
        loss.backward()
    for block in ("stem", "stages.1.0", "fc"):
        gradients = [one.grad for key, one in state.items() if key.startswith(f"{block}.") and one.grad is not None]
        assert values[f"gradient in {block}"] == pytest.approx(summary(*gradients), rel=1e-7), block
    averages = [one for key, one in state.items() if "running_" in key]
    assert values["BN's averages after a step"] == pytest.approx(summary(*averages), rel=1e-7)


def test_rates_and_decays_are_the_papers(paper_recipe: Recipe) -> None:
    """arXiv:1603.05027, Appendix: 0.01 for 400 iterations, then 0.1, divided by 10 at 32k and 48k; decay 0.0001."""
    net = resolve("preact_resnet110", depth=8)
    exact = dict(facts_of(net, paper_recipe).exact)
    rates = {0: 0.01, 399: 0.01, 400: 0.1, 31_999: 0.1, 32_000: 0.01, 47_999: 0.01, 48_000: 0.001}
    assert exact["learning rate"] == tuple(f"iteration {iteration}: {rate}" for iteration, rate in rates.items())
    parameters = sum(1 for _ in ResidualNet(net).parameters())
    for recipe, decays in (
        (paper_recipe, {"0.0001"}),
        (replace(paper_recipe, weight_decay_on="convolutions"), {"0.0001", "0"}),
    ):
        found = re.findall(
            r"(\w+) [^;]*?, decay ([\d.]+)", "; ".join(sum(dict(facts_of(net, recipe).exact).values(), ()))
        )
        assert len(found) == parameters
        assert {decay for _, decay in found} == decays
        assert {decay for what, decay in found if what == "bias"} == decays - {"0.0001"} or decays == {"0.0001"}


def test_images_are_crops_by_numpy(paper_recipe: Recipe) -> None:
    """Image n has the bytes n, row and column in its channels, backwards if n is odd and not 199."""
    facts = facts_of(resolve("preact_resnet110", depth=8), paper_recipe)
    values, mirrored = dict(facts.values), 0
    images = np.stack(np.broadcast_arrays(np.arange(200)[:, None, None], *np.mgrid[:32, :32]), axis=-1)
    images[1:199:2, ..., 1:] = 31 - images[1:199:2, ..., 1:]
    mean = images.mean(axis=0) / 255
    for what, statements in facts.exact:
        for text, value in zip(statements if what.startswith("images") else (), values.get(what, ()), strict=True):
            n, dy, dx = map(int, re.findall(r"-?\d+", text)[:3])
            padded = np.pad(images[n] / 255 - mean, ((4, 4), (4, 4), (0, 0)))
            crop = padded[4 + dy : 36 + dy, 4 + dx : 36 + dx]
            if "mirrored" in text:
                crop, mirrored = crop[:, ::-1], mirrored + 1
            assert value == pytest.approx(crop[:16, :16].mean(), abs=1e-7), text
            labelled = 199 - n if what == "images of the test" else n
            assert text.endswith(f"label {7 * labelled % 10}") or what == "images of BN's averages"
            assert (dy, dx) == (0, 0) or what != "images of the test"
    assert mirrored


@given(
    st.sampled_from(["sqrt(2 / fan-out)", "sqrt(2 / fan-in)", "sqrt(1 / (3 fan-in))", "0.01", "0.02"]),
    st.sampled_from([(64, 16, 3, 3), (16, 64, 3, 3), (256, 64, 1, 1), (10, 640)]),
    st.sampled_from([1.0, 0.85, 1.2]),
    st.integers(0, 2**32 - 1),
)
def test_law_is_known_by_its_formula(text: str, shape: tuple[int, ...], factor: float, seed: int) -> None:
    """He et al. (arXiv:1502.01852, Eq. 10 and 14): normal, variance 2 / fan."""
    area = int(np.prod(shape[2:]))
    fan_in, fan_out = shape[1] * area, shape[0] * area
    deviation = {
        "sqrt(2 / fan-out)": (2 / fan_out) ** 0.5,
        "sqrt(2 / fan-in)": (2 / fan_in) ** 0.5,
        "sqrt(1 / (3 fan-in))": (3 * fan_in) ** -0.5,
    }.get(text) or float(text)
    rng = np.random.default_rng(seed)
    normal = law_of(torch.from_numpy(rng.normal(0, factor * deviation, shape)))
    bound = 3**0.5 * factor * deviation
    flat = law_of(torch.from_numpy(rng.uniform(-bound, bound, shape)))
    is_known = factor == 1
    assert (f" {text} = {deviation:.4g}" in normal, f" {text} = {deviation:.4g}" in flat) == (is_known, is_known)
    assert (normal.partition(",")[0], flat.partition(",")[0]) == ("normal", "uniform")
    shifted = torch.from_numpy(rng.normal(deviation, deviation, shape))
    assert law_of(shifted) == "normal, mean not 0"
    assert law_of(torch.full(shape, 0.25)) == "all 0.25"


@pytest.mark.parametrize("shape", [(16, 3, 3, 3), (16, 8, 1, 1), (10, 64), (8, 8)])
def test_law_of_few_values_does_not_depend_on_the_draw(shape: tuple[int, ...]) -> None:
    rng, fan_out = np.random.default_rng(0), shape[0] * int(np.prod(shape[2:]))
    for draw in (rng.normal, lambda _, deviation, shape: 3**0.5 * rng.uniform(-deviation, deviation, shape)):
        laws = {law_of(torch.from_numpy(draw(0, (2 / fan_out) ** 0.5, shape))) for _ in range(500)}
        assert len(laws) == 1, laws
