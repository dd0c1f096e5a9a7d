"""A net unit by unit: what stands where, what it reads, what it costs.

The models are built from it, and diagrams and counts read off it. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from paperbench.catalogue import FAMILIES, PLACEMENTS, Component, Net


@dataclass(frozen=True)
class Convolution:
    """A convolution, padded so that stride 1 keeps the size.

    Attributes:
        inputs, outputs: Channels.
        kernel: Side of the square filter.
        bias: Whether it has one; of the paper's nets, gates alone.
    """

    inputs: int
    outputs: int
    kernel: int
    stride: int
    bias: bool = False

    @property
    def parameters(self) -> int:
        return self.outputs * (self.inputs * self.kernel**2 + self.bias)

    def output_size(self, size: int) -> int:
        """Side of the output for an input of side `size`."""
        return -(-size // self.stride)

    def macs(self, size: int) -> int:
        """Multiply-accumulate operations on one input of side `size`."""
        return self.inputs * self.outputs * self.kernel**2 * self.output_size(size) ** 2


@dataclass(frozen=True)
class Unit:
    """One residual unit.

    Attributes:
        stage, index: Where it stands, both counted from 0.
        in_channels, out_channels: Of the signals that enter and leave it.
        stride: Of the unit as a whole.
        before: Components in front of its first weight layer.
        shortcut_reads: Whether the shortcut is fed by the signal that enters the unit, or by what `before` makes of it.
        resizing: What changes the dimensions on the shortcut: a projection, option A's "zero_pad", or nothing. A
            convolution shortcut is the projection of every unit.
        resizing_bn: Whether BN follows that projection.
        gate: The gate's convolution, if it has one.
        weight_layers: On the residual path.
        last, after_addition: Components behind the last weight layer, and behind the addition.
    """

    stage: int
    index: int
    in_channels: int
    out_channels: int
    stride: int
    before: tuple[Component, ...]
    shortcut_reads: Literal["raw", "activated"]
    resizing: Convolution | Literal["zero_pad"] | None
    resizing_bn: bool
    gate: Convolution | None
    weight_layers: tuple[Convolution, ...]
    last: tuple[Component, ...]
    after_addition: tuple[Component, ...]

    def normalised_channels(self) -> Iterator[int]:
        """Channels of each of the unit's BN layers, in order."""
        if "bn" in self.before:
            yield self.in_channels
        if self.resizing_bn:
            yield self.out_channels
        for layer in self.weight_layers[:-1]:
            yield layer.outputs
        if "bn" in self.last:
            yield self.out_channels
        if "bn" in self.after_addition:
            yield self.out_channels

    def output_size(self, size: int) -> int:
        """Side of the output for an input of side `size`."""
        for layer in self.weight_layers:
            size = layer.output_size(size)
        return size

    def convolutions(self) -> Iterator[Convolution]:
        """All of them, the shortcut's included."""
        if isinstance(self.resizing, Convolution):
            yield self.resizing
        if self.gate:
            yield self.gate
        yield from self.weight_layers


@dataclass(frozen=True)
class Stem:
    """What comes before the first unit.

    Attributes:
        components: Behind the convolution, before any pooling.
        pools: Whether 3x3 max pooling of stride 2 ends it.
    """

    convolution: Convolution
    components: tuple[Component, ...]
    pools: bool

    def output_size(self, size: int) -> int:
        """Side of the output for images of side `size`."""
        size = self.convolution.output_size(size)
        return -(-size // 2) if self.pools else size


def stem(net: Net) -> Stem:
    """Convolution, and BN and ReLU behind it as far as the first unit has none of its own."""
    family = FAMILIES[net.family]
    if family.pools_early:
        # BN and ReLU stand "right after conv1" (Appendix), so before the pooling and never in the first unit.
        return Stem(Convolution(net.in_chans, family.widths[0], 7, 2), ("bn", "relu"), pools=True)
    return Stem(Convolution(net.in_chans, family.widths[0], 3, 1), PLACEMENTS[net.placement].stem, pools=False)


def tail(net: Net) -> tuple[Component, ...]:
    """Components behind the last unit."""
    return PLACEMENTS[net.placement].tail


def num_features(net: Net) -> int:
    """Channels that the classifier reads."""
    family = FAMILIES[net.family]
    return family.widths[-1] * family.expansion


def units(net: Net) -> Iterator[Unit]:
    """The residual units in order.

    Two kinds of unit with pre-activation let it come before the split, so that it feeds both paths (Appendix): the
    first of the net, and those that change dimensions; for option A, on which the paper is silent, the authors' Torch
    harness does so too. `transition_shortcut="raw"` feeds the shortcuts of the latter kind with the raw signal.
    """
    family, placement = FAMILIES[net.family], PLACEMENTS[net.placement]
    channels = family.widths[0]
    for stage, (width, number) in enumerate(zip(family.widths, net.units, strict=True)):
        for index in range(number):
            is_first = stage == index == 0
            outputs = width * family.expansion
            stride = 2 if stage > 0 and index == 0 else 1
            changes_dimensions = stride != 1 or channels != outputs
            shares = is_first or (changes_dimensions and net.transition_shortcut == "activated")
            before = () if is_first and family.pools_early else placement.before
            projects = net.shortcut == "conv" or (changes_dimensions and net.shortcut_option == "B")
            pads = changes_dimensions and net.shortcut_option == "A"
            projection = Convolution(channels, outputs, 1, stride)
            yield Unit(
                stage=stage,
                index=index,
                in_channels=channels,
                out_channels=outputs,
                stride=stride,
                before=before,
                shortcut_reads="activated" if shares and before else "raw",
                resizing=projection if projects else "zero_pad" if pads else None,
                resizing_bn=projects and net.conv_bn,
                gate=Convolution(channels, outputs, 1, stride, bias=True) if net.gate_bias is not None else None,
                weight_layers=_weight_layers(net, channels, width, outputs, stride),
                last=placement.last,
                after_addition=placement.after_addition,
            )
            channels = outputs


def _weight_layers(net: Net, inputs: int, width: int, outputs: int, stride: int) -> tuple[Convolution, ...]:
    kernels = FAMILIES[net.family].kernels
    channels = (inputs, *[width] * (len(kernels) - 1), outputs)
    strided = 1 if net.stride_in == "middle" else 0
    return tuple(
        Convolution(channels[k], channels[k + 1], kernel, stride if k == strided else 1)
        for k, kernel in enumerate(kernels)
    )


def parameters(net: Net) -> int:
    """Number of trainable parameters: convolutions, BN's scales and shifts, gates and classifier."""
    first, last = stem(net), num_features(net)
    convolutions, normalised = [first.convolution], [first.convolution.outputs] if "bn" in first.components else []
    for unit in units(net):
        convolutions += unit.convolutions()
        normalised += unit.normalised_channels()
    normalised += [last] if "bn" in tail(net) else []
    classifier = (last + 1) * net.num_classes
    return sum(c.parameters for c in convolutions) + 2 * sum(normalised) + classifier


def macs(net: Net, size: int | None = None) -> int:
    """Multiply-accumulate operations of the convolutions and the classifier on one image.

    Args:
        size: Side of the image; what the net is made for if None.
    """
    first, size = stem(net), size or FAMILIES[net.family].size
    total = first.convolution.macs(size) + num_features(net) * net.num_classes
    size = first.output_size(size)
    for unit in units(net):
        beside = [c for c in (unit.resizing, unit.gate) if isinstance(c, Convolution)]
        total += sum(convolution.macs(size) for convolution in beside)
        for layer in unit.weight_layers:
            total += layer.macs(size)
            size = layer.output_size(size)
    return total
