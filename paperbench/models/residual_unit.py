"""The residual unit of Eqs. (1) and (2), for every shortcut of Fig. 2 and every placement of BN and ReLU in Fig. 4.

Shortcuts, including the gated ones of Fig. 2(c) and (d), are in `paperbench.models.shortcuts`.
"""

from torch import Tensor, nn

from paperbench.architecture import Unit
from paperbench.catalogue import Net
from paperbench.models.parts import component, components, convolution
from paperbench.models.shortcuts import make_addition, make_shortcut


def residual_function(unit: Unit) -> nn.Sequential:
    """Return F of Eq. (1) without the pre-activation. Its convolutions have no bias."""
    function = nn.Sequential()
    for k, layer in enumerate(unit.weight_layers, start=1):
        if unit.dropout and k == len(unit.weight_layers):
            function.add_module("dropout", nn.Dropout(unit.dropout))
        function.add_module(f"conv{k}", convolution(layer))
        for name in unit.placement.last if k == len(unit.weight_layers) else unit.placement.between:
            function.add_module(f"{name}{k}", component(name, layer.outputs))
    return function


class ResidualUnit(nn.Module):
    """One residual unit.

    The identity shortcut carries the raw signal x. In the units with pre-activation that `architecture.units` marks,
    the pre-activation comes before the split and feeds both paths.

    Args:
        unit: One of `architecture.units(net)`.

    Shape: (N, in_channels, H, W) -> (N, out_channels, ceil(H / stride), ceil(W / stride)).
    """

    def __init__(self, net: Net, unit: Unit) -> None:
        super().__init__()
        self.shares_preactivation = unit.shortcut_reads == "activated"
        self.preactivation = components(unit.before, unit.in_channels)
        self.shortcut = make_shortcut(unit)
        self.residual = residual_function(unit)
        self.addition = make_addition(net, unit)
        self.after_addition = components(unit.placement.after_addition, unit.out_channels)

    def paths(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what the addition takes: the signals from shortcut and residual path, and the shortcut's input."""
        activated = self.preactivation(x)
        shortcut_input = activated if self.shares_preactivation else x
        return self.shortcut(shortcut_input), self.residual(activated), shortcut_input

    def forward(self, x: Tensor) -> Tensor:
        shortcut, residual, shortcut_input = self.paths(x)
        y: Tensor = self.after_addition(self.addition(shortcut, residual, shortcut_input))
        return y
