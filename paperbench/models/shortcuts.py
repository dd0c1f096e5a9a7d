"""What the shortcut does to a signal before the addition: nothing, or a change of dimensions, or a convolution.

Where a unit changes dimensions v1 (Sec. 3.3) offers option A, the strided identity with added zero channels, and option
B, a 1x1 projection; option C is a projection in every unit, Fig. 2(e).
"""

import torch.nn.functional as F
from torch import Tensor, nn

from paperbench.architecture import Convolution, Unit


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
    """A 1x1 convolution without bias, and BN behind it if so wanted.

    Shape: (N, in_channels, H, W) -> (N, out_channels, ceil(H / stride), ceil(W / stride)).
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, *, bn: bool) -> None:
        super().__init__()
        self.add_module("conv", nn.Conv2d(in_channels, out_channels, 1, stride, bias=False))
        if bn:
            self.add_module("bn", nn.BatchNorm2d(out_channels))


def make_shortcut(unit: Unit) -> nn.Module:
    """The shortcut of a unit, without what the addition does to it."""
    if unit.resizing is None:
        return nn.Identity()
    if isinstance(unit.resizing, Convolution):
        return Projection(unit.in_channels, unit.out_channels, unit.stride, bn=unit.resizing_bn)
    return ZeroPadShortcut(unit.in_channels, unit.out_channels, unit.stride)
