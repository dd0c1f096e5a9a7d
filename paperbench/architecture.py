"""The architecture of a net, unit by unit: layers, inputs of the shortcuts and gates, and costs.

Models, diagrams and counts are all derived from it. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from paperbench.catalogue import COMPONENTS, FAMILIES, PLACEMENTS, POOL, SHORTCUTS, Convolution, Net, Placement


@dataclass(frozen=True)
class Unit:
    """One residual unit. Components are names of `COMPONENTS`.

    Attributes:
        stage, index: Position in the net: stage, and unit within the stage, both counted from 0.
        in_channels, out_channels: Channels of the unit's input and output.
        stride: Stride of the whole unit.
        before: Components before the first weight layer, the pre-activation.
        shortcut_reads: Input of the shortcut: the unit's "raw" input, or "activated" by `before`.
        resizing: The layer on the shortcut: a projection, option A's "zero_pad", or None for the identity. With
            convolution shortcuts, Fig. 2(e), every unit has a projection.
        resizing_last: Components after that projection.
        gate: The steps of the gate, Fig. 2(c) and (d), if there is one: convolutions, and the rest in words.
        weight_layers: The convolutions on the residual path.
        dropout: Probability of dropout right before the last of them, if there is any.
        placement: What stands between two of them, after the last, and after the addition.
    """

    stage: int
    index: int
    in_channels: int
    out_channels: int
    stride: int
    before: tuple[str, ...]
    shortcut_reads: Literal["raw", "activated"]
    resizing: Convolution | Literal["zero_pad"] | None
    resizing_last: tuple[str, ...]
    gate: tuple[Convolution | str, ...]
    weight_layers: tuple[Convolution, ...]
    dropout: float | None
    placement: Placement

    def output_size(self, size: int) -> int:
        """Return the side of the output for an input of side `size`."""
        return -(-size // self.stride)


@dataclass(frozen=True)
class Stem:
    """The layers before the first unit.

    Attributes:
        components: Components after the convolution, before any pooling.
        pools: Whether the stem ends with 3x3 max pooling of stride 2.
    """

    convolution: Convolution
    components: tuple[str, ...]
    pools: bool

    def output_size(self, size: int) -> int:
        """Return the side of the output for images of side `size`."""
        size = self.convolution.output_size(size)
        return -(-size // 2) if self.pools else size


def stem(net: Net) -> Stem:
    """Return the stem: the first convolution, and BN and ReLU where the first unit does not bring its own.

    Unit 1 reads BN-ReLU of that convolution in every placement ("the first activation right after conv1 and before
    splitting into two paths", Appendix). Units with another norm or activation between two weight layers have it here.
    """
    family, placement = FAMILIES[net.family], PLACEMENTS[net.placement]
    if family.pools_early:
        # BN and ReLU come "right after conv1" (Appendix), so before the pooling and never in the first unit.
        return Stem(Convolution(net.in_chans, family.widths[0], 7, 2), placement.between, pools=True)
    brought = {COMPONENTS[name].kind for name in placement.before}
    components = tuple(name for name in placement.between if COMPONENTS[name].kind not in brought)
    return Stem(Convolution(net.in_chans, family.widths[0], 3, 1), components, pools=False)


def tail(net: Net) -> tuple[str, ...]:
    """Return the components after the last unit: "an extra activation right after" (Appendix), as units begin with."""
    return PLACEMENTS[net.placement].before


def num_features(net: Net) -> int:
    """Return the number of features that the classifier reads."""
    family = FAMILIES[net.family]
    return family.widths[-1] * family.expansion


def units(net: Net) -> Iterator[Unit]:
    """Yield the residual units in order.

    In two kinds of units the pre-activation comes before the split and feeds both paths (Appendix): the first unit of
    the net, and units that change dimensions. The paper does not say so for option A, but the authors' Torch harness
    does it there too. With `transition_shortcut="raw"`, shortcuts that change dimensions read the raw signal.
    """
    family, placement, shortcut = FAMILIES[net.family], PLACEMENTS[net.placement], SHORTCUTS[net.shortcut]
    projection_norm = placement.projection_norm if net.shortcut_bn is None else ("bn",) * net.shortcut_bn
    channels = family.widths[0]
    for stage, (width, number) in enumerate(zip(family.widths, net.units, strict=True)):
        for index in range(number):
            is_first = stage == index == 0
            outputs = width * family.expansion
            stride = 2 if stage > 0 and index == 0 else 1
            changes_dimensions = stride != 1 or channels != outputs
            shares = is_first or (changes_dimensions and net.transition_shortcut == "activated")
            before = () if is_first and family.pools_early else placement.before
            projects = shortcut.is_convolution or (changes_dimensions and net.shortcut_option == "B")
            pads = changes_dimensions and net.shortcut_option == "A"
            gated = (outputs, outputs, 1) if shortcut.gates_branch else (channels, outputs, stride)
            yield Unit(
                stage=stage,
                index=index,
                in_channels=channels,
                out_channels=outputs,
                stride=stride,
                before=before,
                shortcut_reads="activated" if shares and before else "raw",
                resizing=Convolution(channels, outputs, 1, stride) if projects else "zero_pad" if pads else None,
                resizing_last=projection_norm if projects else (),
                gate=shortcut.gate(net, *gated),
                weight_layers=_weight_layers(net, channels, width, outputs, stride),
                dropout=net.residual_dropout,
                placement=placement,
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


def components(net: Net) -> Iterator[tuple[str, int]]:
    """Yield the components of a net, each with its channels."""
    first = stem(net)
    layers = [(first.components, first.convolution.outputs), (tail(net), num_features(net))]
    for unit in units(net):
        at_end = unit.resizing_last + unit.placement.last + unit.placement.after_addition
        layers += [(unit.before, unit.in_channels), (at_end, unit.out_channels)]
        layers += [(unit.placement.between, layer.outputs) for layer in unit.weight_layers[:-1]]
    yield from ((name, channels) for names, channels in layers for name in names)


def parameters(net: Net) -> int:
    """Return the number of trainable parameters: convolutions (with gates), components, and classifier."""
    total = stem(net).convolution.parameters + (num_features(net) + 1) * net.num_classes
    for unit in units(net):
        layers = (unit.resizing, *unit.gate, *unit.weight_layers)
        total += sum(layer.parameters for layer in layers if isinstance(layer, Convolution))
    return total + sum(COMPONENTS[name].parameters * channels for name, channels in components(net))


def macs(net: Net, size: int | None = None) -> int:
    """Return the multiply-accumulate operations of the convolutions and the classifier on one image.

    Args:
        size: Side of the image in pixels; the family's size if None.
    """
    first, size = stem(net), size or FAMILIES[net.family].size
    total = first.convolution.macs(size) + num_features(net) * net.num_classes
    size = first.output_size(size)
    for unit in units(net):
        end = unit.output_size(size)
        total += _macs([unit.resizing], size) + _macs(unit.weight_layers, size)
        total += _macs(unit.gate, end if SHORTCUTS[net.shortcut].gates_branch else size)
        size = end
    return total


def _macs(steps: Iterable[Convolution | str | None], size: int) -> int:
    total = 0
    for step in steps:
        if isinstance(step, Convolution):
            total += step.macs(size)
            size = step.output_size(size)
        elif step == POOL:
            size = 1
    return total
