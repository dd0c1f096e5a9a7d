"""How shortcut and residual function are joined: the additions of Fig. 2, with what multiplies each path before them.

All of them take the shortcut's signal h, the residual function's F, both of shape (N, C, H, W), and `read`, the signal
that the shortcut reads, which gates read too; and return (N, C, H, W).
"""

import torch
from torch import Tensor, nn

from paperbench.architecture import Unit
from paperbench.catalogue import Net


class Addition(nn.Module):
    """h + F, Eq. (1)."""

    def forward(self, shortcut: Tensor, residual: Tensor, read: Tensor) -> Tensor:  # noqa: ARG002  # the others' signature
        return shortcut + residual


class ScaledAddition(nn.Module):
    """Constant scaling, Fig. 2(b): `shortcut_scale` h + `residual_scale` F, Eq. (6)."""

    def __init__(self, shortcut_scale: float, residual_scale: float) -> None:
        super().__init__()
        self.shortcut_scale, self.residual_scale = shortcut_scale, residual_scale

    def forward(self, shortcut: Tensor, residual: Tensor, read: Tensor) -> Tensor:  # noqa: ARG002
        return self.shortcut_scale * shortcut + self.residual_scale * residual

    def extra_repr(self) -> str:
        return f"shortcut_scale={self.shortcut_scale}, residual_scale={self.residual_scale}"


class GatedAddition(nn.Module):
    """Gating, Fig. 2(c) and (d): (1 - g) h + g F if exclusive, else (1 - g) h + F.

    The gate g is a 1x1 convolution with bias b_g and a sigmoid: one value per output channel and position (Sec. 3.1).

    Args:
        in_channels, out_channels: Of the signal that the gate reads, and of h and F.
        stride: Of the unit.
        initial_bias: Initial b_g.
        exclusive: Whether the residual function is gated as well.
    """

    def __init__(
        self, in_channels: int, out_channels: int, stride: int, initial_bias: float, *, exclusive: bool
    ) -> None:
        super().__init__()
        self.exclusive, self.initial_bias = exclusive, initial_bias
        self.gate = nn.Conv2d(in_channels, out_channels, 1, stride)
        self.reset_bias()

    def reset_bias(self) -> None:
        """Set the gate's bias to its initial value."""
        assert self.gate.bias is not None  # noqa: S101
        nn.init.constant_(self.gate.bias, self.initial_bias)

    def forward(self, shortcut: Tensor, residual: Tensor, read: Tensor) -> Tensor:
        gate = torch.sigmoid(self.gate(read))
        kept = shortcut - gate * shortcut  # in bfloat16 1 - g itself would be rounded: next to 1 its steps are 0.004
        return kept + (gate * residual if self.exclusive else residual)

    def extra_repr(self) -> str:
        return f"exclusive={self.exclusive}, initial_bias={self.initial_bias}"


class DropoutAddition(nn.Module):
    """Dropout of ratio 0.5 on the shortcut, Fig. 2(f), drawn from torch's default generator.

    As the text has it ("statistically imposes a scale of lambda with an expectation of 0.5"): what is kept passes
    unchanged in training, and everything is halved in testing.

    Args:
        inverted: Double what is kept in training instead, and halve nothing in testing, as Caffe's layer does.
    """

    def __init__(self, *, inverted: bool) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.scale = 1.0 if inverted else 0.5  # torch's layer is inverted

    def forward(self, shortcut: Tensor, residual: Tensor, read: Tensor) -> Tensor:  # noqa: ARG002
        kept: Tensor = self.dropout(shortcut)
        return self.scale * kept + residual

    def extra_repr(self) -> str:
        return f"scale={self.scale}"


def make_addition(net: Net, unit: Unit) -> nn.Module:
    """The addition of a unit."""
    shape = (unit.in_channels, unit.out_channels, unit.stride)
    match net.shortcut, net.shortcut_scale, net.residual_scale, net.gate_bias, net.inverted:
        case "constant_scaling", float(shortcut_scale), float(residual_scale), _, _:
            return ScaledAddition(shortcut_scale, residual_scale)
        case "exclusive_gating", _, _, float(bias), _:
            return GatedAddition(*shape, bias, exclusive=True)
        case "shortcut_only_gating", _, _, float(bias), _:
            return GatedAddition(*shape, bias, exclusive=False)
        case "dropout", _, _, _, bool(inverted):
            return DropoutAddition(inverted=inverted)
        case _:
            return Addition()
