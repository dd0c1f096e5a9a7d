"""Batch norm that does without cuDNN on GPUs; `test_fake_gpu.py` checks that trainings use it."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import timm
import torch
from torch import nn
from torch._dynamo.backends.debugging import aot_eager

import paperbench  # noqa: F401
from paperbench.catalogue import resolve
from paperbench.data.dataset import ImageDataset
from paperbench.specs.recipe import Recipe
from paperbench.training import compiling
from paperbench.training import trainer as trainer_module
from paperbench.training.batch_norm import BatchNorm2dWithoutCudnn
from paperbench.training.trainer import Trainer
from tests.training.trainings import advance

CPU = torch.device("cpu")


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
