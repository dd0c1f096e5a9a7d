"""ASCII diagrams of nets: the shortcut path is a straight line that each residual function leaves and rejoins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby, zip_longest

from paperbench.architecture import Convolution, Unit, macs, num_features, parameters, stem, tail, units
from paperbench.catalogue import FAMILIES, NETS, PLACEMENTS, SHORTCUTS, Component, Net

_COLUMNS = 12, 38, 64
"""Columns of the paths: first the shortcut, then the gate if any, then the residual function."""
_BOX_TEXT_WIDTH = 19  # of "global average pool"


def diagram(net: Net) -> str:
    """Return a diagram of a net in ASCII, at most 100 columns wide. Consecutive equal units are drawn once."""
    size = FAMILIES[net.family].size
    paths = 2 if net.gate_bias is None else 3
    lines = [*_heading(net, size), "", *_stem(net, size, paths)]
    size = stem(net).output_size(size)
    for _, group in groupby(units(net), key=lambda unit: replace(unit, index=0)):
        equal = list(group)
        size = equal[0].output_size(size)
        lines += [*_title(equal, paths), *_unit(net, equal[0])]
        lines += [_line("|", paths, _format_shape(equal[0].out_channels, size)), _line()]
    return "\n".join([*lines, *_end(net, paths)])


def _heading(net: Net, size: int) -> Iterator[str]:
    placement, shortcut = PLACEMENTS[net.placement], SHORTCUTS[net.shortcut]
    facts = {
        "placement": f"{placement.title}, Fig. {placement.figure} of arXiv:1603.05027",
        "shortcut": f"{shortcut.title}, Fig. {shortcut.figure}",
        "size": f"{net.depth} layers, {sum(net.units)} units, {parameters(net):,} parameters",
        "cost": f"{macs(net, size) / 1e6:.1f}M multiply-accumulates on an image of {_format_shape(net.in_chans, size)}",
        "shapes": "channels x height x width",
        "notation": "x: signal that enters a unit; F: residual function; /2: stride 2",
    }
    if net.gate_init:
        weights = "He's" if net.gate_init == "he" else "Gaussian with standard deviation 0.01"
        facts["gate"] = f"g has one value per channel and pixel; initial weights: {weights}"
    if net.shortcut == "dropout":
        rest, test = (" and doubles the others", "changes nothing") if net.inverted else ("", "halves all values")
        facts["dropout"] = f"training drops half of the values{rest}; testing {test}"
    known = (n for n, one in NETS.items() if replace(one, num_classes=net.num_classes, in_chans=net.in_chans) == net)
    yield next(known, f"ResNet-{net.depth}")
    yield from (f"  {key:<12}{fact}" for key, fact in facts.items())


def _stem(net: Net, size: int, paths: int) -> Iterator[str]:
    first = stem(net)
    yield _line("image", paths, _format_shape(net.in_chans, size))
    yield _line()
    yield _line(_box(_format_conv(first.convolution)))
    if first.components:
        yield _line(_box(_format_components(first.components)))
    if first.pools:
        yield _line("|", paths, _format_shape(first.convolution.outputs, first.convolution.output_size(size)))
        yield _line(_box("3x3 max pool, /2"))
    yield _line("|", paths, _format_shape(first.convolution.outputs, first.output_size(size)))
    yield _line()


def _title(equal: list[Unit], paths: int) -> Iterator[str]:
    first, last = equal[0], equal[-1]
    which = f"unit {first.index + 1}"
    if len(equal) > 1:
        which = f"units {first.index + 1} to {last.index + 1}: {len(equal)} equal units"
    start, end = _COLUMNS[0] + 3, _shape_column(paths) + len("64 x 112 x 112")
    yield _row((_COLUMNS[0], "|"), (start, f"== stage {first.stage + 1}, {which} ".ljust(end - start, "=")))
    yield _line()


def _unit(net: Net, unit: Unit) -> Iterator[str]:
    is_shared = unit.shortcut_reads == "activated"
    if is_shared:
        yield _line(_box(_format_components(unit.before)))
        yield _line()
    boxes = [list(_on_shortcut(unit)), list(_on_gate(net, unit)), list(_on_residual(unit, is_shared))]
    names = ["|", "  | g", "  | F"]
    if not unit.gate:
        del boxes[1], names[1]
    signal = "activated x" if is_shared else "raw x" if unit.before else "x"
    others = len(boxes) - 1
    yield _paths("o", *"." * others, wire_to=others)
    yield _paths(f"{signal} |{' ' * len(signal)} ", *"|" * others)  # padded, since texts are centred
    for texts in zip_longest(*boxes):
        yield _paths(*map(_box, texts))
    yield _paths(*names)
    factors = _factors(net)
    if factors:
        yield factors
        yield _row((_COLUMNS[0], "|"), (_COLUMNS[others], "|"))
    yield _row(_wire(others), _centred(_COLUMNS[0], "(+)"), (_COLUMNS[0] + 2, "<"), (_COLUMNS[others], "'"))
    if unit.after_addition:
        yield _line()
        yield _line(_box(_format_components(unit.after_addition)))


def _on_shortcut(unit: Unit) -> Iterator[str]:
    if isinstance(unit.resizing, Convolution):
        yield _format_conv(unit.resizing)
        if unit.resizing_bn:
            yield "BN"
    elif unit.resizing == "zero_pad":
        if unit.stride == 2:
            yield "every 2nd pixel"
        yield f"+ {unit.out_channels - unit.in_channels} zero channels"


def _on_gate(net: Net, unit: Unit) -> Iterator[str]:
    if unit.gate:
        yield _format_conv(unit.gate)
        yield f"+ b, {net.gate_bias:g} initially"
        yield "sigmoid"


def _on_residual(unit: Unit, is_shared: bool) -> Iterator[str]:
    if unit.before and not is_shared:
        yield _format_components(unit.before)
    for layer in unit.weight_layers[:-1]:
        yield _format_conv(layer)
        yield "BN, ReLU"
    yield _format_conv(unit.weight_layers[-1])
    if unit.last:
        yield _format_components(unit.last)


def _factors(net: Net) -> str:
    """Return the line with the factors or the dropout before the addition, or "" if the shortcut has none."""
    if net.shortcut == "exclusive_gating":
        return _paths(f" {_box('times (1 - g)')}<", "+", f">{_box('times g')} ", wire_to=2)
    if net.shortcut == "shortcut_only_gating":
        return _paths(f" {_box('times (1 - g)')}<", "'", "|", wire_to=1)
    if net.shortcut == "constant_scaling":
        factors = net.shortcut_scale, net.residual_scale
        return _paths(*(_box(None if factor == 1 else f"times {factor:g}") for factor in factors))
    return _paths(_box("dropout 0.5"), "|") if net.shortcut == "dropout" else ""


def _end(net: Net, paths: int) -> Iterator[str]:
    if tail(net):
        yield _line(_box(_format_components(tail(net))))
    yield _line(_box("global average pool"))
    yield _line("|", paths, str(num_features(net)))
    if net.num_classes:
        yield _line(_box(f"classifier, {net.num_classes}"))


def _format_conv(layer: Convolution) -> str:
    stride = "" if layer.stride == 1 else f", /{layer.stride}"
    return f"{layer.kernel}x{layer.kernel} conv, {layer.outputs}{stride}"


def _format_components(components: Iterable[Component]) -> str:
    return ", ".join({"bn": "BN", "relu": "ReLU"}[name] for name in components)


def _format_shape(channels: int, size: int) -> str:
    return f"{channels} x {size} x {size}"


def _line(text: str = "|", paths: int = 2, shape: str = "") -> str:
    """Return a line outside units."""
    return _row(_centred(_COLUMNS[0], text), (_shape_column(paths), shape))


def _paths(*texts: str, wire_to: int = 0) -> str:
    """Return a line inside a unit: a text centred on each path, over a wire from the shortcut to path `wire_to`."""
    return _row(_wire(wire_to), *map(_centred, _COLUMNS, texts))


def _shape_column(paths: int) -> int:
    return _COLUMNS[paths - 1] + 16


def _box(text: str | None) -> str:
    return f"[ {text:^{_BOX_TEXT_WIDTH}} ]" if text else "|"


def _wire(path: int) -> tuple[int, str]:
    return _COLUMNS[0], "-" * (_COLUMNS[path] - _COLUMNS[0])


def _centred(column: int, text: str) -> tuple[int, str]:
    return max(column - len(text) // 2, 0), text


def _row(*pieces: tuple[int, str]) -> str:
    """Return a line with texts that start at the given columns. Later ones overwrite earlier ones."""
    characters = [" "] * 100
    for column, text in pieces:
        characters[column : column + len(text)] = text
    return "".join(characters).rstrip()
