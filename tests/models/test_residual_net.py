from __future__ import annotations

import copy
import itertools
import math
import pickle
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from paperbench.architecture import macs, parameters
from paperbench.catalogue import FAMILIES, NETS, PLACEMENTS, SHORTCUTS, Net, resolve
from paperbench.models import ResidualNet
from tests.helpers import ROOT

# Published counts (osmr/imgclsmob: 164 and 1001; timm and torchvision: ImageNet; v1: 0.27M to 19.4M), or counted from
# the description in the paper.
PARAMETERS = {
    ("original_resnet20", 10): 269_722,
    ("original_resnet56", 10): 853_018,
    ("original_resnet110", 10): 1_727_962,
    ("preact_resnet110", 10): 1_727_962,
    ("original_resnet110_1layer", 10): 1_727_962,
    ("resnet110_conv_shortcut", 10): 1_826_202,
    ("resnet110_exclusive_gating", 10): 1_824_186,
    ("resnet110_shortcut_only_gating", 10): 1_824_186,
    ("resnet110_constant_scaling", 10): 1_727_962,
    ("original_resnet1202", 10): 19_421_274,
    ("original_resnet164", 10): 1_704_154,
    ("preact_resnet164", 10): 1_703_258,
    ("original_resnet1001", 10): 10_328_602,
    ("preact_resnet1001", 10): 10_327_706,
    ("original_resnet20", 100): 275_572,
    ("original_resnet164", 100): 1_727_284,
    ("preact_resnet164", 100): 1_726_388,
    ("preact_resnet1001", 100): 10_350_836,
    ("original_resnet18", 1000): 11_689_512,
    ("original_resnet34", 1000): 21_797_672,
    ("original_resnet50", 1000): 25_557_032,
    ("original_resnet101", 1000): 44_549_160,
    ("original_resnet152", 1000): 60_192_808,
    ("original_resnet200", 1000): 64_673_832,
    ("preact_resnet101", 1000): 44_541_480,
    ("preact_resnet152", 1000): 60_185_128,
    ("preact_resnet200", 1000): 64_666_152,
}
MILLION_MACS = [
    ("original_resnet110", {}, 252.9),
    ("original_resnet164", {}, 244.5),
    ("preact_resnet164", {}, 244.5),
    ("preact_resnet164", {"stride_in": "middle"}, 247.6),
    ("original_resnet1001", {}, 1487.8),
]
SMALL = {"basic": 14, "bottleneck": 20, "one_layer": 8, "imagenet_basic": 18, "imagenet_bottleneck": 50}
SMALL_NETS = {resolve(name, depth=SMALL[NETS[name].family]): name for name in reversed(list(NETS))}


def mark_deep(name: str, *values: object) -> object:
    """A parameter set that runs with --full if building the net takes long; preact_resnet1001 is always tested."""
    is_slow = NETS[name].depth > 1000 and name != "preact_resnet1001"
    return pytest.param(name, *values, marks=pytest.mark.full if is_slow else ())


ALL_NAMES = [mark_deep(name) for name in NETS]


@cache
def build(name: str, **kwargs: object) -> ResidualNet:
    """A net on the meta device, shared by the tests, which must not change it."""
    with torch.device("meta"):
        return ResidualNet(resolve(name, **kwargs))


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("name", "classes"), PARAMETERS)
def test_published_parameter_counts(name: str, classes: int) -> None:
    assert parameters(resolve(name, num_classes=classes)) == PARAMETERS[name, classes]


@pytest.mark.parametrize("name", ALL_NAMES)
def test_modules_have_the_depth_and_parameters_of_the_catalogue(name: str) -> None:
    """All units have the same numbers of BN and ReLU layers, in different order (Sec. 4). Only gates have a bias."""
    model = build(name)
    assert count(model) == parameters(NETS[name])
    modules = dict(model.named_modules())
    kinds = Counter(type(m) for path, m in modules.items() if "shortcut" not in path and "gate" not in path)
    assert kinds[nn.Conv2d] + kinds[nn.Linear] == NETS[name].depth
    assert kinds[nn.BatchNorm2d] == kinds[nn.ReLU] == NETS[name].depth - 1
    for path, module in modules.items():
        if isinstance(module, nn.Conv2d):
            assert (module.bias is not None) == path.endswith("gate"), path


