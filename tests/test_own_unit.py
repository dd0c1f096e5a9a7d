"""The units of examples/own_unit: registered, counted, drawn, computed and trained as the paper's are."""

from __future__ import annotations

import runpy
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from paperbench.architecture import macs, parameters, units
from paperbench.catalogue import PARTS, Component, Placement, Shortcut, resolve
from paperbench.data.sources import load_dataset
from paperbench.errors import PaperbenchError
from paperbench.models import ResidualNet, register
from paperbench.models.parts import MAKERS
from paperbench.report.description import describe
from paperbench.report.drawing import unit_drawing
from paperbench.specs.recipe import BatchNormSettings, Recipe
from paperbench.training.soundness import engine_error
from paperbench.training.trainer import Trainer
from tests.golden import assert_golden
from tests.helpers import ROOT
from tests.report.test_drawing import walks
from tests.training.tape import Tape
from tests.training.trainings import recipe_of, take_metrics

FILE = ROOT / "examples" / "own_unit" / "units.py"
NETS = "rms_gelu", "squeezed"


@pytest.fixture
def own() -> Iterator[dict[str, Any]]:
    """What the example defines, executed twice; other tests do not see what it registers."""
    with ExitStack() as stack:
        for known in (*PARTS.values(), *MAKERS.values()):
            stack.enter_context(patch.dict(known))
        runpy.run_path(str(FILE))
        yield runpy.run_path(str(FILE))


