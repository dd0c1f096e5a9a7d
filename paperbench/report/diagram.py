"""A net drawn as text: the straight line is the shortcut path, and each residual function leaves and rejoins it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest

from paperbench.architecture import Convolution, Unit, macs, num_features, parameters, stem, tail, units
from paperbench.catalogue import FAMILIES, NETS, PLACEMENTS, SHORTCUTS, Component, Net


@dataclass(frozen=True)
class _Columns:
    """Where the lines of gate, if there is one, and residual function run, and where shapes begin."""

    gate: int | None
    residual: int
    shape: int


_UNGATED, _GATED = _Columns(None, 40, 56), _Columns(38, 64, 79)
_SHORTCUT = 12  # column of the shortcut path, which the signal also takes between units
_TEXT = 19  # room for text in a box: "global average pool"


def diagram(net: Net, size: int | None = None) -> str:
    """A picture of a net in ASCII, at most 100 columns wide. Equal units that follow each other are drawn once.

    Args:
        size: Side of the image; what the net is made for if None.
    """
    size = size or FAMILIES[net.family].size
    columns = _UNGATED if net.gate_bias is None else _GATED
    lines = [*_heading(net, size), "", *_stem(net, size, columns)]
    size = stem(net).output_size(size)
    for _, group in groupby(units(net), key=lambda unit: replace(unit, index=0)):
        equal = list(group)
        size = equal[0].output_size(size)
        lines += [*_title(equal, columns), *_unit(net, equal[0], columns)]
        lines += [_line("|", columns, _shape(equal[0].out_channels, size)), _line()]
    return "\n".join([*lines, *_end(net, columns)])


def _heading(net: Net, size: int) -> Iterator[str]:
    placement, shortcut = PLACEMENTS[net.placement], SHORTCUTS[net.shortcut]
    facts = {
        "placement": f"{placement.title}, Fig. {placement.figure} of arXiv:1603.05027",
        "shortcut": f"{shortcut.title}, Fig. {shortcut.figure}",
        "size": f"{net.depth} layers, {sum(net.units)} units, {parameters(net):,} parameters",
        "cost": f"{macs(net, size) / 1e6:.1f}M multiply-accumulates on an image of {_shape(net.in_chans, size)}",
        "shapes": "channels x height x width",
        "notation": "x: signal that enters a unit; F: residual function; /2: stride 2",
    }
    if net.gate_init:
        weights = "He's" if net.gate_init == "he" else "Gaussian with deviation 0.01"
        facts["gate"] = f"g has a value for each channel and pixel; initial weights: {weights}"
    if net.shortcut == "dropout":
        training, testing = ("is doubled", "passes") if net.inverted else ("passes unchanged", "is halved")
        facts["dropout"] = f"in training, what it keeps {training}; in testing, everything {testing}"
    yield _name(net)
    yield from (f"  {key:<12}{fact}" for key, fact in facts.items())


def _name(net: Net) -> str:
    """What the catalogue calls the net, whatever its images and classes; else a name of the paper's kind."""
    for name, known in NETS.items():
        if replace(known, num_classes=net.num_classes, in_chans=net.in_chans) == net:
            return name
    return f"ResNet-{net.depth}"


def _stem(net: Net, size: int, columns: _Columns) -> Iterator[str]:
    first = stem(net)
    yield _line("image", columns, _shape(net.in_chans, size))
    yield _line()
    yield _line(_box(_conv(first.convolution)))
    if first.components:
        yield _line(_box(_words(first.components)))
    if first.pools:
        yield _line("|", columns, _shape(first.convolution.outputs, first.convolution.output_size(size)))
        yield _line(_box("3x3 max pool, /2"))
    yield _line("|", columns, _shape(first.convolution.outputs, first.output_size(size)))
    yield _line()


def _title(equal: list[Unit], columns: _Columns) -> Iterator[str]:
    first, last = equal[0], equal[-1]
    which = f"unit {first.index + 1}"
    if len(equal) > 1:
        which = f"units {first.index + 1} to {last.index + 1}: {len(equal)} equal units"
    start, end = _SHORTCUT + 3, columns.shape + len("64 x 112 x 112")
    yield _row((_SHORTCUT, "|"), (start, f"== stage {first.stage + 1}, {which} ".ljust(end - start, "=")))
    yield _line()


