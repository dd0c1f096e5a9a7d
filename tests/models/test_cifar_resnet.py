from __future__ import annotations

import math

import pytest
import timm
import torch
from torch import Tensor, nn

from paperbench.catalogue import NETS, resolve
from paperbench.errors import PaperbenchError
from paperbench.models import CifarResNet
from tests.reference import ReferenceNet

# Counts published for these nets (osmr/imgclsmob: 164 and 1001; arXiv:1512.03385: 0.27M to 19.4M), to the last digit.
PARAMETERS = {
    ("original_resnet20", 10): 269_722,
    ("original_resnet32", 10): 464_154,
    ("original_resnet44", 10): 658_586,
    ("original_resnet56", 10): 853_018,
    ("original_resnet110", 10): 1_727_962,
    ("preact_resnet110", 10): 1_727_962,
    ("original_resnet1202", 10): 19_421_274,
    ("original_resnet164", 10): 1_704_154,
    ("preact_resnet164", 10): 1_703_258,
    ("original_resnet1001", 10): 10_328_602,
    ("preact_resnet1001", 10): 10_327_706,
    ("original_resnet20", 100): 275_572,
    ("original_resnet56", 100): 858_868,
    ("original_resnet110", 100): 1_733_812,
    ("original_resnet1202", 100): 19_427_124,
    ("original_resnet164", 100): 1_727_284,
    ("preact_resnet164", 100): 1_726_388,
    ("original_resnet1001", 100): 10_351_732,
    ("preact_resnet1001", 100): 10_350_836,
}
CONV_WEIGHTS = {
    "original_resnet20": 267_696,
    "original_resnet110": 1_719_216,
    "preact_resnet110": 1_719_216,
    "original_resnet1202": 19_330_992,
    "original_resnet164": 1_676_464,
    "preact_resnet164": 1_676_464,
    "original_resnet1001": 10_175_920,
    "preact_resnet1001": 10_175_920,
}
CONV_LAYERS = {
    "original_resnet20": 19,
    "original_resnet110": 109,
    "original_resnet1202": 1201,
    "preact_resnet164": 166,
    "original_resnet1001": 1003,
}


def build(name: str, **kwargs: object) -> CifarResNet:
    with torch.device("meta"):
        return CifarResNet(resolve(name, **kwargs))


def count(model: nn.Module, kind: type[nn.Module] = nn.Module) -> int:
    return sum(p.numel() for m in model.modules() if isinstance(m, kind) for p in m.parameters(recurse=False))


@pytest.mark.parametrize(("name", "classes"), PARAMETERS)
def test_parameter_counts(name: str, classes: int) -> None:
    assert count(build(name, num_classes=classes)) == PARAMETERS[name, classes]


@pytest.mark.parametrize("name", CONV_WEIGHTS)
def test_convolution_weights(name: str) -> None:
    assert count(build(name), nn.Conv2d) == CONV_WEIGHTS[name]


@pytest.mark.parametrize("name", CONV_LAYERS)
def test_convolution_layers(name: str) -> None:
    assert sum(isinstance(m, nn.Conv2d) for m in build(name).modules()) == CONV_LAYERS[name]


@pytest.mark.parametrize(("name", "parameters"), [("original_resnet110", 1_730_714), ("preact_resnet110", 1_730_522)])
def test_option_b_on_basic_units(name: str, parameters: int) -> None:
    assert count(build(name, shortcut_option="B")) == parameters


@pytest.mark.parametrize("name", NETS)
def test_weighted_layers_on_the_main_path_are_the_depth_in_the_name(name: str) -> None:
    model = build(name)
    main_path = [
        module
        for path, module in model.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear) and "shortcut" not in path
    ]
    assert len(main_path) == NETS[name].depth


@pytest.mark.parametrize("name", NETS)
def test_placements_hold_the_same_components(name: str) -> None:
    """All these units consist of the same components, only the orders differ (Sec. 4): as many BN and ReLU layers."""
    net, model = NETS[name], build(name)
    main_path = [module for path, module in model.named_modules() if "shortcut" not in path]
    layers = net.depth - 1
    assert sum(isinstance(m, nn.BatchNorm2d) for m in main_path) == layers
    assert sum(isinstance(m, nn.ReLU) for m in main_path) == layers


@pytest.mark.parametrize("name", NETS)
def test_no_convolution_has_a_bias(name: str) -> None:
    assert all(m.bias is None for m in build(name).modules() if isinstance(m, nn.Conv2d))


def reference_for(model: CifarResNet) -> ReferenceNet:
    net = model.net
    state = {k: v.detach().clone().requires_grad_(v.requires_grad) for k, v in model.state_dict(keep_vars=True).items()}
    bottleneck = net.family == "bottleneck"
    return ReferenceNet(state, bottleneck=bottleneck, placement=net.placement, n=net.units_per_stage)


