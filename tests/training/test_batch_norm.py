"""Batch norm in training, and its averages; `test_fake_gpu.py` checks that trainings do without cuDNN."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
from timm.layers.norm_act import BatchNormAct2d
from torch import nn

import paperbench  # noqa: F401
from paperbench.training.batch_norm import BatchNormAverages, TrainingBatchNorm2d


def test_nets_from_timm_have_torchs_own_batch_norm() -> None:
    model = timm.create_model("preact_resnet20")
    assert {type(m) for m in model.modules() if isinstance(m, nn.BatchNorm2d)} == {nn.BatchNorm2d}


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, BatchNormAct2d])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batch_norm_equals_torchs_on_a_cpu(dtype: torch.dtype, kind: type[nn.BatchNorm2d]) -> None:
    """The averages only nearly: we move them in float32, torch's kernel in float64."""
    torch.manual_seed(0)
    plain = kind(4)
    ours = copy.deepcopy(plain)
    TrainingBatchNorm2d.replace(ours)
    for layout in (torch.channels_last, torch.contiguous_format):
        x = torch.randn(8, 4, 6, 6).to(dtype).contiguous(memory_format=layout)
        for is_training in (True, False):
            results, averages = [], []
            for layer in (plain, copy.deepcopy(ours)):
                images = x.clone().requires_grad_()
                output = layer.train(is_training)(images)
                output.square().sum().backward()
                results.append([output, images.grad, layer.weight.grad, layer.bias.grad])
                if layer is not plain and is_training:
                    move_averages(layer)
                averages.append([layer.running_mean, layer.running_var])
                layer.zero_grad()
            ours.load_state_dict(plain.state_dict())
            assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
            torch.testing.assert_close(*averages, rtol=1e-6, atol=1e-6)


def move_averages(net: nn.Module) -> torch.Tensor:
    """Add the statistics of the last batch to the averages of a net, and return them."""
    averages = BatchNormAverages(net)
    row = averages.last_batch()
    averages.move(row)
    return row


def random_images() -> torch.Tensor:
    """Three groups of four images with three channels, whose means and spreads differ."""
    groups = torch.arange(1.0, 4.0).repeat_interleave(4)[:, None, None, None]
    return torch.randn(12, 3, 5, 5, generator=torch.Generator().manual_seed(0)) * groups + 2 * groups


def test_statistics_and_averages_are_those_of_float64() -> None:
    images, net = random_images(), nn.Sequential(nn.BatchNorm2d(3, momentum=0.3))
    TrainingBatchNorm2d.replace(net[0])
    mean, variance = torch.zeros(3).double(), torch.ones(3).double()
    for group in images.split(4):
        net(group)
        values = group.double().transpose(0, 1).flatten(1)
        expected = torch.stack([values.mean(1), values.var(1)])
        torch.testing.assert_close(move_averages(net).double(), expected.flatten(), rtol=1e-6, atol=1e-6)
        mean, variance = 0.7 * mean + 0.3 * expected[0], 0.7 * variance + 0.3 * expected[1]
    torch.testing.assert_close(net[0].running_mean.double(), mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(net[0].running_var.double(), variance, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_statistics_that_are_not_finite_leave_the_next_ones_alone(value: float) -> None:
    layer = nn.BatchNorm2d(3)
    TrainingBatchNorm2d.replace(layer)
    averages, images = BatchNormAverages(layer), random_images()
    layer(images)
    expected = averages.last_batch()
    layer(torch.full_like(images, value))
    assert not averages.last_batch().isfinite().any()
    layer(images)
    assert torch.equal(averages.last_batch(), expected)