def test_initial_values() -> None:
    model = ResidualNet(resolve("preact_resnet164"))
    model.init_weights(torch.Generator().manual_seed(0))
    for path, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] ** 2
            expected, n = math.sqrt(2 / fan_out), module.weight.numel()
            # Five standard errors of a standard deviation, each about expected / sqrt(2 n).
            assert abs(module.weight.std().item() - expected) < 5 * expected / math.sqrt(2 * n), path
            if n > 1000:  # the maximum of a uniform distribution would be 1.73 standard deviations
                assert module.weight.abs().max().item() > 2.5 * expected, path
        if isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()
    assert (model.fc.bias == 0).all()
    assert 0.9 / 16 < model.fc.weight.abs().max() <= 1 / 16  # uniform within 1/sqrt(256)


def test_orthogonal_initialisation_replaces_only_convolutions() -> None:
    """They are drawn by a generator of their own, in order, so that analyses keep their numbers; in one thread."""
    he, ours = (ResidualNet(resolve("resnet110_exclusive_gating", depth=8, gate_init="gaussian")) for _ in range(2))
    he.init_weights(torch.Generator().manual_seed(0), "fan_in")
    torch.set_num_threads(2)
    ours.init_weights(torch.Generator().manual_seed(0), "orthogonal")
    torch.set_num_threads(1)
    own = torch.Generator().manual_seed(0)
    for name, expected in he.state_dict().items():
        if expected.ndim == 4 and "gate" not in name:
            nn.init.orthogonal_(expected, gain=math.sqrt(2), generator=own)
        assert torch.equal(ours.state_dict()[name], expected), name


def test_initialisation_depends_only_on_its_generator() -> None:
    model = ResidualNet(resolve("preact_resnet20"))
    model.init_weights(torch.Generator().manual_seed(5))
    first = {k: v.clone() for k, v in model.state_dict().items()}
    torch.manual_seed(123)
    model.init_weights(torch.Generator().manual_seed(5))
    assert all(torch.equal(v, first[k]) for k, v in model.state_dict().items())
    model.init_weights(torch.Generator().manual_seed(6))
    assert not torch.equal(model.stem.conv.weight, first["stem.conv.weight"])


def test_initialisation_overwrites_all_values() -> None:
    """As after building a net on the meta device and allocating memory."""
    model = copy.deepcopy(build("resnet110_exclusive_gating", depth=8)).to_empty(device="cpu")
    with torch.no_grad():
        for tensor in itertools.chain(model.parameters(), model.buffers()):
            tensor.fill_(float("nan") if tensor.is_floating_point() else 77)
    model.init_weights(torch.Generator().manual_seed(0))
    fresh = ResidualNet(resolve("resnet110_exclusive_gating", depth=8))
    fresh.init_weights(torch.Generator().manual_seed(0))
    for (name, value), expected in zip(model.state_dict().items(), fresh.state_dict().values(), strict=True):
        assert torch.equal(value, expected), name


def assert_costs_equal_the_module(net: Net) -> None:
    """Compare with the module's parameters and the operations that torch counts on it."""
    with torch.device("meta"):
        model = ResidualNet(net)
    assert parameters(net) == count(model)
    size = FAMILIES[net.family].size
    with FlopCounterMode(display=False) as counter:
        model(torch.empty(1, 3, size, size, device="meta"))
    assert 2 * macs(net) == counter.get_total_flops()


@pytest.mark.parametrize("net", SMALL_NETS, ids=SMALL_NETS.values())
def test_costs_equal_the_module(net: Net) -> None:
    assert_costs_equal_the_module(net)


