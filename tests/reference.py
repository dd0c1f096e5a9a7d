"""An independent implementation of the paper's nets, as a reference for tests.

Written from the paper's figures and Appendix and deliberately unlike the package: plain calls of torch.nn.functional,
without modules or tables of placements, shortcuts or families. It reads only the arguments of a `Net`, and takes the
parameters as a dictionary with the names of the package's state dict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from paperbench.catalogue import Net

State = Mapping[str, Tensor]


def forward(net: Net, state: State, images: Tensor, *, training: bool) -> Tensor:
    """Return the logits of a net, or its pooled features if it has no classes.

    Args:
        net: The net.
        state: Parameters and buffers by name. Training updates the moving averages in place.
        images: (N, C, H, W).
        training: Training mode. Dropout draws once per unit and kind from the global generator: first in the shape of
            what the last convolution reads, then in that of the shortcut.
    """
    p = Parameters(state, training)
    x = _stem(p, net, images)
    for stage, units in enumerate(units_of_stages(net.family, net.depth)):
        width = (64 if net.family.startswith("imagenet") else 16) * 2**stage
        channels = 4 * width if "bottleneck" in net.family else width
        for u in range(units):
            unit = Unit(p, net, f"stages.{stage}.{u}", channels, stride=2 if stage > 0 and u == 0 else 1)
            x = unit(x, first=stage == 0 and u == 0)
    if net.placement == "preact":
        x = p.bn("tail.bn", x)
    if net.placement in ("preact", "relu_only_preact"):
        x = F.relu(x)
    x = x.mean((2, 3))
    return x if net.num_classes == 0 else F.linear(x, state["fc.weight"], state["fc.bias"])


def units_of_stages(family: str, depth: int) -> tuple[int, ...]:
    """Return the number of units in each stage."""
    if family == "imagenet_basic":
        return {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}[depth]
    if family == "imagenet_bottleneck":
        return {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}[depth]
    n, rest = divmod(depth - 2, {"basic": 6, "bottleneck": 9, "one_layer": 3}[family])
    assert rest == 0
    return (n, n, n)


@dataclass(frozen=True)
class Parameters:
    """The layers with parameters, by name."""

    state: State
    training: bool

    def conv(self, name: str, x: Tensor, side: int, channels: int, stride: int = 1, *, bias: bool = False) -> Tensor:
        weight = self.state[f"{name}.weight"]
        assert weight.shape == (channels, x.shape[1], side, side), name
        return F.conv2d(x, weight, self.state[f"{name}.bias"] if bias else None, stride, side // 2)

    def bn(self, name: str, x: Tensor) -> Tensor:
        mean, var, scale, shift = (
            self.state[f"{name}.{key}"] for key in ("running_mean", "running_var", "weight", "bias")
        )
        return F.batch_norm(x, mean, var, scale, shift, training=self.training, momentum=0.1, eps=1e-5)


def _stem(p: Parameters, net: Net, images: Tensor) -> Tensor:
    if net.family.startswith("imagenet"):  # in all placements, BN and ReLU follow conv1 directly
        x = F.relu(p.bn("stem.bn", p.conv("stem.conv", images, 7, 64, 2)))
        return F.max_pool2d(x, 3, stride=2, padding=1)
    x = p.conv("stem.conv", images, 3, 16)
    if net.placement == "preact":
        return x
    x = p.bn("stem.bn", x)
    return x if net.placement == "relu_only_preact" else F.relu(x)


@dataclass(frozen=True)
class Unit:
    """One residual unit.

    Attributes:
        name: Prefix of its parameters.
        channels, stride: Output channels, and stride of the unit.
    """

    p: Parameters
    net: Net
    name: str
    channels: int
    stride: int

    def __call__(self, x: Tensor, *, first: bool) -> Tensor:
        """Return the unit's output. `first` marks the first unit of the net."""
        p, name, net = self.p, self.name, self.net
        last_bn = f"{name}.residual.bn{self.layers}"
        if net.placement == "original":  # Fig. 4(a)
            return F.relu(self.add(x, p.bn(last_bn, self.weights(x))))
        if net.placement == "bn_after_addition":  # (b)
            return F.relu(p.bn(f"{name}.after_addition.bn", self.add(x, self.weights(x))))
        if net.placement == "relu_before_addition":  # (c)
            return self.add(x, F.relu(p.bn(last_bn, self.weights(x))))
        changes = self.changes_dimensions(x)
        shares = first or (changes and net.transition_shortcut == "activated")
        activated = self.activation(x, first=first)
        read = activated if shares else x
        if net.placement == "relu_only_preact":  # (d)
            return self.add(read, p.bn(last_bn, self.weights(activated)))
        if net.placement == "preact":  # (e)
            return self.add(read, self.weights(activated))
        raise AssertionError(net.placement)

    @property
    def layers(self) -> int:
        return 3 if "bottleneck" in self.net.family else 1 if self.net.family == "one_layer" else 2

    def changes_dimensions(self, x: Tensor) -> bool:
        return self.stride != 1 or x.shape[1] != self.channels

    def activation(self, x: Tensor, *, first: bool) -> Tensor:
        """Return the input of the residual function in a unit with pre-activation."""
        if first and self.net.family.startswith("imagenet"):
            return x  # already activated before the pooling
        if self.net.placement == "preact":
            x = self.p.bn(f"{self.name}.preactivation.bn", x)
        return F.relu(x)

    def weights(self, x: Tensor) -> Tensor:
        """Apply the weight layers: W - BN - ReLU - W, or with one or three W."""
        strided = 2 if self.net.stride_in == "middle" else 1
        r = f"{self.name}.residual"
        for k in range(1, self.layers + 1):
            if k > 1:
                x = F.relu(self.p.bn(f"{r}.bn{k - 1}", x))
            side = 1 if self.layers == 3 and k != 2 else 3
            channels = self.channels // 4 if self.layers == 3 and k != 3 else self.channels
            if k == self.layers and self.p.training and (ratio := self.net.residual_dropout):
                x = x * (F.dropout(torch.ones_like(x), ratio) > 0) / (1 - ratio)
            x = self.p.conv(f"{r}.conv{k}", x, side, channels, self.stride if k == strided else 1)
        return x

    def shortcut(self, read: Tensor) -> Tensor:
        """Return the shortcut path of Fig. 2 before any factor."""
        net, own = self.net, f"{self.name}.shortcut"
        bn = net.placement in ("original", "relu_before_addition", "relu_only_preact")
        if net.shortcut == "conv":
            bn = bn if net.shortcut_bn is None else net.shortcut_bn
        elif not self.changes_dimensions(read):
            return read
        elif net.shortcut_option == "A":  # the even rows and columns, as the first channels
            chosen = torch.eye(self.channels, read.shape[1], dtype=read.dtype, device=read.device)
            return F.conv2d(read, chosen[:, :, None, None], stride=self.stride)
        x = self.p.conv(f"{own}.conv", read, 1, self.channels, self.stride)
        return self.p.bn(f"{own}.bn", x) if bn else x

    def add(self, read: Tensor, f: Tensor) -> Tensor:
        """Return the addition with the factors of Fig. 2.

        Args:
            read: Input of the shortcut and of the gate.
            f: Output of the residual function.
        """
        net, h = self.net, self.shortcut(read)
        if net.shortcut == "constant_scaling":
            assert net.shortcut_scale is not None
            assert net.residual_scale is not None
            return h * net.shortcut_scale + f * net.residual_scale
        if net.shortcut in ("exclusive_gating", "shortcut_only_gating"):
            g = torch.sigmoid(self.p.conv(f"{self.name}.addition.gate", read, 1, self.channels, self.stride, bias=True))
            return h - g * h + (g * f if net.shortcut == "exclusive_gating" else f)
        if net.shortcut == "dropout":
            if self.p.training:
                h = h * (F.dropout(torch.ones_like(h), 0.5) > 0)
                return f + (2 * h if net.inverted else h)
            return f + (h if net.inverted else h / 2)
        assert net.shortcut in ("identity", "conv")
        return h + f