def randomised(model: CifarResNet, seed: int) -> CifarResNet:
    """BN scales, shifts and averages away from their initial values, where mistakes could hide."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor, low in ((module.weight, 0.5), (module.bias, -0.5), (module.running_var, 0.5)):
                tensor.data.uniform_(low, low + 1, generator=generator)
            module.running_mean.uniform_(-0.5, 0.5, generator=generator)
    return model


def assert_equals_reference(model: CifarResNet, images: Tensor) -> None:
    for training in (True, False):
        reference = reference_for(model)
        reference.training = training
        model.train(training)
        model.zero_grad()
        ours, theirs = model(images), reference(images)
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
        cotangent = torch.linspace(-1, 1, ours.numel(), dtype=ours.dtype).view_as(ours)
        ours.backward(cotangent)
        theirs.backward(cotangent)
        for key, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, reference.state[key].grad, rtol=1e-7, atol=1e-9, msg=key)
        for key, buffer in model.named_buffers():
            if "running" in key:
                torch.testing.assert_close(buffer, reference.state[key], rtol=1e-9, atol=1e-9, msg=key)


@pytest.mark.parametrize("name", [n for n in NETS if "110" in n or "164" in n])
def test_outputs_gradients_and_averages_equal_the_reference_in_float64(name: str) -> None:
    model = randomised(CifarResNet(resolve(name, depth=20)), seed=1).double()
    generator = torch.Generator().manual_seed(2)
    assert_equals_reference(model, torch.randn(4, 3, 16, 16, dtype=torch.float64, generator=generator))


@pytest.mark.parametrize("name", ["original_resnet110", "preact_resnet110", "original_resnet164", "preact_resnet164"])
def test_outputs_equal_the_reference_at_full_depth(name: str) -> None:
    model = CifarResNet(resolve(name)).double().eval()
    reference = reference_for(model)
    reference.training = False
    images = torch.randn(1, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        torch.testing.assert_close(model(images), reference(images), rtol=1e-8, atol=1e-8)


def test_initial_values() -> None:
    model = CifarResNet(resolve("preact_resnet164"))
    model.init_weights(torch.Generator().manual_seed(0))
    for path, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] ** 2
            expected, n = math.sqrt(2 / fan_out), module.weight.numel()
            # the standard error of a standard deviation is about expected / sqrt(2 n); five of them
            assert abs(module.weight.std().item() - expected) < 5 * expected / math.sqrt(2 * n), path
            if n > 1000:  # a uniform distribution of that deviation would end at 1.73 of it
                assert module.weight.abs().max().item() > 2.5 * expected, path
        if isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert (module.bias == 0).all()
    assert (model.fc.bias == 0).all()
    assert 0.9 / 16 < model.fc.weight.abs().max() <= 1 / 16  # uniform within 1/sqrt(256)


def test_fan_in_initialisation() -> None:
    model = CifarResNet(resolve("preact_resnet164"))
    model.init_weights(torch.Generator().manual_seed(0), fan="fan_in")
    widening = model.stages[2][5].residual.conv3  # 64 -> 256
    assert widening.weight.std().item() == pytest.approx(math.sqrt(2 / 64), rel=0.05)


def test_initialisation_follows_its_generator_alone() -> None:
    model = CifarResNet(resolve("preact_resnet20"))
    model.init_weights(torch.Generator().manual_seed(5))
    first = {k: v.clone() for k, v in model.state_dict().items()}
    torch.manual_seed(123)
    model.init_weights(torch.Generator().manual_seed(5))
    assert all(torch.equal(v, first[k]) for k, v in model.state_dict().items())
    model.init_weights(torch.Generator().manual_seed(6))
    assert not torch.equal(model.stem.conv.weight, first["stem.conv.weight"])


class TestTimm:
    @pytest.mark.parametrize("name", NETS)
    def test_every_name_is_registered_and_builds_its_net(self, name: str) -> None:
        assert timm.is_model(name)
        with torch.device("meta"):
            assert timm.create_model(name).net == NETS[name]

    def test_listing(self) -> None:
        assert set(timm.list_models("preact_*")) == {n for n in NETS if n.startswith("preact_")}

    def test_arguments_reach_the_net(self) -> None:
        model = timm.create_model("preact_resnet164", depth=11, num_classes=7, in_chans=1)
        assert model(torch.zeros(2, 1, 32, 32)).shape == (2, 7)

    def test_an_illegal_depth_is_refused(self) -> None:
        with pytest.raises(PaperbenchError, match="Nearest: 20 or 26"):
            timm.create_model("preact_resnet110", depth=21)

    def test_features_logits_and_head(self) -> None:
        model = timm.create_model("original_resnet164", depth=11).eval()
        images = torch.randn(2, 3, 32, 32)
        features = model.forward_features(images)
        assert features.shape == (2, 256, 8, 8)
        assert model.forward_head(features, pre_logits=True).shape == (2, 256)
        torch.testing.assert_close(model.forward_head(features), model(images))
        model.reset_classifier(3)
        assert model.get_classifier().out_features == model.num_classes == model.net.num_classes == 3
        assert (model.get_classifier().bias == 0).all()
        model.reset_classifier(0, "")
        assert model(images).shape == (2, 256, 8, 8)

    def test_features_only(self) -> None:
        model = timm.create_model("preact_resnet110", depth=8, features_only=True)
        shapes = [tuple(f.shape) for f in model(torch.zeros(1, 3, 32, 32))]
        assert shapes == [(1, 16, 32, 32), (1, 32, 16, 16), (1, 64, 8, 8)]

    def test_data_configuration_is_the_recipes(self) -> None:
        config = timm.data.resolve_model_data_config(timm.create_model("preact_resnet20"))
        assert config["input_size"] == (3, 32, 32)
        assert config["std"] == (1.0, 1.0, 1.0)
        assert config["crop_pct"] == 1.0