@pytest.mark.parametrize(
    ("name", "depth"), [("original_resnet110", 8), pytest.param("original_resnet164", 20, marks=pytest.mark.full)]
)
@pytest.mark.parametrize(("shortcut", "placement"), list(itertools.product(SHORTCUTS, PLACEMENTS)))
def test_costs_of_every_shortcut_and_placement(shortcut: str, placement: str, name: str, depth: int) -> None:
    net = resolve(name, shortcut=shortcut, placement=placement, depth=depth)
    assert_costs_equal_the_module(net)
    dropped = replace(net, residual_dropout=0.3)
    assert (parameters(dropped), macs(dropped)) == (parameters(net), macs(net))


@pytest.mark.parametrize(("name", "arguments", "millions"), MILLION_MACS)
def test_published_multiply_accumulates(name: str, arguments: dict[str, str], millions: float) -> None:
    assert macs(resolve(name, **arguments)) / 1e6 == pytest.approx(millions, abs=0.05)


def test_resnet200_adds_16_units_to_resnet152_on_28_pixels() -> None:
    """Footnote 3 of the paper."""
    more = [a - b for a, b in zip(NETS["preact_resnet200"].units, NETS["preact_resnet152"].units, strict=True)]
    assert more == [0, 16, 0, 0]
    stages = build("preact_resnet200").stages
    assert stages[:2](torch.empty(1, 64, 56, 56, device="meta")).shape == (1, 512, 28, 28)


@pytest.mark.parametrize("shortcut", SHORTCUTS)
def test_shortcuts_work_in_bfloat16(shortcut: str) -> None:
    model = ResidualNet(resolve("original_resnet110", depth=8, shortcut=shortcut)).to(torch.bfloat16)
    output = model(torch.randn(4, 3, 32, 32, dtype=torch.bfloat16))
    assert output.dtype == torch.bfloat16
    output.sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.bfloat16 for p in model.parameters())


def test_bfloat16_does_not_round_the_gate_factor() -> None:
    """1 - sigmoid(-6) = 0.9975 is between 0.9961 and 1, which are neighbours in bfloat16.

    The unit's output is rounded too, but up or down per value, so the mean keeps the factor.
    """
    model = ResidualNet(resolve("resnet110_shortcut_only_gating", depth=8, gate_init="gaussian"))
    addition = model.stages[0][0].addition
    nn.init.zeros_(addition.gate.weight)
    h = (1 + torch.rand(8, 16, 64, 64, generator=torch.Generator().manual_seed(0))).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        joined = addition(h, torch.zeros_like(h), h)
    assert joined.dtype == torch.bfloat16
    ratio = joined.double().sum() / h.double().sum()
    assert ratio.item() == pytest.approx(1 - 1 / (1 + math.exp(6)), abs=5e-4)


TRAIN_A_STEP = """
import resource, sys, torch, torch.nn.functional as F
from paperbench.catalogue import resolve
from paperbench.models import ResidualNet

model = ResidualNet(resolve(sys.argv[1]))
optimiser = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
loss = F.cross_entropy(model(torch.randn(8, 3, 32, 32)), torch.arange(8))
loss.backward()
optimiser.step()
assert loss.isfinite()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes only on Linux")
@pytest.mark.parametrize("name", ["preact_resnet1001", "original_resnet1202"])
def test_deepest_nets_train_8_images_in_4_gb(name: str) -> None:
    command = [sys.executable, "-c", TRAIN_A_STEP, name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < 4e9


@pytest.mark.full
def test_deep_net_can_be_copied_and_pickled() -> None:
    """Without exceeding Python's recursion limit."""
    model = build("preact_resnet1001")
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.net == model.net
        assert [(k, v.shape) for k, v in twin.state_dict().items()] == [
            (k, v.shape) for k, v in model.state_dict().items()
        ]
