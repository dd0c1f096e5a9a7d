"""The interface to timm: a quick check per family, and what timm's own tests (test_timm_suite.py) do not cover."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from timm.models import group_parameters
from torch import Tensor, nn

from paperbench.catalogue import FAMILIES, NETS, PLACEMENTS, SHORTCUTS, tags
from paperbench.errors import PaperbenchError
from paperbench.models import ResidualNet


def created(name: str, **kwargs: Any) -> ResidualNet:
    torch.manual_seed(0)
    model = timm.create_model(name, **kwargs)
    assert isinstance(model, ResidualNet)
    return model


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.full if net.depth > 1000 else ()) for n, net in NETS.items()]
)
def test_every_name_builds_its_net_and_configuration(name: str) -> None:
    with torch.device("meta"):
        model = created(name)
    assert model.net == NETS[name]
    size = FAMILIES[NETS[name].family].size
    assert model.pretrained_cfg["tag"] == tags(name)[0]
    assert model.pretrained_cfg["input_size"] == (3, size, size)
    assert model.get_submodule(model.pretrained_cfg["first_conv"]).in_channels == 3
    assert model.get_submodule(model.pretrained_cfg["classifier"]).out_features == NETS[name].num_classes


SMALL = {
    "original_resnet110": 8,
    "preact_resnet164": 11,
    "preact_resnet110_1layer": 5,
    "preact_resnet18": 18,
    "original_resnet50": 50,
}


@pytest.mark.parametrize("ratio", [pytest.param(0, marks=pytest.mark.full), 0.3])
@pytest.mark.parametrize(("name", "depth"), SMALL.items())
def test_timm_interface_of_each_family(name: str, depth: int, ratio: float) -> None:
    """The checks of timm's suite: features, intermediates, classifier reset, TorchScript and backward."""
    model = created(name, depth=depth, residual_dropout=ratio, drop_rate=ratio).eval()
    images = torch.randn(2, 3, 32, 32)
    features, levels = model.forward_intermediates(images)
    assert torch.equal(features, model.forward_features(images))
    assert [level.shape[1] for level in levels] == [info["num_chs"] for info in model.feature_info]
    assert [32 // level.shape[2] for level in levels] == [info["reduction"] for info in model.feature_info]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch prefers export
        scripted = torch.jit.script(model)
    for graph in scripted, torch.fx.symbolic_trace(model):
        torch.testing.assert_close(graph(images), model(images))
    model.reset_classifier(3)
    model.train()(images).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.reset_classifier(0)
    assert model(images).shape == (2, model.num_features)


def test_names_and_tags_are_listed() -> None:
    assert set(timm.list_models("preact_*")) == {n for n in NETS if n.startswith("preact_")}
    listed = set(timm.list_models("preact_*", include_tags=True))
    assert {"preact_resnet164.cifar10", "preact_resnet164.cifar100", "preact_resnet200.imagenet"} <= listed
    assert timm.list_pretrained("preact_*") == [], "no weights to download"
    model = created("preact_resnet164.cifar100", depth=11)
    assert (model.num_classes, model.pretrained_cfg["tag"]) == (100, "cifar100")


def test_arguments_reach_the_net() -> None:
    model = created("preact_resnet164", depth=11, num_classes=7, in_chans=1)
    assert model(torch.zeros(2, 1, 32, 32)).shape == (2, 7)
    gated = created("original_resnet110", depth=8, shortcut="exclusive_gating", gate_bias=-3)
    assert gated.stages[1][0].addition.gate.bias.eq(-3).all()


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("preact_resnet164.cifar1", {}, r"has no tag 'cifar1'\. Did you mean 'cifar10'"),
        ("original_resnet110", {"gate_bias": -3}, "would ignore gate_bias"),
        ("preact_resnet20", {"drop_path_rate": 0.1}, r"must be 0: .* shortcut='dropout'"),
        ("preact_resnet20", {"drop_rate": 1.5}, "drop_rate must be a probability from 0 to 1, not 1.5"),
        ("preact_resnet20", {"global_pool": ""}, "use num_classes=0 with global_pool=''"),
    ],
)
def test_bad_arguments_are_refused(name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PaperbenchError, match=message):
        created(name, **arguments)


