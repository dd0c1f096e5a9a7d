"""Nets and their units in words, for `paperbench plot NET` and for drawings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from paperbench.architecture import Unit, macs, parameters, stem, tail, units
from paperbench.catalogue import COMPONENTS, FAMILIES, NETS, PLACEMENTS, POOL, SHORTCUTS, Convolution, Net


@dataclass(frozen=True)
class Paths:
    """The operations of a unit in the order of execution, as texts.

    Attributes:
        shared: Before the paths split.
        shortcut, gate, residual: On each path. `gate` is empty if the shortcut has no gate.
        gates_branch: Whether the gate reads the end of the residual path.
        weighing: What happens to the shortcut and to the residual path right before the addition; "" if nothing.
        after: After the addition.
    """

    shared: tuple[str, ...]
    shortcut: tuple[str, ...]
    gate: tuple[str, ...]
    gates_branch: bool
    residual: tuple[str, ...]
    weighing: tuple[str, str]
    after: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """All of it in words."""
        shortcut, residual = (
            texts + (last,) * bool(last)
            for texts, last in zip((self.shortcut, self.residual), self.weighing, strict=True)
        )
        parts = {
            "On both paths": self.shared,
            "Gate g": () if self.gates_branch else self.gate,
            "Shortcut": shortcut or ("identity",),
            "Residual path": residual,
            "Gate g, which reads the residual path": self.gate if self.gates_branch else (),
            "After the addition": self.after,
        }
        return " ".join(f"{name}: {', '.join(texts)}." for name, texts in parts.items() if texts)


def paths(net: Net, unit: Unit, *, plain: bool = False) -> Paths:
    """Return what a unit of a net computes.

    Args:
        plain: Leave out channels, strides and biases, as the paper's figures do.
    """
    before, is_shared = component_names(unit.before), unit.shortcut_reads == "activated"

    def conv(layer: Convolution) -> list[str]:
        if plain:
            return ["1x1 conv" if layer.kernel == 1 else "weight"]
        return [format_conv(layer), *([] if layer.bias is None else [f"+ b, {layer.bias:g} initially"])]

    shortcut = list[str]()
    if isinstance(unit.resizing, Convolution):
        shortcut += [*conv(unit.resizing), *component_names(unit.resizing_last)]
    elif unit.resizing == "zero_pad":
        shortcut += ["every 2nd pixel"] if unit.stride == 2 else []
        shortcut += [f"+ {unit.out_channels - unit.in_channels} zero channels"]
    residual = [] if is_shared else [*before]
    for number, layer in enumerate(unit.weight_layers):
        residual += component_names(unit.placement.between) if number else ()
        residual += [f"dropout {unit.dropout:g}"] if unit.dropout and layer is unit.weight_layers[-1] else []
        residual += conv(layer)
    kind = SHORTCUTS[net.shortcut]
    at_shortcut, at_residual = (text.format(**vars(net)) for text in kind.weighing)
    return Paths(
        before if is_shared else (),
        tuple(shortcut),
        tuple(text for step in unit.gate for text in (conv(step) if isinstance(step, Convolution) else [step])),
        kind.gates_branch,
        (*residual, *component_names(unit.placement.last)),
        (at_shortcut.removesuffix("times 1"), at_residual.removesuffix("times 1")),
        component_names(unit.placement.after_addition),
    )


def kinds(net: Net) -> Iterator[list[Unit]]:
    """Yield the units of a net in groups of consecutive equal ones."""
    for _, group in groupby(units(net), key=lambda unit: replace(unit, index=0)):
        yield list(group)


def net_title(net: Net) -> str:
    """Return the name of a net in the catalogue, or its depth."""
    known = (n for n, one in NETS.items() if replace(one, num_classes=net.num_classes, in_chans=net.in_chans) == net)
    return next(known, f"ResNet-{net.depth}")


def unit_title(equal: list[Unit]) -> str:
    """Return the position in the net of some consecutive equal units."""
    first, last = equal[0], equal[-1]
    which = f"unit {first.index + 1}"
    if len(equal) > 1:
        which = f"units {first.index + 1} to {last.index + 1}: {len(equal)} equal units"
    return f"stage {first.stage + 1}, {which}"


def describe(net: Net) -> list[str]:
    """Return a net in sentences: facts, and each part in the order of execution, consecutive equal units once."""
    size = stem(net).output_size(FAMILIES[net.family].size)
    facts = [f"{key}: {fact}." for key, fact in heading(net).items()]
    shape = format_shape(stem(net).convolution.outputs, size)
    lines = [net_title(net), *facts, f"stem, to {shape}. {', '.join(begin(net))}."]
    for equal in kinds(net):
        size = equal[0].output_size(size)
        shape = format_shape(equal[0].out_channels, size)
        lines.append(f"{unit_title(equal)}, to {shape}. {paths(net, equal[0]).sentence}")
    return [*lines, f"end. {', '.join(end(net))}."]


def begin(net: Net) -> list[str]:
    """Return what comes before the first unit."""
    first = stem(net)
    return [format_conv(first.convolution), *component_names(first.components), *["3x3 max pool, /2"] * first.pools]


def end(net: Net) -> list[str]:
    """Return what comes after the last unit."""
    classifier = [f"classifier, {net.num_classes}"] * bool(net.num_classes)
    return [*component_names(tail(net)), POOL, *classifier]


def heading(net: Net) -> dict[str, str]:
    """Return facts about a net and its description by their headings."""
    placement, shortcut, size = PLACEMENTS[net.placement], SHORTCUTS[net.shortcut], FAMILIES[net.family].size
    facts = {
        "placement": placement.title + f", Fig. {placement.figure} of arXiv:1603.05027" * bool(placement.figure),
        "shortcut": shortcut.title + f", Fig. {shortcut.figure}" * bool(shortcut.figure),
        "size": f"{net.depth} layers, {sum(net.units)} units, {parameters(net):,} parameters",
        "cost": f"{macs(net) / 1e6:.1f}M multiply-accumulates on an image of {format_shape(net.in_chans, size)}",
        "notation": "shapes are channels x height x width; /2 is stride 2",
    }
    if net.gate_init:
        weights = "He's" if net.gate_init == "he" else "Gaussian with standard deviation 0.01"
        facts["gate"] = f"g has one value per channel and pixel; initial weights: {weights}"
    if net.shortcut == "dropout":
        rest, test = (" and doubles the others", "changes nothing") if net.inverted else ("", "halves all values")
        facts["dropout"] = f"training drops half of the values{rest}; testing {test}"
    if p := net.residual_dropout:
        facts["dropout (F)"] = f"training drops {p:g} of the values and divides the others by {1 - p:g}; testing none"
    return facts


def format_conv(layer: Convolution) -> str:
    """Return a short text, such as "3x3 conv, 16, /2"."""
    stride = "" if layer.stride == 1 else f", /{layer.stride}"
    return f"{layer.kernel}x{layer.kernel} conv, {layer.outputs}{stride}"


def component_names(components: Iterable[str]) -> tuple[str, ...]:
    """Return the names of components for people."""
    return tuple(COMPONENTS[name].title for name in components)


def format_shape(channels: int, size: int) -> str:
    """Return channels x height x width."""
    return f"{channels} x {size} x {size}"
