"""Outputs, gradients and BN statistics of the nets compared with independent implementations, in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

from paperbench.catalogue import FAMILIES, NETS, PLACEMENTS, SHORTCUTS, Net, resolve
from paperbench.models import ResidualNet
from tests.reference import Parameters, forward, units_of_stages

# Two units per stage, so that each stage has a unit that keeps dimensions, or the smallest net of the family.
SMALL = {"basic": 14, "bottleneck": 20, "one_layer": 8, "imagenet_basic": 18, "imagenet_bottleneck": 50}
OF_FAMILY = {
    "basic": "original_resnet110",
    "bottleneck": "original_resnet164",
    "one_layer": "original_resnet110_1layer",
}
GATED = ("exclusive_gating", "shortcut_only_gating")


def case(name: str, kwargs: dict[str, Any], *, full: bool) -> Any:
    return pytest.param(small(name, **kwargs), id=f"{name}-{kwargs}", marks=pytest.mark.full if full else ())


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images_for(net: Net) -> Tensor:
    """Two images, not square and with an odd side where possible, so that mixed-up positions show."""
    height, width = (64, 48) if FAMILIES[net.family].pools_early else (13, 10)
    return torch.randn(2, net.in_chans, height, width, dtype=torch.float64, generator=generator(2))


def randomised(net: Net, *, seed: int = 1) -> ResidualNet:
    """A net in float64 with random scales, shifts, biases and BN statistics, since initial values can hide errors."""
    model, source = ResidualNet(net), generator(seed)
    model.init_weights(generator(seed))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, low in ((module.weight, 0.5), (module.bias, -0.5), (module.running_var, 0.5)):
                assert tensor is not None
                tensor.data.uniform_(low, low + 1, generator=source)
            assert module.running_mean is not None
            module.running_mean.uniform_(-0.5, 0.5, generator=source)
        elif isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            module.bias.data.uniform_(-2, 0.5, generator=source)
    return model.double()


class ReadState(dict[str, Tensor]):
    """A copy of a state dict that records the unread tensors."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__({k: v.detach().clone().requires_grad_(v.requires_grad) for k, v in state.items()})
        self.unread = {key for key in self if not key.endswith("num_batches_tracked")}

    def __getitem__(self, key: str) -> Tensor:
        self.unread.discard(key)
        return super().__getitem__(key)


def assert_equals_reference(model: ResidualNet, images: Tensor) -> None:
    for training in (True, False):
        state = ReadState(model.state_dict(keep_vars=True))
        model.train(training)
        model.zero_grad()
        torch.manual_seed(3)  # dropout
        ours = model(images)
        torch.manual_seed(3)
        theirs = forward(model.net, state, images, training=training)
        assert not state.unread
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
        cotangent = torch.linspace(-1, 1, ours.numel(), dtype=ours.dtype).view_as(ours)
        ours.backward(cotangent)
        theirs.backward(cotangent)
        for key, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, state[key].grad, rtol=1e-7, atol=1e-9, msg=key)
        for key, buffer in model.named_buffers():
            if "running" in key:
                torch.testing.assert_close(buffer, state[key], rtol=1e-9, atol=1e-9, msg=key)


def small(name: str, **kwargs: Any) -> Net:
    return resolve(name, depth=SMALL[NETS[name].family], **kwargs)


# Names that give the same net at the small depth are tested once.
SMALL_NETS = {small(name): name for name in reversed(list(NETS))}
SLOW_NAMES = ("preact_resnet18", "original_resnet50", "preact_resnet50", "resnet101_bn_after_addition")


def names() -> Iterator[Any]:
    for net, name in SMALL_NETS.items():
        yield pytest.param(net, id=name, marks=pytest.mark.full if name in SLOW_NAMES else ())


def combinations() -> Iterator[Any]:
    """All shortcuts in all placements, with the options of each. Most combinations of options run with --full."""
    for family, name in OF_FAMILY.items():
        for shortcut in SHORTCUTS:
            for placement in PLACEMENTS:
                both = {"shortcut": shortcut, "placement": placement}
                is_slow = shortcut not in ("identity", "exclusive_gating")
                yield case(name, both, full=is_slow and family != "basic")
                yield case(name, {**both, "residual_dropout": 0.3}, full=is_slow or family == "bottleneck")
                if family != "bottleneck" and shortcut != "conv":
                    yield case(name, {**both, "shortcut_option": "B"}, full=is_slow or family != "basic")
                if family != "one_layer" and "preact" in placement:
                    yield case(name, {**both, "transition_shortcut": "raw"}, full=is_slow)


