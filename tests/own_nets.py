"""Nets of a user's, as a table names them: `own_nets.py:mixed`."""

from __future__ import annotations

import torch
from timm.layers.norm_act import BatchNormAct2d
from torch import nn

from paperbench.catalogue import resolve
from paperbench.models import ResidualNet


def mixed(num_classes: int, width: int = 8) -> nn.Module:
    """Return a net with kinds of BN and norms that the paper's nets lack."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, bias=False),
        BatchNormAct2d(width, eps=1e-3),
        nn.Conv2d(width, width, 3, stride=2),
        nn.GroupNorm(2, width),
        nn.GELU(),
        nn.BatchNorm2d(width, affine=False),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.BatchNorm1d(4 * width),
        nn.LayerNorm(4 * width),
        nn.Linear(4 * width, num_classes),
    )


class _Noise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x) if self.training else x


def noisy(num_classes: int) -> nn.Module:
    """Return a net whose noise is not torch's dropout."""
    return nn.Sequential(mixed(num_classes), _Noise())


def without_batch_norm(num_classes: int) -> nn.Module:
    """Return a net with another norm only."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=4),
        nn.GroupNorm(2, 8),
        nn.AdaptiveAvgPool2d(8),
        nn.Flatten(),
        nn.Linear(512, num_classes),
    )


def residual(num_classes: int, depth: int = 8) -> nn.Module:
    """Return one of the paper's nets."""
    return ResidualNet(resolve("preact_resnet20", depth=depth, num_classes=num_classes))
