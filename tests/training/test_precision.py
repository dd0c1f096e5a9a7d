from __future__ import annotations

import pytest
import torch
from torch import nn

from paperbench.catalogue import resolve
from paperbench.data.dataset import ImageDataset
from paperbench.errors import PaperbenchError
from paperbench.models import ResidualNet
from paperbench.models.residual_unit import ResidualUnit
from paperbench.specs.recipe import Recipe
from paperbench.training.precision import autocast, choose_precision, set_arithmetic
from paperbench.training.trainer import Trainer

CPU = torch.device("cpu")


def test_default_precision_on_a_cpu() -> None:
    assert choose_precision(None, CPU) == "fp32"
    assert choose_precision("bf16", CPU) == "bf16"


@pytest.mark.parametrize(
    ("wanted", "message"),
    [("tf32", "Use fp32 or bf16"), ("fp16", "Did you mean .bf16."), ("half", "Known: bf16, bf16-fp32-stream, fp32")],
)
def test_unavailable_precisions_are_refused(wanted: str, message: str) -> None:
    with pytest.raises(PaperbenchError, match=message):
        choose_precision(wanted, CPU)


@pytest.mark.gpu
def test_tf32_affects_only_convolutions() -> None:
    layout = torch.channels_last
    images = torch.randn(64, 64, 32, 32, device="cuda").contiguous(memory_format=layout)
    weight = torch.randn(64, 64, 3, 3, device="cuda").contiguous(memory_format=layout)
    a = torch.randn(512, 512, device="cuda")

    def errors() -> list[float]:
        pairs = (
            (torch.nn.functional.conv2d(images, weight), torch.nn.functional.conv2d(images.double(), weight.double())),
            (a @ a, a.double() @ a.double()),
        )
        return [float((ours.double() - exact).norm() / exact.norm()) for ours, exact in pairs]

    try:
        for precision in ("fp32", "tf32", "fp32"):
            set_arithmetic(precision)
            conv, product = errors()
            assert conv > 1e-4 if precision == "tf32" else conv < 5e-5
            assert product < 5e-5
    finally:
        set_arithmetic("fp32")


def stream(model: ResidualNet, images: torch.Tensor, precision: str) -> dict[str, torch.Tensor]:
    """Outputs of stem, tail, units and convolutions by name."""
    seen: dict[str, torch.Tensor] = {}
    hooks = []
    for name, module in model.named_modules():
        if isinstance(module, ResidualUnit) or name in ("stem", "tail") or isinstance(module, nn.Conv2d):
            hooks.append(module.register_forward_hook(lambda _m, _i, out, name=name: seen.update({name: out})))
    with torch.no_grad(), autocast(precision, CPU):
        model(images)
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("preact_resnet164", {"depth": 11, "placement": "original"}),
        ("preact_resnet20", {"depth": 8, "shortcut_option": "B"}),
        ("resnet110_conv_shortcut", {"depth": 8, "placement": "preact"}),
        ("resnet110_exclusive_gating", {"depth": 8}),
        ("resnet110_bn_after_addition", {"depth": 8}),
    ],
)
def test_stream_is_float32_and_branches_are_bfloat16(
    recipe: Recipe, small_dataset: ImageDataset, name: str, arguments: dict[str, object]
) -> None:
    net = resolve(name, **arguments)
    plain, wide = (Trainer(net, recipe, small_dataset, 0, p, CPU) for p in ("bf16", "bf16-fp32-stream"))
    assert wide.model.state_dict().keys() == plain.model.state_dict().keys()
    images = torch.randn(4, 3, 32, 32)
    for key, value in stream(wide.model, images, "bf16-fp32-stream").items():
        assert value.dtype == (torch.bfloat16 if "conv" in key or "gate" in key else torch.float32), key
    assert {v.dtype for v in stream(plain.model, images, "bf16").values()} == {torch.bfloat16}


def test_sums_on_the_float32_stream_are_not_rounded_to_bfloat16(recipe: Recipe, small_dataset: ImageDataset) -> None:
    """A unit's output equals x + F, computed in float64, up to float32 rounding."""
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    errors = {}
    for precision in ("bf16", "bf16-fp32-stream"):
        trainer = Trainer(resolve("preact_resnet20"), recipe, small_dataset, 0, precision, CPU)
        seen = stream(trainer.model, images, precision)
        exact = seen["stages.1.1"].double() + seen["stages.1.2.residual.conv2"].double()
        errors[precision] = float((seen["stages.1.2"].double() - exact).norm() / exact.norm())
    assert errors["bf16-fp32-stream"] < 1e-7
    assert errors["bf16"] > 1e-3
