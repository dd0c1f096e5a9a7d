"""The six shortcut connections of Fig. 2, including the two gated ones (gating, Sec. 3.1), and their arguments.

`paperbench.models.shortcuts` implements them; `paperbench.models.register` adds others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paperbench.catalogue.families import Family

if TYPE_CHECKING:
    from paperbench.catalogue.nets import Net

POOL = "global average pool"
"""The step that leaves one value per image and channel."""


@dataclass(frozen=True)
class Convolution:
    """A convolution with padding `kernel // 2`.

    Attributes:
        inputs, outputs: Channels.
        kernel: Side of the square filter.
        bias: Initial value of its bias; None without one. In the paper's nets only gates have one.
    """

    inputs: int
    outputs: int
    kernel: int
    stride: int
    bias: float | None = None

    @property
    def parameters(self) -> int:
        return self.outputs * (self.inputs * self.kernel**2 + (self.bias is not None))

    def output_size(self, size: int) -> int:
        """Return the side of the output for an input of side `size`."""
        return -(-size // self.stride)

    def macs(self, size: int) -> int:
        """Return the multiply-accumulate operations on one input of side `size`."""
        return self.inputs * self.outputs * self.kernel**2 * self.output_size(size) ** 2


@dataclass(frozen=True)
class Shortcut:
    """A kind of shortcut connection (Fig. 2 of the paper).

    Attributes:
        name: Value of the argument `shortcut`.
        figure: Number of the figure in the paper; empty without one.
        title: Name in Table 1.
        defaults: Arguments of this kind of shortcut, with their default values.
        weighing: What happens to the shortcut and to the residual path right before the addition, with arguments in
            braces; "" if nothing. With a gate, "times g" or "times (1 - g)".
        gate: Returns the steps of the gate g of a unit with these inputs, outputs and stride: convolutions, and the
            rest in words, of which `POOL` changes the size of the signal.
        gates_branch: Whether the gate reads F, which has the unit's outputs as channels, not the shortcut's input.
        is_convolution: Whether the shortcut of every unit is a projection.
        draws: Whether a forward pass in training draws random numbers.
    """

    name: str
    figure: str
    title: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    weighing: tuple[str, str] = ("", "")
    gate: Callable[[Net, int, int, int], tuple[Convolution | str, ...]] = lambda *_: ()
    gates_branch: bool = False
    is_convolution: bool = False
    draws: bool = False

    def arguments(self, family: Family) -> dict[str, Any]:
        """Return the arguments in nets of a family, with their default values."""
        return {**({} if self.is_convolution else {"shortcut_option": family.shortcut_option}), **self.defaults}


def _gate(net: Net, inputs: int, outputs: int, stride: int) -> tuple[Convolution | str, ...]:
    return Convolution(inputs, outputs, 1, stride, net.gate_bias), "sigmoid"


_SCALES = {"shortcut_scale": 0.5, "residual_scale": 1.0}
_FACTORS = "times {shortcut_scale:g}", "times {residual_scale:g}"
_GATE = {"gate_bias": -6.0, "gate_init": "he"}

SHORTCUTS: dict[str, Shortcut] = {
    s.name: s
    for s in (
        Shortcut("identity", "2(a)", "identity"),
        Shortcut("constant_scaling", "2(b)", "constant scaling", _SCALES, _FACTORS),
        Shortcut("exclusive_gating", "2(c)", "exclusive gating", _GATE, ("times (1 - g)", "times g"), _gate),
        Shortcut("shortcut_only_gating", "2(d)", "shortcut-only gating", _GATE, ("times (1 - g)", ""), _gate),
        Shortcut("conv", "2(e)", "1x1 conv shortcut", {"shortcut_bn": None}, is_convolution=True),
        Shortcut("dropout", "2(f)", "dropout shortcut", {"inverted": False}, ("dropout 0.5", ""), draws=True),
    )
}