def logits(name: str, state: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The output of a net of 14 layers, by plain functions."""

    def conv(layer: str, x: Tensor, stride: int = 1) -> Tensor:
        return F.conv2d(x, state[f"{layer}.weight"], None, stride, 1)

    def activated(layer: str, x: Tensor) -> Tensor:
        if name == "rms_gelu":
            x = (
                x
                / (x.square().mean(1, keepdim=True) + 1e-5).sqrt()
                * state[layer.format("rms") + ".weight"][:, None, None]
            )
            return x * (1 + torch.erf(x / 2**0.5)) / 2
        scale, shift = (state[f"{layer.format('bn')}.{key}"] for key in ("weight", "bias"))
        return F.relu(F.batch_norm(x, None, None, scale, shift, training=True))

    x = conv("stem.conv", x)
    for unit in (f"stages.{stage}.{index}" for stage in range(3) for index in range(2)):
        stride = 2 if unit in ("stages.1.0", "stages.2.0") else 1
        inner = activated(f"{unit}.preactivation.{{}}", x)
        x = inner if unit.endswith("0") else x
        f = conv(f"{unit}.residual.conv1", inner, stride)
        f = conv(f"{unit}.residual.conv2", activated(f"{unit}.residual.{{}}1", f))
        if name == "squeezed":
            g = f.mean((2, 3))
            for layer, function in (("inner", F.relu), ("outer", torch.sigmoid)):
                weight, bias = (state[f"{unit}.addition.{layer}.{key}"] for key in ("weight", "bias"))
                g = function(F.linear(g, weight.flatten(1), bias))
            f = f * g[:, :, None, None]
        x = x[:, :, ::stride, ::stride]
        x = torch.cat([x, torch.zeros_like(x)], 1) + f if stride == 2 else x + f
    return F.linear(activated("tail.{}", x).mean((2, 3)), state["fc.weight"], state["fc.bias"])


@pytest.mark.parametrize("name", NETS)
def test_output_and_gradient_are_those_of_an_independent_implementation(own: dict[str, Any], name: str) -> None:
    torch.manual_seed(0)
    model: ResidualNet = own[name](10, depth=14).double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    state, images = dict(model.named_parameters()), torch.randn(3, 3, 16, 16).double()
    pairs = []
    for output in (model(images), logits(name, state, images)):
        pairs.append([output, *torch.autograd.grad(output.square().sum(), [*state.values()])])
    torch.testing.assert_close(*pairs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("other", [{}, {"shortcut_option": "B"}])
def test_counts_equal_the_module(own: dict[str, Any], name: str, other: dict[str, Any]) -> None:
    net = replace(own[name](10, depth=14).net, **other)
    model = ResidualNet(net)
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, 32, 32))
    assert counter.get_total_flops() == 2 * macs(net)
    assert sum(p.numel() for p in model.parameters()) == parameters(net)


def test_units_are_described_and_drawn(own: dict[str, Any]) -> None:
    nets = [own[name](10, depth=14).net for name in NETS]
    assert_golden("own_unit", "\n".join(line for net in nets for line in [*describe(net), ""]))
    inner = [walks(unit_drawing(net, [*units(net)][1])) for net in nets]
    gate = "global average pool 1x1 conv, 1 + b, 0 initially ReLU 1x1 conv, 16 + b, 0 initially sigmoid"
    assert inner[0] == {"+", "RMSNorm GELU W RMSNorm GELU W +"}
    assert inner[1] == {"+", "BN ReLU W BN ReLU W times +", f"BN ReLU W BN ReLU W {gate} times +"}


@pytest.mark.parametrize("name", ["rms_gelu", pytest.param("squeezed", marks=pytest.mark.full)])
def test_nets_train_on_digits(own: dict[str, Any], name: str, paper_recipe: Recipe) -> None:
    """One of them without BN, whose averages at the end are those of no layer."""
    groups = BatchNormSettings(32, 1e-5, 0.1, "reestimated")
    recipe = replace(recipe_of(paper_recipe, 40), batch_size=64, batch_norm=groups)
    how = load_dataset("digits8", ROOT), 0, "fp32", torch.device("cpu"), "graph"
    trainer = Trainer(own[name](10, depth=8).net, recipe, *how, recompute=True, capture=lambda _: Tape())  # type: ignore[arg-type,return-value]
    assert engine_error(trainer) is None
    losses = []
    for _ in range(2):
        for _ in range(20):
            trainer.step(0.1)
        losses.append(take_metrics(trainer).loss)
    assert losses[1] < losses[0] - 0.03
    (result,) = trainer.finish()
    assert result.loss < losses[0]


def test_norm_and_activation_of_a_placement_follow_where_the_papers_have_them(own: dict[str, Any]) -> None:
    like_fig_4a: dict[str, Any] = {"last": ("rms",), "after_addition": ("gelu",), "between": ("rms", "gelu")}
    register(Placement("rms_original", "", "", **like_fig_4a))
    for name, pooled in (("original_resnet20", []), ("original_resnet18", ["stem.pool"])):
        model = timm.create_model(name, placement="rms_original", shortcut_option="B")
        names = [name for name, _ in model.named_modules()]
        assert [name for name in names if name.startswith("stem.")] == ["stem.conv", "stem.rms", "stem.gelu", *pooled]
        assert {"stages.1.0.shortcut.rms", "stages.1.0.residual.gelu1", "stages.1.0.after_addition.gelu"} <= {*names}
        assert not any(isinstance(module, nn.BatchNorm2d | nn.ReLU) for module in model.modules())


@pytest.mark.parametrize(
    ("part", "make", "message"),
    [
        (Component("relu", "ReLU", "activation"), lambda _: nn.ReLU6(), "another component relu. Give yours a name"),
        (Component("rms", "RMSNorm", "norm", 1), nn.BatchNorm2d, "another component rms"),
        (Placement("preact", "", "mine"), None, "another placement preact"),
        (Component("conv", "", "norm"), nn.BatchNorm2d, "component conv: needs another name"),
        (Component("Mine", "", "norm"), nn.BatchNorm2d, "component Mine: needs another name, of lowercase letters"),
        (Component("mine", "", "norm"), None, "a component needs a second argument"),
        (Component("mine", "", "norn"), nn.ReLU, "component mine: unknown kind 'norn'. Did you mean 'norm'"),  # type: ignore[arg-type]
        (Placement("mine", "", "", before=("rns",)), None, "placement mine.before: unknown component 'rns'. Did you"),
        (Placement("mine", "", "", last=("rms", "rms")), None, "placement mine.last: has a component twice"),
        (Shortcut("mine", "", "", {"gate_bios": 0}), None, "shortcut mine: unknown argument 'gate_bios'. Did you"),
    ],
)
def test_what_cannot_be_registered_is_refused(own: dict[str, Any], part: Any, make: Any, message: str) -> None:
    before = {kind: {**known} for kind, known in PARTS.items()}
    with pytest.raises(PaperbenchError, match=message):
        register(part, make)
    assert before == PARTS


def test_same_code_may_be_registered_again_but_no_other_of_this_name(own: dict[str, Any]) -> None:
    make = "partial(lambda slope, _: nn.LeakyReLU(slope), 0.1)"
    code = f"from functools import partial; register(Component('leaky', '', 'activation'), {make})"
    for _ in range(2):
        exec(code, {**globals()})
    for ours, other in (("0.1", "0.2"), ("LeakyReLU", "CELU")):
        with pytest.raises(PaperbenchError, match="another component leaky"):
            exec(code.replace(ours, other), {**globals()})


def test_parameters_that_are_not_stated_are_refused(own: dict[str, Any]) -> None:
    register(Component("prelu", "PReLU", "activation"), nn.PReLU)
    register(Placement("learnt", "", "", before=("rms", "prelu")))
    with pytest.raises(PaperbenchError, match=r"has 74,640 parameters .* its placement and shortcut state 74,512"):
        ResidualNet(resolve("preact_resnet20", depth=8, placement="learnt"))