@pytest.mark.parametrize("tag", ["cifar100", "imagenet"])
def test_data_configuration_follows_the_recipe(tag: str) -> None:
    name = "preact_resnet18" if tag == "imagenet" else "preact_resnet20"
    with torch.device("meta"):
        model = created(f"{name}.{tag}")
    config = timm.data.resolve_model_data_config(model)
    assert config["std"] == (1.0, 1.0, 1.0)
    if tag == "imagenet":
        assert (config["input_size"], config["crop_pct"]) == ((3, 224, 224), 0.875)
        test = timm.data.resolve_model_data_config(model, use_test_size=True)
        assert (test["input_size"], test["crop_pct"]) == ((3, 320, 320), 1.0)
    else:
        assert (config["input_size"], config["crop_pct"]) == ((3, 32, 32), 1.0)


def test_head_and_classifier_reset() -> None:
    model = created("original_resnet164", depth=11).eval()
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
    with pytest.raises(PaperbenchError, match="num_classes of a net: must be at least 0, not -1"):
        model.reset_classifier(-1)


def test_drop_rate_drops_features_before_the_classifier_in_training() -> None:
    model, features = created("preact_resnet20", depth=8, drop_rate=0.3), torch.randn(50, 64, 2, 2)
    model.reset_classifier(3)
    torch.manual_seed(1)
    kept = (F.dropout(torch.ones(50, 64), 0.3) > 0) / 0.7
    for training, factor in ((True, kept), (False, 1)):
        torch.manual_seed(1)
        expected = model.fc(features.mean((2, 3)) * factor)
        torch.testing.assert_close(model.train(training).forward_head(features), expected)


@pytest.mark.parametrize(("ours", "theirs"), [(0, 0.3), (0.3, 0)])
def test_weights_fit_with_and_without_residual_dropout(tmp_path: Path, ours: float, theirs: float) -> None:
    file, images, arguments = tmp_path / "net.safetensors", torch.randn(2, 3, 32, 32), {"depth": 8}
    source = created("preact_resnet20", **arguments, residual_dropout=ours).eval()
    described = {"architecture": "preact_resnet20", "arguments": f'{{"depth": 8, "residual_dropout": {ours}}}'}
    save_file(source.state_dict(), file, described)
    arguments |= {"pretrained": True, "pretrained_cfg_overlay": {"file": str(file)}}
    model = created("preact_resnet20", **arguments, residual_dropout=theirs).eval()
    assert torch.equal(model(images), source(images))