LARGE: list[tuple[str, dict[str, Any]]] = [
    *(
        (name, {"placement": p})
        for name in ("original_resnet18", "original_resnet50")
        for p in PLACEMENTS
        if p != "original"
    ),
    *((name, {"shortcut": s}) for name in ("original_resnet18", "preact_resnet50") for s in (GATED[0], "conv")),
    ("original_resnet50", {"stride_in": "middle"}),
    ("preact_resnet50", {"stride_in": "middle", "transition_shortcut": "raw"}),
    ("original_resnet50", {"shortcut": "exclusive_gating", "placement": "relu_only_preact"}),
]


@pytest.mark.parametrize("net", [case(n, k, full=n.endswith("50") and len(k) < 2) for n, k in LARGE])
def test_outputs_of_imagenet_nets(net: Net) -> None:
    """Without gradients, which take most of the time in these nets."""
    model, images = randomised(net).eval(), images_for(net)
    with torch.no_grad():
        expected = forward(net, model.state_dict(), images, training=False)
        torch.testing.assert_close(model(images), expected, rtol=1e-9, atol=1e-9)


ARGUMENTS: list[tuple[str, dict[str, Any]]] = [
    ("preact_resnet110", {"num_classes": 7}),
    ("preact_resnet110", {"num_classes": 0}),
    ("preact_resnet110", {"in_chans": 1}),
    ("resnet110_constant_scaling", {"shortcut_scale": 0.7, "residual_scale": 0.4}),
    ("resnet110_dropout_shortcut", {"inverted": True}),
    ("resnet110_dropout_shortcut", {"inverted": True, "placement": "preact", "transition_shortcut": "raw"}),
    *(
        (name, {"shortcut": "conv", "shortcut_bn": bn, "placement": placement})
        for name in ("original_resnet110", "original_resnet164")
        for placement in PLACEMENTS
        for bn in (True, False)
    ),
    *(("original_resnet164", {"stride_in": "middle", "placement": placement}) for placement in PLACEMENTS),
    ("original_resnet18", {"shortcut_option": "A"}),
    ("preact_resnet18", {"residual_dropout": 0.3}),
    ("original_resnet164", {"shortcut_option": "A"}),
    ("preact_resnet164", {"shortcut_option": "A"}),
    ("preact_resnet18", {"shortcut_option": "A", "transition_shortcut": "raw"}),
]


def with_arguments() -> Iterator[Any]:
    for name, kwargs in ARGUMENTS:
        yield case(name, kwargs, full=name.endswith("resnet18"))


@pytest.mark.parametrize("net", [*names(), *combinations(), *with_arguments()])
def test_nets_at_a_small_depth(net: Net) -> None:
    assert_equals_reference(randomised(net), images_for(net))


@pytest.mark.parametrize("shortcut", GATED)
@pytest.mark.parametrize("kwargs", [{}, {"gate_bias": 0.0}, {"gate_bias": -3.0}, {"gate_init": "gaussian"}])
def test_initial_gates(shortcut: str, kwargs: dict[str, Any]) -> None:
    """With initial values; the other tests randomise the gate biases."""
    net = small("original_resnet110", shortcut=shortcut, **kwargs)
    model = ResidualNet(net)
    model.init_weights(generator(4))
    gates = {key: value for key, value in model.state_dict().items() if "addition.gate" in key}
    assert len(gates) == 2 * 6
    for key, value in gates.items():
        if key.endswith("bias"):
            assert (value == kwargs.get("gate_bias", -6.0)).all()
        else:
            std = 0.01 if "gate_init" in kwargs else math.sqrt(2 / len(value))
            assert abs(value.std().item() / std - 1) < 5 / math.sqrt(2 * value.numel()), key
    assert_equals_reference(model.double(), images_for(net))


