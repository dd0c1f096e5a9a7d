"""Nets of a user's, as a table names them: `own_nets.py:mixed`."""

from __future__ import annotations

import random

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


class Stateful(nn.Module):
    """Counts its passes where no checkpoint sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return x * self.passes


class Counting(nn.Module):
    """Changes a buffer in every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.get_buffer("passes").add_(1)
        return x


class Twice(nn.Module):
    """Calls its BN twice."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.bn(self.bn(x))
        return y


class Frozen(nn.Module):
    """Keeps its BN in the mode of tests."""

    def __init__(self) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.bn.eval()(x)
        return y


class Pair(nn.Module):
    """Returns two values in training."""

    def forward(self, x: torch.Tensor) -> object:
        return (x, x) if self.training else x


def after(first: str, num_classes: int) -> nn.Module:
    """Return a linear net after a module of this file, given by its name."""
    return nn.Sequential(globals()[first](), nn.Flatten(), nn.Linear(3072, num_classes))


def before(last: str, num_classes: int) -> nn.Module:
    """Return a linear net before a module of this file, given by its name."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3072, num_classes), globals()[last]())


def unlike(kind: str, num_classes: int) -> object:
    """Return what cannot be trained."""
    linear = nn.Linear(3072, num_classes)
    made = {
        "text": "net",
        "empty": nn.Flatten(),
        "lazy": nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes)),
        "double": nn.Sequential(nn.Flatten(), linear.double()),
        "frozen": nn.Sequential(nn.Flatten(), nn.Linear(3072, num_classes).requires_grad_(False)),
        "few": nn.Sequential(nn.Flatten(), nn.Linear(3072, num_classes - 1)),
    }
    return made[kind]


def random_width(num_classes: int) -> nn.Module:
    """Return a net whose initial values are not from torch's generator."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(3072, num_classes))
    with torch.no_grad():
        net[1].bias.fill_(random.random())
    return net
