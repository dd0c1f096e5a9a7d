"""Two residual units that are not the paper's, and nets of them.

One has RMSNorm and GELU where full pre-activation, Fig. 4(e), has BN and ReLU. The other has a squeeze-and-excitation
gate on its residual path: h + g F.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paperbench.architecture import Unit
from paperbench.catalogue import POOL, Component, Convolution, Net, Placement, Shortcut, resolve
from paperbench.models import Addition, ResidualNet, register


class RMSNorm(nn.Module):
    """Divides the channels at each position by their root mean square, and scales each (arXiv:1910.07467).

    Shape: (N, channels, H, W), as the output.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.to(x.dtype)
        return F.rms_norm(x.movedim(1, -1), weight.shape, weight, eps=1e-5).movedim(-1, 1)


register(Component("rms", "RMSNorm", "norm", parameters=1), RMSNorm)
register(Component("gelu", "GELU", "activation"), lambda _: nn.GELU())
register(
    Placement("rms_gelu", "", "pre-activation with RMSNorm and GELU", before=("rms", "gelu"), between=("rms", "gelu"))
)


def squeeze(net: Net, inputs: int, outputs: int, stride: int) -> tuple[Convolution | str, ...]:
    """Return the steps of the gate of arXiv:1709.01507, with a reduction of 16."""
    inner = inputs // 16
    return POOL, Convolution(inputs, inner, 1, 1, bias=0), "ReLU", Convolution(inner, outputs, 1, 1, bias=0), "sigmoid"


class SqueezeAddition(Addition):
    """h + g F, where g has one value per image and channel."""

    def __init__(self, unit: Unit) -> None:
        super().__init__()
        channels = unit.out_channels
        self.inner = nn.Conv2d(channels, channels // 16, 1)
        self.outer = nn.Conv2d(channels // 16, channels, 1)

    def init_weights(self, generator: torch.Generator | None) -> set[nn.Module]:
        for layer in (self.inner, self.outer):
            nn.init.zeros_(layer.get_parameter("bias"))
        return set()  # no weights of its own: He's are drawn for both

    def weigh(self, shortcut: Tensor, residual: Tensor, shortcut_input: Tensor) -> tuple[Tensor, Tensor]:
        inner = F.relu(self.inner(residual.mean((2, 3), keepdim=True)))
        return shortcut, torch.sigmoid(self.outer(inner)) * residual


register(
    Shortcut(
        "squeeze",
        "",
        "identity, with squeeze and excitation of F",
        weighing=("", "times g"),
        gate=squeeze,
        gates_branch=True,
    ),
    SqueezeAddition,
)


def rms_gelu(num_classes: int, depth: int = 110) -> ResidualNet:
    """Return a net of units with RMSNorm and GELU."""
    return ResidualNet(resolve("preact_resnet110", depth=depth, num_classes=num_classes, placement="rms_gelu"))


def squeezed(num_classes: int, depth: int = 110) -> ResidualNet:
    """Return a net of units with full pre-activation, and squeeze and excitation on the residual path."""
    return ResidualNet(resolve("preact_resnet110", depth=depth, num_classes=num_classes, shortcut="squeeze"))
