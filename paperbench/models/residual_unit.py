"""The residual unit of Eqs. (1) and (2), for every placement of BN and ReLU in Fig. 4."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from paperbench.catalogue import Component, Placement
from paperbench.models.shortcuts import make_shortcut


def components(names: Iterable[Component], channels: int) -> nn.Module:
    """BN and ReLU in the given order; the identity if there are none."""
    parts = nn.Sequential()
    for name in names:
        parts.add_module(name, nn.BatchNorm2d(channels) if name == "bn" else nn.ReLU())
    return parts if len(parts) else nn.Identity()


def residual_branch(
    kernels: tuple[int, ...], placement: Placement, in_channels: int, width: int, out_channels: int, stride: int
) -> nn.Sequential:
    """F of Eq. (1), less the pre-activation in front of it.

    The first convolution has the stride: in bottleneck units too, as in v1 and in the authors' code for 1001 layers.
    No convolution has a bias.
    """
    branch = nn.Sequential()
    channels = in_channels
    for k, kernel in enumerate(kernels, start=1):
        is_last = k == len(kernels)
        outputs = out_channels if is_last else width
        step = stride if k == 1 else 1
        branch.add_module(f"conv{k}", nn.Conv2d(channels, outputs, kernel, step, padding=kernel // 2, bias=False))
        for name in placement.last if is_last else ("bn", "relu"):
            branch.add_module(f"{name}{k}", nn.BatchNorm2d(outputs) if name == "bn" else nn.ReLU())
        channels = outputs
    return branch


class ResidualUnit(nn.Module):
    """One residual unit.

    The identity shortcut carries the raw signal x. Two kinds of pre-activation unit differ: in the first unit of the
    net and in units that change dimensions, the pre-activation comes before the split and feeds both paths (Appendix;
    for option A, on which the paper is silent, as the authors' Torch harness does).

    Args:
        kernels: Kernel sizes of the weight layers.
        placement: Where BN and ReLU stand.
        shortcut_option: "A" or "B", used where dimensions change.
        in_channels, width, out_channels: Channels at the input, inside, and at the output.
        stride: Of the first convolution and of the shortcut.
        is_first: Whether this is the first unit of the net.

    Shape: (N, in_channels, H, W) -> (N, out_channels, ceil(H / stride), ceil(W / stride)).
    """

    def __init__(
        self,
        kernels: tuple[int, ...],
        placement: Placement,
        shortcut_option: str,
        in_channels: int,
        width: int,
        out_channels: int,
        stride: int,
        *,
        is_first: bool,
    ) -> None:
        super().__init__()
        changes_dimensions = stride != 1 or in_channels != out_channels
        self.shares_preactivation = is_first or changes_dimensions
        self.preactivation = components(placement.before, in_channels)
        self.shortcut = make_shortcut(shortcut_option, placement, in_channels, out_channels, stride)
        self.residual = residual_branch(kernels, placement, in_channels, width, out_channels, stride)
        self.after_addition = components(placement.after_addition, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        activated = self.preactivation(x)
        shortcut = self.shortcut(activated if self.shares_preactivation else x)
        y: Tensor = self.after_addition(shortcut + self.residual(activated))
        return y
