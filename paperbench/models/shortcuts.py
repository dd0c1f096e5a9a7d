"""The six shortcut connections of Fig. 2: identity, scaling, gating, convolution and dropout.

A shortcut has two parts. `make_shortcut` returns the module on the shortcut path: the identity, what changes the
dimensions, or, for Fig. 2(e), a projection in every unit (option C). `make_addition` returns the module that joins
the shortcut h and the residual function F, with the factors, gates or dropout in front of the addition.

Where a unit changes dimensions, v1 (Sec. 3.3) offers option A, a strided identity with zero channels appended
(`ZeroPadShortcut`), and option B, a projection: a 1x1 convolution, with BN in some placements.

All additions take the signal from the shortcut path and the residual, both (N, C, H, W), and `shortcut_input`, the
signal that enters the shortcut and that gates read. They return (N, C, H, W). Their method `weigh` returns the two
terms of the sum: h(x) and F(x) of Eq. (1) with their factors.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paperbench.architecture import Unit
from paperbench.catalogue import SHORTCUTS, Convolution, Net, Shortcut
from paperbench.models.parts import MAKERS, component, convolution


class ZeroPadShortcut(nn.Module):
    """Option A: subsample by the stride and append zero channels. No parameters.

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


def make_shortcut(unit: Unit) -> nn.Module:
    """Return the module on the shortcut path of a unit, before the addition."""
    if unit.resizing is None:
        return nn.Identity()
    if isinstance(unit.resizing, Convolution):  # options B and C
        projection = nn.Sequential()
        projection.add_module("conv", convolution(unit.resizing))
        for name in unit.resizing_last:
            projection.add_module(name, component(name, unit.out_channels))
        return projection
    return ZeroPadShortcut(unit.in_channels, unit.out_channels, unit.stride)


class Addition(nn.Module):
    """h + F, Eq. (1). Its subclasses take the unit, and the arguments of their shortcut in the catalogue."""

    def init_weights(self, generator: torch.Generator | None) -> set[nn.Module]:  # noqa: ARG002
        """Set what the net's initialisation does not, and return the convolutions that it must leave alone."""
        return set()

    def weigh(self, shortcut: Tensor, residual: Tensor, shortcut_input: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return the two terms of the sum."""
        return shortcut, residual

    def forward(self, shortcut: Tensor, residual: Tensor, shortcut_input: Tensor) -> Tensor:
        h, f = self.weigh(shortcut, residual, shortcut_input)
        return h + f

    def extra_repr(self) -> str:
        plain = {key: value for key, value in vars(self).items() if key[0] != "_" and key != "training"}
        return ", ".join(f"{key}={value}" for key, value in plain.items())


class ScaledAddition(Addition):
    """Constant scaling, Fig. 2(b): `shortcut_scale` h + `residual_scale` F, Eq. (6)."""

    def __init__(self, unit: Unit, shortcut_scale: float, residual_scale: float) -> None:  # noqa: ARG002
        super().__init__()
        self.shortcut_scale, self.residual_scale = shortcut_scale, residual_scale

    def weigh(self, shortcut: Tensor, residual: Tensor, shortcut_input: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        return self.shortcut_scale * shortcut, self.residual_scale * residual


class GatedAddition(Addition):
    """Gated shortcut (Sec. 3.1): exclusive gating, Fig. 2(c), or shortcut-only gating, Fig. 2(d).

    Computes (1 - g) h + g F if `exclusive`, else (1 - g) h + F. The gate g = sigmoid(W_g x + b_g) is a 1x1 convolution
    with bias, so it has one value per output channel and position.

    Args:
        gate_bias: Initial value of b_g.
        gate_init: Initial weights, "he" or "gaussian".
        exclusive: Whether the gate also scales the residual function.
    """

    def __init__(self, unit: Unit, gate_bias: float, gate_init: str, *, exclusive: bool) -> None:
        super().__init__()
        self.exclusive, self.initial_bias, self.initial_weights = exclusive, gate_bias, gate_init
        (self.gate,) = (convolution(step) for step in unit.gate if isinstance(step, Convolution))
        nn.init.constant_(self.gate.get_parameter("bias"), gate_bias)

    def init_weights(self, generator: torch.Generator | None) -> set[nn.Module]:
        nn.init.constant_(self.gate.get_parameter("bias"), self.initial_bias)
        if self.initial_weights == "he":
            return set()
        nn.init.normal_(self.gate.weight, std=0.01, generator=generator)
        return {self.gate}

    def weigh(self, shortcut: Tensor, residual: Tensor, shortcut_input: Tensor) -> tuple[Tensor, Tensor]:
        gate = torch.sigmoid(self.gate(shortcut_input))
        # Not (1 - gate) * shortcut: bfloat16 rounds 1 - g itself, in steps of 0.004 near 1.
        gated = shortcut - gate * shortcut
        return gated, (gate * residual if self.exclusive else residual)


class DropoutAddition(Addition):
    """Dropout of ratio 0.5 on the shortcut, Fig. 2(f), drawn from torch's default generator.

    Follows the text of the paper ("statistically imposes a scale of lambda with an expectation of 0.5"): training does
    not rescale the kept values, and testing halves all values.

    Args:
        inverted: Use inverted dropout, as Caffe's layer does: double the kept values in training, and pass all values
            unchanged in testing.
    """

    def __init__(self, unit: Unit, *, inverted: bool) -> None:  # noqa: ARG002
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.scale = 1.0 if inverted else 0.5  # torch's dropout is inverted

    def weigh(self, shortcut: Tensor, residual: Tensor, shortcut_input: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        dropped: Tensor = self.dropout(shortcut)
        return self.scale * dropped, residual


MAKERS[Shortcut] |= {
    "constant_scaling": ScaledAddition,
    "exclusive_gating": partial(GatedAddition, exclusive=True),
    "shortcut_only_gating": partial(GatedAddition, exclusive=False),
    "dropout": DropoutAddition,
}


def make_addition(net: Net, unit: Unit) -> Addition:
    """Return the module that joins the shortcut and the residual function of a unit."""
    if net.shortcut not in MAKERS[Shortcut]:
        return Addition()
    arguments = {key: getattr(net, key) for key in SHORTCUTS[net.shortcut].defaults}
    addition: Addition = MAKERS[Shortcut][net.shortcut](unit, **arguments)
    return addition