def _unit(net: Net, unit: Unit, columns: _Columns) -> Iterator[str]:
    is_shared = unit.shortcut_reads == "activated"
    if is_shared:
        yield _line(_box(_words(unit.before)))
        yield _line()
    signal = "activated x" if is_shared else "raw x" if unit.before else "x"
    yield _paths(columns, "o", ".", ".", wire_to=columns.residual)
    yield _paths(columns, f"{signal} |{' ' * len(signal)} ", "|", "|")  # the line in the middle, as texts are centred
    boxes = _on_shortcut(unit), _on_gate(net, unit), _on_residual(unit, is_shared)
    for shortcut, gate, residual in zip_longest(*boxes):
        yield _paths(columns, _box(shortcut), _box(gate), _box(residual))
    yield _paths(columns, "|", "  | g", "  | F")
    yield from _factors(net, columns)
    yield _row(_wire(columns.residual), _centred(_SHORTCUT, "(+)"), (_SHORTCUT + 2, "<"), (columns.residual, "'"))
    if unit.after_addition:
        yield _line()
        yield _line(_box(_words(unit.after_addition)))


def _on_shortcut(unit: Unit) -> Iterator[str]:
    if isinstance(unit.resizing, Convolution):
        yield _conv(unit.resizing)
        if unit.resizing_bn:
            yield "BN"
    elif unit.resizing == "zero_pad":
        if unit.stride == 2:
            yield "every 2nd pixel"
        yield f"+ {unit.out_channels - unit.in_channels} zero channels"


def _on_gate(net: Net, unit: Unit) -> Iterator[str]:
    if unit.gate:
        yield _conv(unit.gate)
        yield f"+ b, {net.gate_bias:g} initially"
        yield "sigmoid"


def _on_residual(unit: Unit, is_shared: bool) -> Iterator[str]:
    if unit.before and not is_shared:
        yield _words(unit.before)
    for layer in unit.weight_layers[:-1]:
        yield _conv(layer)
        yield "BN, ReLU"
    yield _conv(unit.weight_layers[-1])
    if unit.last:
        yield _words(unit.last)


def _factors(net: Net, columns: _Columns) -> Iterator[str]:
    """What the two paths go through in front of the addition."""
    if net.shortcut == "exclusive_gating":
        shortcut, residual = f" {_box('times (1 - g)')}<", f">{_box('times g')} "
        yield _paths(columns, shortcut, "+", residual, wire_to=columns.residual)
    elif net.shortcut == "shortcut_only_gating":
        yield _paths(columns, f" {_box('times (1 - g)')}<", "'", "|", wire_to=columns.gate)
    elif net.shortcut == "constant_scaling":
        factors = net.shortcut_scale, net.residual_scale
        shortcut, residual = (_box(None if factor == 1 else f"times {factor:g}") for factor in factors)
        yield _paths(columns, shortcut, "", residual)
    elif net.shortcut == "dropout":
        yield _paths(columns, _box("dropout 0.5"), "", "|")
    else:
        return
    yield _row((_SHORTCUT, "|"), (columns.residual, "|"))


def _end(net: Net, columns: _Columns) -> Iterator[str]:
    if tail(net):
        yield _line(_box(_words(tail(net))))
    yield _line(_box("global average pool"))
    yield _line("|", columns, str(num_features(net)))
    if net.num_classes:
        yield _line(_box(f"classifier, {net.num_classes}"))


def _conv(layer: Convolution) -> str:
    stride = "" if layer.stride == 1 else f", /{layer.stride}"
    return f"{layer.kernel}x{layer.kernel} conv, {layer.outputs}{stride}"


def _words(components: Iterable[Component]) -> str:
    return ", ".join({"bn": "BN", "relu": "ReLU"}[name] for name in components)


def _shape(channels: int, size: int) -> str:
    return f"{channels} x {size} x {size}"


_Piece = tuple[int, str]
"""A text, and the column that it begins in."""


def _line(text: str = "|", columns: _Columns = _UNGATED, shape: str = "") -> str:
    """A line where there is one path alone."""
    return _row(_centred(_SHORTCUT, text), (columns.shape, shape))


def _paths(columns: _Columns, shortcut: str, gate: str, residual: str, wire_to: int | None = None) -> str:
    """A line between split and addition, with a text centred on each path; a wire lies under them."""
    pieces = [_wire(wire_to or _SHORTCUT), _centred(_SHORTCUT, shortcut), _centred(columns.residual, residual)]
    if columns.gate:
        pieces.append(_centred(columns.gate, gate))
    return _row(*pieces)


def _box(text: str | None) -> str:
    return f"[ {text:^{_TEXT}} ]" if text else "|"


def _wire(end: int) -> _Piece:
    return _SHORTCUT, "-" * (end - _SHORTCUT)


def _centred(column: int, text: str) -> _Piece:
    return max(column - len(text) // 2, 0), text


def _row(*pieces: _Piece) -> str:
    """Pieces of text at their columns, the later over the earlier."""
    characters = [" "] * 100
    for column, text in pieces:
        characters[column : column + len(text)] = text
    return "".join(characters).rstrip()