@pytest.mark.parametrize("name", ["original_resnet110", "preact_resnet110", "original_resnet164", "preact_resnet164"])
def test_outputs_at_full_depth(name: str) -> None:
    model = randomised(resolve(name)).eval()
    images = torch.randn(1, 3, 32, 32, dtype=torch.float64, generator=generator(3))
    with torch.no_grad():
        expected = forward(model.net, model.state_dict(), images, training=False)
        torch.testing.assert_close(model(images), expected, rtol=1e-8, atol=1e-8)


def name_in_torchvision(key: str) -> str:
    for ours, theirs in (
        ("stem.", ""),
        ("residual.", ""),
        ("shortcut.conv", "downsample.0"),
        ("shortcut.bn", "downsample.1"),
    ):
        key = key.replace(ours, theirs)
    if key.startswith("stages."):
        _, stage, rest = key.split(".", 2)
        return f"layer{int(stage) + 1}.{rest}"
    return key if key.startswith("fc") else key.replace("conv.", "conv1.").replace("bn.", "bn1.")


@pytest.mark.parametrize(
    "depth", [18, 50, pytest.param(34, marks=pytest.mark.full), pytest.param(101, marks=pytest.mark.full)]
)
def test_original_nets_equal_torchvisions(depth: int) -> None:
    """Torchvision has the stride of a bottleneck unit in the 3x3 convolution."""
    kwargs = {"stride_in": "middle"} if depth >= 50 else {}
    model = randomised(resolve(f"original_resnet{depth}", **kwargs))
    with torch.device("meta"):
        theirs = getattr(torchvision.models, f"resnet{depth}")()
    theirs.load_state_dict({name_in_torchvision(k): v.clone() for k, v in model.state_dict().items()}, assign=True)
    images = images_for(model.net)
    with torch.no_grad():
        for training in (True, False):  # the second pass uses the moving averages of the first
            model.train(training)
            theirs.train(training)
            torch.testing.assert_close(model(images), theirs(images), rtol=1e-9, atol=1e-9)
    averages = theirs.state_dict()
    for key, buffer in model.named_buffers():
        torch.testing.assert_close(buffer, averages[name_in_torchvision(key)], rtol=1e-9, atol=1e-9, msg=key)


def asymmetric_after_addition(net: Net, state: dict[str, Tensor], images: Tensor, *, training: bool) -> Tensor:
    """Fig. 5(b): the activation f after an addition affects only the next residual function, not its shortcut.

    In `state`, the f of one unit is the "preactivation" of the next unit; the f of the last unit is the tail.
    """
    p, units = Parameters(state, training), units_of_stages(net.family, net.depth)
    names = [f"stages.{stage}.{u}" for stage, n in enumerate(units) for u in range(n)]
    f_of = [*(f"{name}.preactivation.bn" for name in names), "tail.bn"]

    x = p.conv("stem.conv", images, 3, 16)
    x = activated = F.relu(p.bn(f_of[0], x))  # the f of conv1 is symmetric: it comes before the split
    for name, f in zip(names, f_of[1:], strict=True):
        stage, u = map(int, name.split(".")[1:])
        width, stride = 16 * 2**stage, 2 if stage > 0 and u == 0 else 1
        y = p.conv(f"{name}.residual.conv1", activated, 1, width, stride)
        y = p.conv(f"{name}.residual.conv2", F.relu(p.bn(f"{name}.residual.bn1", y)), 3, width)
        y = p.conv(f"{name}.residual.conv3", F.relu(p.bn(f"{name}.residual.bn2", y)), 1, 4 * width)
        if u == 0:  # a projection: both paths of such a unit begin with f
            x = p.conv(f"{name}.shortcut.conv", activated, 1, 4 * width, stride)
        x = x + y
        activated = F.relu(p.bn(f, x))
    return F.linear(activated.mean((2, 3)), state["fc.weight"], state["fc.bias"])


@pytest.mark.parametrize("training", [True, False])
def test_preactivation_equals_asymmetric_after_add_activation(training: bool) -> None:
    net = resolve("preact_resnet164", depth=29)
    model, images = randomised(net).train(training), images_for(net)
    state = ReadState(model.state_dict())
    expected = asymmetric_after_addition(net, state, images, training=training)
    assert not state.unread
    torch.testing.assert_close(model(images), expected, rtol=1e-9, atol=1e-9)