@pytest.mark.parametrize(
    ("name", "depth", "size", "shapes"),
    [
        ("preact_resnet110", 8, 32, [(16, 32), (32, 16), (64, 8)]),
        ("preact_resnet50", 50, 64, [(64, 32), (256, 16), (512, 8), (1024, 4), (2048, 2)]),
    ],
)
def test_features_only(name: str, depth: int, size: int, shapes: list[tuple[int, int]]) -> None:
    torch.manual_seed(0)
    model = timm.create_model(name, depth=depth, features_only=True).eval()
    images = torch.randn(1, 3, size, size)
    assert [(f.shape[1], f.shape[2]) for f in model(images)] == shapes
    assert model.feature_info.reduction() == [size // side for _, side in shapes]
    getter = timm.create_model(name, depth=depth, features_only=True, feature_cls="getter").eval()
    assert [(f.shape[1], f.shape[2]) for f in getter(images)] == shapes


def test_forward_intermediates_returns_the_stage_outputs() -> None:
    model, images = created("preact_resnet110", depth=14).eval(), torch.randn(2, 3, 32, 32)
    outputs: list[Tensor] = []
    for stage in model.stages:
        stage.register_forward_hook(lambda _m, _i, output: outputs.append(output))
    _, levels = model.forward_intermediates(images)
    assert all(torch.equal(level, one) for level, one in zip(levels, outputs, strict=True))
    (picked,) = model.forward_intermediates(images, indices=[-2], intermediates_only=True)
    assert torch.equal(picked, levels[1])
    outputs.clear()
    final, (level,) = model.forward_intermediates(images, indices=[1], stop_early=True)
    assert len(outputs) == 2
    assert torch.equal(final, level)
    final, normed = model.forward_intermediates(images, norm=True)
    assert torch.equal(normed[2], final)
    assert torch.equal(normed[2], model.tail(levels[2]))
    assert torch.equal(normed[1], levels[1])
    with pytest.raises(ValueError, match="must be NCHW or NHWC, not NLC"):
        model.forward_intermediates(images, output_fmt="NLC")  # type: ignore[arg-type]


def test_first_level_of_imagenet_nets_is_before_the_pooling() -> None:
    model = created("preact_resnet18").eval()
    pooling_inputs: list[Tensor] = []
    model.stem.pool.register_forward_pre_hook(lambda _m, inputs: pooling_inputs.append(inputs[0]))
    levels = model.forward_intermediates(torch.randn(1, 3, 64, 64), indices=[0], intermediates_only=True)
    assert torch.equal(levels[0], pooling_inputs[0])


def test_pruning_keeps_the_levels() -> None:
    model, images = created("preact_resnet18").eval(), torch.randn(1, 3, 64, 64)
    before = model.forward_intermediates(images, intermediates_only=True)
    assert model.prune_intermediate_layers([2]) == [2]
    after = model.forward_intermediates(images, intermediates_only=True)
    assert all(torch.equal(a, b) for a, b in zip(after, before[:3], strict=True))


def test_parameter_groups_for_layer_wise_learning_rates() -> None:
    model = created("preact_resnet110", depth=14)
    groups = group_parameters(model, model.group_matcher(coarse=False), reverse=True)
    assert set(groups) == {name for name, _ in model.named_parameters()}
    assert groups["stem.conv.weight"] == 0
    assert groups["stages.0.0.residual.conv1.weight"] == 1
    assert groups["stages.2.1.residual.conv1.weight"] == groups["tail.bn.weight"] == 6
    assert groups["fc.weight"] == 7
    coarse = group_parameters(model, model.group_matcher(coarse=True), reverse=True)
    assert coarse["stages.1.0.residual.conv1.weight"] == coarse["stages.1.1.residual.conv2.weight"] == 2


@pytest.mark.parametrize("shortcut", SHORTCUTS)
@pytest.mark.parametrize(("placement", "dropout"), [("original", 0), ("preact", 0), ("preact", 0.3)])
def test_checkpointing_recomputes_units_bit_for_bit(placement: str, dropout: float, shortcut: str) -> None:
    """Including BN's moving averages and dropout."""
    plain = created("original_resnet110", depth=14, placement=placement, shortcut=shortcut, residual_dropout=dropout)
    checkpointed = copy.deepcopy(plain)
    checkpointed.set_grad_checkpointing()
    passes, kept_bytes = [0, 0], [0, 0]
    images = torch.randn(4, 3, 32, 32)
    for which, model in enumerate((plain, checkpointed)):

        def count(*_: object, which: int = which) -> None:
            passes[which] += 1

        def keep(tensor: Tensor, which: int = which) -> Tensor:
            kept_bytes[which] += tensor.nbytes
            return tensor

        model.stages[1][1].residual.conv1.register_forward_hook(count)
        torch.manual_seed(1)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = model(images)
        output.square().sum().backward()
    assert passes == [1, 2]
    assert kept_bytes[1] < kept_bytes[0] / 4
    for (name, a), b in zip(plain.named_parameters(), checkpointed.parameters(), strict=True):
        assert a.grad is not None
        assert torch.equal(a.grad, b.grad), name
    for (name, a), b in zip(plain.named_buffers(), checkpointed.buffers(), strict=True):
        assert torch.equal(a, b), name
    assert {m.momentum for m in checkpointed.modules() if isinstance(m, nn.BatchNorm2d)} == {0.1}
    checkpointed.set_grad_checkpointing(False)
    checkpointed(images)
    assert passes == [1, 3]


def plain_and_checkpointed() -> tuple[ResidualNet, ResidualNet]:
    plain = created("preact_resnet20", depth=8)
    checkpointed = copy.deepcopy(plain)
    checkpointed.set_grad_checkpointing()
    return plain, checkpointed


def assert_equal_gradients(one: ResidualNet, other: ResidualNet, tolerance: float = 0.0) -> None:
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert a.grad is not None
        torch.testing.assert_close(a.grad, b.grad, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("mode", ["evaluation", "training, then evaluation", "evaluation, then training"])
def test_checkpointing_recomputes_in_the_mode_of_the_forward_pass(placement: str, mode: str) -> None:
    plain = created("original_resnet110", depth=8, placement=placement, shortcut="dropout")
    for layer in plain.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.running_mean)
            nn.init.uniform_(layer.running_var, 0.5, 2)
    models, images = (plain, copy.deepcopy(plain)), torch.randn(4, 3, 16, 16)
    models[1].set_grad_checkpointing()
    for model in models:
        torch.manual_seed(1)
        first, _, then = mode.partition(", then ")
        loss = model.train(first == "training")(images).square().sum()
        model.train((then or first) == "training")
        loss.backward()
    assert_equal_gradients(*models)
    assert all(torch.equal(a, b) for a, b in zip(plain.buffers(), models[1].buffers(), strict=True))


@pytest.mark.parametrize("layer", ["dropout", "instance norm", "spectral norm", "loaded statistics"])
def test_checkpointing_repeats_what_a_user_puts_into_a_unit(layer: str) -> None:
    """Random numbers, other buffers that a forward pass writes, statistics replaced before the backward pass."""
    plain = created("preact_resnet20", depth=8)
    residual, images = plain.stages[1][0].residual, torch.randn(4, 3, 16, 16)
    if layer == "dropout":
        residual.bn1 = nn.Dropout(0.5)
    elif layer == "instance norm":
        residual.bn1 = nn.InstanceNorm2d(32, track_running_stats=True)
    elif layer == "spectral norm":
        nn.utils.parametrizations.spectral_norm(residual.conv1)
    models = (plain, copy.deepcopy(plain))
    models[1].set_grad_checkpointing()
    for model in models:
        torch.manual_seed(1)
        loss = model.train(layer != "loaded statistics")(images).square().sum()
        if layer == "loaded statistics":
            model.stages[1][0].residual.bn1.running_var = torch.full((32,), 4.0)
        loss.backward()
    assert_equal_gradients(*models)
    assert all(torch.equal(a, b) for a, b in zip(plain.buffers(), models[1].buffers(), strict=True))


def test_checkpointing_allows_two_backward_passes() -> None:
    models, images = plain_and_checkpointed(), torch.randn(4, 3, 32, 32)
    for model in models:
        loss = model(images).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
    assert_equal_gradients(*models)
    assert all(torch.equal(a, b) for a, b in zip(models[0].buffers(), models[1].buffers(), strict=True))


def test_checkpointing_allows_double_backward() -> None:
    models, images = plain_and_checkpointed(), torch.randn(4, 3, 16, 16, dtype=torch.float64)
    for model in models:
        weights = list(model.double().parameters())
        first = torch.autograd.grad(model(images).square().sum(), weights, create_graph=True)
        torch.stack([g.square().sum() for g in first]).sum().backward()
    assert_equal_gradients(*models, tolerance=1e-9)


@pytest.mark.full
def test_checkpointing_works_with_compilation() -> None:
    """With a backend that traces but generates no code."""
    (plain, checkpointed), images = plain_and_checkpointed(), torch.randn(4, 3, 32, 32)
    plain(images).square().sum().backward()
    torch.compile(checkpointed, backend="aot_eager")(images).square().sum().backward()
    assert_equal_gradients(plain, checkpointed, tolerance=1e-4)
    assert {int(b) for name, b in checkpointed.named_buffers() if name.endswith("num_batches_tracked")} == {1}


def test_checkpointed_features_count_a_batch_once() -> None:
    model = timm.create_model("original_resnet18", features_only=True).train()
    model.model.set_grad_checkpointing()
    torch.stack([level.sum() for level in model(torch.randn(2, 3, 64, 64))]).sum().backward()
    assert {int(b) for name, b in model.named_buffers() if name.endswith("num_batches_tracked")} == {1}


def test_entry_points_can_be_imported_and_pickled() -> None:
    import paperbench.models.residual_net as module

    assert set(NETS) < set(module.__all__)
    assert all(callable(getattr(module, name)) for name in module.__all__)
    assert pickle.loads(pickle.dumps(timm.models.model_entrypoint("preact_resnet20"))) is module.preact_resnet20
