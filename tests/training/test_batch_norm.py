"""Batch norm on GPUs, where it must not use cuDNN."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import timm
import torch
from torch import nn
from torch._dynamo.backends.debugging import aot_eager
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import paperbench  # noqa: F401
from paperbench.catalogue import resolve
from paperbench.data.dataset import ImageDataset
from paperbench.specs.recipe import Recipe
from paperbench.training import compiling
from paperbench.training import trainer as trainer_module
from paperbench.training.batch_norm import BatchNorm2dWithoutCudnn, GroupedBatchNorm2d
from paperbench.training.engine import EngineName
from paperbench.training.trainer import Trainer
from tests.training.tape import Tape
from tests.training.trainings import advance

CPU = torch.device("cpu")


class _Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def one_group(channels: int, device: str) -> GroupedBatchNorm2d:
    return GroupedBatchNorm2d(nn.BatchNorm2d(channels, device=device), group_size=2, groups=1)


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (nn.BatchNorm2d, "cudnn_batch_norm"),
        (BatchNorm2dWithoutCudnn, "native_batch_norm"),
        (
            lambda channels, device: GroupedBatchNorm2d(nn.BatchNorm2d(channels, device=device), 2, 1),
            "native_batch_norm",
        ),
    ],
)
def test_float32_batch_norm_on_a_gpu_does_not_use_cudnn(
    kind: Callable[..., nn.BatchNorm2d], expected: str, is_training: bool
) -> None:
    """On a GPU that need not exist. torch's own layer shows what would happen."""
    with FakeTensorMode(allow_non_fake_inputs=True):  # torch 2.11 takes meta tensors as such
        layer = kind(4, device="cuda").train(is_training)
        layer.num_batches_tracked = None
        x = torch.zeros(2, 4, 8, 8, device="cuda").contiguous(memory_format=torch.channels_last)
        with torch.no_grad(), _Operators() as seen:
            layer(x)
    assert {name for name in seen.names if "batch_norm" in name} == {expected}


class _Functions(TorchFunctionMode):
    """Records which functions of torch normalise."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "batch_norm" in getattr(function, "__name__", ""):
            self.names.add(function.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("group", [8, 16])
@pytest.mark.parametrize("engine", ["eager", "graph"])
def test_training_and_tests_normalise_without_cudnn(
    recipe: Recipe, tiny_dataset: ImageDataset, monkeypatch: pytest.MonkeyPatch, engine: EngineName, group: int
) -> None:
    """Two groups of 8 images a step, or one of 16; the re-estimation ends with a single group."""
    monkeypatch.setattr(trainer_module, "CudaCapture", lambda device: Tape())
    recipe = replace(recipe, batch_norm=replace(recipe.batch_norm, group=group))
    trainer = Trainer(resolve("original_resnet20", depth=8), recipe, tiny_dataset, 0, "fp32", CPU, engine)
    with _Functions() as seen:
        trainer.step()
        trainer.test()
        trainer.finish()
    assert "native_batch_norm" in seen.names
    assert all(name.startswith("native_batch_norm") for name in seen.names)  # the tape replays operators by full name


def test_compiled_net_normalises_one_group_without_cudnn(
    recipe: Recipe, tiny_dataset: ImageDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph.code)
        return aot_eager(graph, inputs)

    monkeypatch.setattr(trainer_module, "compile_units", partial(compiling.compile_units, backend=backend))
    recipe = replace(recipe, batch_norm=replace(recipe.batch_norm, group=16))
    net = resolve("original_resnet20", depth=8)
    compiled, eager = (Trainer(net, recipe, tiny_dataset, 0, "fp32", CPU, e) for e in ("compile", "eager"))
    for trainer in (compiled, eager):
        advance(trainer, 2)
    assert graphs
    assert all("torch.native_batch_norm" in code for code in graphs)
    ours, theirs = compiled.state_dict(), eager.state_dict()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-4, atol=1e-6, msg=name)


def test_nets_from_timm_have_torchs_own_batch_norm() -> None:
    model = timm.create_model("preact_resnet20")
    assert {type(m) for m in model.modules() if isinstance(m, nn.BatchNorm2d)} == {nn.BatchNorm2d}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batch_norm_equals_torchs_on_a_cpu(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    plain = nn.BatchNorm2d(4)
    ours = copy.deepcopy(plain)
    ours.__class__ = BatchNorm2dWithoutCudnn
    for layout in (torch.channels_last, torch.contiguous_format):
        x = torch.randn(8, 4, 6, 6).to(dtype).contiguous(memory_format=layout)
        for is_training in (True, False):
            results = []
            for layer in (plain, copy.deepcopy(ours)):
                images = x.clone().requires_grad_()
                output = layer.train(is_training)(images)
                output.square().sum().backward()
                gradients = [images.grad, layer.weight.grad, layer.bias.grad]
                results.append([output, *gradients, layer.running_mean, layer.running_var])
                layer.zero_grad()
            ours.load_state_dict(plain.state_dict())
            assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
