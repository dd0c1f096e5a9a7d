"""Shortcut connections: what h(x) of Eq. (1) is in each residual unit.

Where a unit keeps its dimensions the shortcut is the identity. Where it changes them, v1 (Sec. 3.3) offers option A,
the strided identity with added zero channels, and option B, a 1x1 projection.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from paperbench.catalogue import Placement


class ZeroPadShortcut(nn.Module):
    """Option A: every stride-th pixel, and zero channels at the end. No parameters.

    Args:
        in_channels, out_channels: Channels before and after; `out_channels >= in_channels`.
        stride: Sampling step in both directions.

    Shape: (N, in_channels, H, W) -> (N, out_channels, ceil(H / stride), ceil(W / stride)).
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.added_channels = out_channels - in_channels

    def forward(self, x: Tensor) -> Tensor:
        sampled = x[:, :, :: self.stride, :: self.stride]
        return F.pad(sampled, (0, 0, 0, 0, 0, self.added_channels))

    def extra_repr(self) -> str:
        return f"stride={self.stride}, added_channels={self.added_channels}"


class Projection(nn.Sequential):
    """Option B: a 1x1 convolution without bias, and BN where the placement asks for it.

    Shape: (N, in_channels, H, W) -> (N, out_channels, ceil(H / stride), ceil(W / stride)).
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, *, bn: bool) -> None:
        super().__init__()
        self.add_module("conv", nn.Conv2d(in_channels, out_channels, 1, stride, bias=False))
        if bn:
            self.add_module("bn", nn.BatchNorm2d(out_channels))


def make_shortcut(option: str, placement: Placement, in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """The shortcut of one unit: the identity, or option "A" or "B" where dimensions change."""
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    if option == "A":
        return ZeroPadShortcut(in_channels, out_channels, stride)
    return Projection(in_channels, out_channels, stride, bn=placement.projection_bn)
